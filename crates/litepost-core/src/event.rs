//! The event as it travels: read from the log once, shared by every destination, never changed.
//!
//! Made by the log reader; read by the pipeline and the sinks. Invariant: nothing here can be mutated after
//! a [`Chunk`] is built, so sharing one between destinations needs no lock.

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

use crate::{InlineStr, Millis, Seq};

/// The body of an event, with the type it has in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// TEXT. SQLite does not check that text is UTF-8, so neither can this: see [`Payload::as_str`].
    Text(Bytes),
    /// BLOB.
    Blob(Bytes),
}

impl Payload {
    /// The bytes as they stand in the log.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &Bytes {
        match self {
            Self::Text(b) | Self::Blob(b) => b,
        }
    }

    /// The text, when the column is TEXT and holds valid UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(b) => std::str::from_utf8(b).ok(),
            Self::Blob(_) => None,
        }
    }
}

/// One row of `litepost_outbox`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Position in the log.
    pub seq: Seq,
    /// Stable and globally unique; what consumers use to recognise a redelivery.
    pub id: InlineStr,
    /// What routes the event. Shared, since a batch has few topics.
    pub topic: Arc<str>,
    /// Ordering key: the aggregate's id. Without one, the topic is the line the event stands in.
    pub key: Option<InlineStr>,
    /// What happened, for example `OrderCreated`; `sql` marks a statement event.
    pub kind: Arc<str>,
    /// The body.
    pub payload: Payload,
    /// A JSON object as text, when the producer gave one.
    pub headers: Option<Box<str>>,
    /// Version of the aggregate, when the producer keeps one.
    pub version: Option<i64>,
    /// Which program or host wrote it, when it said so.
    pub source: Option<Box<str>>,
    /// When the row was written, by the producer's clock.
    pub created_at: Millis,
    /// Not before this time.
    pub deliver_after: Option<Millis>,
    /// Not after this time: past it the event is a dead letter with that reason.
    pub expires_at: Option<Millis>,
    /// The one destination it is for: a replayed dead letter. All others pass it by.
    pub only_for: Option<Box<str>>,
    /// What is wrong with the row itself (a topic that is no UTF-8, say). Such an event can be delivered
    /// nowhere; it goes to the dead letters with this text, its row untouched.
    pub defect: Option<Box<str>>,
}

impl Event {
    /// A plain event for tests and builders: everything optional is absent.
    #[must_use]
    pub fn new(seq: Seq, id: &str, topic: &str, payload: &str) -> Self {
        Self {
            seq,
            id: id.into(),
            topic: topic.into(),
            key: None,
            kind: "".into(),
            payload: Payload::Text(Bytes::copy_from_slice(payload.as_bytes())),
            headers: None,
            version: None,
            source: None,
            created_at: Millis(0),
            deliver_after: None,
            expires_at: None,
            only_for: None,
            defect: None,
        }
    }

    /// Roughly what the event occupies in memory, in bytes; what `max_in_flight_bytes` counts.
    #[must_use]
    #[inline]
    pub fn weight(&self) -> usize {
        const FIXED: usize = 192;
        FIXED
            + self.payload.bytes().len()
            + self.headers.as_ref().map_or(0, |h| h.len())
            + self.key.as_ref().map_or(0, |k| k.len())
    }
}

/// A contiguous piece of the log, read in one go and shared by all destinations.
#[derive(Debug)]
pub struct Chunk {
    events: Vec<Event>,
}

impl Chunk {
    /// Wraps events that were read in one snapshot, in order.
    #[must_use]
    pub fn new(events: Vec<Event>) -> Arc<Self> {
        Arc::new(Self { events })
    }

    /// The events, ascending by `seq`.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

/// One event of a shared [`Chunk`]: cheap to clone, keeps the chunk alive.
#[derive(Clone, Debug)]
pub struct EventRef {
    chunk: Arc<Chunk>,
    index: usize,
}

impl EventRef {
    /// Refers to `chunk.events()[index]`; `None` when there is no such event.
    #[must_use]
    pub fn new(chunk: &Arc<Chunk>, index: usize) -> Option<Self> {
        (index < chunk.events.len()).then(|| Self { chunk: Arc::clone(chunk), index })
    }

    /// Whether both refer to the very same event of the same chunk, and not merely to one with the same position.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.chunk, &other.chunk) && self.index == other.index
    }
}

impl Deref for EventRef {
    type Target = Event;

    #[inline]
    fn deref(&self) -> &Event {
        &self.chunk.events[self.index]
    }
}
