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

/// The seed of whatever a bench draws: `cargo xtask bench --seed` sets it, and prints it with the machine.
#[must_use]
pub fn seed() -> u64 {
    std::env::var("LITEPOST_BENCH_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The number behind `--NAME` on the command line.
#[must_use]
pub fn argument(name: &str) -> Option<i64> {
    let wanted = format!("--{name}");
    std::env::args().skip_while(|arg| *arg != wanted).nth(1).and_then(|text| text.parse().ok())
}

/// Bytes this process has written so far, to files and pipes: write-ahead log, checkpoints, state, all of it.
///
/// # Panics
/// Where there is no `/proc/self/io`.
#[must_use]
pub fn written_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").expect("/proc/self/io");
    let field = io.lines().find_map(|line| line.strip_prefix("wchar: ")).expect("wchar");
    field.parse().expect("a number")
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

/// One thing measured in several rounds, or the ratio of two: its median, and its quartiles as the spread.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    values: Vec<f64>,
}

impl Rounds {
    /// Adds one round.
    pub fn add(&mut self, value: f64) {
        self.values.push(value);
    }

    /// The value in the middle; 0 without rounds.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.at(1, 2)
    }

    /// The lower and the upper quartile.
    #[must_use]
    pub fn spread(&self) -> (f64, f64) {
        (self.at(1, 4), self.at(3, 4))
    }

    /// How many times `other` this is, round by round: both of a round were measured one after the other.
    #[must_use]
    pub fn over(&self, other: &Self) -> Self {
        Self { values: self.values.iter().zip(&other.values).map(|(ours, theirs)| ours / theirs).collect() }
    }

    /// Median and spread, for people: `1.24 (1.22-1.27)`.
    #[must_use]
    pub fn shown(&self) -> String {
        let (low, high) = self.spread();
        let digits = if self.median() >= 100.0 { 0 } else { 2 };
        format!("{:.digits$} ({low:.digits$}-{high:.digits$})", self.median())
    }

    /// The same as JSON.
    #[must_use]
    pub fn figure(&self) -> Value {
        let (low, high) = self.spread();
        json!({ "median": self.median(), "low": low, "high": high, "rounds": self.values.len() })
    }

    fn at(&self, part: usize, of: usize) -> f64 {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        // The middle of an even number is the lower one: a value that was measured.
        sorted.get((sorted.len().saturating_sub(1)) * part / of).copied().unwrap_or_default()
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
    lines: Vec<Target>,
}

#[derive(Debug)]
struct Target {
    what: String,
    asked: String,
    seen: f64,
    spread: Option<(f64, f64)>,
    met: bool,
}

impl Targets {
    /// `seen` must not be above `limit`.
    pub fn at_most(&mut self, what: impl Into<String>, limit: f64, seen: f64) {
        self.add(what.into(), format!("at most {limit}"), seen, None, seen <= limit);
    }

    /// `seen` must not be below `limit`.
    pub fn at_least(&mut self, what: impl Into<String>, limit: f64, seen: f64) {
        self.add(what.into(), format!("at least {limit}"), seen, None, seen >= limit);
    }

    /// The median of `seen` must not be above `limit`.
    pub fn rounds_at_most(&mut self, what: impl Into<String>, limit: f64, seen: &Rounds) {
        let median = seen.median();
        self.add(what.into(), format!("at most {limit}"), median, Some(seen.spread()), median <= limit);
    }

    /// The median of `seen` must not be below `limit`.
    pub fn rounds_at_least(&mut self, what: impl Into<String>, limit: f64, seen: &Rounds) {
        let median = seen.median();
        self.add(what.into(), format!("at least {limit}"), median, Some(seen.spread()), median >= limit);
    }

    fn add(&mut self, what: String, asked: String, seen: f64, spread: Option<(f64, f64)>, met: bool) {
        self.lines.push(Target { what, asked, seen, spread, met });
    }

    /// Prints them all. A missed target is a figure like any other here; `cargo xtask bench` makes it a finding.
    #[allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
    pub fn print(&self) {
        println!("\n{:<64} {:>18} {:>12} {:>20}", "target", "asked", "seen", "quartiles");
        for Target { what, asked, seen, spread, met } in &self.lines {
            let between = spread.map_or_else(String::new, |(low, high)| format!("{low:.3} to {high:.3}"));
            let verdict = if *met { "reached" } else { "MISSED" };
            println!("{what:<64} {asked:>18} {seen:>12.3} {between:>20}  {verdict}");
            let mut line = Map::new();
            line.insert("target".into(), json!(what));
            line.insert("asked".into(), json!(asked));
            line.insert("seen".into(), json!(seen));
            if let Some((low, high)) = spread {
                line.insert("low".into(), json!(low));
                line.insert("high".into(), json!(high));
            }
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

    #[test]
    fn a_ratio_is_taken_round_by_round_and_its_middle_was_measured() {
        let (mut ours, mut theirs) = (Rounds::default(), Rounds::default());
        assert!(ours.median().abs() < f64::EPSILON, "no rounds");
        for (a, b) in [(2.0, 1.0), (30.0, 10.0), (4.0, 1.0), (10.0, 2.0)] {
            ours.add(a);
            theirs.add(b);
        }
        let ratio = ours.over(&theirs);
        assert_eq!(ratio.shown(), "3.00 (2.00-4.00)");
        assert_eq!(ratio.figure(), json!({ "median": 3.0, "low": 2.0, "high": 4.0, "rounds": 4 }));
    }
}
