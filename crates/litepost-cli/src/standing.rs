//! How far delivery is, destination by destination, as the outbox files tell it.
//!
//! Called by `litepost status` and `litepost top`. Invariant: opens read-only, works beside a running relay, changes nothing.

use std::path::Path;

use litepost::connection::{self, Access};
use litepost::operate::Pause;
use litepost::status::{self, DestinationStatus, FileStatus};
use litepost_core::Millis;
use litepost_relay::config::{Destination, OutboxFile};
use rusqlite::Connection;
use serde::Serialize;

use crate::clock;
use crate::failure::Failure;
use crate::output;
use crate::places::Place;

/// One destination, all its outbox files together.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) app: String,
    pub(crate) name: String,
    pub(crate) pending: i64,
    pub(crate) oldest_age_ms: Option<i64>,
    pub(crate) dead: i64,
    /// Whether there are more of them in an outbox file than `max_dead` allows.
    pub(crate) too_many_dead: bool,
    pub(crate) blocked_keys: i64,
    pub(crate) scheduled: i64,
    pub(crate) state: String,
    pub(crate) error: Option<String>,
    pub(crate) delivered: i64,
    pub(crate) expired: i64,
    pub(crate) skipped: i64,
    /// What an operator has paused of it.
    pub(crate) paused: Vec<Pause>,
    /// Whether the configuration names it; unknown for a bare database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) configured: Option<bool>,
    pub(crate) outboxes: Vec<OutboxRow>,
}

/// What one outbox file says about a destination.
#[derive(Debug, Serialize)]
pub(crate) struct OutboxRow {
    pub(crate) database: String,
    pub(crate) pending: i64,
    pub(crate) head: i64,
    #[serde(flatten)]
    pub(crate) growth: status::Growth,
    pub(crate) lanes: Vec<status::LaneStatus>,
}

/// Looks at every outbox file of `place`.
pub(crate) fn look(place: &Place) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    match place {
        Place::Database(path) => bare(path, &mut rows)?,
        Place::Folder(paths, _) => paths.iter().try_for_each(|path| bare(path, &mut rows))?,
        Place::Config(config) => {
            for outbox in config.files() {
                configured(&outbox, &mut rows)?;
            }
        }
    }
    Ok(rows)
}

fn open(path: &Path) -> Result<(Connection, FileStatus), Failure> {
    let read = || -> Result<_, Failure> {
        let connection = connection::open(path, Access::ReadOnly)?;
        let status = status::read_from(&connection, Millis(clock::wall_ms()))?;
        Ok((connection, status))
    };
    read().map_err(|failure| failure.about(path))
}

fn bare(path: &Path, rows: &mut Vec<Row>) -> Result<(), Failure> {
    let old = old_queue(path)?;
    for (namespace, waiting) in &old.namespaces {
        row(rows, "sqloutbox", namespace, None).pending += waiting;
    }
    if old.alone {
        return Ok(());
    }
    let (_, status) = open(path)?;
    for found in &status.destinations {
        add(rows, path, &status, found, None);
    }
    Ok(())
}

/// What sqloutbox's queue in a file holds.
#[derive(Default)]
struct OldQueue {
    namespaces: Vec<(String, i64)>,
    /// There are no litepost tables yet.
    alone: bool,
}

fn old_queue(path: &Path) -> Result<OldQueue, Failure> {
    let read = || -> Result<OldQueue, Failure> {
        let connection = connection::open(path, Access::ReadOnly)?;
        if !litepost::sqloutbox::is_present(&connection)? {
            return Ok(OldQueue::default());
        }
        let alone = litepost::schema::version(&connection)? == litepost::schema::SchemaState::Absent;
        Ok(OldQueue { namespaces: litepost::sqloutbox::waiting(&connection)?, alone })
    };
    read().map_err(|failure| failure.about(path))
}

fn configured(outbox: &OutboxFile, rows: &mut Vec<Row>) -> Result<(), Failure> {
    // A file of a db_dir is made by its first event.
    if outbox.table.is_some() && !outbox.path.exists() {
        for (destination, _) in &outbox.routes {
            row(rows, &outbox.app, &destination.short, Some(true));
        }
        return Ok(());
    }
    // The relay takes these over by itself; until then they are waiting all the same.
    let old = old_queue(&outbox.path)?;
    for (destination, _) in &outbox.routes {
        let of_table = |name: &str| outbox.table.as_deref().is_none_or(|table| table == name);
        let waiting = old.namespaces.iter().filter(|(name, _)| of_table(name) && destination.takes(name));
        row(rows, &outbox.app, &destination.short, Some(true)).pending += waiting.map(|(_, n)| n).sum::<i64>();
    }
    if old.alone {
        return Ok(());
    }
    let (connection, status) = open(&outbox.path)?;
    for (destination, policy) in &outbox.routes {
        match status.destinations.iter().find(|found| *found.destination == *destination.name) {
            Some(found) => {
                add(rows, &outbox.path, &status, found, Some(true));
                row(rows, &outbox.app, &destination.short, Some(true)).too_many_dead |=
                    policy.max_dead.is_some_and(|most| found.dead > most);
            }
            None => unserved(rows, outbox, &connection, &status, destination)?,
        }
    }
    for found in &status.destinations {
        if outbox.routes.iter().all(|(destination, _)| *destination.name != *found.destination) {
            add(rows, &outbox.path, &status, found, Some(false));
        }
    }
    Ok(())
}

