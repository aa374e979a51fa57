//! One lane while it is ours: drives its pipeline and carries out what it asks for.
//!
//! Made by the lane loop for each lease. Invariants: the lease is given up by this process's own monotonic clock before
//! anyone else can have taken it; on a graceful stop, or when an operator asks for the lane, what is in flight is
//! settled first.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use futures_util::{FutureExt as _, future};
use litepost::lanes::{Lease, Settled};
use litepost_core::pipeline::{Action, DeliveryId, Finish, Health, SettlementId};
use litepost_core::{Chunk, EventRef, Millis, Pipeline, Seq, Unavailable, UnavailableKind};

use super::lane::{LaneTask, Standing};
use super::meter::{Meter, Underway};
use super::pace;
use super::reader::{Identity, ReadError};
use super::report::Drained;
use super::slot::{self, Answer, Connection, Opened};
use super::writer::WriteError;
use crate::clock;
use crate::rng::Rng;

/// `run_until_idle` gives an unavailable destination this many tries.
const TRIES_WHEN_DRAINING: u32 = 3;
/// How long a graceful stop waits for what is in flight.
const STOP_WITHIN_MS: i64 = 10_000;

/// How one tenure of a lane ended.
pub(super) enum End {
    /// Asked to stop, or everything is delivered.
    Stopped(Drained),
    /// An operator asks for the lane: everything is settled.
    Wanted,
    LeaseLost,
    Failed(String),
}

type Reading = BoxFuture<'static, Result<Arc<Chunk>, ReadError>>;
type Fetching = BoxFuture<'static, Result<Vec<EventRef>, ReadError>>;
type Settling = BoxFuture<'static, (SettlementId, Result<Settled, WriteError>)>;

/// One lane while it is ours.
pub(super) struct Tenure<'a> {
    task: &'a LaneTask,
    lease: &'a Lease,
    identity: Identity,
    pub(super) pipeline: Pipeline,
    rng: Rng,
    /// What was certain when the tenure began; a new connection looks again.
    standing: Standing,
    /// Whether it has just been looked up.
    fresh: bool,
    slots: Vec<Connection>,
    reading: Option<Reading>,
    fetching: Option<Fetching>,
    settling: Option<Settling>,
    opening: Option<BoxFuture<'static, (Opened, Result<Seq, ReadError>)>>,
    deliveries: FuturesUnordered<BoxFuture<'static, Answer>>,
    underway: HashMap<DeliveryId, Underway>,
    renewing: Option<BoxFuture<'static, Result<bool, WriteError>>>,
    renew_at: Millis,
    renew_asked: Millis,
    /// The lease is certainly ours until then, by our own clock.
    ours_until: Millis,
    stop_at: Option<Millis>,
    /// The stop is for an operator who asks for the lane.
    wanted: bool,
    shown: &'static str,
    outages: u32,
}

impl<'a> Tenure<'a> {
    pub(super) fn new(
        task: &'a LaneTask,
        lease: &'a Lease,
        identity: Identity,
        pipeline: Pipeline,
        standing: Standing,
        taken: Millis,
    ) -> Self {
        Self {
            task,
            lease,
            identity,
            pipeline,
            rng: Rng::new(),
            standing,
            fresh: true,
            slots: (0..task.config.concurrency.max(1)).map(|_| None).collect(),
            reading: None,
            fetching: None,
            settling: None,
            opening: None,
            deliveries: FuturesUnordered::new(),
            underway: HashMap::new(),
            renewing: None,
            renew_at: taken.plus(lease.lease_ms / 3),
            renew_asked: taken,
            ours_until: taken.plus(lease.lease_ms),
            stop_at: None,
            wanted: false,
            shown: "",
            outages: 0,
        }
    }

    pub(super) async fn drive(&mut self) -> End {
        loop {
            let until = loop {
                match self.pipeline.poll(clock::now()) {
                    Action::Wait { until } => break until,
                    Action::Finished(Finish::Shutdown) if self.wanted => return End::Wanted,
                    Action::Finished(Finish::Shutdown) => return End::Stopped(self.drained()),
                    Action::Finished(Finish::LeaseLost) => return End::LeaseLost,
                    action => self.start(action),
                }
            };
            self.show_health();
            if self.task.until_idle && self.stop_at.is_none() && self.has_drained().await {
                self.begin_stop();
                continue;
            }
            if let Err(end) = self.wait(until).await {
                return end;
            }
        }
    }

