//! Turns rows into events, fast: payloads share one buffer per chunk, topics and types are interned.
//!
//! Used by the log reader. Invariant: payload bytes are those in the row, always; text that is no UTF-8 elsewhere makes
//! the event defective, with the text as near as Unicode can say it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use litepost_core::{Chunk, Event, Millis, Payload, Seq};
use rusqlite::Row;
use rusqlite::types::ValueRef;

/// Few distinct texts, often: topics and types.
#[derive(Debug, Default)]
struct Interner {
    known: HashMap<Box<[u8]>, Arc<str>>,
    last: Option<Arc<str>>,
}

impl Interner {
    /// Names that hold more than this are no topics; start over rather than grow.
    const LIMIT: usize = 4_096;

    /// What is shared from now on is not shared with what was read before.
    fn renew(&mut self) {
        self.known.clear();
        self.last = None;
    }

    /// The shared text, and whether it was valid UTF-8.
    fn intern(&mut self, bytes: &[u8]) -> (Arc<str>, bool) {
        if let Some(last) = self.last.as_ref().filter(|last| last.as_bytes() == bytes) {
            return (Arc::clone(last), true);
        }
        if let Some(known) = self.known.get(bytes) {
            self.last = Some(Arc::clone(known));
            return (Arc::clone(known), true);
        }
        let Ok(text) = std::str::from_utf8(bytes) else {
            return (String::from_utf8_lossy(bytes).into(), false);
        };
        if self.known.len() >= Self::LIMIT {
            self.known.clear();
        }
        let shared: Arc<str> = text.into();
        self.known.insert(bytes.into(), Arc::clone(&shared));
        self.last = Some(Arc::clone(&shared));
        (shared, true)
    }
}

/// Large chunks have topics and types of their own: while one thread reads the next chunk another one lets go of the one
/// before, and a count that both change for each event goes to and fro between their processors.
const SHARED_EVENTS_MAX: usize = 256;

/// What is kept from chunk to chunk.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    topics: Interner,
    kinds: Interner,
    /// How large the last chunk was: the next is likely as large.
    last_events: usize,
    last_bytes: usize,
}

impl Decoder {
    pub(super) fn batch(&mut self) -> Batch<'_> {
        let (events, bytes) = (self.last_events, self.last_bytes);
        if events >= SHARED_EVENTS_MAX {
            self.topics.renew();
            self.kinds.renew();
        }
        Batch {
            decoder: self,
            events: Vec::with_capacity(events),
            payloads: Vec::with_capacity(events),
            buffer: BytesMut::with_capacity(bytes),
            weight: 0,
            plain: true,
        }
    }
}

/// Which columns a row has.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Columns {
    All,
    /// Those that every event has, and one that says whether there is more.
    Plain,
}

/// Whether a row of [`Columns::Plain`] has something in a column that it leaves out.
pub(super) fn has_more(row: &Row<'_>) -> rusqlite::Result<bool> {
    Ok(row.get_ref(7)? != ValueRef::Null)
}

/// What most events have nothing of.
#[derive(Default)]
struct Rare {
    headers: Option<Box<str>>,
    version: Option<i64>,
    source: Option<Box<str>>,
    deliver_after: Option<i64>,
    expires_at: Option<i64>,
    only_for: Option<Box<str>>,
}

impl Rare {
    fn read(row: &Row<'_>, defects: &mut Defects) -> rusqlite::Result<Self> {
        Ok(Self {
            headers: text(row.get_ref(7)?, "headers", defects),
            version: integer(row.get_ref(8)?),
            source: text(row.get_ref(9)?, "source", defects),
            deliver_after: integer(row.get_ref(10)?),
            expires_at: integer(row.get_ref(11)?),
            only_for: text(row.get_ref(12)?, "only_for", defects),
        })
    }

    fn is_empty(&self) -> bool {
        self.headers.is_none()
            && self.version.is_none()
            && self.source.is_none()
            && self.deliver_after.is_none()
            && self.expires_at.is_none()
            && self.only_for.is_none()
    }
}

/// A chunk in the making.
pub(super) struct Batch<'a> {
    decoder: &'a mut Decoder,
    events: Vec<Event>,
    /// Where each payload lies in the buffer.
    payloads: Vec<Range<usize>>,
    buffer: BytesMut,
    weight: usize,
    plain: bool,
}

