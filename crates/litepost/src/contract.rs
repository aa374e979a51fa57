//! The SQL contract from Rust's side, free of any driver: the INSERT and its bind values.
//!
//! [`crate::enqueue()`] runs it through rusqlite; adapters run the same text through sqlx and others. The statement
//! stands here once, so every way in writes the same row and meets the same guards.

use std::borrow::Cow;

use litepost_core::{Millis, Seq};

use crate::event::{NewEvent, NewPayload, Version};

/// The INSERT. Twelve values, in the order of [`Row::binds`].
///
/// `main.` and not the bare name, which a temporary table of the application could shadow.
pub const INSERT: &str = "INSERT INTO main.litepost_outbox \
    (id, topic, key, type, payload, headers, version, dedup_key, source, created_at, deliver_after, expires_at) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";

/// The same for an event whose version is assigned ([`Row::takes_next_version`]). Returns `seq` and `version`; no row when the
/// deduplication guard stepped over it. The same twelve values.
pub const INSERT_NEXT: &str = "INSERT INTO main.litepost_outbox \
    (id, topic, key, type, payload, headers, version, dedup_key, source, created_at, deliver_after, expires_at) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, \
    coalesce(?7, (SELECT coalesce(max(version), 0) + 1 FROM main.litepost_version WHERE topic = ?2 AND key = ?3)), \
    ?8, ?9, ?10, ?11, ?12) RETURNING seq, version";

/// The same for an event that has none of the optional columns but its key, as most have: what is not bound costs
/// nothing. Six values, in the order of [`Row::few_binds`].
#[cfg(feature = "rusqlite")]
pub(crate) const INSERT_FEW: &str =
    "INSERT INTO main.litepost_outbox (id, topic, key, type, payload, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// One bind value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind<'a> {
    /// NULL
    Null,
    /// INTEGER
    Integer(i64),
    /// TEXT
    Text(Cow<'a, str>),
    /// BLOB
    Blob(&'a [u8]),
}

impl<'a> Bind<'a> {
    fn text(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }

    fn payload(payload: &'a NewPayload) -> Self {
        match payload {
            NewPayload::Text(text) => Self::text(text),
            NewPayload::Blob(bytes) => Self::Blob(bytes),
        }
    }

    fn optional_text(text: Option<&'a String>) -> Self {
        text.map_or(Self::Null, |t| Self::text(t))
    }

    fn optional_integer(number: Option<i64>) -> Self {
        number.map_or(Self::Null, Self::Integer)
    }
}

/// An event with the id and the time it is written under.
#[derive(Debug)]
pub struct Row<'a> {
    event: &'a NewEvent,
    id: Cow<'a, str>,
    created_at: Millis,
}

impl<'a> Row<'a> {
    /// Gives `event` an id, unless it brings one, and the current time.
    pub fn new(event: &'a NewEvent) -> Self {
        Self::at(event, crate::clock::wall())
    }

    /// As [`Row::new`], written at `now`.
    pub fn at(event: &'a NewEvent, now: Millis) -> Self {
        let id =
            event.id.as_ref().map_or_else(|| Cow::Owned(crate::ids::event_id(now)), |id| Cow::Borrowed(id.as_str()));
        Self { event, id, created_at: now }
    }

    /// The id the row is written under.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The values for [`INSERT_FEW`]; `None` when the event has more than fits there.
    #[cfg(feature = "rusqlite")]
    pub(crate) fn few_binds(&self) -> Option<[Bind<'_>; 6]> {
        let event = self.event;
        let more = event.headers.is_some()
            || event.version.is_some()
            || event.dedup_key.is_some()
            || event.source.is_some()
            || event.deliver_after.is_some()
            || event.expires_at.is_some();
        (!more).then(|| {
            [
                Bind::text(&self.id),
                Bind::text(&event.topic),
                Bind::optional_text(event.key.as_ref()),
                Bind::text(&event.kind),
                Bind::payload(&event.payload),
                Bind::Integer(self.created_at.0),
            ]
        })
    }

    /// Whether the event is to be written by [`INSERT_NEXT`].
    pub fn takes_next_version(&self) -> bool {
        self.event.version == Some(Version::Next)
    }

    fn given_version(&self) -> Option<i64> {
        match self.event.version {
            Some(Version::Given(version)) => Some(version),
            Some(Version::Next) | None => None,
        }
    }

    /// The values for [`INSERT`] and [`INSERT_NEXT`].
    pub fn binds(&self) -> [Bind<'_>; 12] {
        let event = self.event;
        // A map of JSON values always serialises; the guard would refuse the empty text all the same.
        let headers = event.headers.as_ref().map(|map| serde_json::to_string(map).unwrap_or_default());
        [
            Bind::text(&self.id),
            Bind::text(&event.topic),
            Bind::optional_text(event.key.as_ref()),
            Bind::text(&event.kind),
            Bind::payload(&event.payload),
            headers.map_or(Bind::Null, |json| Bind::Text(Cow::Owned(json))),
            Bind::optional_integer(self.given_version()),
            Bind::optional_text(event.dedup_key.as_ref()),
            Bind::optional_text(event.source.as_ref()),
            Bind::Integer(self.created_at.0),
            Bind::optional_integer(event.deliver_after),
            Bind::optional_integer(event.expires_at),
        ]
    }

    /// What [`INSERT`] came to: no row means that the deduplication guard stepped over it.
    pub fn enqueued(self, rows: u64, last_insert_rowid: i64) -> Enqueued {
        if rows == 0 {
            return Enqueued::Duplicate;
        }
        Enqueued::Written { seq: Seq(last_insert_rowid), version: self.given_version(), id: self.id.into_owned() }
    }

    /// What [`INSERT_NEXT`] came to: the `seq` and `version` it has returned.
    pub fn enqueued_next(self, returned: Option<(i64, i64)>) -> Enqueued {
        match returned {
            None => Enqueued::Duplicate,
            Some((seq, version)) => {
                Enqueued::Written { seq: Seq(seq), version: Some(version), id: self.id.into_owned() }
            }
        }
    }
}

/// What became of an event that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It stands in the log, and is delivered once the transaction has committed.
    Written {
        /// Its position.
        seq: Seq,
        /// Its id.
        id: String,
        /// Its version, given or assigned, if it has one.
        version: Option<i64>,
    },
    /// An event of the topic with the same `dedup_key` was written within the window; nothing was added.
    Duplicate,
}

impl Enqueued {
    /// The position, when a row was written.
    pub fn seq(&self) -> Option<Seq> {
        match self {
            Self::Written { seq, .. } => Some(*seq),
            Self::Duplicate => None,
        }
    }

    /// The version, given or assigned, when a row was written that has one.
    pub fn version(&self) -> Option<i64> {
        match self {
            Self::Written { version, .. } => *version,
            Self::Duplicate => None,
        }
    }
}
