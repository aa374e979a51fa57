//! One connection to the target file: applies batches, each in one transaction with its ledger.
//!
//! Called by the sink on a thread that may block. Invariants: what is answered `Delivered` is committed, or was by an
//! earlier attempt as the ledger proves; when the transaction fails, nothing of the batch is; a rejected event ends a
//! batch in order, since the ledger's watermark must not pass it before the outbox file has recorded it.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use litepost_core::pipeline::DeliveryOrder;
use litepost_core::statement::{Args, STATEMENT_KIND};
use litepost_core::{EventRef, Line, Outcome, Rejection, Seq, Statement, Unavailable, UnavailableKind};
use rusqlite::{Connection, InterruptHandle, OpenFlags};

use super::errors::{self, Trouble};
use super::guard::Guard;
use super::ledger::{self, Mark};
use super::{TargetSettings, bind, numbers};
use crate::clock;
use crate::dialect::Dialect;
use crate::sink::{LogPeek, SinkContext};
use crate::sinks::sql::{Numbers, Options, Planned, Planner};

/// An open target.
pub(super) struct Target {
    db: Connection,
    guard: Guard,
    who: SinkContext,
    options: Options,
    /// Whether a ledger is kept.
    ledger: bool,
    planner: Planner,
    numbers: Numbers,
    /// The ledger row as we left it: when it has moved, somebody else moved it.
    mark: Mark,
    /// The highest position the ledger knew at connect, in order or out of order.
    watermark: i64,
}

/// How one run over a batch ended.
enum Run {
    Done(Vec<Outcome>),
    /// The event at this index ended the whole transaction (`ON CONFLICT ROLLBACK`): run again without it.
    Poisoned(usize, Rejection),
}

impl Target {
    /// Opens the file, prepares the ledger, claims it with our token.
    pub(super) fn open(settings: &TargetSettings, who: SinkContext) -> Result<Self, Unavailable> {
        let opened = Self::connect(settings, who);
        opened.map_err(|unavailable| Unavailable {
            message: format!("{}: {}", settings.path.display(), unavailable.message),
            ..unavailable
        })
    }

    fn connect(settings: &TargetSettings, who: SinkContext) -> Result<Self, Unavailable> {
        let fail = |e: rusqlite::Error| errors::unavailable(&e);
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if settings.create {
            flags |= OpenFlags::SQLITE_OPEN_CREATE;
        } else if !settings.path.exists() {
            return Err(Unavailable::new(
                UnavailableKind::Connect,
                "the file does not exist; create it with its tables, or set connection.create = true",
            ));
        }
        let mut db = Connection::open_with_flags(&settings.path, flags).map_err(fail)?;
        db.busy_handler(Some(wait_for_lock)).map_err(fail)?;
        // Of this connection only, nothing that stays in the file. Confirmed means on disk.
        db.pragma_update(None, "synchronous", "FULL").map_err(fail)?;
        db.pragma_update(None, "foreign_keys", settings.foreign_keys).map_err(fail)?;
        db.set_prepared_statement_cache_capacity(128);
        let guard = Guard::install(&mut db).map_err(fail)?;
        let mut target = Self {
            db,
            guard,
            numbers: Numbers::new(&who),
            who,
            options: settings.options.clone(),
            ledger: settings.options.keeps_ledger(),
            planner: Planner::new(Dialect::Sqlite),
            mark: Mark::default(),
            watermark: 0,
        };
        if target.ledger {
            target.prepare_ledger(settings.options.may_create_ledger())?;
        }
        Ok(target)
    }

    fn prepare_ledger(&mut self, auto_schema: bool) -> Result<(), Unavailable> {
        let fail = |e: rusqlite::Error| errors::unavailable(&e);
        let there = self.db.table_exists(None, "litepost_ledger").map_err(fail)?
            && self.db.table_exists(None, "litepost_ledger_event").map_err(fail)?;
        if !there && !auto_schema {
            let schema = ledger::SCHEMA.split_whitespace().collect::<Vec<_>>().join(" ");
            let message = format!("the ledger tables are missing; set auto_schema = true, or run: {schema}");
            return Err(Unavailable::new(UnavailableKind::Denied, message));
        }
        self.begin().map_err(fail)?;
        let prepared = self.claim(there);
        self.finish(prepared)
    }

