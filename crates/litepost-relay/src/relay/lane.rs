//! One lane of one destination: takes its lease, drives its pipeline, carries out what the pipeline asks for.
//!
//! One tokio task per lane, made by the relay. Invariants: nothing is delivered or written outside a lease; the lease
//! is given up by this process's own monotonic clock before anyone else can have taken it; on a graceful stop what is
//! in flight is settled and the lane is given back at once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use litepost::lanes::{FormerSplit, Lease, LeaseClaim};
use litepost_core::{Lane, Pipeline, PipelineConfig, Seq};
use tokio_util::sync::CancellationToken;

use super::lease::{Asked, LOOK_EVERY, WISH_EVERY, Watch};
use super::meter::Meter;
use super::pace::Pace;
use super::pulse::Beat;
use super::rate::Bucket;
use super::reader::{Identity, ReaderHandle};
use super::report::{Drained, LaneReport};
use super::slot;
use super::tenure::{End, Tenure};
use super::writer::WriterHandle;
use crate::clock;
use crate::sink::{LogPeek, SinkContext, SinkFactory};

/// After an error of the file itself, before the lane is taken up again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Everything one lane needs.
pub(super) struct LaneTask {
    pub(super) destination: Arc<str>,
    pub(super) lane: Lane,
    pub(super) config: PipelineConfig,
    pub(super) factory: Arc<dyn SinkFactory>,
    pub(super) deadline: Duration,
    pub(super) pace: Option<Pace>,
    pub(super) rate: Option<Arc<Bucket>>,
    pub(super) claim: LeaseClaim,
    pub(super) reader: ReaderHandle,
    pub(super) writer: WriterHandle,
    pub(super) stop: CancellationToken,
    pub(super) until_idle: bool,
    pub(super) meter: Meter,
    pub(super) beat: Beat,
}

/// What the file said of a lane when it was taken.
pub(super) struct Standing {
    /// Settled for certain.
    settled: Seq,
    settled_by_all: Seq,
    generation: i64,
    former: Arc<[FormerSplit]>,
    /// What the destination is known to remember, if it is one that keeps positions itself.
    pub(super) reached: Seq,
}

impl LaneTask {
    /// Runs until told to stop; with `until_idle`, until everything that is there is delivered.
    pub(super) async fn run(self) -> LaneReport {
        let mut report = LaneReport::new(&self.destination, self.lane.index);
        let mut watch = Watch::default();
        // Whether something may have been delivered and not settled when the lane was given up.
        let mut doubt = false;
        loop {
            let lease = match self.take_lease(&mut watch).await {
                Ok(lease) => lease,
                Err(end) => {
                    report.drained = end;
                    return report;
                }
            };
            let end = self.hold(&lease, &mut doubt, &mut report).await;
            self.beat.within(lease.lease_ms);
            match end {
                End::Stopped(drained) => {
                    let _ = self.writer.release(lease).await;
                    report.drained = drained;
                    return report;
                }
                End::Wanted => {
                    tracing::info!(destination = %self.destination, lane = self.lane.index, "an operator asks for the lane, or a relay that has fewer");
                    let _ = self.writer.release(lease).await;
                    continue;
                }
                End::LeaseLost => {
                    tracing::warn!(destination = %self.destination, lane = self.lane.index, "the lease is gone: another relay has taken over");
                    report.takeovers += 1;
                    self.meter.takeover();
                }
                End::Failed(error) => {
                    tracing::error!(destination = %self.destination, lane = self.lane.index, %error, "delivery stopped; trying again");
                    let _ = self.writer.release(lease).await;
                    if self.until_idle {
                        report.drained = Drained::Failed { error };
                        return report;
                    }
                }
            }
            if self.pause(AGAIN_AFTER).await {
                return report;
            }
        }
    }

