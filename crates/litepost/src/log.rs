//! Reads the log: once per process, in chunks that every destination shares.
//!
//! Called by the relay's reader thread. Invariant: what is read is one snapshot per call, ascending and complete from
//! the first position asked for; a row that is wrong is delivered with its defect named and never an error, since one
//! bad row must not stop the others.

mod decode;

use std::path::Path;
use std::sync::Arc;

use litepost_core::{Chunk, EventRef, Seq};
use rusqlite::{Connection, OptionalExtension as _, Rows};

use crate::connection::{self, Access};
use crate::durable::Durable;
use crate::error::{Doing as _, StoreError};
use crate::failpoint::{self, Point};
use crate::schema;
use decode::{Batch, Columns, Decoder};

const DOING: &str = "reading the log";

/// The columns in the order the decoder reads them.
macro_rules! select_events {
    ($columns:literal, $rest:literal) => {
        concat!(
            "SELECT seq, id, topic, key, type, payload, created_at, ",
            $columns,
            " FROM main.litepost_outbox ",
            $rest
        )
    };
}
macro_rules! select_all {
    ($rest:literal) => {
        select_events!("headers, version, source, deliver_after, expires_at, only_for", $rest)
    };
}

const READ_AFTER: &str = select_all!("WHERE seq > ?1 ORDER BY seq LIMIT ?2");
const READ_ONE: &str = select_all!("WHERE seq = ?1");
/// The columns that every event has, and one that is NULL unless there is more: asking SQLite for a column costs more
/// than finding that there is none.
const READ_PLAIN_AFTER: &str = select_events!(
    "coalesce(headers, version, source, deliver_after, expires_at, only_for)",
    "WHERE seq > ?1 ORDER BY seq LIMIT ?2"
);

/// Reads events. One thread, one connection.
#[derive(Debug)]
pub struct LogReader {
    connection: Connection,
    durable: Durable,
    decoder: Decoder,
    /// Whether what was read last had none of the columns that most events lack.
    plain: bool,
    /// The newest event that was read: its position and its id.
    newest: Option<(Seq, Box<str>)>,
}