    fn claim(&mut self, there: bool) -> Result<(), Unavailable> {
        let fail = |e: rusqlite::Error| errors::unavailable(&e);
        if !there {
            self.db.execute_batch(ledger::SCHEMA).map_err(fail)?;
        }
        let mark = ledger::read(&self.db, &self.who).map_err(fail)?;
        if mark.token > self.who.token {
            return Err(ledger::fenced(&self.who, mark.token));
        }
        ledger::forget(&self.db, &self.who).map_err(fail)?;
        // From here on no relay with an older token can commit.
        let mark = Mark { token: self.who.token, ..mark };
        if !ledger::write(&self.db, &self.who, &mark, clock::wall().0).map_err(fail)? {
            return Err(ledger::fenced(&self.who, mark.token));
        }
        self.watermark = ledger::newest_event(&self.db, &self.who).map_err(fail)?.max(mark.seq);
        self.mark = mark;
        Ok(())
    }

    /// A ledger that is ahead of the outbox's cursor must name an event that stands in the log, unchanged: otherwise
    /// what the log brings next would be taken for applied and vanish.
    pub(super) async fn check_against(&mut self, log: &LogPeek) -> Result<(), Unavailable> {
        let Mark { seq, last_hash, .. } = &self.mark;
        if !self.ledger || *seq <= self.who.acked || !log.is_available() {
            return Ok(());
        }
        let found = log.event(Seq(*seq)).await;
        let found =
            found.map_err(|e| Unavailable::new(UnavailableKind::Busy, format!("the log cannot be read: {e}")))?;
        match found {
            Some(event) if ledger::hash(&event) == *last_hash => Ok(()),
            Some(_) => Err(ledger::alarm(&self.who, *seq, "another event stands there now")),
            None => Err(ledger::alarm(&self.who, *seq, "the log does not reach that far")),
        }
    }

    /// The highest position the ledger knew at connect; `None` without a ledger.
    pub(super) fn watermark(&self) -> Option<Seq> {
        self.ledger.then_some(Seq(self.watermark))
    }

    pub(super) fn interrupt_handle(&self) -> InterruptHandle {
        self.db.get_interrupt_handle()
    }

    /// Applies a batch.
    pub(super) fn apply(&mut self, order: DeliveryOrder, events: &[EventRef]) -> Result<Vec<Outcome>, Unavailable> {
        let mut poison = BTreeMap::new();
        loop {
            match self.run(order, events, &poison)? {
                Run::Done(outcomes) => return Ok(outcomes),
                Run::Poisoned(at, rejection) => poison.insert(at, rejection),
            };
        }
    }

    fn run(
        &mut self,
        order: DeliveryOrder,
        events: &[EventRef],
        poison: &BTreeMap<usize, Rejection>,
    ) -> Result<Run, Unavailable> {
        self.begin().map_err(|e| errors::unavailable(&e))?;
        let ran = self.within(order, events, poison);
        match ran {
            Ok((Run::Done(outcomes), mark)) => {
                if let Err(unavailable) = self.finish(Ok(())) {
                    self.numbers = Numbers::new(&self.who);
                    return Err(unavailable);
                }
                self.mark = mark;
                Ok(Run::Done(outcomes))
            }
            Ok((poisoned, _)) => {
                // What was added to a table is undone with the transaction.
                self.numbers = Numbers::new(&self.who);
                Ok(poisoned)
            }
            Err(unavailable) => {
                self.numbers = Numbers::new(&self.who);
                self.finish(Err(unavailable))?;
                Ok(Run::Done(Vec::new()))
            }
        }
    }