    fn start(&mut self, action: Action) {
        match action {
            Action::Open => {
                let factory = Arc::clone(&self.task.factory);
                let mut context = self.task.context(self.lease, &self.identity, &self.standing, 0);
                let (reader, writer, deadline) =
                    (self.task.reader.of(&self.identity), self.task.writer.clone(), self.task.deadline);
                let fresh = std::mem::take(&mut self.fresh);
                let open = async move {
                    if !fresh {
                        slot::look_up_settled(&mut context, &writer, &reader).await;
                    }
                    let opened = slot::open(factory, context, deadline).await;
                    (opened, reader.head().await)
                };
                self.opening = Some(open.boxed());
            }
            Action::Read { after } => {
                let (reader, pace) = (self.task.reader.of(&self.identity), self.task.pace);
                self.reading = Some(async move { pace::read(&reader, after, pace).await }.boxed());
            }
            Action::Fetch { seqs } => {
                let reader = self.task.reader.of(&self.identity);
                self.fetching = Some(async move { reader.fetch(seqs).await }.boxed());
            }
            Action::Deliver(delivery) => {
                self.underway.insert(delivery.id, Meter::leaves(&delivery, clock::instant()));
                let connection = self.slots.get_mut(delivery.slot).and_then(Option::take);
                let factory = Arc::clone(&self.task.factory);
                let mut context = self.task.context(self.lease, &self.identity, &self.standing, delivery.slot);
                let (reader, writer, deadline) =
                    (self.task.reader.of(&self.identity), self.task.writer.clone(), self.task.deadline);
                let rate = self.task.rate.clone();
                let deliver = async move {
                    if let Some(rate) = rate {
                        rate.pass(delivery.events.len()).await;
                    }
                    if connection.is_none() {
                        slot::look_up_settled(&mut context, &writer, &reader).await;
                    }
                    slot::deliver(connection, factory, context, delivery, deadline).await
                };
                self.deliveries.push(deliver.boxed());
            }
            Action::Settle(mut settlement) => {
                settlement.reached = self.standing.reached;
                let (writer, lease) = (self.task.writer.clone(), self.lease.clone());
                let id = settlement.id.unwrap_or(SettlementId(0));
                self.settling = Some(async move { (id, writer.settle(lease, settlement).await) }.boxed());
            }
            Action::Wait { .. } | Action::Finished(_) => {}
        }
    }

    /// Waits for whatever comes first, and tells the pipeline.
    async fn wait(&mut self, until: Option<Millis>) -> Result<(), End> {
        // A renewal that is under way is not begun again.
        let renew_at = self.renewing.is_none().then_some(self.renew_at);
        let wake_at = [until, renew_at, Some(self.ours_until), self.stop_at].into_iter().flatten().min();
        self.task.beat.until(wake_at.unwrap_or_default().max(clock::mono()));
        let timer = tokio::time::sleep_until(clock::timer(wake_at.unwrap_or_default()));
        let stopping = self.stop_at.is_some();
        tokio::select! {
            biased;
            Some(answer) = self.deliveries.next(), if !self.deliveries.is_empty() => self.answered(answer),
            (id, settled) = pending(&mut self.settling) => {
                self.settling = None;
                match settled {
                    Ok(Settled::Committed) => self.pipeline.settled(id),
                    Ok(Settled::LeaseLost) => self.pipeline.lease_lost(),
                    // Read anew, since written again it would be counted twice.
                    Ok(Settled::Unsynced) => return Err(End::Failed("what was settled could not be synced".to_owned())),
                    Err(error) => return Err(End::Failed(error)),
                }
            }
            chunk = pending(&mut self.reading) => {
                self.reading = None;
                self.pipeline.chunk(&chunk.map_err(End::Failed)?, clock::now());
            }
            rows = pending(&mut self.fetching) => {
                self.fetching = None;
                self.pipeline.fetched(rows.map_err(End::Failed)?, clock::now());
            }
            (opened, head) = pending(&mut self.opening) => {
                self.opening = None;
                self.opened(opened, head.map_err(End::Failed)?);
            }
            renewed = pending(&mut self.renewing) => {
                self.renewing = None;
                match renewed {
                    Ok(true) => self.ours_until = self.renew_asked.plus(self.lease.lease_ms),
                    Ok(false) => self.pipeline.lease_lost(),
                    Err(error) => tracing::warn!(destination = %self.task.destination, %error, "cannot renew the lease"),
                }
            }
            () = self.task.stop.cancelled(), if !stopping || self.wanted => {
                self.wanted = false;
                self.begin_stop();
            }
            () = self.task.reader.wanted(&self.task.destination, self.task.lane.index), if !stopping => {
                self.wanted = true;
                self.begin_stop();
            }
            () = timer => self.timers()?,
        }
        Ok(())
    }

    fn answered(&mut self, answer: Answer) {
        if let Some(underway) = self.underway.remove(&answer.id) {
            self.task.meter.answered(&underway, &answer.outcomes, clock::instant(), clock::wall());
        }
        if let Some(slot) = self.slots.get_mut(answer.slot) {
            *slot = answer.connection;
        }
        self.standing.reached = self.standing.reached.max(answer.reached.unwrap_or_default());
        let rng = &mut self.rng;
        self.pipeline.outcomes(answer.id, answer.outcomes, clock::now(), &mut || rng.chance());
        self.count_outages();
    }

