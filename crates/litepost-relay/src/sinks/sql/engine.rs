//! Delivery into a SQL database: what is applied is skipped, what is new commits with the ledger, what fails is found.
//!
//! Made by each SQL sink's factory through [`open`]. Invariants: [`Outcome::Delivered`] is answered only for what the
//! ledger shows as committed (or the target has confirmed, without a ledger); after an unavailability the sink is used
//! up, since nobody knows whether its last transaction committed, and the next one reads the ledger.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost::failpoint::{self, Point};
use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{Applied, EventRef, Line, Outcome, Rejection, RetryHint, Unavailable, UnavailableKind, Value};

use super::ahead::{Ahead, Parsed};
use super::beginning::Beginnings;
use super::ledger::{self, Ledger, Mark, Remembered, State, integer, text};
use super::options::Options;
use super::outbox_seq::Numbers;
use super::plan::{Planned, Planner};
use super::session::{Failure, Fault, Session, Work};
use crate::clock;
use crate::sink::{Batch, LedgerOf, LedgerRow, Sink, SinkContext};

/// After a failure so many events are tried at once, doubled with each success: a run of bad events costs each a small
/// transaction and not a full batch.
const CAUTIOUS_EVENTS: usize = 16;

/// A sink over one session.
struct SqlSink<S> {
    session: S,
    context: SinkContext,
    planner: Planner,
    ahead: Ahead,
    options: Options,
    numbers: Numbers,
    ledger: Option<State>,
    deadline: Duration,
    cautious: Option<usize>,
    used_up: bool,
}

/// Makes a sink of a connected session: creates the ledger if asked to, claims the lane, compares it with the log.
pub(crate) async fn open<S: Session + 'static>(
    session: S,
    context: &SinkContext,
    options: &Options,
    deadline: Duration,
) -> Result<Box<dyn Sink>, Unavailable> {
    let planner = Planner::new(session.dialect());
    let mut sink = SqlSink {
        session,
        context: context.clone(),
        planner,
        ahead: Ahead::default(),
        options: options.clone(),
        numbers: Numbers::new(context),
        ledger: None,
        deadline,
        cautious: None,
        used_up: false,
    };
    if options.keeps_ledger() {
        let claimed = tokio::time::timeout(deadline, sink.claim(options.may_create_ledger())).await;
        let state = claimed.unwrap_or_else(|_| Err(late(deadline)))?;
        state.compare_with_log(context).await?;
        sink.ledger = Some(state);
    }
    Ok(Box::new(sink))
}

/// What the ledger remembers of an outbox file, without changing anything; nothing when there is no ledger yet.
pub(crate) async fn look<S: Session>(
    mut session: S,
    who: &LedgerOf,
    deadline: Duration,
) -> Result<Vec<LedgerRow>, Unavailable> {
    let looked = async {
        let [lanes, events] = ledger::look(who, session.dialect())?;
        let rows = match session.query(&lanes.0, &lanes.1).await {
            Ok(rows) => rows,
            Err(Fault::Rejected(r)) if r.retry == RetryHint::Hold => return Ok(Vec::new()),
            Err(fault) => return Err(unavailable(fault)),
        };
        let lane = |value: Option<&Value>| u32::try_from(integer(value)).unwrap_or(u32::MAX);
        let row = |row: &Vec<Value>| LedgerRow {
            generation: integer(row.first()),
            lane: lane(row.get(1)),
            seq: integer(row.get(2)),
            token: integer(row.get(3)),
            hash: text(row.get(4)),
            events: Vec::new(),
        };
        let mut found: Vec<LedgerRow> = rows.iter().map(row).collect();
        for event in session.query(&events.0, &events.1).await.map_err(unavailable)? {
            let of = (integer(event.first()), lane(event.get(1)));
            if let Some(row) = found.iter_mut().find(|row| (row.generation, row.lane) == of) {
                row.events.push((integer(event.get(2)), text(event.get(3))));
            }
        }
        Ok(found)
    };
    let looked = tokio::time::timeout(deadline, looked).await.unwrap_or_else(|_| Err(late(deadline)));
    session.close().await;
    looked
}

pub(super) fn late(deadline: Duration) -> Unavailable {
    Unavailable::new(UnavailableKind::Timeout, format!("no answer within {} ms", deadline.as_millis()))
}

/// A fault of a statement that is the sink's own.
pub(crate) fn unavailable(fault: Fault) -> Unavailable {
    match fault {
        Fault::Unavailable(u) => u,
        Fault::Rejected(r) => Unavailable::new(
            UnavailableKind::Denied,
            format!("the target refused the ledger's own statement: {} ({})", r.message, r.code),
        ),
    }
}