    /// Everything between BEGIN and COMMIT.
    fn within(
        &mut self,
        order: DeliveryOrder,
        events: &[EventRef],
        poison: &BTreeMap<usize, Rejection>,
    ) -> Result<(Run, Mark), Unavailable> {
        let fail = |e: rusqlite::Error| errors::unavailable(&e);
        let mut mark = self.current_mark()?;
        let mut outcomes = Vec::with_capacity(events.len());
        let mut stopped: HashSet<Line> = HashSet::new();
        for (at, event) in events.iter().enumerate() {
            let in_order = order == DeliveryOrder::InOrder;
            if (in_order && !stopped.is_empty()) || stopped.contains(&Line::of(event, self.who.ordering)) {
                outcomes.push(Outcome::Deferred);
                continue;
            }
            if self.applied_before(order, event, &mark)? {
                outcomes.push(Outcome::Delivered);
                continue;
            }
            let executed = match poison.get(&at) {
                Some(rejection) => Err(Trouble::Rejected(rejection.clone())),
                None => self.numbered(event).and_then(|planned| self.execute_alone(event, planned.as_ref())),
            };
            match executed {
                Ok(()) => {
                    if in_order {
                        mark.seq = event.seq.0;
                        mark.last_hash = ledger::hash(event);
                    } else if self.ledger {
                        let hash = ledger::hash(event);
                        ledger::write_event(&self.db, &self.who, event.seq.0, &hash, clock::wall().0).map_err(fail)?;
                    }
                    outcomes.push(Outcome::Delivered);
                }
                Err(Trouble::Rejected(rejection)) if self.db.is_autocommit() => {
                    return Ok((Run::Poisoned(at, rejection), mark));
                }
                Err(Trouble::Rejected(rejection)) => {
                    // What is missing may be the column or the index: the next attempt looks again.
                    self.numbers.forget(&event.topic);
                    outcomes.push(Outcome::Rejected(rejection));
                    stopped.insert(Line::of(event, self.who.ordering));
                }
                Err(Trouble::Unavailable(unavailable)) => return Err(unavailable),
            }
        }
        if self.ledger && !ledger::write(&self.db, &self.who, &mark, clock::wall().0).map_err(fail)? {
            return Err(ledger::fenced(&self.who, mark.token));
        }
        Ok((Run::Done(outcomes), mark))
    }

    /// The ledger row, which must be as we left it.
    fn current_mark(&self) -> Result<Mark, Unavailable> {
        if !self.ledger {
            return Ok(self.mark.clone());
        }
        let mark = ledger::read(&self.db, &self.who).map_err(|e| errors::unavailable(&e))?;
        if mark.token > self.who.token {
            return Err(ledger::fenced(&self.who, mark.token));
        }
        if mark != self.mark {
            // A copy of the outbox file that delivers beside us, or somebody's hand. Connecting again checks which.
            let message = format!("the ledger moved from {} to {} under another hand", self.mark.seq, mark.seq);
            return Err(Unavailable::new(UnavailableKind::Busy, message));
        }
        Ok(mark)
    }

    fn applied_before(&self, order: DeliveryOrder, event: &EventRef, mark: &Mark) -> Result<bool, Unavailable> {
        if !self.ledger {
            return Ok(false);
        }
        let known = match order {
            DeliveryOrder::InOrder if event.seq.0 < mark.seq => return Ok(true),
            DeliveryOrder::InOrder if event.seq.0 == mark.seq => Some(mark.last_hash.clone()),
            DeliveryOrder::InOrder => None,
            DeliveryOrder::OutOfOrder => {
                ledger::read_event(&self.db, &self.who, event.seq.0).map_err(|e| errors::unavailable(&e))?
            }
        };
        match known {
            None => Ok(false),
            Some(hash) if hash == ledger::hash(event) => Ok(true),
            Some(_) => Err(ledger::alarm(&self.who, event.seq.0, "another event stands there now")),
        }
    }

