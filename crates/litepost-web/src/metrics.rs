//! `/metrics`, for Prometheus.
//!
//! Invariant: what the outbox file knows (waiting, oldest, dead letters, leases) is read there at each scrape, so it is
//! true whichever relay delivers; what only this process knows (durations, attempts) comes from its recorder.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use litepost_relay::relay::meter;
use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use opentelemetry::metrics::Meter;

use crate::meters::Both;
use crate::readers;
use crate::shown::Shown;
use crate::state::{self, Admin, Looked};

/// How often what was counted is added up, so that memory stays small between scrapes.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
/// How long a reader must stay to count: longer than a query takes, shorter than a scrape may.
const READERS_WATCHED: Duration = Duration::from_millis(200);
/// States of a destination, as in `litepost status`.
const STATES: [&str; 4] = ["closed", "half_open", "open", "stalled"];
/// Reasons that are shown although there is none: a gauge that appears with its first dead letter raises no alarm.
const REASONS: [&str; 3] = ["max_attempts", "permanent", "expired"];

/// The process's recorder of metrics.
#[derive(Clone)]
pub struct Recorder(PrometheusHandle);

impl Recorder {
    /// Installs the recorder of this process. There can be one. With `beside` that meter gets the same figures.
    pub fn install(beside: Option<Meter>) -> Result<Self, String> {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &meter::BUCKETS_SECONDS);
        let recorder = builder.map(PrometheusBuilder::build_recorder).map_err(|error| error.to_string())?;
        let handle = recorder.handle();
        match beside {
            None => metrics::set_global_recorder(recorder).map_err(|error| error.to_string())?,
            Some(meter) => {
                metrics::set_global_recorder(Both::new(recorder, meter)).map_err(|error| error.to_string())?;
            }
        }
        meter::describe();
        describe();
        Ok(Self(handle))
    }

    /// Adds up what was counted, for as long as it is polled.
    pub async fn upkeep(self) {
        let mut every = tokio::time::interval(UPKEEP_EVERY);
        loop {
            every.tick().await;
            self.0.run_upkeep();
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recorder")
    }
}

fn describe() {
    describe_gauge!("litepost_pending_events", Unit::Count, "Events that wait for a destination");
    describe_gauge!("litepost_oldest_pending_age_seconds", Unit::Seconds, "Age of the oldest of them");
    describe_gauge!("litepost_blocked_keys", Unit::Count, "Keys that wait behind a failed event");
    describe_gauge!(
        "litepost_blocked_age_seconds",
        Unit::Seconds,
        "How long the first of them has waited behind its failed event"
    );
    describe_gauge!("litepost_scheduled_events", Unit::Count, "Events whose deliver_after lies ahead");
    describe_gauge!("litepost_dead_letters", Unit::Count, "Dead letters not replayed, by reason");
    describe_counter!(
        "litepost_events_total",
        Unit::Count,
        "Events settled so far, by what became of them, as the outbox file counts them"
    );
    describe_gauge!("litepost_destination_state", Unit::Count, "1 for the state the destination is in");
    describe_gauge!("litepost_lease_token", Unit::Count, "Fencing token of the lane: grows with each takeover");
    describe_gauge!("litepost_lease_held", Unit::Count, "1 when a relay holds the lane");
    describe_gauge!("litepost_log_rows", Unit::Count, "Events in the log, delivered ones that are kept included");
    describe_gauge!("litepost_log_head", Unit::Count, "Position of the newest event");
    describe_gauge!("litepost_wal_bytes", Unit::Bytes, "Size of the -wal file");
    describe_gauge!(
        "litepost_pinned_readers",
        Unit::Count,
        "Other processes that read without a pause, so that the WAL is not reset"
    );
    describe_gauge!("litepost_database_bytes", Unit::Bytes, "Size of the database file");
    describe_gauge!("litepost_disk_free_bytes", Unit::Bytes, "Free space on the file system of the outbox");
    describe_gauge!("litepost_outbox_readable", Unit::Count, "0 when the outbox file cannot be read");
}