impl<S: Session> SqlSink<S> {
    /// Reads the lane's row, or makes it, and sees to it that no older token can commit from here on.
    async fn claim(&mut self, auto_schema: bool) -> Result<State, Unavailable> {
        let ledger = Ledger::new(&self.context, self.session.dialect())?;
        self.find_or_create(&ledger, auto_schema).await?;
        let (sql, values) = ledger.others();
        let others = self.session.query(sql, &values).await.map_err(unavailable)?;
        ledger::same_split(&self.context, &others)?;
        let (sql, values) = ledger.claim();
        self.session.execute(sql, &values).await.map_err(unavailable)?;
        let mark = if let Some(mark) = self.read_mark(&ledger).await? {
            mark
        } else {
            let (sql, values) = ledger.insert(self.context.acked, clock::wall().0);
            self.session.execute(sql, &values).await.map_err(unavailable)?;
            Mark { seq: self.context.acked, token: self.context.token, last_hash: String::new() }
        };
        if mark.token != self.context.token {
            return Err(ledger::fenced(&self.context, mark.token));
        }
        // The lane's own row is there: see the ledger's page for why the others come after it.
        let now = clock::wall().0;
        let writes = [ledger.fence_former(), ledger.forget(self.context.acked, now), ledger.forget_former(now)];
        for (sql, values) in writes {
            self.session.execute(sql, &values).await.map_err(unavailable)?;
        }
        let mut answers = Vec::with_capacity(3);
        for (sql, values) in [ledger.others(), ledger.read_events(), ledger.former_events()] {
            answers.push(self.session.query(sql, &values).await.map_err(unavailable)?);
        }
        let [others, events, former_events] = <[_; 3]>::try_from(answers).unwrap_or_default();
        State::new(ledger, mark, &self.context, &Remembered { others, events, former_events })
    }

    /// Sees to it that both tables are there. Each is asked for: a crash may have come between the two.
    async fn find_or_create(&mut self, ledger: &Ledger, auto_schema: bool) -> Result<(), Unavailable> {
        for (sql, values) in [ledger.read(), ledger.read_events()] {
            match self.session.query(sql, &values).await {
                Ok(_) => {}
                Err(Fault::Rejected(r)) if r.retry == RetryHint::Hold && auto_schema => {
                    let ddl = ledger::schema(self.session.dialect());
                    return self.session.create(ddl).await.map_err(unavailable);
                }
                Err(Fault::Rejected(r)) if r.retry == RetryHint::Hold => {
                    return Err(Unavailable::new(
                        UnavailableKind::Denied,
                        format!(
                            "the target has no ledger ({}); set auto_schema = true, or create it with the DDL that \
                             `litepost schema --target {}` prints",
                            r.message, self.context.destination
                        ),
                    ));
                }
                Err(fault) => return Err(unavailable(fault)),
            }
        }
        Ok(())
    }

    async fn read_mark(&mut self, ledger: &Ledger) -> Result<Option<Mark>, Unavailable> {
        let (sql, values) = ledger.read();
        let rows = self.session.query(sql, &values).await.map_err(unavailable)?;
        Ok(rows.first().map(|row| Mark {
            seq: integer(row.first()),
            token: integer(row.get(1)),
            last_hash: text(row.get(2)),
        }))
    }

    fn applied(&self, event: &EventRef, order: DeliveryOrder) -> Result<bool, Unavailable> {
        self.ledger.as_ref().map_or(Ok(false), |state| state.applied(event, order, &self.context))
    }

    /// One transaction with the ledger's part, under the deadline.
    async fn commit(&mut self, steps: &[&Planned], events: &[&EventRef], order: DeliveryOrder) -> Result<(), Failure> {
        let (mut guards, mut change) = (Vec::new(), None);
        if let Some(state) = &self.ledger {
            let (writes, after) = state.after(events, order, clock::wall().0);
            if !self.session.counts_rows() {
                guards.push(state.ledger.fence(&state.mark));
            }
            guards.extend(writes);
            change = Some(after);
        }
        let work = Work { steps, guards: &guards };
        if failpoint::hit(Point::RemoteBeforeApply) {
            return Err(Failure::Unavailable(late(self.deadline)));
        }
        let answer = tokio::time::timeout(self.deadline, self.session.apply(&work)).await;
        answer.unwrap_or_else(|_| Err(Failure::Unavailable(late(self.deadline))))?;
        // An answer that was lost after its effect.
        if failpoint::hit(Point::RemoteAfterApply) {
            return Err(Failure::Unavailable(late(self.deadline)));
        }
        if let (Some(state), Some(change)) = (&mut self.ledger, change) {
            state.committed(change);
        }
        Ok(())
    }