impl LogReader {
    /// Opens the log of `path`, which must be migrated.
    ///
    /// The connection can write as far as SQLite is concerned, since only such a one may recover a WAL that a crash left
    /// behind; nothing here does.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let connection = connection::open(path, Access::ReadWrite)?;
        schema::require_current(&connection)?;
        // From now on SQLite itself refuses a write through this connection.
        connection.pragma_update(None, "query_only", true).doing(DOING)?;
        Ok(Self { connection, durable: Durable::default(), decoder: Decoder::default(), plain: false, newest: None })
    }

    /// How much of the file this connection keeps in memory, KiB; SQLite's own default is 2,000.
    pub fn keep_pages(&self, kib: usize) -> Result<(), StoreError> {
        connection::keep_pages(&self.connection, kib)
    }

    /// Opens the log for looking only: SQLite itself refuses every write.
    pub fn look(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let connection = connection::open(path, Access::ReadOnly)?;
        schema::require_current(&connection)?;
        Ok(Self { connection, durable: Durable::default(), decoder: Decoder::default(), plain: false, newest: None })
    }

    /// The fencing tokens of a destination's lanes: lane and token.
    pub fn tokens(&self, destination: &str) -> Result<Vec<(u32, i64, i64)>, StoreError> {
        let mut statement = self
            .connection
            .prepare_cached(
                "SELECT lane, token, generation FROM main.litepost_cursor WHERE destination = ?1 ORDER BY lane",
            )
            .doing(DOING)?;
        let rows =
            statement.query_map([destination], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).doing(DOING)?;
        rows.collect::<Result<_, _>>().doing(DOING)
    }

    /// The events behind `after`: at most `max_events` of them, and no further one once they weigh `max_bytes`. A single
    /// event is returned whatever it weighs. Empty when there is none.
    pub fn read_after(&mut self, after: Seq, max_events: usize, max_bytes: usize) -> Result<Arc<Chunk>, StoreError> {
        let mut batch = self.decoder.batch();
        let mut left = Left { after: after.0, events: max_events, max_bytes };
        if self.plain {
            let mut statement = self.connection.prepare_cached(READ_PLAIN_AFTER).doing(DOING)?;
            let mut rows = statement.query(left.bind()).doing(DOING)?;
            let end = left.read(&mut rows, &mut batch, Columns::Plain)?;
            if end == End::More {
                // The rest by the other statement: this one is not at its end, so both read one snapshot.
                self.plain = false;
                let mut statement = self.connection.prepare_cached(READ_AFTER).doing(DOING)?;
                left.read(&mut statement.query(left.bind()).doing(DOING)?, &mut batch, Columns::All)?;
            }
        } else {
            let mut statement = self.connection.prepare_cached(READ_AFTER).doing(DOING)?;
            left.read(&mut statement.query(left.bind()).doing(DOING)?, &mut batch, Columns::All)?;
            self.plain = batch.is_plain();
        }
        let chunk = batch.finish();
        // Afterwards: whatever was done to the file before this was read is seen.
        self.recognise()?;
        if let Some(last) = chunk.events().last()
            && self.newest.as_ref().is_none_or(|(seq, _)| *seq < last.seq)
        {
            self.newest = Some((last.seq, Box::from(&*last.id)));
        }
        Ok(chunk)
    }

    /// Whether this is still the log that was read before: an error, once, when an older copy was written over the file, whose
    /// positions mean other events from some point on. No row is ever changed, and the newest is never deleted, so that the
    /// newest event that was read is there, or others behind it are.
    pub fn recognise(&mut self) -> Result<(), StoreError> {
        let Some((seq, id)) = &self.newest else { return Ok(()) };
        let found: Option<String> = self
            .connection
            .prepare_cached("SELECT id FROM main.litepost_outbox WHERE seq = ?1")
            .and_then(|mut statement| statement.query_row([seq.0], |row| row.get(0)).optional())
            .doing(DOING)?;
        let same = match found {
            Some(found) => *found == **id,
            None => self.head()? > *seq,
        };
        if same {
            return Ok(());
        }
        let seq = *seq;
        self.newest = None;
        Err(StoreError::Restored { seq })
    }

    /// These rows, ascending, in one snapshot. A row that is gone is left out.
    pub fn fetch(&mut self, seqs: &[Seq]) -> Result<Vec<EventRef>, StoreError> {
        let snapshot = self.connection.unchecked_transaction().doing(DOING)?;
        let mut batch = self.decoder.batch();
        {
            let mut statement = snapshot.prepare_cached(READ_ONE).doing(DOING)?;
            let mut wanted = seqs.to_vec();
            wanted.sort_unstable();
            wanted.dedup();
            for seq in wanted {
                let mut rows = statement.query([seq.0]).doing(DOING)?;
                if let Some(row) = rows.next().doing(DOING)? {
                    batch.push(Seq(row.get(0).doing(DOING)?), row, Columns::All).doing(DOING)?;
                }
            }
        }
        snapshot.commit().doing(DOING)?;
        let chunk = batch.finish();
        Ok((0..chunk.events().len()).filter_map(|at| EventRef::new(&chunk, at)).collect())
    }

    /// One event through any connection; `None` when it is not there.
    pub(crate) fn peek(connection: &Connection, seq: Seq) -> Result<Option<EventRef>, StoreError> {
        let mut decoder = Decoder::default();
        let mut batch = decoder.batch();
        let mut statement = connection.prepare_cached(READ_ONE).doing(DOING)?;
        let mut rows = statement.query([seq.0]).doing(DOING)?;
        while let Some(row) = rows.next().doing(DOING)? {
            batch.push(Seq(row.get(0).doing(DOING)?), row, Columns::All).doing(DOING)?;
        }
        Ok(EventRef::new(&batch.finish(), 0))
    }

    /// The newest position; [`Seq::ZERO`] when the log is empty.
    pub fn head(&self) -> Result<Seq, StoreError> {
        Ok(self.position("SELECT max(seq) FROM main.litepost_outbox")?.unwrap_or(Seq::ZERO))
    }

    /// The oldest position that has not been pruned.
    pub fn tail(&self) -> Result<Option<Seq>, StoreError> {
        self.position("SELECT min(seq) FROM main.litepost_outbox")
    }

    fn position(&self, sql: &str) -> Result<Option<Seq>, StoreError> {
        let mut statement = self.connection.prepare_cached(sql).doing(DOING)?;
        let found: Option<i64> = statement.query_row([], |row| row.get(0)).doing(DOING)?;
        Ok(found.map(Seq))
    }

    /// Changes whenever another connection has committed to the file: cheap to ask.
    pub fn data_version(&self) -> Result<i64, StoreError> {
        let mut statement = self.connection.prepare_cached("PRAGMA main.data_version").doing(DOING)?;
        statement.query_row([], |row| row.get(0)).doing(DOING)
    }

    /// The lanes operators ask for; none as a rule.
    pub fn wishes(&self) -> Result<Vec<crate::lanes::Wish>, StoreError> {
        crate::lanes::wishes(&self.connection, None)
    }

    /// Makes everything read so far survive a power cut. To be called before it leaves this machine.
    pub fn make_durable(&mut self) -> Result<(), StoreError> {
        failpoint::pass(Point::ReadBeforeSync, DOING)?;
        self.durable.sync(&self.connection)?;
        failpoint::pass(Point::ReadAfterSync, DOING)
    }

    /// The journal mode of the file, in lower case.
    pub fn journal_mode(&self) -> Result<String, StoreError> {
        connection::journal_mode(&self.connection)
    }

    /// Random id of the outbox file.
    pub fn origin(&self) -> Result<String, StoreError> {
        self.meta("origin")
    }

    /// Incarnation of the outbox file: grows when a restored or copied file is adopted.
    pub fn epoch(&self) -> Result<i64, StoreError> {
        self.meta("epoch")?.parse().map_err(|_| StoreError::BadState { table: "litepost_meta", column: "epoch" })
    }

    fn meta(&self, name: &str) -> Result<String, StoreError> {
        meta(&self.connection, name)
    }
}

