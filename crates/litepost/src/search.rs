//! Finding events in the log by what an operator knows of them.
//!
//! Called by the operator's API and the command line. Invariant: the log has no index but its position, on purpose (an
//! index would be paid for by every enqueue). So a search walks the log from its newest end and tells how far it came;
//! it never walks further than it was allowed to.

use litepost_core::{Millis, Seq, TopicFilter};
use rusqlite::types::Value;
use rusqlite::{Connection, Row};
use serde::Serialize;

use crate::error::{Doing as _, StoreError};

const DOING: &str = "searching the log";

/// What is looked for; everything that is given must match.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The event's id.
    pub id: Option<String>,
    /// Its key.
    pub key: Option<String>,
    /// Its topic: a name or a pattern.
    pub topics: Option<TopicFilter>,
    /// Its type.
    pub kind: Option<String>,
    /// Written at this time or later, milliseconds since the Unix epoch.
    pub since: Option<Millis>,
    /// Written before this time.
    pub until: Option<Millis>,
    /// Below this position: how a search goes on.
    pub before: Option<Seq>,
    /// How many at most.
    pub limit: usize,
    /// How many rows are looked at, at most.
    pub rows_max: i64,
}

/// An event without its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Its position.
    pub seq: Seq,
    /// Its id.
    pub id: String,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<String>,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// When it was written, milliseconds since the Unix epoch.
    pub created_at: Millis,
    /// Bytes of its payload.
    pub payload_bytes: i64,
}

/// What a search came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Results {
    /// Newest first.
    pub events: Vec<Found>,
    /// `before` of the search that goes on; `None` when the log's oldest row was reached.
    pub next_before: Option<Seq>,
}

/// An event's body, as it stands in the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Body {
    /// All but the body.
    pub event: Found,
    /// The payload: text or bytes.
    pub payload: Value,
    /// A JSON object as text.
    pub headers: Option<String>,
    /// The aggregate's version.
    pub version: Option<i64>,
    /// Which program wrote it.
    pub source: Option<String>,
    /// Not to be delivered before, milliseconds since the Unix epoch.
    pub deliver_after: Option<Millis>,
    /// Not to be delivered after.
    pub expires_at: Option<Millis>,
}

/// Walks the log from `search.before` (or its newest end) downwards.
pub fn search(connection: &Connection, search: &Search) -> Result<Results, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT seq, id, topic, key, type, created_at, length(CAST(payload AS BLOB)) FROM main.litepost_outbox \
             WHERE seq < ?1 ORDER BY seq DESC LIMIT ?2",
        )
        .doing(DOING)?;
    let before = search.before.map_or(i64::MAX, |seq| seq.0);
    let mut rows = statement.query([before, search.rows_max]).doing(DOING)?;
    let (mut events, mut seen, mut last) = (Vec::new(), 0, None);
    while let Some(row) = rows.next().doing(DOING)? {
        seen += 1;
        let found = found(row).doing(DOING)?;
        last = Some(found.seq);
        if search.matches(&found) {
            events.push(found);
            if events.len() >= search.limit {
                return Ok(Results { events, next_before: last });
            }
        }
    }
    Ok(Results { events, next_before: last.filter(|_| seen >= search.rows_max) })
}

/// One event, whole; `None` when the log does not hold it.
pub fn body(connection: &Connection, seq: Seq) -> Result<Option<Body>, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT seq, id, topic, key, type, created_at, length(CAST(payload AS BLOB)), payload, headers, version, source, \
             deliver_after, expires_at FROM main.litepost_outbox WHERE seq = ?1",
        )
        .doing(DOING)?;
    let mut rows = statement.query([seq.0]).doing(DOING)?;
    let Some(row) = rows.next().doing(DOING)? else { return Ok(None) };
    let read = || -> rusqlite::Result<Body> {
        Ok(Body {
            event: found(row)?,
            payload: row.get(7)?,
            headers: row.get(8)?,
            version: row.get(9)?,
            source: row.get(10)?,
            deliver_after: row.get::<_, Option<i64>>(11)?.map(Millis),
            expires_at: row.get::<_, Option<i64>>(12)?.map(Millis),
        })
    };
    Ok(Some(read().doing(DOING)?))
}

impl Search {
    fn matches(&self, event: &Found) -> bool {
        self.id.as_ref().is_none_or(|id| *id == event.id)
            && self.key.as_ref().is_none_or(|key| Some(key) == event.key.as_ref())
            && self.topics.as_ref().is_none_or(|topics| topics.matches(&event.topic))
            && self.kind.as_ref().is_none_or(|kind| *kind == event.kind)
            && self.since.is_none_or(|since| event.created_at >= since)
            && self.until.is_none_or(|until| event.created_at < until)
    }
}

/// Text that is no UTF-8 is shown as near as Unicode can say it: a search must not stop at a bad row.
fn found(row: &Row<'_>) -> rusqlite::Result<Found> {
    let text = |at: usize| -> rusqlite::Result<String> {
        Ok(String::from_utf8_lossy(row.get_ref(at)?.as_bytes_or_null()?.unwrap_or_default()).into_owned())
    };
    Ok(Found {
        seq: Seq(row.get(0)?),
        id: text(1)?,
        topic: text(2)?,
        key: row.get_ref(3)?.as_bytes_or_null()?.map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
        kind: text(4)?,
        created_at: Millis(row.get(5)?),
        payload_bytes: row.get(6)?,
    })
}