/// Looks into the outbox files and sets what they say.
pub async fn measure(shown: &Shown) {
    let pinned = pinned(shown).await;
    for (index, file) in state::look(shown).await.into_iter().enumerate() {
        set_file(&file);
        let readers = pinned.iter().filter(|path| path.display().to_string() == file.database).count();
        gauge!("litepost_pinned_readers", "database" => file.database.clone()).set(count(readers));
        for destination in file.status.iter().flat_map(|status| &status.destinations) {
            for reason in REASONS {
                dead_letters(&destination.destination, reason, 0);
            }
        }
        for dead in state::read(shown, index, litepost::dead::by_reason).await.unwrap_or_default() {
            dead_letters(&dead.destination, &dead.reason, dead.count);
        }
    }
}

/// The file of each reader that stays.
async fn pinned(shown: &Shown) -> Vec<PathBuf> {
    let files: Vec<PathBuf> = shown.sources().iter().map(|source| source.path.clone()).collect();
    let look = move || readers::long(&files, READERS_WATCHED).into_iter().map(|(path, _)| path).collect();
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

pub(crate) async fn show(State(admin): State<Arc<Admin>>) -> impl IntoResponse {
    measure(&admin.shown).await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], admin.recorder.0.render())
}

fn dead_letters(destination: &str, reason: &str, count: i64) {
    gauge!("litepost_dead_letters", "destination" => destination.to_owned(), "reason" => reason.to_owned())
        .set(float(count));
}

fn set_file(file: &Looked) {
    let database = file.database.clone();
    let set = |name: &'static str, value: f64| gauge!(name, "database" => database.clone()).set(value);
    set("litepost_outbox_readable", f64::from(u8::from(file.error.is_none())));
    set("litepost_wal_bytes", unsigned(file.wal_bytes));
    set("litepost_database_bytes", unsigned(file.database_bytes));
    if let Some(free) = file.free_bytes {
        set("litepost_disk_free_bytes", unsigned(free));
    }
    let Some(status) = &file.status else { return };
    set("litepost_log_head", float(status.head.0));
    set("litepost_log_rows", float(status.tail.map_or(0, |tail| status.head.0 - tail.0 + 1)));
    for found in &status.destinations {
        let name = found.destination.clone();
        let set = |metric: &'static str, value: f64| gauge!(metric, "destination" => name.clone()).set(value);
        set("litepost_pending_events", float(found.pending));
        set("litepost_oldest_pending_age_seconds", float(found.oldest_age_ms.unwrap_or(0)) / 1_000.0);
        set("litepost_blocked_keys", float(found.blocked_keys));
        set("litepost_blocked_age_seconds", float(found.blocked_age_ms.unwrap_or(0)) / 1_000.0);
        set("litepost_scheduled_events", float(found.scheduled));
        for state in STATES {
            let is = f64::from(u8::from(found.state == state));
            gauge!("litepost_destination_state", "destination" => name.clone(), "state" => state).set(is);
        }
        for (outcome, count) in [
            ("delivered", found.delivered),
            ("dead", found.dead_total),
            ("expired", found.expired),
            ("skipped", found.skipped),
        ] {
            counter!("litepost_events_total", "destination" => name.clone(), "outcome" => outcome)
                .absolute(u64::try_from(count).unwrap_or(0));
        }
        for lane in &found.lanes {
            let number = lane.lane.to_string();
            gauge!("litepost_lease_token", "destination" => name.clone(), "lane" => number.clone())
                .set(float(lane.token));
            let held = f64::from(u8::from(lane.owner.is_some()));
            gauge!("litepost_lease_held", "destination" => name.clone(), "lane" => number).set(held);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn float(number: i64) -> f64 {
    number as f64
}

#[allow(clippy::cast_precision_loss, reason = "there are not that many processes")]
fn count(number: usize) -> f64 {
    number as f64
}

#[allow(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
fn unsigned(number: u64) -> f64 {
    number as f64
}