/// What of the log is still to be read.
struct Left {
    after: i64,
    events: usize,
    max_bytes: usize,
}

/// How a statement ended.
#[derive(PartialEq)]
enum End {
    /// There is nothing more, or enough.
    Done,
    /// The next row has more columns than the statement asks for.
    More,
}

impl Left {
    fn bind(&self) -> [i64; 2] {
        [self.after, i64::try_from(self.events).unwrap_or(i64::MAX)]
    }

    fn read(&mut self, rows: &mut Rows<'_>, batch: &mut Batch<'_>, columns: Columns) -> Result<End, StoreError> {
        while let Some(row) = rows.next().doing(DOING)? {
            let seq: i64 = row.get(0).doing(DOING)?;
            // A damaged page can answer with rows that were not asked for. Following them would read in circles.
            if seq <= self.after {
                return Err(StoreError::Corrupt { doing: DOING, code: rusqlite::ffi::SQLITE_CORRUPT });
            }
            if columns == Columns::Plain && decode::has_more(row).doing(DOING)? {
                return Ok(End::More);
            }
            self.after = seq;
            self.events = self.events.saturating_sub(1);
            batch.push(Seq(seq), row, columns).doing(DOING)?;
            if batch.weight() >= self.max_bytes {
                break;
            }
        }
        Ok(End::Done)
    }
}

/// The newest position; [`Seq::ZERO`] when the log is empty.
pub(crate) fn newest(connection: &Connection) -> Result<Seq, StoreError> {
    connection
        .query_row("SELECT coalesce(max(seq), 0) FROM main.litepost_outbox", [], |row| row.get(0).map(Seq))
        .doing("reading the newest position")
}

/// The newest and the oldest position that are in the log.
pub(crate) fn bounds(connection: &Connection) -> Result<(Option<i64>, Option<i64>), StoreError> {
    connection
        .query_row(
            "SELECT (SELECT max(seq) FROM main.litepost_outbox), (SELECT min(seq) FROM main.litepost_outbox)",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .doing(DOING)
}

/// One setting of the file.
pub(crate) fn meta(connection: &Connection, name: &str) -> Result<String, StoreError> {
    let found: Option<String> = connection
        .query_row("SELECT value FROM main.litepost_meta WHERE name = ?1", [name], |row| row.get(0))
        .optional()
        .doing("reading the file's identity")?;
    found.ok_or_else(|| StoreError::SchemaDamaged { missing: format!("litepost_meta.{name}") })
}
