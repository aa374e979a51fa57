//! Drains a backlog into a sink that confirms at once, beside the article's claim loop and the peers from PyPI, in one run:
//! `cargo xtask bench drain`, or `cargo bench -p litepost-relay --bench drain [-- --quick | --events 1000000 | --curve]`.
//!
//! Prints events per second and bytes written per event, at backlogs of 10,000 (part `small`) and `--events` (`large`), with
//! durable reads on and off, receipts written, and beside the peers (`peers`); bytes to disk of an event's whole life
//! (`life`); what a relay costs a producer beside it (`beside`). litepost's rate is from before the relay's start until the
//! destination confirmed the last event. What follows has a column of its own: the last settlement and, for up to 0.3 s,
//! housekeeping, which writes the receipts of what was delivered. The bytes are those of all of it. `--curve [BACKLOG]
//! [memory] [size] [portions]` drains up to 10 million and shows what memory a relay takes for them, and the file they lie in; `--curves [NAME]`
//! drains backlogs of other shapes. Only ratios carry over.

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

mod article;
mod beside;
mod curves;
mod life;
mod outbox;
mod peers;
mod process;
mod size;
#[path = "../common/watched.rs"]
mod watched;

use std::time::Duration;

use litepost_testkit::measure::{Rounds, Targets, argument, figure, quick};
use serde_json::json;

use article::Article;
use outbox::{Drained, Outbox};

/// Bytes of an event's body.
const PAYLOAD_BYTES: i64 = 256;
const SMALL: i64 = 10_000;
/// Where the peers take part: they take long to fill.
const MIDDLE: i64 = 100_000;
const LARGE: i64 = 1_000_000;
/// The claim loop is cut off after this long: it slows down with the backlog.
const PATIENCE: Duration = Duration::from_secs(2);

fn main() {
    if process::played() {
        return;
    }
    let mut targets = Targets::default();
    let large = if quick() { 2 * SMALL } else { argument("events").unwrap_or(LARGE) };
    let asked = |flag: &str| std::env::args().any(|arg| arg == flag);
    if asked("--curve") {
        curve(if quick() { SMALL } else { 10 * LARGE }, &mut targets);
    } else if asked("--curves") {
        curves::run(&mut targets);
    } else {
        let small = named("small").then(|| side_by_side(SMALL, &mut targets));
        if named("peers") {
            with_peers(if quick() { 2_000 } else { MIDDLE }, &mut targets);
        }
        let grown = named("large").then(|| side_by_side(large, &mut targets));
        if let (Some(small), Some(grown)) = (small, grown) {
            let what = format!("drain at {large} / drain at {SMALL}, durable reads");
            targets.rounds_at_least(what, 1.0, &grown.over(&small));
        }
        if named("life") {
            life::run(&mut targets);
        }
        if named("beside") {
            beside::run(&mut targets);
        }
    }
    targets.print();
}

/// One way to drain: events per second, bytes written per event, and what a relay takes to stop.
struct Line {
    name: &'static str,
    rate: Rounds,
    bytes: Rounds,
    stop_ms: Rounds,
}

impl Line {
    fn new(name: &'static str) -> Self {
        Self { name, rate: Rounds::default(), bytes: Rounds::default(), stop_ms: Rounds::default() }
    }

    fn ours(&mut self, drained: &Drained) {
        self.add((drained.rate, drained.bytes));
        self.stop_ms.add(drained.stop_ms);
    }

    fn add(&mut self, (rate, bytes): (f64, f64)) {
        self.rate.add(rate);
        self.bytes.add(bytes);
    }

    fn print(&self, backlog: i64) {
        let known = |rounds: &Rounds| (rounds.median() > 0.0).then(|| rounds.median());
        let (bytes, stop_ms) = (known(&self.bytes), known(&self.stop_ms));
        let [bytes_shown, stop_shown] =
            [bytes, stop_ms].map(|value| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}")));
        println!("{:<46} {backlog:>9} {:>34} {bytes_shown:>14} {stop_shown:>10}", self.name, self.rate.shown());
        figure(&json!({
            "contender": self.name, "backlog": backlog, "events_per_s": self.rate.figure(), "bytes_per_event": bytes,
            "stop_ms": stop_ms,
        }));
    }
}

