//! What the benches share: percentiles, figures as lines of JSON, targets that are reached or missed.
//!
//! Called by `crates/*/benches`; `cargo xtask bench` reads the lines. Invariant: a figure is printed twice, once for
//! people and once as JSON, from the same value.

use std::time::Duration;

use serde_json::{Map, Value, json};

/// Whether the bench was asked for fewer rows and rounds: it then shows that it works, not what it measures.
#[must_use]
pub fn quick() -> bool {
    std::env::var_os("LITEPOST_BENCH_QUICK").is_some() || std::env::args().any(|arg| arg == "--quick")
}

/// Durations of one thing.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    nanos: Vec<u64>,
    sorted: bool,
}

impl Samples {
    /// Adds one.
    pub fn add(&mut self, took: Duration) {
        self.nanos.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        self.sorted = false;
    }

    /// Adds one that was measured elsewhere.
    pub fn add_nanos(&mut self, nanos: u64) {
        self.nanos.push(nanos);
        self.sorted = false;
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nanos.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nanos.is_empty()
    }

    /// The value that `percent` of the samples do not exceed, in microseconds; 0 without samples.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank")]
    pub fn percentile_us(&mut self, percent: f64) -> f64 {
        if !self.sorted {
            self.nanos.sort_unstable();
            self.sorted = true;
        }
        let rank = (percent / 100.0 * self.nanos.len() as f64).ceil() as usize;
        self.nanos.get(rank.saturating_sub(1)).map_or(0.0, |nanos| *nanos as f64 / 1000.0)
    }
}

/// Prints figures as one line of JSON, which `cargo xtask bench` keeps.
#[allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
pub fn figure(fields: &Value) {
    println!("{fields}");
}

/// The targets of a bench: what was asked, what was seen.
#[derive(Debug, Default)]
pub struct Targets {
    lines: Vec<(String, String, f64, bool)>,
}

impl Targets {
    /// `seen` must not be above `limit`.
    pub fn at_most(&mut self, what: impl Into<String>, limit: f64, seen: f64) {
        self.lines.push((what.into(), format!("at most {limit}"), seen, seen <= limit));
    }

    /// `seen` must not be below `limit`.
    pub fn at_least(&mut self, what: impl Into<String>, limit: f64, seen: f64) {
        self.lines.push((what.into(), format!("at least {limit}"), seen, seen >= limit));
    }

    /// Prints them all. A missed target is a figure like any other here; `cargo xtask bench` makes it a finding.
    #[allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
    pub fn print(&self) {
        println!("\n{:<64} {:>18} {:>12}", "target", "asked", "seen");
        for (what, asked, seen, met) in &self.lines {
            println!("{what:<64} {asked:>18} {seen:>12.3}  {}", if *met { "reached" } else { "MISSED" });
            let mut line = Map::new();
            line.insert("target".into(), json!(what));
            line.insert("asked".into(), json!(asked));
            line.insert("seen".into(), json!(seen));
            line.insert("met".into(), json!(met));
            figure(&Value::Object(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples_that_were_taken() {
        let mut samples = Samples::default();
        assert!((samples.percentile_us(50.0) - 0.0).abs() < f64::EPSILON && samples.is_empty());
        for micros in (1..=100).rev() {
            samples.add(Duration::from_micros(micros));
        }
        let seen = [1.0, 50.0, 99.0, 100.0].map(|percent| samples.percentile_us(percent));
        assert!(seen.iter().zip([1.0, 50.0, 99.0, 100.0]).all(|(a, b)| (a - b).abs() < f64::EPSILON), "{seen:?}");
        samples.add_nanos(500);
        assert_eq!(samples.len(), 101);
        assert!((samples.percentile_us(0.0) - 0.5).abs() < f64::EPSILON);
    }
}
