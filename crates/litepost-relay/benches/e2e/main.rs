//! From a commit to the destination's acknowledgement, by rate: `cargo xtask bench e2e`, or
//! `cargo bench -p litepost-relay --bench e2e [-- --quick] [file] [sqlite] [postgres] [nats] [kafka] [webhook]`.
//!
//! Three processes: the producer, the relay (both are this program again), and the destination's server, which is a real one;
//! they share the machine. From: the time before COMMIT, taken by the producer. To: the time at which the relay's sink has
//! the destination's own acknowledgement of the event and hands it to the relay: the line is synced (file), the transaction
//! is committed (SQLite, PostgreSQL), the stream has stored it (NATS), all replicas have it (Kafka's `acks=all`), the
//! receiver has answered 204 (webhook). Settling it in the outbox comes behind that and is not in the time; what it takes
//! of the processor is. One destination, durable reads, pruning, and whatever else a relay does unless told otherwise.
//!
//! The producer writes what is due at its rate, an event a transaction up to 1,000 events a second, and above that a
//! millisecond's in one. A rate counts as sustained when the producer kept it up, and in the last half second no more events
//! were unacknowledged than it writes in 100 ms (the median over its commits). The search begins beside what the relay does
//! when far too much is written, and goes by steps of a quarter; the highest that was sustained is shown.
//!
//! Processor time and memory are the relay's own process's, from `/proc`: user and system time while the producer wrote,
//! and the most memory resident. (The file with the times of acknowledgements is written by the relay's process too: one
//! write a batch.)

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

mod destinations;
mod process;
mod run;
#[path = "../common/watched.rs"]
mod watched;

use std::time::Duration;

use litepost_testkit::measure::{figure, quick};
use serde_json::json;

use destinations::{Destination, KINDS};
use run::{Run, Seen};

/// What is written to find out where the search begins: more than any destination takes.
const FLOOD_PER_S: u32 = 500_000;
/// A step of the search.
const STEP: f64 = 1.25;
/// Steps up, and steps down.
const STEPS_MAX: usize = 6;
/// Below so many samples one of a thousand is not to be told.
const SAMPLES_P999: usize = 1_000;

fn main() {
    if process::played() {
        return;
    }
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word.starts_with(char::is_alphabetic)).collect();
    println!(
        "{:<10} {:>10} {:>9} {:>9} {:>9} {:>9} {:>10} {:>9} {:>8} {:>10} {:>8}",
        "to", "events/s", "samples", "p50 ms", "p99 ms", "p99.9 ms", "longest ms", "CPU %", "µs/event", "memory MB", ""
    );
    for kind in KINDS.into_iter().filter(|kind| words.is_empty() || words.iter().any(|word| word == kind)) {
        let mut destination = Destination::start(kind);
        let (low, mid) = if quick() { (1, 1) } else { (20, 5) };
        for (rate, seconds) in [(10, low), (1_000, mid)] {
            let mut seen = Run { rate, time: Duration::from_secs(seconds) }.measure(&mut destination);
            assert_eq!(seen.acknowledged, seen.written, "{kind}: events were not acknowledged");
            print(kind, "asked", rate, &mut seen);
        }
        if let Some((rate, mut seen)) = highest(&mut destination) {
            print(kind, "highest", rate, &mut seen);
        } else {
            println!("{kind:<10} no rate of the search was sustained");
        }
    }
}

/// The highest rate of the search that was sustained, and what was seen at it.
fn highest(destination: &mut Destination) -> Option<(u32, Seen)> {
    let time = Duration::from_millis(if quick() { 500 } else { 3_000 });
    let flood = Run { rate: FLOOD_PER_S, time: time / 2 }.measure(destination);
    let mut attempt = |rate: u32| {
        let seen = Run { rate, time }.measure(destination);
        let verdict = if seen.sustained { "sustained" } else { "not sustained" };
        println!("           {rate:>10} {verdict} ({:.0} acknowledged a second)", seen.acknowledged_per_s);
        seen.sustained.then_some((rate, seen))
    };
    let mut rate = rounded(flood.acknowledged_per_s * 0.9);
    let mut best = attempt(rate);
    let up = best.is_some();
    for _ in 0..STEPS_MAX {
        rate = rounded(if up { f64::from(rate) * STEP } else { f64::from(rate) / STEP });
        let found = attempt(rate);
        if found.is_some() {
            best = found;
        }
        // Upwards the first that fails ends it, downwards the first that does not.
        if best.as_ref().map(|(best, _)| *best == rate) != Some(up) {
            break;
        }
    }
    best
}

/// To two digits.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate: small and not negative")]
fn rounded(rate: f64) -> u32 {
    let digit = 10_f64.powf(rate.max(10.0).log10().floor() - 1.0);
    ((rate.max(10.0) / digit).round() * digit) as u32
}

fn print(kind: &str, which: &str, rate: u32, seen: &mut Seen) {
    let [p50, p99, p999, most] = [50.0, 99.0, 99.9, 100.0].map(|percent| seen.waits.percentile_us(percent) / 1000.0);
    let samples = seen.waits.len();
    let p999 = (samples >= SAMPLES_P999).then_some(p999);
    let shown = p999.map_or_else(|| "-".to_owned(), |p999| format!("{p999:.2}"));
    println!(
        "{kind:<10} {rate:>10} {samples:>9} {p50:>9.2} {p99:>9.2} {shown:>9} {most:>10.1} {:>9.2} {:>8.1} {:>10.1} {which:>8}",
        seen.cpu_percent, seen.cpu_us_per_event, seen.memory_mb
    );
    figure(&json!({
        "to": kind, "which": which, "rate": rate, "samples": samples, "p50_ms": p50, "p99_ms": p99, "p999_ms": p999,
        "longest_ms": most, "cpu_percent": seen.cpu_percent, "cpu_us_per_event": seen.cpu_us_per_event,
        "memory_mb": seen.memory_mb, "resident_mb": seen.resident_mb,
    }));
}