    /// Why the ledger is not as it was left.
    async fn explain_guard(&mut self) -> Unavailable {
        let Some(ledger) = self.ledger.as_ref().map(|state| state.ledger.clone()) else { return late(self.deadline) };
        match self.read_mark(&ledger).await {
            Ok(Some(mark)) if mark.token > self.context.token => ledger::fenced(&self.context, mark.token),
            // A transaction that was given up has committed after all, or a copy of the file is at work: the next
            // connection compares the ledger with the log and tells them apart.
            Ok(Some(_)) => {
                Unavailable::new(UnavailableKind::Busy, "the ledger has moved since it was read; it is read again")
            }
            Ok(None) => Unavailable::new(
                UnavailableKind::Denied,
                "the lane's row in litepost_ledger was deleted while the relay was delivering; what was applied is no longer known",
            ),
            Err(unavailable) => unavailable,
        }
    }

    /// The event's statement. A table whose rows carry numbers is made ready before its first INSERT.
    async fn plan(&mut self, event: &EventRef, parsed: &mut Parsed) -> Result<Planned, Fault> {
        let mut planned = parsed.take(event).and_then(|read| self.planner.plan(read)).map_err(Fault::Rejected)?;
        let table = &*event.topic;
        let Some(auto_schema) = self.options.outbox_seq(table) else { return Ok(planned) };
        let Some(text) = self.planner.numbered(&planned, table).map_err(Fault::Rejected)? else { return Ok(planned) };
        if !self.numbers.is_ready(table) {
            let preparing = self.numbers.prepare(&mut self.session, table, auto_schema);
            let prepared = tokio::time::timeout(self.deadline, preparing).await;
            prepared.unwrap_or_else(|_| Err(Fault::Unavailable(late(self.deadline))))?;
        }
        if let Some(values) = self.numbers.values(table, event.seq.0) {
            planned.values.extend(values.map_err(Fault::Rejected)?);
            planned.text = text;
        }
        Ok(planned)
    }

    /// What is missing may be the column or the index of a table: the next attempt looks again.
    fn look_again(&mut self, event: &EventRef, rejection: &Rejection) {
        if rejection.retry == RetryHint::Hold {
            self.numbers.forget(&event.topic);
        }
    }

    async fn in_order(&mut self, events: &[EventRef], parsed: &mut [Parsed]) -> Vec<Outcome> {
        let mut answer = Answer::new(events.len());
        let mut fresh = Vec::new();
        for (at, event) in events.iter().enumerate() {
            match self.applied(event, DeliveryOrder::InOrder) {
                Ok(true) => answer.set(at, Outcome::Delivered),
                Ok(false) => fresh.push(at),
                Err(u) => return give_up(answer, &u),
            }
        }
        fresh.truncate(self.cautious.unwrap_or(usize::MAX));
        let mut stop: Option<(usize, Rejection)> = None;
        let mut planned = Vec::with_capacity(fresh.len());
        for &at in &fresh {
            match self.plan(&events[at], &mut parsed[at]).await {
                Ok(p) => planned.push(p),
                Err(Fault::Rejected(rejection)) => {
                    stop = Some((at, rejection));
                    break;
                }
                Err(Fault::Unavailable(u)) => return give_up(answer, &u),
            }
        }
        let steps: Vec<&Planned> = planned.iter().collect();
        let mut len = steps.len();
        let mut beginnings = Beginnings::default();
        while len > 0 {
            let committing: Vec<&EventRef> = fresh[..len].iter().map(|&at| &events[at]).collect();
            match self.commit(&steps[..len], &committing, DeliveryOrder::InOrder).await {
                Ok(()) => break,
                Err(Failure::Step(index, rejection)) => {
                    len = index.min(len - 1);
                    stop = Some((fresh[len], rejection));
                    beginnings = Beginnings::default();
                }
                Err(Failure::Whole(rejection)) => match beginnings.after(len) {
                    // What is refused for good (too large) is not healed by more events.
                    Some(other) if len > 1 || rejection.retry != RetryHint::Never => {
                        len = other;
                        stop = None;
                    }
                    _ => {
                        len = 0;
                        stop = Some((fresh[0], rejection));
                    }
                },
                Err(Failure::Guard) => {
                    let why = self.explain_guard().await;
                    return give_up(answer, &why);
                }
                Err(Failure::Unavailable(u)) => return give_up(answer, &u),
            }
        }
        fresh[..len].iter().for_each(|&at| answer.set(at, Outcome::Delivered));
        self.cautious = match (&stop, self.cautious) {
            (Some(_), _) => Some(CAUTIOUS_EVENTS),
            (None, Some(events)) if events < 1 << 20 => Some(events * 2),
            _ => None,
        };
        if let Some((at, rejection)) = stop {
            self.look_again(&events[at], &rejection);
            answer.set(at, Outcome::Rejected(rejection));
        }
        answer.finish()
    }

