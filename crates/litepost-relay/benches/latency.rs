//! From a commit in another process to the row here, and into a file; and what an idle relay costs:
//! `cargo bench -p litepost-relay --bench latency [-- --quick]`.
//!
//! The producer is a process of its own (this program again, with `--produce`); it takes the time before each COMMIT and
//! says it afterwards. The relay runs in this process, with its destinations wrapped so that they take the time when
//! they have confirmed. Events come one by one with pauses in between: what is measured is the wait of a single event,
//! not throughput. Beside it stands the shortest way by hand: one thread that waits for inotify and selects.

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

#[path = "common/watched.rs"]
mod watched;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use litepost::connection::{self, Access, Options};
use litepost::log::LogReader;
use litepost::{NewEvent, enqueue, schema};
use litepost_core::Seq;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::{Commits, Relay};
use litepost_testkit::measure::{Samples, Targets, figure, quick};
use rusqlite::TransactionBehavior;
use rustix::fs::inotify;
use serde_json::json;
use tokio_util::sync::CancellationToken;

const PAYLOAD_BYTES: usize = 256;
/// Between two events: long enough for the relay to have settled and gone to sleep, and never in step with its timers.
const PAUSE: (Duration, Duration) = (Duration::from_millis(3), Duration::from_micros(137));

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--produce") {
        produce(Path::new(&arguments[at + 1]), arguments[at + 2].parse().unwrap());
        return;
    }
    let mut targets = Targets::default();
    println!(
        "{:<48} {:>9} {:>9} {:>9} {:>10}",
        "commit in another process to", "p10 us", "p50 us", "p99 us", "p99.9 us"
    );
    let mut hand = by_hand();
    print("the row, by hand", &mut hand);
    let mut read = followed();
    print("the row read, as `tail --follow` does", &mut read);
    targets.at_most("commit to the row read here, p50, ms", 0.1, read.percentile_us(50.0) / 1000.0);
    let mut row = latency("a destination in memory, durable_reads = false", "blackhole", "{}", false);
    let times = row.percentile_us(50.0) / hand.percentile_us(50.0);
    targets.at_most("commit to a destination in memory / the row by hand, p50", 3.0, times);
    let _ = latency("a destination in memory, durable reads", "blackhole", "{}", true);
    let mut file = latency("a synced line in a file, durable reads", "file", "{ path = \"events.jsonl\" }", true);
    targets.at_most("commit to a line in a file, p50, ms", 1.0, file.percentile_us(50.0) / 1000.0);
    targets.at_most("commit to a line in a file, p99, ms", 5.0, file.percentile_us(99.0) / 1000.0);
    let share = idle();
    println!("\nidle relay, one file and one destination: {share:.4} % of a core");
    figure(&json!({ "idle_cpu_percent": share }));
    targets.at_most("idle relay, % of a core", 0.1, share);
    targets.print();
}

/// An outbox and a configuration with one destination.
fn outbox(kind: &str, connection: &str, durable: bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut outbox = Options::new(Access::ReadWrite).create(true).open(folder.path().join("shop.db")).unwrap();
    connection::enable_wal(&outbox).unwrap();
    schema::migrate(&mut outbox).unwrap();
    let config = format!(
        "[app.shop]\ndatabase = \"shop.db\"\ndurable_reads = {durable}\n\
         [app.shop.sink.one]\ntype = \"{kind}\"\nconnection = {connection}\n"
    );
    std::fs::write(folder.path().join("litepost.toml"), config).unwrap();
    folder
}

/// Wall time in nanoseconds: one clock for both processes.
fn now_ns() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// Position and time of each event that a destination has confirmed.
type Seen = Arc<Mutex<Vec<(Seq, u64)>>>;

fn latency(name: &str, kind: &str, connection: &str, durable: bool) -> Samples {
    let events = count();
    let folder = outbox(kind, connection, durable);
    let mut config = Config::load(&folder.path().join("litepost.toml"), Purpose::Deliver).unwrap().relay();
    let seen = Seen::default();
    let hears = Arc::clone(&seen);
    watched::watch(&mut config, move |confirmed| {
        let at = now_ns();
        hears.lock().unwrap().extend(confirmed.iter().map(|seq| (*seq, at)));
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let relay = runtime.spawn(Relay::new(config).run(async move { stopped.cancelled().await }));
    let committed = producer(&folder.path().join("shop.db"), events);
    let give_up = std::time::Instant::now() + Duration::from_secs(30);
    while seen.lock().unwrap().len() < events {
        assert!(std::time::Instant::now() < give_up, "{name}: {} of {events} arrived", seen.lock().unwrap().len());
        std::thread::sleep(Duration::from_millis(5));
    }
    stop.cancel();
    runtime.block_on(relay).unwrap();
    let mut samples = Samples::default();
    for (seq, at) in seen.lock().unwrap().iter() {
        let from = committed[usize::try_from(seq.0 - 1).unwrap()];
        samples.add_nanos(at.saturating_sub(from));
    }
    print(name, &mut samples);
    samples
}

/// The wake-up of the relay's reader, and the row.
fn followed() -> Samples {
    let folder = outbox("blackhole", "{}", false);
    let path = folder.path().join("shop.db");
    let events = count();
    let follower = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut log = LogReader::look(&path).unwrap();
            let mut commits = Commits::watch(&[path]);
            let (mut after, mut seen) = (Seq::ZERO, Vec::new());
            while seen.len() < events {
                let look = || -> Result<bool, litepost::StoreError> {
                    let chunk = log.read_after(after, 1_000, 1 << 20)?;
                    let at = now_ns();
                    seen.extend(chunk.events().iter().map(|_| at));
                    after = chunk.events().last().map_or(after, |event| event.seq);
                    Ok(!chunk.events().is_empty())
                };
                commits.wait(look).unwrap();
            }
            seen
        }
    });
    let committed = producer(&path, events);
    let mut samples = Samples::default();
    for (at, from) in follower.join().unwrap().into_iter().zip(committed) {
        samples.add_nanos(at.saturating_sub(from));
    }
    samples
}