fn header() {
    println!(
        "\n{:<46} {:>9} {:>34} {:>14} {:>10}",
        "drain into a sink that confirms at once", "backlog", "events/s", "bytes/event", "stop ms"
    );
}

/// All contenders in turns; the rate with durable reads.
fn side_by_side(backlog: i64, targets: &mut Targets) -> Rounds {
    header();
    let rounds = if quick() { 1 } else { 5 };
    let mut ours = Outbox::with_backlog(backlog);
    let (mut written, mut mended) = (Article::as_written(backlog), Article::mended(backlog));
    let [mut durable, mut volatile, mut claims, mut mended_claims] = [
        "litepost, durable reads",
        "litepost, durable_reads = false",
        "the article's claim loop",
        "the same, its index in the order of its query",
    ]
    .map(Line::new);
    for _ in 0..rounds {
        durable.ours(&ours.drain(true));
        claims.add(written.claim(PATIENCE));
        volatile.ours(&ours.drain(false));
        mended_claims.add(mended.claim(PATIENCE));
    }
    for line in [&durable, &volatile, &claims, &mended_claims] {
        line.print(backlog);
    }
    if backlog > SMALL {
        targets.rounds_at_least(format!("drain, durable_reads = false, events/s, {backlog}"), 1e6, &volatile.rate);
        targets.rounds_at_least(format!("drain, durable reads, events/s, {backlog}"), 3e5, &durable.rate);
        targets.rounds_at_most(format!("drain, receipts written, bytes per event, {backlog}"), 12.0, &durable.bytes);
    }
    let times = durable.rate.over(&mended_claims.rate);
    targets.rounds_at_least(format!("drain / the article's loop with its index mended, {backlog}"), 10.0, &times);
    durable.rate
}

/// litepost beside the peers.
fn with_peers(backlog: i64, targets: &mut Targets) {
    header();
    let mut outbox = Outbox::with_backlog(backlog);
    let mut ours = Line::new("litepost, durable reads");
    let mut lines = peers::PEERS.map(|(name, _)| Line::new(name));
    for _ in 0..if quick() { 1 } else { 3 } {
        ours.ours(&outbox.drain(true));
        for (line, (_, peer)) in lines.iter_mut().zip(peers::PEERS) {
            line.rate.add(peers::drain(peer, backlog, PATIENCE));
        }
    }
    ours.print(backlog);
    for line in &lines {
        line.print(backlog);
        let least = if line.name.starts_with("sqloutbox") { 10.0 } else { 5.0 };
        let times = ours.rate.over(&line.rate);
        targets.rounds_at_least(format!("drain / {}, {backlog}", line.name), least, &times);
    }
}

/// Whether this part of the bench was asked for: all are when none is named.
fn named(part: &str) -> bool {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = words.iter().position(|word| word == "--events") {
        words.drain(at..words.len().min(at + 2));
    }
    let mut words = words.iter().filter(|word| !word.starts_with("--")).peekable();
    words.peek().is_none() || words.any(|word| word == part)
}

/// Backlogs from a thousand to `most`, and the memory that a relay of its own process takes for the largest.
fn curve(most: i64, targets: &mut Targets) {
    header();
    let mut backlog = 1_000;
    while backlog <= most {
        if named(&backlog.to_string()) {
            let mut ours = Outbox::with_backlog(backlog);
            let (mut durable, mut volatile) =
                (Line::new("litepost, durable reads"), Line::new("litepost, durable_reads = false"));
            for _ in 0..if quick() || backlog > LARGE { 1 } else { 5 } {
                durable.ours(&ours.drain(true));
                volatile.ours(&ours.drain(false));
            }
            durable.print(backlog);
            volatile.print(backlog);
        }
        backlog *= 10;
    }
    if named("memory") {
        size::memory(most, targets);
    }
    if named("size") {
        size::at_once(most, targets);
    }
    if named("portions") {
        size::portions(most);
    }
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn per(count: i64, whole: f64) -> f64 {
    whole / count as f64
}