    fn opened(&mut self, opened: Opened, head: Seq) {
        let applied = match opened.applied {
            Ok(Some(applied)) if applied.newest() > head => Err(Unavailable::new(
                UnavailableKind::Denied,
                format!(
                    "the destination has applied event {newest} of this log, which ends at {head}: the outbox file was \
                     restored from an older copy; nothing is delivered, so that nothing is mistaken for it. Bring the right \
                     file back, or go on with this one: `litepost adopt` delivers it from its cursors on, `litepost \
                     fast-forward` takes what it holds for delivered",
                    newest = applied.newest()
                ),
            )),
            other => other,
        };
        if applied.is_ok() {
            self.slots[0] = opened.connection;
        }
        let rng = &mut self.rng;
        self.pipeline.opened(applied, clock::now(), &mut || rng.chance());
        self.count_outages();
    }

    /// Tries in a row that ended with the destination unavailable.
    fn count_outages(&mut self) {
        self.outages = if matches!(self.pipeline.health(), Health::Open { .. }) { self.outages + 1 } else { 0 };
    }

    fn timers(&mut self) -> Result<(), End> {
        let now = clock::mono();
        if now >= self.ours_until {
            return Err(End::LeaseLost);
        }
        if self.stop_at.is_some_and(|at| now >= at) {
            tracing::warn!(destination = %self.task.destination, "what is in flight did not end in time; it is delivered again");
            return Err(if self.wanted { End::Wanted } else { End::Stopped(Drained::Stopped) });
        }
        if now >= self.renew_at && self.renewing.is_none() {
            self.renew_at = now.plus(self.lease.lease_ms / 3);
            self.renew_asked = now;
            let (writer, lease) = (self.task.writer.clone(), self.lease.clone());
            self.renewing = Some(async move { writer.renew(lease).await }.boxed());
        }
        Ok(())
    }

    fn begin_stop(&mut self) {
        self.stop_at = Some(clock::mono().plus(STOP_WITHIN_MS));
        self.pipeline.shutdown();
    }

    /// With `until_idle`: whether there is nothing more to do, or no use in waiting.
    async fn has_drained(&mut self) -> bool {
        // What is not saved yet is saved by the stop that follows.
        if matches!(self.pipeline.health(), Health::Stalled { .. }) && self.pipeline.is_decided() {
            return true;
        }
        if self.outages >= TRIES_WHEN_DRAINING {
            return true;
        }
        if !self.pipeline.is_decided() {
            return false;
        }
        self.task.reader.head().await.is_ok_and(|head| head <= self.pipeline.read_position())
    }

    fn drained(&self) -> Drained {
        match self.pipeline.health() {
            Health::Stalled { expected, found } => Drained::Stalled { expected: *expected, found: *found },
            Health::Open { error, .. } | Health::HalfOpen { error } => Drained::Unavailable { error: error.clone() },
            Health::Closed if self.pipeline.blocked_lines() > 0 => {
                Drained::Blocked { lines: self.pipeline.blocked_lines() }
            }
            Health::Closed if self.pipeline.is_idle() && self.task.until_idle => Drained::Everything,
            Health::Closed => Drained::Stopped,
        }
    }

    /// Tells people, in the log and in the file, when the destination's state changes.
    fn show_health(&mut self) {
        let (state, error) = match self.pipeline.health() {
            Health::Closed => ("closed", None),
            Health::Open { error, .. } => ("open", Some(error.clone())),
            Health::HalfOpen { error } => ("half_open", Some(error.clone())),
            Health::Stalled { expected, found } => {
                ("stalled", Some(format!("event {expected} is missing from the log; the next one there is {found}")))
            }
        };
        if state == self.shown {
            return;
        }
        let destination = &self.task.destination;
        match (state, &error) {
            ("open", Some(error)) => {
                tracing::warn!(%destination, %error, "unavailable; trying again");
            }
            ("stalled", Some(error)) => tracing::error!(%destination, %error, "stopped: events are lost"),
            ("closed", _) if self.shown == "half_open" => {
                tracing::info!(%destination, "available again");
            }
            _ => {}
        }
        self.task.writer.health(self.lease.clone(), state, error);
        self.shown = state;
    }

    /// Whether something may have been delivered that is not settled, now that the tenure has come to its `end`.
    pub(super) fn may_have_delivered(&self, end: &End) -> bool {
        !self.underway.is_empty() || matches!(end, End::Failed(_) | End::LeaseLost)
    }

    pub(super) async fn close(&mut self) {
        let open = self.slots.iter_mut().flatten().map(|sink| sink.close());
        let _ = tokio::time::timeout(self.task.deadline, future::join_all(open)).await;
    }
}

/// Awaits what is there; for ever when nothing is.
async fn pending<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => future::pending().await,
    }
}