/// The row of a destination, made when it is not there.
fn row<'a>(rows: &'a mut Vec<Row>, app: &str, name: &str, configured: Option<bool>) -> &'a mut Row {
    let at = rows.iter().position(|row| row.app == app && row.name == name).unwrap_or_else(|| {
        rows.push(Row {
            app: app.to_owned(),
            name: name.to_owned(),
            pending: 0,
            oldest_age_ms: None,
            dead: 0,
            too_many_dead: false,
            blocked_keys: 0,
            scheduled: 0,
            state: "new".into(),
            error: None,
            delivered: 0,
            expired: 0,
            skipped: 0,
            paused: Vec::new(),
            configured,
            outboxes: Vec::new(),
        });
        rows.len() - 1
    });
    &mut rows[at]
}

fn add(rows: &mut Vec<Row>, path: &Path, file: &FileStatus, found: &DestinationStatus, configured: Option<bool>) {
    let (app, name) = found.destination.split_once('.').unwrap_or(("", &found.destination));
    let row = row(rows, app, name, configured);
    row.pending += found.pending;
    row.oldest_age_ms = row.oldest_age_ms.max(found.oldest_age_ms);
    row.dead += found.dead;
    row.blocked_keys += found.blocked_keys;
    row.scheduled += found.scheduled;
    row.delivered += found.delivered;
    row.expired += found.expired;
    row.skipped += found.skipped;
    row.paused.extend(file.pauses.iter().filter(|pause| pause.destination == found.destination).cloned());
    if badness(&found.state) > badness(&row.state) {
        row.state.clone_from(&found.state);
        row.error.clone_from(&found.error);
    }
    row.outboxes.push(OutboxRow {
        database: path.display().to_string(),
        pending: found.pending,
        head: file.head.0,
        growth: file.growth,
        lanes: found.lanes.clone(),
    });
}

fn badness(state: &str) -> u8 {
    match state {
        "new" => 0,
        "closed" => 1,
        "half_open" => 2,
        "open" => 3,
        _ => 4,
    }
}

/// A destination that no relay has served yet: what waits for it is counted in the log.
fn unserved(
    rows: &mut Vec<Row>,
    outbox: &OutboxFile,
    connection: &Connection,
    file: &FileStatus,
    destination: &Destination,
) -> Result<(), Failure> {
    let filter = destination.filter();
    let mut statement = connection
        .prepare("SELECT CAST(topic AS TEXT), count(*), min(created_at) FROM main.litepost_outbox GROUP BY topic")?;
    let mut found = statement.query([])?;
    let (mut pending, mut oldest) = (0, None::<i64>);
    while let Some(topic) = found.next()? {
        let name = topic.get_ref(0)?.as_bytes().map(String::from_utf8_lossy).unwrap_or_default();
        if filter.matches(&name) {
            pending += topic.get::<_, i64>(1)?;
            let written: i64 = topic.get(2)?;
            oldest = Some(oldest.map_or(written, |oldest| oldest.min(written)));
        }
    }
    let row = row(rows, &outbox.app, &destination.short, Some(true));
    row.pending += pending;
    row.oldest_age_ms = row.oldest_age_ms.max(oldest.map(|at| (clock::wall_ms() - at).max(0)));
    row.outboxes.push(OutboxRow {
        database: outbox.path.display().to_string(),
        pending,
        head: file.head.0,
        growth: file.growth,
        lanes: Vec::new(),
    });
    Ok(())
}

/// The one thing an operator should do next, if any.
pub(crate) fn next_step(row: &Row) -> Option<String> {
    let why = row.error.as_deref().map(output::harmless).unwrap_or_default();
    if row.configured == Some(false) {
        return Some("is not in the configuration, and keeps delivered events from being pruned".into());
    }
    if let Some(pause) = row.paused.first() {
        let what = match pause.kind.as_str() {
            "destination" => "is paused".to_owned(),
            kind => format!("has {kind} {} paused", output::harmless(&pause.name)),
        };
        let more = if row.paused.len() > 1 { format!(" (and {} more)", row.paused.len() - 1) } else { String::new() };
        let by = output::harmless(&pause.actor);
        return Some(format!("{what} by {by}{more}; `litepost resume` lets it flow again"));
    }
    match row.state.as_str() {
        "open" | "half_open" => Some(format!("cannot be reached: {why}; events wait and cost no attempt")),
        "new" if row.pending > 0 => Some("no relay has served it yet; start one with `litepost run`".into()),
        "closed" | "new" if row.too_many_dead => {
            Some(format!("has {} dead letters, more than max_dead; look at them with `litepost dead list`", row.dead))
        }
        "closed" | "new" if row.blocked_keys > 0 => {
            Some(format!("{} keys wait behind an event that was rejected and is tried again", row.blocked_keys))
        }
        "closed" | "new" if row.dead > 0 => Some("has dead letters; look at them with `litepost dead list`".into()),
        "closed" | "new" => None,
        _ => Some(format!("has stopped: {why}")),
    }
}
