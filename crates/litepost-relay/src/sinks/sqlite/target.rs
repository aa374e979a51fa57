//! One connection to the target file: applies batches, each in one transaction with its ledger.
//!
//! Called by the sink on a thread that may block. Invariants: what is answered `Delivered` is committed, or was by an
//! earlier attempt as the ledger proves; when the transaction fails, nothing of the batch is; a rejected event ends a
//! batch in order, since the ledger's watermark must not pass it before the outbox file has recorded it.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::slice::{from_mut, from_ref};
use std::time::Duration;

use litepost::failpoint::{self, Point};
use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{Applied, EventRef, Line, Outcome, Rejection, Unavailable, UnavailableKind};
use rusqlite::{Connection, InterruptHandle, OpenFlags};

use super::errors::{self, Trouble};
use super::guard::Guard;
use super::speaker::Speaker;
use super::{TargetSettings, ledger as statements};
use crate::clock;
use crate::dialect::Dialect;
use crate::sink::{LedgerOf, LedgerRow, SinkContext};
use crate::sinks::ledger::{self, Ledger, Mark, State};
use crate::sinks::sql::{Beginnings, Numbers, Options, Parsed, Planner};

/// An open target.
pub(super) struct Target {
    db: Connection,
    guard: Guard,
    who: SinkContext,
    options: Options,
    planner: Planner,
    numbers: Numbers,
    /// The ledger as we left it: when it has moved, somebody else moved it. `None` without one.
    ledger: Option<State>,
    /// Whether each event has a savepoint of its own. They cost every event a part of its time, so only a batch in which
    /// one was refused is run with them, and those behind it until none is.
    careful: bool,
}

/// How one run over a batch ended.
enum Run {
    Done(Vec<Outcome>),
    /// The event at this index ended the whole transaction (`ON CONFLICT ROLLBACK`): run again without it.
    Poisoned(usize, Rejection),
    /// The commit was refused, by a deferred constraint; all is undone.
    Refused(Rejection),
    /// An event was refused and no savepoint kept it apart: run again with them.
    Careless,
}

