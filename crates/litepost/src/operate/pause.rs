//! Pause, resume, drain.
//!
//! A paused destination is one nobody can take a lane of; a paused topic or key waits line by line, as behind a failed
//! event. Invariant: a pause holds until an operator resumes it, whatever restarts in between.

use litepost_core::{Millis, Seq};
use rusqlite::{Connection, params};
use serde::Serialize;
use serde_json::json;

use super::{Operator, refused};
use crate::clock;
use crate::error::{Doing as _, StoreError};
use crate::log::newest;

/// What of a destination is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of it.
    Destination,
    /// One topic.
    Topic(String),
    /// One key.
    Key(String),
}

impl Scope {
    /// The word stored in the database.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Destination => "destination",
            Self::Topic(_) => "topic",
            Self::Key(_) => "key",
        }
    }

    /// The topic or key; empty for a destination.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Destination => "",
            Self::Topic(name) | Self::Key(name) => name,
        }
    }
}

/// Something that waits until it is resumed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// The destination.
    pub destination: String,
    /// `destination`, `topic` or `key`.
    pub kind: String,
    /// The topic or key; empty for a destination.
    pub name: String,
    /// Since when, milliseconds since the Unix epoch.
    pub paused_at: Millis,
    /// Who did it.
    pub actor: String,
    /// Why.
    pub reason: Option<String>,
}

/// What [`Operator::resume`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Resumed {
    /// Pauses that ended.
    pub pauses: usize,
    /// Lines that flow again.
    pub lines: usize,
}

/// How far a destination is on its way to a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// The position.
    pub until: Seq,
    /// Everything up to here has been looked at, by all lanes.
    pub acked: Seq,
    /// Events up to the position that wait for another attempt.
    pub retrying: i64,
    /// Events up to the position, or behind it in the same lines, that wait for an operator or for their time.
    pub waiting: i64,
}

impl Progress {
    /// Whether everything that goes by itself has gone.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.acked >= self.until && self.retrying == 0
    }
}

impl Operator {
    /// From now on nothing of it leaves. False when it was paused already.
    pub fn pause(&mut self, destination: &str, scope: &Scope) -> Result<bool, StoreError> {
        if matches!(scope, Scope::Topic(name) if name.is_empty()) {
            return Err(refused("no topic is empty", "give its name, or neither topic nor key for all of it"));
        }
        let (actor, reason) = (self.who.actor.clone(), self.who.reason.clone());
        self.with_lanes("pause", destination, |tx| {
            let added = tx
                .execute(
                    "INSERT OR IGNORE INTO main.litepost_pause (destination, kind, name, paused_at, actor, reason) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    params![destination, scope.kind(), scope.name(), clock::wall().0, actor, reason],
                )
                .doing("pausing")?;
            Ok((added == 1, json!({ "scope": scope.kind(), "name": scope.name(), "new": added == 1 })))
        })
    }

    /// Ends a pause; of a topic or key also what a dead letter holds (`on_dead = "hold"`).
    pub fn resume(&mut self, destination: &str, scope: &Scope) -> Result<Resumed, StoreError> {
        let doing = "resuming";
        self.with_lanes("resume", destination, |tx| {
            let pauses = tx
                .execute(
                    "DELETE FROM main.litepost_pause WHERE destination = ?1 AND kind = ?2 AND name = ?3",
                    [destination, scope.kind(), scope.name()],
                )
                .doing(doing)?;
            // A line may be paused for its topic and for its key: what still is comes to a stop again by itself.
            let lines = tx
                .execute(
                    "UPDATE main.litepost_blocked SET state = 'releasing', next_attempt = ?4, \
                       error_code = nullif(error_code, 'paused') \
                     WHERE destination = ?1 AND state = 'held' AND ((?2 <> 'destination' AND error_code = 'paused') \
                       OR (line_kind = ?2 AND line = ?3))",
                    params![destination, scope.kind(), scope.name(), clock::wall().0],
                )
                .doing(doing)?;
            if pauses == 0 && lines == 0 {
                return Err(refused(
                    format!("nothing of the kind is paused or held at {destination}"),
                    "`litepost status` shows what is paused; give --topic or --key as it was paused",
                ));
            }
            let answer = Resumed { pauses, lines };
            Ok((answer, json!({ "scope": scope.kind(), "name": scope.name(), "lines": lines })))
        })
    }
}

/// Everything that is paused.
pub fn pauses(connection: &Connection) -> Result<Vec<Pause>, StoreError> {
    let doing = "reading what is paused";
    let mut statement = connection
        .prepare_cached(
            "SELECT destination, kind, name, paused_at, actor, reason FROM main.litepost_pause ORDER BY 1, 2, 3",
        )
        .doing(doing)?;
    let rows = statement
        .query_map([], |row| {
            Ok(Pause {
                destination: row.get(0)?,
                kind: row.get(1)?,
                name: row.get(2)?,
                paused_at: Millis(row.get(3)?),
                actor: row.get(4)?,
                reason: row.get(5)?,
            })
        })
        .doing(doing)?;
    rows.collect::<Result<_, _>>().doing(doing)
}

/// The newest position: what there is to drain up to.
pub fn head(connection: &Connection) -> Result<Seq, StoreError> {
    newest(connection)
}

/// How far a destination is on its way to `until`.
pub fn progress(connection: &Connection, destination: &str, until: Seq) -> Result<Progress, StoreError> {
    let doing = "reading how far a destination is";
    let (acked, retrying, waiting): (Option<i64>, i64, i64) = connection
        .prepare_cached(
            "SELECT (SELECT min(acked) FROM main.litepost_cursor WHERE destination = ?1), \
               coalesce(sum(CASE WHEN state IN ('backoff', 'releasing') THEN waiting END), 0), \
               coalesce(sum(CASE WHEN state IN ('held', 'scheduled') THEN waiting END), 0) \
             FROM main.litepost_blocked WHERE destination = ?1 AND first_seq <= ?2",
        )
        .and_then(|mut s| s.query_row(params![destination, until.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))))
        .doing(doing)?;
    let Some(acked) = acked else {
        return Err(StoreError::UnknownDestination { destination: destination.into() });
    };
    Ok(Progress { until, acked: Seq(acked), retrying, waiting })
}