impl Batch<'_> {
    /// Whether no event has any of the columns that [`Columns::Plain`] leaves out.
    pub(super) fn is_plain(&self) -> bool {
        self.plain
    }

    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// Adds the event in `row`, whose position is `seq`.
    pub(super) fn push(&mut self, seq: Seq, row: &Row<'_>, columns: Columns) -> rusqlite::Result<()> {
        let mut defects = Defects::default();
        let id = text(row.get_ref(1)?, "id", &mut defects).unwrap_or_default();
        let topic = interned(&mut self.decoder.topics, row.get_ref(2)?, "topic", &mut defects);
        let key = text(row.get_ref(3)?, "key", &mut defects);
        let kind = interned(&mut self.decoder.kinds, row.get_ref(4)?, "type", &mut defects);
        let start = self.buffer.len();
        let is_text = match row.get_ref(5)? {
            ValueRef::Text(bytes) => {
                self.buffer.extend_from_slice(bytes);
                true
            }
            ValueRef::Blob(bytes) => {
                self.buffer.extend_from_slice(bytes);
                false
            }
            other => {
                defects.add("payload", &format!("is {}, neither TEXT nor BLOB", other.data_type()));
                true
            }
        };
        let created_at = Millis(integer(row.get_ref(6)?).unwrap_or(0));
        let rare = match columns {
            Columns::All => Rare::read(row, &mut defects)?,
            Columns::Plain => Rare::default(),
        };
        self.plain &= rare.is_empty();
        // The bytes move into their place when the buffer is complete.
        let placeholder = Bytes::new();
        let event = Event {
            seq,
            id,
            topic,
            key,
            kind,
            payload: if is_text { Payload::Text(placeholder) } else { Payload::Blob(placeholder) },
            headers: rare.headers,
            version: rare.version,
            source: rare.source,
            created_at,
            deliver_after: rare.deliver_after.map(Millis),
            expires_at: rare.expires_at.map(Millis),
            only_for: rare.only_for,
            defect: defects.finish(),
        };
        self.payloads.push(start..self.buffer.len());
        self.weight += event.weight() + (self.buffer.len() - start);
        self.events.push(event);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Arc<Chunk> {
        self.decoder.last_events = self.events.len();
        self.decoder.last_bytes = self.buffer.len();
        // A small chunk behind a large one would keep the large one's room for as long as it lives.
        if self.events.capacity() > 2 * self.events.len() {
            self.events.shrink_to_fit();
        }
        let roomy = self.buffer.capacity() > 2 * self.buffer.len();
        let buffer = if roomy { Bytes::copy_from_slice(&self.buffer) } else { self.buffer.freeze() };
        for (event, range) in self.events.iter_mut().zip(self.payloads) {
            let (Payload::Text(bytes) | Payload::Blob(bytes)) = &mut event.payload;
            *bytes = buffer.slice(range);
        }
        Chunk::new(self.events)
    }
}

/// What is wrong with a row.
#[derive(Default)]
struct Defects(Option<String>);

impl Defects {
    fn add(&mut self, column: &str, problem: &str) {
        let text = self.0.get_or_insert_default();
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(column);
        text.push(' ');
        text.push_str(problem);
    }

    fn finish(self) -> Option<Box<str>> {
        self.0.map(String::into_boxed_str)
    }
}

fn text<'a, T: From<&'a str> + From<String>>(value: ValueRef<'a>, column: &str, defects: &mut Defects) -> Option<T> {
    match value {
        ValueRef::Text(bytes) => Some(std::str::from_utf8(bytes).map_or_else(
            |_| {
                defects.add(column, "is no valid UTF-8");
                String::from_utf8_lossy(bytes).into_owned().into()
            },
            Into::into,
        )),
        // The table is STRICT: anything else is NULL.
        _ => None,
    }
}

fn interned(interner: &mut Interner, value: ValueRef<'_>, column: &str, defects: &mut Defects) -> Arc<str> {
    let bytes = match value {
        ValueRef::Text(bytes) => bytes,
        _ => b"",
    };
    let (shared, valid) = interner.intern(bytes);
    if !valid {
        defects.add(column, "is no valid UTF-8");
    }
    shared
}

fn integer(value: ValueRef<'_>) -> Option<i64> {
    match value {
        ValueRef::Integer(number) => Some(number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;

    fn chunk(decoder: &mut Decoder, outbox: &Connection, events: u32) -> Arc<Chunk> {
        let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
             SELECT i, 'id', 't', NULL, '', printf('%.*c', 1000, 'x'), NULL, NULL, NULL, 1, NULL, NULL, NULL FROM n";
        let mut statement = outbox.prepare(sql).unwrap();
        let mut rows = statement.query([events]).unwrap();
        let mut batch = decoder.batch();
        while let Some(row) = rows.next().unwrap() {
            batch.push(Seq(row.get(0).unwrap()), row, Columns::All).unwrap();
        }
        batch.finish()
    }

    #[test]
    fn a_small_chunk_keeps_no_room_of_a_large_one() {
        let outbox = Connection::open_in_memory().unwrap();
        let mut decoder = Decoder::default();
        chunk(&mut decoder, &outbox, 1_000);
        let small = chunk(&mut decoder, &outbox, 1);
        let (Payload::Text(bytes) | Payload::Blob(bytes)) = small.events()[0].payload.clone();
        drop(small);
        assert_eq!(bytes.len(), 1_000);
        // The only one that is left: its buffer can be had back, with all its room.
        let room = bytes.try_into_mut().unwrap().capacity();
        assert!(room < 4_000, "{room} bytes for a payload of 1,000");
    }
}