    /// The event's INSERT with its number, when its table carries numbers.
    fn numbered(&mut self, event: &EventRef) -> Result<Option<Planned>, Trouble> {
        let table = &*event.topic;
        let Some(auto_schema) = self.options.outbox_seq(table) else { return Ok(None) };
        let mut planned = self.planner.plan(event).map_err(Trouble::Rejected)?;
        let Some(text) = self.planner.numbered(&planned, table).map_err(Trouble::Rejected)? else { return Ok(None) };
        numbers::prepare(&mut self.db, &mut self.numbers, table, auto_schema)?;
        let Some(values) = self.numbers.values(table, event.seq.0) else { return Ok(None) };
        planned.values.extend(values.map_err(Trouble::Rejected)?);
        planned.text = text;
        Ok(Some(planned))
    }

    /// Executes one event; a failure undoes it and nothing else.
    fn execute_alone(&mut self, event: &EventRef, planned: Option<&Planned>) -> Result<(), Trouble> {
        self.db.prepare_cached("SAVEPOINT litepost_event")?.execute([])?;
        self.guard.event_speaks(true);
        let executed = match planned {
            Some(planned) => self.speak(&planned.text.sql, &Args::Positional(planned.values.clone())),
            None => self.execute(event),
        };
        self.guard.event_speaks(false);
        if self.db.is_autocommit() {
            // The statement ended the transaction; a success cannot.
            return executed
                .and(Err(Trouble::Rejected(Rejection::never("transaction", "the statement ended the transaction"))));
        }
        if executed.is_err() {
            self.db.prepare_cached("ROLLBACK TO litepost_event")?.execute([])?;
        }
        self.db.prepare_cached("RELEASE litepost_event")?.execute([])?;
        executed
    }

    fn execute(&mut self, event: &EventRef) -> Result<(), Trouble> {
        let never = |code: &str, message: String| Trouble::Rejected(Rejection::never(code, message));
        if *event.kind != *STATEMENT_KIND {
            let message =
                format!("the event's type is {:?}; a database executes statement events (type \"sql\")", event.kind);
            return Err(never("unsupported", message));
        }
        let Some(payload) = event.payload.as_str() else {
            return Err(never("undecodable", "the payload of a statement event must be text in UTF-8".into()));
        };
        let statement = Statement::parse(payload).map_err(|e| never("undecodable", e.to_string()))?;
        self.speak(&statement.sql, &statement.args)
    }

    fn speak(&mut self, sql: &str, args: &Args) -> Result<(), Trouble> {
        self.guard.check(&self.db, sql)?;
        let mut prepared = self.db.prepare_cached(sql).map_err(|e| errors::compiling(&e, sql))?;
        bind::bind(&mut prepared, args)?;
        // RETURNING makes rows; the statement is done when the last one is.
        let mut rows = prepared.raw_query();
        while rows.next()?.is_some() {}
        Ok(())
    }

    fn begin(&self) -> rusqlite::Result<()> {
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        Ok(())
    }

    /// Commits, or rolls back what has failed.
    fn finish(&self, result: Result<(), Unavailable>) -> Result<(), Unavailable> {
        let result = result.and_then(|()| self.db.execute_batch("COMMIT").map_err(|e| errors::unavailable(&e)));
        if result.is_err() && !self.db.is_autocommit() {
            // Fails only when SQLite has rolled back by itself.
            let _ = self.db.execute_batch("ROLLBACK");
        }
        result
    }
}

/// Yields a few times, then sleeps shortly: SQLite's own `busy_timeout` sleeps so long that it starves. Gives up
/// after about five seconds; the destination is then busy, and no event at fault.
fn wait_for_lock(tries: i32) -> bool {
    match tries {
        0..4 => std::thread::yield_now(),
        4..2_000 => std::thread::sleep(Duration::from_micros(100)),
        2_000..6_500 => std::thread::sleep(Duration::from_millis(1)),
        _ => return false,
    }
    true
}
