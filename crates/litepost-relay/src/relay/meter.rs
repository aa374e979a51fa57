//! What a lane counts while it delivers, through the `metrics` facade.
//!
//! Called by the lane loop. Invariant: without a recorder (no admin listener) every call here is a branch and nothing
//! more; what can be read from the outbox file (waiting, oldest, dead, leases) is not counted here but read there.
//!
//! Names: `litepost_*` for the relay's own; `messaging_*` follow OpenTelemetry's semantic conventions for messaging
//! clients (messaging.client.sent.messages, messaging.client.operation.duration), in Prometheus' spelling.

use std::time::{Duration, Instant};

use litepost_core::pipeline::Delivery;
use litepost_core::{Lane, Millis, Outcome};
use metrics::{Counter, Histogram, Unit, counter, describe_counter, describe_histogram, histogram};

/// Buckets of the histograms of this module, seconds: from 0.1 ms to an hour.
pub const BUCKETS_SECONDS: [f64; 18] = [
    0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0,
    3600.0,
];

/// Tells a recorder what the names mean. Called once, after it was installed.
pub fn describe() {
    describe_counter!("messaging_client_sent_messages_total", Unit::Count, "Events that a destination has confirmed");
    describe_counter!("litepost_delivery_attempts_total", Unit::Count, "Events handed to a destination, by outcome");
    describe_counter!("litepost_lease_takeovers_total", Unit::Count, "Leases that another relay has taken away");
    describe_histogram!(
        "messaging_client_operation_duration_seconds",
        Unit::Seconds,
        "Time of one delivery: a batch handed over until its outcomes are known"
    );
    describe_histogram!(
        "litepost_commit_to_ack_seconds",
        Unit::Seconds,
        "From the event's created_at to the destination's confirmation"
    );
    describe_histogram!("litepost_fsync_seconds", Unit::Seconds, "Time of one sync of the WAL before a batch leaves");
}

/// A lane's counters.
pub(super) struct Meter {
    delivered: Counter,
    rejected: Counter,
    unavailable: Counter,
    deferred: Counter,
    takeovers: Counter,
    duration: Histogram,
    ack: Histogram,
}

/// A delivery under way.
pub(super) struct Underway {
    began: Instant,
    created: Vec<Millis>,
}

impl Meter {
    pub(super) fn new(destination: &str, lane: Lane) -> Self {
        let destination = destination.to_owned();
        let lane = lane.index.to_string();
        let attempts = |outcome: &'static str| counter!("litepost_delivery_attempts_total", "destination" => destination.clone(), "lane" => lane.clone(), "outcome" => outcome);
        Self {
            delivered: counter!("messaging_client_sent_messages_total", "destination" => destination.clone(), "lane" => lane.clone()),
            rejected: attempts("rejected"),
            unavailable: attempts("unavailable"),
            deferred: attempts("deferred"),
            takeovers: counter!("litepost_lease_takeovers_total", "destination" => destination.clone(), "lane" => lane.clone()),
            duration: histogram!("messaging_client_operation_duration_seconds", "destination" => destination.clone()),
            ack: histogram!("litepost_commit_to_ack_seconds", "destination" => destination.clone()),
        }
    }

    pub(super) fn takeover(&self) {
        self.takeovers.increment(1);
    }

    /// A delivery leaves.
    pub(super) fn leaves(delivery: &Delivery, now: Instant) -> Underway {
        Underway { began: now, created: delivery.events.iter().map(|event| event.created_at).collect() }
    }

    /// Its outcomes are known, at `now` by the wall clock that producers write.
    pub(super) fn answered(&self, underway: &Underway, outcomes: &[Outcome], mono: Instant, now: Millis) {
        self.duration.record(mono.duration_since(underway.began).as_secs_f64());
        let mut counts = [0u64; 4];
        let mut same = (Millis(0), 0usize);
        for (outcome, created) in outcomes.iter().zip(&underway.created) {
            match outcome {
                Outcome::Delivered => {
                    counts[0] += 1;
                    // Events of one transaction share their time: one entry for all of them.
                    if same.0 == *created {
                        same.1 += 1;
                    } else {
                        self.acknowledged(same, now);
                        same = (*created, 1);
                    }
                }
                Outcome::Rejected(_) => counts[1] += 1,
                Outcome::Unavailable(_) => counts[2] += 1,
                Outcome::Deferred => counts[3] += 1,
            }
        }
        self.acknowledged(same, now);
        for (counter, count) in
            [&self.delivered, &self.rejected, &self.unavailable, &self.deferred].into_iter().zip(counts)
        {
            if count > 0 {
                counter.increment(count);
            }
        }
    }

    fn acknowledged(&self, (created, count): (Millis, usize), now: Millis) {
        if count > 0 {
            self.ack.record_many(seconds(now.since(created)), count);
        }
    }
}

/// One sync of the WAL took this long.
pub(super) fn synced(took: Duration) {
    histogram!("litepost_fsync_seconds").record(took.as_secs_f64());
}

/// Clocks may jump: a negative time is none.
#[allow(clippy::cast_precision_loss, reason = "milliseconds of a delivery are far below 2^53")]
fn seconds(ms: i64) -> f64 {
    ms.max(0) as f64 / 1_000.0
}