    async fn out_of_order(&mut self, events: &[EventRef], parsed: &mut [Parsed]) -> Vec<Outcome> {
        let mut answer = Answer::new(events.len());
        let mut planned: Vec<(usize, Planned)> = Vec::with_capacity(events.len());
        let mut stopped: HashSet<Line> = HashSet::new();
        for (at, event) in events.iter().enumerate() {
            match self.applied(event, DeliveryOrder::OutOfOrder) {
                Ok(true) => answer.set(at, Outcome::Delivered),
                Err(u) => return give_up(answer, &u),
                Ok(false) if stopped.contains(&self.line(event)) => {}
                Ok(false) => match self.plan(event, &mut parsed[at]).await {
                    Ok(p) => planned.push((at, p)),
                    Err(Fault::Rejected(rejection)) => {
                        answer.set(at, Outcome::Rejected(rejection));
                        stopped.insert(self.line(event));
                    }
                    Err(Fault::Unavailable(u)) => return give_up(answer, &u),
                },
            }
        }
        // All at once; when something fails, one after the other, and a line ends with its first failure.
        let mut groups: Vec<&[(usize, Planned)]> = if planned.is_empty() { vec![] } else { vec![&planned[..]] };
        let mut next = 0;
        while next < groups.len() {
            let group = groups[next];
            next += 1;
            let steps: Vec<&Planned> = group.iter().map(|(_, p)| p).collect();
            let committing: Vec<&EventRef> = group.iter().map(|(at, _)| &events[*at]).collect();
            if group.len() == 1 && stopped.contains(&self.line(committing[0])) {
                continue;
            }
            match self.commit(&steps, &committing, DeliveryOrder::OutOfOrder).await {
                Ok(()) => group.iter().for_each(|(at, _)| answer.set(*at, Outcome::Delivered)),
                Err(Failure::Step(_, rejection) | Failure::Whole(rejection)) if group.len() == 1 => {
                    self.look_again(committing[0], &rejection);
                    answer.set(group[0].0, Outcome::Rejected(rejection));
                    stopped.insert(self.line(committing[0]));
                }
                Err(Failure::Step(..) | Failure::Whole(_)) => groups.extend(group.chunks(1)),
                Err(Failure::Guard) => {
                    let why = self.explain_guard().await;
                    return give_up(answer, &why);
                }
                Err(Failure::Unavailable(u)) => return give_up(answer, &u),
            }
        }
        answer.finish()
    }

    fn line(&self, event: &EventRef) -> Line {
        Line::of(event, self.context.ordering)
    }
}

/// Answers what is not settled yet with `why`.
fn give_up(mut answer: Answer, why: &Unavailable) -> Vec<Outcome> {
    answer.fail(why);
    answer.finish()
}

/// One outcome per event; what is not said is deferred.
struct Answer(Vec<Option<Outcome>>);

impl Answer {
    fn new(events: usize) -> Self {
        Self(vec![None; events])
    }

    fn set(&mut self, at: usize, outcome: Outcome) {
        if let Some(place) = self.0.get_mut(at) {
            *place = Some(outcome);
        }
    }

    fn fail(&mut self, why: &Unavailable) {
        for place in self.0.iter_mut().filter(|place| place.is_none()) {
            *place = Some(Outcome::Unavailable(why.clone()));
        }
    }

    fn finish(self) -> Vec<Outcome> {
        self.0.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Deferred)).collect()
    }
}

impl<S: Session> Sink for SqlSink<S> {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            if self.used_up {
                let why =
                    Unavailable::new(UnavailableKind::Connect, "this connection is given up; a new one is needed");
                return give_up(Answer::new(batch.events.len()), &why);
            }
            // Dropped in the middle, the session is in an unknown state: only a full answer makes it usable again.
            self.used_up = true;
            let mut parsed = self.ahead.parsed(batch).await;
            self.ahead.read_on(batch);
            let outcomes = match batch.order {
                DeliveryOrder::InOrder => self.in_order(&batch.events, &mut parsed).await,
                DeliveryOrder::OutOfOrder => self.out_of_order(&batch.events, &mut parsed).await,
            };
            self.used_up = outcomes.iter().any(|o| matches!(o, Outcome::Unavailable(_)));
            outcomes
        })
    }

    fn applied(&self) -> Option<Applied> {
        self.ledger.as_ref().map(State::remembered)
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        self.session.close()
    }
}