fn print(name: &str, samples: &mut Samples) {
    let [p10, p50, p99, p999] = [10.0, 50.0, 99.0, 99.9].map(|percent| samples.percentile_us(percent));
    println!("{name:<48} {p10:>9.1} {p50:>9.1} {p99:>9.1} {p999:>10.1}");
    figure(&json!({
        "to": name, "p10_us": p10, "p50_us": p50, "p99_us": p99, "p999_us": p999, "samples": samples.len(),
    }));
}

/// One thread that waits for the file system to tell of a write, and selects what is new.
fn by_hand() -> Samples {
    let folder = outbox("blackhole", "{}", false);
    let path = folder.path().join("shop.db");
    let watched = folder.path().to_owned();
    let reader = connection::open(&path, Access::ReadOnly).unwrap();
    let events = count();
    let watcher = std::thread::spawn(move || {
        let inotify = inotify::init(inotify::CreateFlags::empty()).unwrap();
        inotify::add_watch(&inotify, &watched, inotify::WatchFlags::MODIFY).unwrap();
        let (mut buffer, mut seen) = ([std::mem::MaybeUninit::uninit(); 4096], Vec::new());
        let mut told = inotify::Reader::new(inotify, &mut buffer);
        let mut select = reader.prepare("SELECT max(seq) FROM litepost_outbox").unwrap();
        while seen.len() < events {
            told.next().unwrap();
            let newest: Option<i64> = select.query_row([], |row| row.get(0)).unwrap();
            seen.resize(usize::try_from(newest.unwrap_or(0)).unwrap(), now_ns());
        }
        seen
    });
    let committed = producer(&path, events);
    // The last write may have been heard of before its commit could be seen, and no other comes behind it.
    while !watcher.is_finished() {
        std::fs::write(folder.path().join("bell"), "").unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut samples = Samples::default();
    for (at, from) in watcher.join().unwrap().into_iter().zip(committed) {
        samples.add_nanos(at.saturating_sub(from));
    }
    samples
}

fn count() -> usize {
    if quick() { 50 } else { 2_000 }
}

/// Runs the other process to its end; the time of each commit, by position.
fn producer(database: &Path, events: usize) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("--produce")
        .arg(database)
        .arg(events.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let committed: Vec<u64> = lines.map(|line| line.unwrap().parse().unwrap()).collect();
    assert!(child.wait().unwrap().success());
    assert_eq!(committed.len(), events);
    committed
}

/// The other process.
fn produce(database: &Path, events: u32) {
    let mut app = connection::open(database, Access::ReadWrite).unwrap();
    app.pragma_update(None, "synchronous", "NORMAL").unwrap();
    // The relay has to be there first.
    std::thread::sleep(Duration::from_millis(500));
    let body = "x".repeat(PAYLOAD_BYTES);
    let mut out = std::io::stdout().lock();
    for n in 0..events {
        std::thread::sleep(PAUSE.0 + PAUSE.1 * (n % 29));
        let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        enqueue(&tx, &NewEvent::new("orders", body.as_str()).key((n % 100).to_string())).unwrap();
        let at = now_ns();
        tx.commit().unwrap();
        writeln!(out, "{at}").unwrap();
    }
}

/// What a relay with nothing to do takes of a core, in percent.
#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn idle() -> f64 {
    let (settle, watch) = if quick() { (1, 3) } else { (5, 60) };
    let folder = outbox("file", "{ path = \"events.jsonl\" }", true);
    let config = Config::load(&folder.path().join("litepost.toml"), Purpose::Deliver).unwrap().relay();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let relay = runtime.spawn(Relay::new(config).run(async move { stopped.cancelled().await }));
    let _ = producer(&folder.path().join("shop.db"), 10);
    std::thread::sleep(Duration::from_secs(settle));
    let before = cpu_ns();
    std::thread::sleep(Duration::from_secs(watch));
    let used = cpu_ns() - before;
    stop.cancel();
    runtime.block_on(relay).unwrap();
    used as f64 / 1e9 / watch as f64 * 100.0
}

/// Processor time that the threads of this process have used so far.
fn cpu_ns() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let used = |folder: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(folder.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<u64>().ok()
    };
    threads.flatten().filter_map(used).sum()
}
