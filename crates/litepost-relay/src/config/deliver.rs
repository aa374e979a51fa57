//! From a configuration to a relay that carries it out.
//!
//! Called by `litepost run` and by programs that embed a relay. Invariant: every key that concerns delivery arrives
//! here; one that cannot be honoured was refused when the configuration was read.

use std::time::Duration;

use litepost_core::{PipelineConfig, Split};

use super::load::Config;
use super::policy::{self, Policy};
use super::resolve::{Destination, OutboxFile};
use super::words::Start;
use crate::relay::{self, DestinationConfig, RelayConfig, SourceConfig};

impl Config {
    /// What a relay needs to know to deliver everything this configuration names.
    #[must_use]
    pub fn relay(&self) -> RelayConfig {
        let sources = self.files().iter().filter(|file| !file.routes.is_empty()).map(source).collect();
        RelayConfig { sources }
    }
}

fn source(file: &OutboxFile) -> SourceConfig {
    let destinations = file.routes.iter().map(|(destination, policy)| one(file, destination, policy));
    SourceConfig {
        path: file.path.clone(),
        may_be_missing: file.table.is_some(),
        durable_reads: file.policy.durable_reads,
        max_pending: file.policy.max_pending,
        retention: file.policy.retention(),
        cleanup_every: file.policy.cleanup_every,
        destinations: destinations.collect(),
    }
}

fn one(file: &OutboxFile, destination: &Destination, policy: &Policy) -> DestinationConfig {
    let start = match policy.start {
        Start::Earliest => relay::Start::Earliest,
        Start::Now => relay::Start::Now,
        Start::At(time) => relay::Start::At(litepost_core::Millis(time)),
    };
    let topics = match &file.table {
        Some(table) => litepost_core::TopicFilter::exact([table]),
        None => destination.filter(),
    };
    let Split { lanes, ordering, priority } = policy.split();
    DestinationConfig {
        name: destination.name.clone(),
        factory: destination.factory.clone(),
        pipeline: PipelineConfig {
            ordering,
            priority,
            topics,
            headers: destination.header_filter(),
            statements_only: destination.kind.statements,
            retry: policy.retry,
            on_dead: policy.on_dead,
            concurrency: policy.concurrency,
            batch_events: policy.batch_size,
            batch_bytes: policy.max_batch_bytes,
            window_bytes: policy.max_in_flight_bytes,
            save_after_events: i64::try_from(policy.batch_size).unwrap_or(i64::MAX),
            ..PipelineConfig::default()
        },
        lanes,
        start,
        deadline: milliseconds(policy.timeout_ms),
        lease_ms: policy.lease_ms,
        pace: policy.pace.map(pace),
        rate_limit: policy.rate_limit,
        settings: Some(destination.settings),
    }
}

fn pace(pace: policy::Pace) -> relay::Pace {
    relay::Pace {
        interval: milliseconds(pace.interval_ms),
        threshold: usize::try_from(pace.threshold).unwrap_or(usize::MAX),
        max_wait: milliseconds(pace.max_wait_ms),
    }
}

fn milliseconds(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