/// Reads the ledger and changes nothing.
pub(super) fn look(path: &Path, who: &LedgerOf) -> Result<Vec<LedgerRow>, Unavailable> {
    let failed = |e: rusqlite::Error| {
        let unavailable = errors::unavailable(&e);
        Unavailable { message: format!("{}: {}", path.display(), unavailable.message), ..unavailable }
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut db = Connection::open_with_flags(path, flags).map_err(failed)?;
    db.busy_handler(Some(wait_for_lock)).map_err(failed)?;
    statements::look(&db, who).map_err(failed)
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
            planner: Planner::new(Dialect::Sqlite),
            ledger: None,
            careful: false,
        };
        if settings.options.keeps_ledger() {
            target.prepare_ledger(settings.options.may_create_ledger())?;
        }
        Ok(target)
    }

    fn prepare_ledger(&mut self, auto_schema: bool) -> Result<(), Unavailable> {
        let fail = |e: rusqlite::Error| errors::unavailable(&e);
        let there = self.db.table_exists(Some("main"), "litepost_ledger").map_err(fail)?
            && self.db.table_exists(Some("main"), "litepost_ledger_event").map_err(fail)?;
        if !there && !auto_schema {
            let schema = ledger::schema(Dialect::Sqlite).split_whitespace().collect::<Vec<_>>().join(" ");
            let message = format!("the ledger tables are missing; set auto_schema = true, or run: {schema}");
            return Err(Unavailable::new(UnavailableKind::Denied, message));
        }
        self.begin().map_err(fail)?;
        let prepared = self.claim(there).and_then(|state| match self.commit() {
            Ok(()) => Ok(state),
            Err(Trouble::Unavailable(unavailable)) => Err(unavailable),
            Err(Trouble::Rejected(r)) => Err(Unavailable::new(UnavailableKind::Server, r.message)),
        });
        self.undo();
        self.ledger = Some(prepared?);
        Ok(())
    }

    fn claim(&self, there: bool) -> Result<State, Unavailable> {
        let fail = |e: rusqlite::Error| errors::unavailable(&e);
        if !there {
            self.db.execute_batch(ledger::schema(Dialect::Sqlite)).map_err(fail)?;
        }
        let ledger = Ledger::new(&self.who, Dialect::Sqlite)?;
        let now = clock::wall().0;
        // From here on no relay with an older token can commit.
        let mark = match statements::read(&self.db, &ledger).map_err(fail)? {
            Some(mark) if mark.token > self.who.token => return Err(ledger::fenced(&self.who, mark.token)),
            Some(mark) => {
                statements::execute(&self.db, ledger.claim()).map_err(fail)?;
                Mark { token: self.who.token, ..mark }
            }
            None => {
                statements::execute(&self.db, ledger.insert(self.who.acked, now)).map_err(fail)?;
                Mark { seq: self.who.acked, token: self.who.token, last_hash: String::new() }
            }
        };
        for write in [ledger.fence_former(), ledger.forget(self.who.acked, now), ledger.forget_former(now)] {
            statements::execute(&self.db, write).map_err(fail)?;
        }
        let remembered = statements::remembered(&self.db, &ledger).map_err(fail)?;
        State::new(ledger, mark, &self.who, &remembered)
    }

    /// A ledger must name events that stand in the log, unchanged: otherwise what the log brings next would be taken
    /// for applied and vanish. (`&mut`, since a connection is shared with no other thread.)
    pub(super) async fn check_against_log(&mut self) -> Result<(), Unavailable> {
        match &self.ledger {
            Some(state) => state.compare_with_log(&self.who).await,
            None => Ok(()),
        }
    }

    /// What the ledger remembers; `None` without a ledger.
    pub(super) fn applied(&self) -> Option<Applied> {
        self.ledger.as_ref().map(State::remembered)
    }

    pub(super) fn interrupt_handle(&self) -> InterruptHandle {
        self.db.get_interrupt_handle()
    }

    /// Applies a batch; `parsed` has a place for the statement of each event.
    pub(super) fn apply(
        &mut self,
        order: DeliveryOrder,
        events: &[EventRef],
        parsed: &mut [Parsed],
    ) -> Result<Vec<Outcome>, Unavailable> {
        let mut poison = BTreeMap::new();
        let (mut len, mut beginnings) = (events.len(), Beginnings::default());
        loop {
            match self.run(order, &events[..len], parsed, &poison)? {
                Run::Done(mut outcomes) => {
                    self.careful = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Rejected(_)));
                    outcomes.resize(events.len(), Outcome::Deferred);
                    return Ok(outcomes);
                }
                Run::Careless => self.careful = true,
                Run::Poisoned(at, rejection) => {
                    poison.insert(at, rejection);
                }
                Run::Refused(rejection) if events.len() == 1 => return Ok(vec![Outcome::Rejected(rejection)]),
                Run::Refused(_) if order == DeliveryOrder::OutOfOrder => return self.one_by_one(order, events, parsed),
                Run::Refused(rejection) => {
                    if let Some(other) = beginnings.after(len) {
                        len = other;
                    } else {
                        len = 1;
                        poison.insert(0, rejection);
                    }
                }
            }
        }
    }

    /// Each in a transaction of its own; a line ends with its first failure.
    fn one_by_one(
        &mut self,
        order: DeliveryOrder,
        events: &[EventRef],
        parsed: &mut [Parsed],
    ) -> Result<Vec<Outcome>, Unavailable> {
        let mut stopped: HashSet<Line> = HashSet::new();
        let mut outcomes = Vec::with_capacity(events.len());
        for (event, parsed) in events.iter().zip(parsed) {
            let line = Line::of(event, self.who.ordering);
            if stopped.contains(&line) {
                outcomes.push(Outcome::Deferred);
                continue;
            }
            let outcome = self.apply(order, from_ref(event), from_mut(parsed))?.pop().unwrap_or(Outcome::Deferred);
            if outcome != Outcome::Delivered {
                stopped.insert(line);
            }
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// Executes the batch that is likely to come next, in a transaction that stays open: `true` when all of it stands there.
    /// Nothing is written for good before [`Target::commit_ahead`].
    pub(super) fn begin_ahead(&mut self, events: &[EventRef], parsed: &mut [Parsed]) -> bool {
        // Without a ledger nothing would be found moved at the commit; numbers may add to a table.
        let plain = |event: &EventRef| self.options.outbox_seq(&event.topic).is_none();
        if self.ledger.is_none() || self.careful || !events.iter().all(plain) || !self.begin_if_free() {
            return false;
        }
        let mut applied = Vec::with_capacity(events.len());
        let executed = self
            .must_be_as_left()
            .and_then(|()| self.execute_all(DeliveryOrder::InOrder, events, parsed, &BTreeMap::new(), &mut applied));
        let stands = matches!(executed, Ok(Run::Done(_))) && applied.len() == events.len();
        if !stands {
            self.undo();
        }
        stands
    }

    /// Commits what was executed ahead, for the batch that has come: the same events in order. `None`: all is undone, and
    /// the batch is to be applied as any other.
    pub(super) fn commit_ahead(&mut self, events: &[EventRef]) -> Result<Option<Vec<Outcome>>, Unavailable> {
        let applied: Vec<&EventRef> = events.iter().collect();
        let written = self.write_ledger(DeliveryOrder::InOrder, &applied);
        let committed = written.map_err(Trouble::Unavailable).and_then(|change| self.commit().map(|()| change));
        self.undo();
        match committed {
            Ok(change) => {
                if let (Some(state), Some(change)) = (&mut self.ledger, change) {
                    state.committed(change);
                }
                Ok(Some(vec![Outcome::Delivered; events.len()]))
            }
            // A deferred constraint: which of them it was, the batch finds out.
            Err(Trouble::Rejected(_)) => Ok(None),
            Err(Trouble::Unavailable(unavailable)) => Err(unavailable),
        }
    }

    fn run(
        &mut self,
        order: DeliveryOrder,
        events: &[EventRef],
        parsed: &mut [Parsed],
        poison: &BTreeMap<usize, Rejection>,
    ) -> Result<Run, Unavailable> {
        self.begin().map_err(|e| errors::unavailable(&e))?;
        let within = self.within(order, events, parsed, poison);
        let ended = match within {
            Ok((Run::Done(outcomes), change)) => match self.commit() {
                Ok(()) => {
                    if let (Some(state), Some(change)) = (&mut self.ledger, change) {
                        state.committed(change);
                    }
                    return Ok(Run::Done(outcomes));
                }
                Err(Trouble::Rejected(rejection)) => Ok(Run::Refused(rejection)),
                Err(Trouble::Unavailable(unavailable)) => Err(unavailable),
            },
            Ok((ended, _)) => Ok(ended),
            Err(unavailable) => Err(unavailable),
        };
        self.undo();
        // What was added to a table is undone with the transaction.
        self.numbers = Numbers::new(&self.who);
        ended
    }

    /// Everything between BEGIN and COMMIT.
    fn within(
        &mut self,
        order: DeliveryOrder,
        events: &[EventRef],
        parsed: &mut [Parsed],
        poison: &BTreeMap<usize, Rejection>,
    ) -> Result<(Run, Option<ledger::Change>), Unavailable> {
        self.must_be_as_left()?;
        let mut applied: Vec<&EventRef> = Vec::with_capacity(events.len());
        let run = self.execute_all(order, events, parsed, poison, &mut applied)?;
        let change = if matches!(run, Run::Done(_)) { self.write_ledger(order, &applied)? } else { None };
        Ok((run, change))
    }

    /// Executes what has to be; `applied` gets the events whose effects are in the open transaction now.
    fn execute_all<'e>(
        &mut self,
        order: DeliveryOrder,
        events: &'e [EventRef],
        parsed: &mut [Parsed],
        poison: &BTreeMap<usize, Rejection>,
        applied: &mut Vec<&'e EventRef>,
    ) -> Result<Run, Unavailable> {
        let mut outcomes = Vec::with_capacity(events.len());
        let mut stopped: HashSet<Line> = HashSet::new();
        let Self { db, guard, planner, numbers, ledger, who, options, careful } = self;
        let mut speaker = Speaker::new(db, guard, options, planner, numbers, *careful);
        for (at, (event, parsed)) in events.iter().zip(parsed).enumerate() {
            let in_order = order == DeliveryOrder::InOrder;
            if !stopped.is_empty() && (in_order || stopped.contains(&Line::of(event, who.ordering))) {
                outcomes.push(Outcome::Deferred);
                continue;
            }
            if let Some(state) = ledger
                && state.applied(event, order, who)?
            {
                outcomes.push(Outcome::Delivered);
                continue;
            }
            let executed = match poison.get(&at) {
                Some(rejection) => Err(Trouble::Rejected(rejection.clone())),
                None => {
                    parsed.of(event).map_err(Trouble::Rejected).and_then(|statement| speaker.execute(event, statement))
                }
            };
            match executed {
                Ok(()) => {
                    applied.push(event);
                    outcomes.push(Outcome::Delivered);
                }
                Err(Trouble::Rejected(rejection)) if db.is_autocommit() => {
                    return Ok(Run::Poisoned(at, rejection));
                }
                Err(Trouble::Rejected(_)) if !*careful && !poison.contains_key(&at) => {
                    return Ok(Run::Careless);
                }
                Err(Trouble::Rejected(rejection)) => {
                    // What is missing may be the column or the index: the next attempt looks again.
                    speaker.forget_numbers(&event.topic);
                    outcomes.push(Outcome::Rejected(rejection));
                    stopped.insert(Line::of(event, who.ordering));
                }
                Err(Trouble::Unavailable(unavailable)) => return Err(unavailable),
            }
        }
        Ok(Run::Done(outcomes))
    }

    /// Notes in the ledger what the transaction has applied.
    fn write_ledger(&self, order: DeliveryOrder, applied: &[&EventRef]) -> Result<Option<ledger::Change>, Unavailable> {
        let Some(state) = self.ledger.as_ref().filter(|_| !applied.is_empty()) else { return Ok(None) };
        let (guards, change) = state.after(applied, order, clock::wall().0);
        for guard in &guards {
            if !statements::guard(&self.db, guard).map_err(|e| errors::unavailable(&e))? {
                return Err(ledger::fenced(&self.who, state.mark.token));
            }
        }
        Ok(Some(change))
    }

    /// The ledger row must be as we left it.
    fn must_be_as_left(&self) -> Result<(), Unavailable> {
        let Some(state) = &self.ledger else { return Ok(()) };
        let found = statements::read(&self.db, &state.ledger).map_err(|e| errors::unavailable(&e))?;
        match found {
            Some(mark) if mark.token > self.who.token => Err(ledger::fenced(&self.who, mark.token)),
            Some(mark) if mark == state.mark => Ok(()),
            // A copy of the outbox file that delivers beside us, or somebody's hand. Connecting again checks which.
            found => {
                let seq = found.map_or(0, |mark| mark.seq);
                let message = format!("the ledger moved from {} to {seq} under another hand", state.mark.seq);
                Err(Unavailable::new(UnavailableKind::Busy, message))
            }
        }
    }

    fn begin(&self) -> rusqlite::Result<()> {
        self.db.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        Ok(())
    }

    /// Takes the lock only if nobody has it.
    fn begin_if_free(&mut self) -> bool {
        let begun = self.db.busy_handler(None::<fn(i32) -> bool>).and_then(|()| self.begin());
        self.db.busy_handler(Some(wait_for_lock)).is_ok() && begun.is_ok()
    }

    /// A constraint that is deferred speaks here; anything else is the destination's.
    fn commit(&self) -> Result<(), Trouble> {
        let failed = |point: Point| Trouble::Unavailable(Unavailable::new(UnavailableKind::Busy, point.name()));
        if failpoint::hit(Point::LedgerBeforeCommit) {
            return Err(failed(Point::LedgerBeforeCommit));
        }
        self.db.execute_batch("COMMIT").map_err(|e| errors::committing(&e))?;
        if failpoint::hit(Point::LedgerAfterCommit) {
            return Err(failed(Point::LedgerAfterCommit));
        }
        Ok(())
    }

    /// Rolls back what is open.
    pub(super) fn undo(&self) {
        if !self.db.is_autocommit() {
            // Fails only when SQLite has rolled back by itself.
            let _ = self.db.execute_batch("ROLLBACK");
        }
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
