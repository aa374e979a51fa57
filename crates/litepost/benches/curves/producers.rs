//! Many producers on one file, threads and processes, one event a commit: events per second, p99.9 of a commit, and how
//! far the slowest producer is behind its fair share.
//!
//! Processes are this program again, with `--part-produce`. Invariant: all begin together and write for the same time;
//! an error of any of them, BUSY included, ends the bench.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use litepost::{NewEvent, enqueue};
use litepost_testkit::measure::{Samples, Targets, figure, quick};
use rusqlite::{Connection, TransactionBehavior};
use serde_json::json;

use crate::{folder, made, open};

const PART: &str = "--part-produce";
const COUNTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const PAYLOAD_BYTES: usize = 256;
/// What an application with `busy_timeout` waits for the lock, at most.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// How a producer waits for the lock, and how safe its commits are.
#[derive(Clone, Copy, PartialEq)]
struct Way {
    name: &'static str,
    /// `PRAGMA busy_timeout` as any driver offers it, or litepost's own handler.
    plain: bool,
    full: bool,
}

const WAYS: [Way; 3] = [
    Way { name: "litepost, NORMAL", plain: false, full: false },
    Way { name: "litepost, FULL", plain: false, full: true },
    Way { name: "busy_timeout, FULL", plain: true, full: true },
];

/// Plays a process's part, if this is one.
pub(crate) fn played() -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let Some(at) = arguments.iter().position(|argument| argument == PART) else { return false };
    let way = WAYS[arguments[at + 2].parse::<usize>().unwrap()];
    let time = Duration::from_millis(arguments[at + 3].parse().unwrap());
    let mut connection = connect(Path::new(&arguments[at + 1]), way);
    let mut out = std::io::stdout();
    writeln!(out, "ready").unwrap();
    // All are let go at once.
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let taken = write_for(&mut connection, time);
    serde_json::to_writer(out, &taken).unwrap();
    true
}

fn connect(path: &Path, way: Way) -> Connection {
    let connection = open(path);
    if way.full {
        connection.pragma_update(None, "synchronous", "FULL").unwrap();
    }
    if way.plain {
        connection.busy_timeout(BUSY_TIMEOUT).unwrap();
    }
    connection
}

/// One event after the other for that long: what each took, in nanoseconds.
fn write_for(connection: &mut Connection, time: Duration) -> Vec<u64> {
    let (body, start, mut taken) = ("x".repeat(PAYLOAD_BYTES), Instant::now(), Vec::new());
    while start.elapsed() < time {
        let began = Instant::now();
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        enqueue(&tx, &NewEvent::new("orders", body.as_str()).key("501").kind("OrderCreated")).unwrap();
        tx.commit().unwrap();
        taken.push(u64::try_from(began.elapsed().as_nanos()).unwrap());
    }
    taken
}

pub(crate) fn run(targets: &mut Targets) {
    let time = Duration::from_millis(if quick() { 100 } else { 2_000 });
    let counts: &[usize] = if quick() { &COUNTS[..3] } else { &COUNTS };
    println!(
        "\n{:<22} {:<10} {:>6} {:>10} {:>10} {:>12} {:>16}",
        "producers", "as", "number", "events/s", "p50 us", "p99.9 us", "slowest's share"
    );
    for &count in counts {
        for (number, way) in WAYS.into_iter().enumerate() {
            line(way, "threads", count, time, threads(way, count, time), targets);
            line(way, "processes", count, time, processes(number, count, time), targets);
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn line(way: Way, kind: &str, count: usize, time: Duration, taken: Vec<Vec<u64>>, targets: &mut Targets) {
    let events: usize = taken.iter().map(Vec::len).sum();
    let slowest = taken.iter().map(Vec::len).min().unwrap_or_default() as f64;
    let share = slowest * count as f64 / events as f64;
    let mut samples = Samples::default();
    taken.into_iter().flatten().for_each(|nanos| samples.add_nanos(nanos));
    let rate = events as f64 / time.as_secs_f64();
    let [p50, p999] = [50.0, 99.9].map(|percent| samples.percentile_us(percent));
    println!("{:<22} {kind:<10} {count:>6} {rate:>10.0} {p50:>10.1} {p999:>12.1} {share:>16.2}", way.name);
    figure(&json!({
        "producers": way.name, "as": kind, "number": count, "events_per_s": rate, "p50_us": p50, "p999_us": p999,
        "slowest_share": share,
    }));
    if way.full && !way.plain && count == 4 && kind == "processes" {
        targets.at_least("four processes, FULL: the slowest's part of its fair share", 0.5, share);
    }
}

fn threads(way: Way, count: usize, time: Duration) -> Vec<Vec<u64>> {
    let folder = folder();
    let path: Arc<PathBuf> = Arc::new(made(folder.path(), "shop", None));
    let together = Arc::new(Barrier::new(count));
    let start = || {
        let (path, together) = (Arc::clone(&path), Arc::clone(&together));
        std::thread::spawn(move || {
            let mut connection = connect(&path, way);
            together.wait();
            write_for(&mut connection, time)
        })
    };
    let running: Vec<_> = (0..count).map(|_| start()).collect();
    running.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn processes(way: usize, count: usize, time: Duration) -> Vec<Vec<u64>> {
    let folder = folder();
    let path = made(folder.path(), "shop", None);
    let start = || -> (Child, BufReader<std::process::ChildStdout>) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(PART)
            .arg(&path)
            .args([way.to_string(), time.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        assert!(out.read_line(&mut ready).unwrap() > 0, "a producer ended early");
        (child, out)
    };
    let mut running: Vec<_> = (0..count).map(|_| start()).collect();
    for (child, _) in &mut running {
        child.stdin.take().unwrap().write_all(b"!").unwrap();
    }
    // All ends are read while they come: a full pipe would hold a producer up.
    let readers: Vec<_> = running
        .into_iter()
        .map(|(mut child, out)| {
            std::thread::spawn(move || {
                let taken: Vec<u64> = serde_json::from_reader(out).unwrap();
                assert!(child.wait().unwrap().success());
                taken
            })
        })
        .collect();
    readers.into_iter().map(|reader| reader.join().unwrap()).collect()
}
