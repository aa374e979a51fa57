//! The folder of a run: the outbox, the destinations, the configuration; and what the destinations hold.
//!
//! Made for each run. Invariant: what a destination holds is read from the destination itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde_json::Value as Json;

use crate::TortureError;
use crate::check::{self, Journal, Name, Permitted, Takes, Violation};
use crate::plan::{LEASE_MS, PATIENCE_MS};

const TABLE: &str = "CREATE TABLE litepost_torture (at INTEGER PRIMARY KEY AUTOINCREMENT, p INTEGER NOT NULL, \
    n INTEGER NOT NULL, good INTEGER NOT NULL CHECK (good > 0)) STRICT";
const TABLE_POSTGRES: &str = "DROP TABLE IF EXISTS litepost_torture; CREATE TABLE litepost_torture (at BIGSERIAL, \
    p BIGINT NOT NULL, n BIGINT NOT NULL, good BIGINT NOT NULL CHECK (good > 0))";
/// The application's own rows, one for each event, written in its transaction. Not in a soak: they stay.
const ROWS: &str =
    "CREATE TABLE torture_rows (p INTEGER NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (p, n)) STRICT, WITHOUT ROWID";
const READ: &str = "SELECT p, n FROM litepost_torture ORDER BY at";

/// A destination's name, what it takes, and what it has, in its order.
pub(crate) type Delivery = (&'static str, Takes, Vec<Name>);

pub(crate) struct Stage {
    pub(crate) folder: PathBuf,
    /// The database that is checked, and as the relays reach it.
    postgres: Option<(String, String)>,
    /// The port of a receiver of webhooks.
    webhook: Option<u16>,
}

impl Stage {
    /// Prepares an empty folder.
    pub(crate) fn set(
        folder: &Path,
        postgres: Option<(&str, &str)>,
        webhook: Option<u16>,
    ) -> Result<Self, TortureError> {
        let owned = |(checked, relays): (&str, &str)| (checked.to_owned(), relays.to_owned());
        let stage = Self { folder: folder.to_owned(), postgres: postgres.map(owned), webhook };
        let options = litepost::connection::Options::new(litepost::connection::Access::ReadWrite).create(true);
        let mut outbox = options.open(stage.outbox())?;
        litepost::connection::enable_wal(&outbox)?;
        litepost::schema::migrate(&mut outbox)?;
        if webhook.is_some() {
            outbox.execute_batch(ROWS)?;
        }
        let target = Connection::open(stage.target())?;
        target.execute_batch(&format!("PRAGMA journal_mode = WAL; {TABLE}"))?;
        if let Some((url, _)) = postgres {
            with_postgres(url, async |client| client.batch_execute(TABLE_POSTGRES).await)?;
        }
        std::fs::write(stage.folder.join("litepost.toml"), stage.config())
            .map_err(TortureError::io("the configuration"))?;
        Ok(stage)
    }

    pub(crate) fn outbox(&self) -> PathBuf {
        self.folder.join("outbox.db")
    }

    pub(crate) fn target(&self) -> PathBuf {
        self.folder.join("target.db")
    }

    /// How far the wall clock is set, milliseconds.
    pub(crate) fn clock(&self) -> PathBuf {
        self.folder.join("clock")
    }

    pub(crate) fn journal(&self, producer: usize) -> PathBuf {
        self.folder.join(format!("producer-{producer}.journal"))
    }

    pub(crate) fn config(&self) -> String {
        let mut text = format!(
            "[app.torture]\ndatabase = 'outbox.db'\nlease = '{LEASE_MS}ms'\n\
             retry = {{ first = '1ms', cap = '50ms', max_attempts = 1 }}\n\
             [app.torture.sink.file]\ntype = 'file'\nconnection = {{ path = 'events.jsonl' }}\n\
             [app.torture.db.sqlite]\ntype = 'sqlite'\ntables = ['posted']\nlanes = 2\nconnection = {{ path = 'target.db' }}\n"
        );
        // Writing into a String cannot fail.
        if let Some((_, url)) = &self.postgres {
            let _ = write!(
                text,
                "[app.torture.db.postgres]\ntype = 'postgres'\ntables = ['posted']\ntimeout = '{}ms'\n\
                 connection = {{ url = {}, connect_timeout_ms = {PATIENCE_MS}, batch_timeout_ms = {PATIENCE_MS} }}\n",
                PATIENCE_MS * 3,
                Json::String(url.clone())
            );
        }
        if let Some(port) = self.webhook {
            let _ = write!(
                text,
                "[app.torture.sink.webhook]\ntype = 'http'\nlanes = 2\nconcurrency = 2\ntimeout = '{}ms'\n\
                 connection = {{ url = 'http://127.0.0.1:{port}/', allow_private_addresses = true, timeout_ms = {PATIENCE_MS} }}\n",
                PATIENCE_MS * 3
            );
        }
        text
    }

    /// The fencing tokens of a destination's lanes: they grow whenever a lane changes hands.
    pub(crate) fn tokens(&self, destination: &str) -> rusqlite::Result<Vec<i64>> {
        let outbox = Connection::open(self.outbox())?;
        let mut statement = outbox.prepare("SELECT token FROM litepost_cursor WHERE destination = ?1 ORDER BY lane")?;
        let tokens = statement.query_map([destination], |row| row.get(0))?;
        tokens.collect()
    }

    /// What the application has in its own table: each row's event was committed with it.
    pub(crate) fn rows(&self) -> Result<BTreeSet<Name>, TortureError> {
        let outbox = Connection::open(self.outbox())?;
        outbox.busy_timeout(std::time::Duration::from_secs(5))?;
        let mut statement = outbox.prepare("SELECT p, n FROM torture_rows")?;
        let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
        Ok(rows.map(|row| row.map(|(p, n)| (p.unsigned_abs(), n.unsigned_abs()))).collect::<Result<_, _>>()?)
    }

    /// Everything that is not as it was promised.
    pub(crate) fn violations(
        &self,
        journals: &BTreeMap<u64, Journal>,
        deliveries: &[Delivery],
        permitted: &Permitted,
    ) -> Result<Vec<Violation>, TortureError> {
        let outbox = litepost::connection::open(self.outbox(), litepost::connection::Access::ReadOnly)?;
        let verified = litepost::verify(&outbox)?;
        let mut found: Vec<_> =
            verified.problems.iter().map(|problem| Violation::Books { problem: problem.to_string() }).collect();
        for (name, takes, got) in deliveries {
            let dead = dead(&outbox, &format!("torture.{name}"))?;
            found.extend(check::destination(name, *takes, journals, got, &dead, permitted));
        }
        Ok(found)
    }

    /// What each destination has, in its order.
    pub(crate) fn deliveries(&self) -> Result<Vec<Delivery>, TortureError> {
        let mut all = vec![
            ("file", Takes::Everything, lines(&self.folder.join("events.jsonl"))?),
            ("sqlite", Takes::WhatIsGood, rows(&Connection::open(self.target())?)?),
        ];
        if let Some((url, _)) = &self.postgres {
            let rows = with_postgres(url, async |client| client.query(READ, &[]).await)?;
            let number = |row: &tokio_postgres::Row, at| row.get::<_, i64>(at).unsigned_abs();
            all.push((
                "postgres",
                Takes::WhatIsGood,
                rows.iter().map(|row| (number(row, 0), number(row, 1))).collect(),
            ));
        }
        Ok(all)
    }
}

fn rows(connection: &Connection) -> Result<Vec<Name>, TortureError> {
    let mut statement = connection.prepare(READ)?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
    Ok(rows.map(|row| row.map(|(p, n)| (p.unsigned_abs(), n.unsigned_abs()))).collect::<Result<_, _>>()?)
}

fn lines(path: &Path) -> Result<Vec<Name>, TortureError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.map_err(TortureError::io("the file of events"))?,
    };
    let damaged = |line: &str| {
        TortureError::io("the file of events")(std::io::Error::other(format!("a line that is no event: {line:?}")))
    };
    // A soak leaves more than should be in memory at once.
    let lines = BufReader::new(file).lines();
    lines
        .map(|line| {
            let line = line.map_err(TortureError::io("the file of events"))?;
            let event: Json = serde_json::from_str(&line).map_err(|_| damaged(&line))?;
            event.get("payload").and_then(name_in).ok_or_else(|| damaged(&line))
        })
        .collect()
}

/// The event that the text of a payload names.
pub(crate) fn event_of(payload: &str) -> Option<Name> {
    serde_json::from_str::<Json>(payload).ok().as_ref().and_then(name_in)
}

/// The event that a statement's payload names.
pub(crate) fn name_in(payload: &Json) -> Option<Name> {
    let args = payload.get("args")?;
    Some((args.get(0)?.as_u64()?, args.get(1)?.as_u64()?))
}

fn dead(outbox: &Connection, destination: &str) -> Result<BTreeSet<Name>, TortureError> {
    let mut statement = outbox.prepare("SELECT payload FROM litepost_dead WHERE destination = ?1")?;
    let payloads = statement.query_map([destination], |row| row.get::<_, String>(0))?;
    let mut dead = BTreeSet::new();
    for payload in payloads {
        dead.extend(event_of(&payload?));
    }
    Ok(dead)
}

pub(crate) fn with_postgres<T>(
    url: &str,
    work: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T, tokio_postgres::Error>,
) -> Result<T, TortureError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(TortureError::io("starting the runtime"))?;
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
        // Ends with the client.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(work(&client).await?)
    })
}