    /// Waits; true when told to stop.
    async fn pause(&self, time: Duration) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => true,
            () = tokio::time::sleep(time) => false,
        }
    }

    async fn take_lease(&self, watch: &mut Watch) -> Result<Lease, Drained> {
        let mut told = false;
        loop {
            self.beat.within(self.claim.lease_ms);
            let asked =
                watch.ask(&self.writer, &self.destination, self.lane.index, &self.claim, !self.until_idle).await;
            let pause = match asked {
                Ok(Asked::Granted(lease)) => return Ok(lease),
                Ok(Asked::Held { by, for_at_least, look_after }) => {
                    if !told {
                        tracing::info!(destination = %self.destination, lane = self.lane.index, holder = %by, "standing by: another relay has the lane");
                        told = true;
                    }
                    // A one-shot drain waits for a holder to die, not for a living one to stop.
                    let patience = Duration::from_millis(u64::try_from(self.claim.lease_ms).unwrap_or(0));
                    if self.until_idle && for_at_least < patience && watch.watched_for() > patience * 2 {
                        return Err(Drained::HeldElsewhere { by });
                    }
                    look_after
                }
                Ok(Asked::Paused) if self.until_idle => return Err(Drained::Paused),
                Ok(Asked::Paused) => {
                    if !told {
                        tracing::info!(destination = %self.destination, lane = self.lane.index, "paused by an operator");
                        told = true;
                    }
                    LOOK_EVERY
                }
                Ok(Asked::Wanted) => WISH_EVERY,
                Err(error) if self.until_idle => return Err(Drained::Failed { error }),
                Err(error) => {
                    tracing::warn!(destination = %self.destination, %error, "cannot take the lease; trying again");
                    AGAIN_AFTER
                }
            };
            self.beat.within(i64::try_from(pause.as_millis()).unwrap_or(i64::MAX));
            if self.pause(pause).await {
                return Err(Drained::Stopped);
            }
        }
    }

    async fn hold(&self, lease: &Lease, doubt: &mut bool, report: &mut LaneReport) -> End {
        let taken = clock::mono();
        self.beat.within(lease.lease_ms);
        let (mut loaded, row) = match self.writer.load(&self.destination, self.lane.index).await {
            Ok(loaded) => loaded,
            Err(error) => return End::Failed(error),
        };
        // What this lane is about to act on, its token included, must not be undone by a power cut: a destination with
        // a ledger remembers the token, and forgets what the file calls settled.
        if let Err(error) = self.reader.sync().await {
            return End::Failed(error);
        }
        match self.reader.head().await {
            Ok(head) if head < loaded.acked => {
                let acked = loaded.acked;
                return End::Failed(format!(
                    "the log ends at event {head}, but event {acked} was settled: the file was restored from an older copy; \
                     bring the right one back, or go on with `litepost adopt` or `litepost fast-forward`"
                ));
            }
            Ok(head) if *doubt || lease.taken_over => loaded.doubt_until = head,
            Ok(_) => {}
            Err(error) => return End::Failed(error),
        }
        let identity = match self.reader.identity().await {
            Ok(identity) => identity,
            Err(error) => return End::Failed(error),
        };
        let acked = loaded.acked;
        let standing = Standing {
            settled: slot::settled_in(&loaded),
            settled_by_all: row.settled_by_all,
            generation: row.generation,
            former: row.former,
            reached: row.reached,
        };
        let pipeline = Pipeline::new(self.config.clone(), loaded, clock::now());
        let mut tenure = Tenure::new(self, lease, identity, pipeline, standing, taken);
        tracing::info!(destination = %self.destination, lane = self.lane.index, after = acked.0, "delivering");
        let end = tenure.drive().await;
        *doubt = tenure.may_have_delivered(&end);
        tenure.close().await;
        let totals = tenure.pipeline.totals();
        report.add(totals, tenure.pipeline.blocked_lines());
        end
    }

    pub(super) fn context(&self, lease: &Lease, identity: &Identity, standing: &Standing, slot: usize) -> SinkContext {
        let reader = self.reader.of(identity);
        SinkContext {
            destination: Arc::clone(&self.destination),
            origin: Arc::clone(&identity.origin),
            epoch: identity.epoch,
            lane: self.lane,
            generation: standing.generation,
            former: Arc::clone(&standing.former),
            settled_by_all: standing.settled_by_all.0,
            slot,
            ordering: self.config.ordering,
            token: lease.token,
            deadline: self.deadline,
            topics: Vec::new(),
            acked: standing.settled.0,
            confirmed: standing.reached.0,
            log: LogPeek::new(move |seq| {
                let reader = reader.clone();
                async move { Ok(reader.fetch(vec![seq]).await?.into_iter().next()) }.boxed()
            }),
        }
    }
}
