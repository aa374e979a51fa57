//! The event as a producer writes it: a builder that holds what goes into one row of `litepost_outbox`.
//!
//! Used by applications; read by [`crate::contract`], which turns it into bind values. Nothing is checked here: the
//! guards in the database are the one place that decides what an event may look like, whatever program writes it.

use bytes::Bytes;
use litepost_core::Value;
use litepost_core::statement::{STATEMENT_KIND, Statement};

/// The body of a [`NewEvent`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewPayload {
    /// Stored as TEXT.
    Text(String),
    /// Stored as BLOB.
    Blob(Bytes),
}

impl From<&str> for NewPayload {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for NewPayload {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for NewPayload {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<serde_json::Value> for NewPayload {
    fn from(document: serde_json::Value) -> Self {
        Self::Text(document.to_string())
    }
}

impl From<&serde_json::Value> for NewPayload {
    fn from(document: &serde_json::Value) -> Self {
        Self::Text(document.to_string())
    }
}

impl From<Vec<u8>> for NewPayload {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Blob(bytes.into())
    }
}

impl From<&[u8]> for NewPayload {
    fn from(bytes: &[u8]) -> Self {
        Self::Blob(Bytes::copy_from_slice(bytes))
    }
}

impl From<Bytes> for NewPayload {
    fn from(bytes: Bytes) -> Self {
        Self::Blob(bytes)
    }
}

/// Which version of its aggregate an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Given(i64),
    /// One above the latest of the topic and key, read by the INSERT itself.
    Next,
}

/// An event to write. Only the topic and the payload are required.
///
/// ```
/// use litepost::NewEvent;
/// let event = NewEvent::new("orders", serde_json::json!({"total": 4999}))
///     .key("501")
///     .kind("OrderCreated")
///     .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
/// assert_eq!(event.topic(), "orders");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    pub(crate) topic: String,
    pub(crate) payload: NewPayload,
    pub(crate) id: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) kind: String,
    pub(crate) headers: Option<serde_json::Map<String, serde_json::Value>>,
    pub(crate) version: Option<Version>,
    pub(crate) dedup_key: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) deliver_after: Option<i64>,
    pub(crate) expires_at: Option<i64>,
}

impl NewEvent {
    /// An event of `topic`. Text and JSON are stored as TEXT, bytes as BLOB.
    #[must_use]
    pub fn new(topic: impl Into<String>, payload: impl Into<NewPayload>) -> Self {
        Self {
            topic: topic.into(),
            payload: payload.into(),
            id: None,
            key: None,
            kind: String::new(),
            headers: None,
            version: None,
            dedup_key: None,
            source: None,
            deliver_after: None,
            expires_at: None,
        }
    }

    /// A statement event: SQL with bind values for the database targets that take the topic `table`.
    #[must_use]
    pub fn statement(table: impl Into<String>, sql: impl Into<String>, args: impl IntoIterator<Item = Value>) -> Self {
        let payload = Statement::new(sql, args.into_iter().collect()).to_payload();
        Self::new(table, payload).kind(STATEMENT_KIND)
    }

    /// The ordering key: the id of the aggregate the event is about.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// What happened, `OrderCreated` for example: the column `type`.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = kind.into();
        self
    }

    /// Adds one header; a later one of the same name replaces it.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<serde_json::Value>) -> Self {
        self.headers.get_or_insert_default().insert(name.into(), value.into());
        self
    }

    /// Adds headers.
    #[must_use]
    pub fn headers<N, V>(mut self, headers: impl IntoIterator<Item = (N, V)>) -> Self
    where
        N: Into<String>,
        V: Into<serde_json::Value>,
    {
        let map = self.headers.get_or_insert_default();
        map.extend(headers.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// The aggregate's version, from 1. Needs a key. Refused unless it is higher than every one of the topic and key
    /// before, pruned ones included: whoever read the aggregate before another transaction wrote it learns of it here.
    #[must_use]
    pub fn version(mut self, version: i64) -> Self {
        self.version = Some(Version::Given(version));
        self
    }

    /// The next version of the aggregate: one above the latest of the topic and key, from 1, assigned by the INSERT in the
    /// producer's transaction and told by [`crate::Enqueued::version`]. Needs a key. A transaction that is rolled back
    /// leaves no gap.
    #[must_use]
    pub fn next_version(mut self) -> Self {
        self.version = Some(Version::Next);
        self
    }

    /// A second event of the topic with the same key within the window is not written.
    #[must_use]
    pub fn dedup_key(mut self, dedup_key: impl Into<String>) -> Self {
        self.dedup_key = Some(dedup_key.into());
        self
    }

    /// Which program or host wrote it.
    #[must_use]
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Not delivered before this time, milliseconds since the Unix epoch.
    #[must_use]
    pub fn deliver_after(mut self, at_ms: i64) -> Self {
        self.deliver_after = Some(at_ms);
        self
    }

    /// Not delivered after this time, milliseconds since the Unix epoch: a dead letter from then on.
    #[must_use]
    pub fn expires_at(mut self, at_ms: i64) -> Self {
        self.expires_at = Some(at_ms);
        self
    }

    /// Brings an id along instead of having one made. Must be unique in the world.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The topic.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Roughly how many bytes the row takes.
    pub fn size_hint(&self) -> usize {
        const FIXED: usize = 96;
        let payload = match &self.payload {
            NewPayload::Text(text) => text.len(),
            NewPayload::Blob(bytes) => bytes.len(),
        };
        FIXED + payload + self.topic.len() + self.key.as_ref().map_or(0, String::len)
    }
}
