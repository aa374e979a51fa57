//! The figures of `/metrics`, through an OpenTelemetry meter as well.
//!
//! Installed by `Recorder::install` when there is a collector. Invariant: both get every figure, under names that a
//! collector turns into each other: what Prometheus has in the name (`_total`, `_seconds`, `_bytes`) is the kind and the unit
//! here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use litepost_relay::relay::meter::BUCKETS_SECONDS;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;

/// What the semantic conventions name.
const CONVENTIONS: [(&str, &str); 2] = [
    ("messaging_client_sent_messages_total", "messaging.client.sent.messages"),
    ("messaging_client_operation_duration_seconds", "messaging.client.operation.duration"),
];

/// A recorder and a meter.
pub(crate) struct Both<R> {
    first: R,
    meter: Meter,
    descriptions: Mutex<HashMap<String, String>>,
}

impl<R> Both<R> {
    pub(crate) fn new(first: R, meter: Meter) -> Self {
        Self { first, meter, descriptions: Mutex::default() }
    }

    fn describe(&self, key: &KeyName, description: &SharedString) {
        let mut known = self.descriptions.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key.as_str().to_owned(), description.to_string());
    }

    fn description(&self, key: &Key) -> String {
        let known = self.descriptions.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key.name()).cloned().unwrap_or_default()
    }
}

/// The name and the unit.
fn spelled(name: &str) -> (String, &'static str) {
    let plain = name.strip_suffix("_total").unwrap_or(name);
    let (plain, unit) = match (plain.strip_suffix("_seconds"), plain.strip_suffix("_bytes")) {
        (Some(plain), _) => (plain, "s"),
        (_, Some(plain)) => (plain, "By"),
        _ => (plain, ""),
    };
    let convention = CONVENTIONS.iter().find(|(ours, _)| *ours == name);
    (convention.map_or_else(|| plain.to_owned(), |(_, theirs)| (*theirs).to_owned()), unit)
}

fn attributes(key: &Key) -> Vec<KeyValue> {
    key.labels().map(|label| KeyValue::new(label.key().to_owned(), label.value().to_owned())).collect()
}

impl<R: Recorder> Recorder for Both<R> {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe(&key, &description);
        self.first.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe(&key, &description);
        self.first.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.describe(&key, &description);
        self.first.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        let (name, unit) = spelled(key.name());
        let theirs = self.meter.u64_counter(name).with_unit(unit).with_description(self.description(key)).build();
        let first = self.first.register_counter(key, metadata);
        Counter::from_arc(Arc::new(Count { first, theirs, attributes: attributes(key), most: AtomicU64::new(0) }))
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        let (name, unit) = spelled(key.name());
        let theirs = self.meter.f64_gauge(name).with_unit(unit).with_description(self.description(key)).build();
        let first = self.first.register_gauge(key, metadata);
        Gauge::from_arc(Arc::new(Level { first, theirs, attributes: attributes(key), now: Mutex::new(0.0) }))
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        let (name, unit) = spelled(key.name());
        let theirs = self.meter.f64_histogram(name).with_unit(unit).with_description(self.description(key));
        let theirs = theirs.with_boundaries(BUCKETS_SECONDS.to_vec()).build();
        let first = self.first.register_histogram(key, metadata);
        Histogram::from_arc(Arc::new(Spread { first, theirs, attributes: attributes(key) }))
    }
}

struct Count {
    first: Counter,
    theirs: opentelemetry::metrics::Counter<u64>,
    attributes: Vec<KeyValue>,
    /// What was told as an absolute figure.
    most: AtomicU64,
}

impl CounterFn for Count {
    fn increment(&self, value: u64) {
        self.first.increment(value);
        self.theirs.add(value, &self.attributes);
    }

    fn absolute(&self, value: u64) {
        self.first.absolute(value);
        let before = self.most.fetch_max(value, Ordering::Relaxed);
        self.theirs.add(value.saturating_sub(before), &self.attributes);
    }
}

struct Level {
    first: Gauge,
    theirs: opentelemetry::metrics::Gauge<f64>,
    attributes: Vec<KeyValue>,
    now: Mutex<f64>,
}

impl Level {
    fn change(&self, to: impl Fn(f64) -> f64) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        *now = to(*now);
        self.theirs.record(*now, &self.attributes);
    }
}

impl GaugeFn for Level {
    fn increment(&self, value: f64) {
        self.first.increment(value);
        self.change(|now| now + value);
    }

    fn decrement(&self, value: f64) {
        self.first.decrement(value);
        self.change(|now| now - value);
    }

    fn set(&self, value: f64) {
        self.first.set(value);
        self.change(|_| value);
    }
}

struct Spread {
    first: Histogram,
    theirs: opentelemetry::metrics::Histogram<f64>,
    attributes: Vec<KeyValue>,
}

impl HistogramFn for Spread {
    fn record(&self, value: f64) {
        self.first.record(value);
        self.theirs.record(value, &self.attributes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_conventions_or_ours_without_kind_and_unit() {
        for (ours, theirs, unit) in [
            ("messaging_client_sent_messages_total", "messaging.client.sent.messages", ""),
            ("messaging_client_operation_duration_seconds", "messaging.client.operation.duration", "s"),
            ("litepost_events_total", "litepost_events", ""),
            ("litepost_oldest_pending_age_seconds", "litepost_oldest_pending_age", "s"),
            ("litepost_wal_bytes", "litepost_wal", "By"),
            ("litepost_pending_events", "litepost_pending_events", ""),
        ] {
            assert_eq!(spelled(ours), (theirs.to_owned(), unit));
        }
    }
}
