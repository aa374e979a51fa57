//! The producer's and the relay's part, each in a process of its own: this program again.
//!
//! Invariant: both use one clock, the machine's wall time; the relay's file holds an acknowledgement before the relay
//! itself knows of it.

use std::fs::File;
use std::io::{BufWriter, Read as _, Write as _};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use litepost::connection::{self, Access};
use litepost::{NewEvent, enqueue};
use litepost_core::Value;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Relay;
use rusqlite::TransactionBehavior;
use tokio_util::sync::CancellationToken;

use crate::destinations::INSERT;
use crate::watched;

pub(crate) const RELAY: &str = "--part-relay";
pub(crate) const PRODUCE: &str = "--part-produce";
/// Bytes of an event in the relay's file: its position, and when it was acknowledged.
pub(crate) const RECORD_BYTES: usize = 16;

const PAYLOAD_BYTES: usize = 256;
const KEYS: u64 = 10_000;
/// Between two transactions, at least.
const TICK: Duration = Duration::from_millis(1);
/// Events in one transaction, at most: so far a producer that is late catches up at once.
const BATCH_MAX: u64 = 10_000;

/// Plays the part this process was started for, if any. True when it was one.
pub(crate) fn played() -> bool {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [RELAY, config, acknowledged] => relay(Path::new(config), Path::new(acknowledged)),
        [PRODUCE, database, rate, millis, statements] => {
            let time = Duration::from_millis(millis.parse().unwrap());
            produce(Path::new(database), rate.parse().unwrap(), time, *statements == "true");
        }
        _ => return false,
    }
    true
}

fn now_ns() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// Until its standard input ends.
fn relay(config: &Path, acknowledged: &Path) {
    let mut config = Config::load(config, Purpose::Deliver).unwrap().relay();
    let file = Mutex::new((File::create(acknowledged).unwrap(), Vec::new()));
    watched::watch(&mut config, move |confirmed| {
        let at = now_ns().to_le_bytes();
        let (file, bytes) = &mut *file.lock().unwrap();
        bytes.clear();
        bytes.extend(confirmed.iter().flat_map(|seq| [seq.0.to_le_bytes(), at]).flatten());
        file.write_all(bytes).unwrap();
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let relay = Relay::new(config).when_ready(|| println!("ready"));
    let relay = runtime.spawn(relay.run(async move { stopped.cancelled().await }));
    let _ = std::io::stdin().read_exact(&mut [0]);
    stop.cancel();
    runtime.block_on(relay).unwrap();
}

/// Writes at that rate for that long; says of each transaction how many events there were with it, and the time before
/// its COMMIT.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small counts")]
fn produce(database: &Path, rate: u32, time: Duration, statements: bool) {
    let mut app = connection::open(database, Access::ReadWrite).unwrap();
    app.pragma_update(None, "synchronous", "NORMAL").unwrap();
    let body = "x".repeat(PAYLOAD_BYTES);
    let all = (f64::from(rate) * time.as_secs_f64()) as u64;
    let (start, mut written, mut commits) = (Instant::now(), 0, Vec::new());
    // One that cannot keep up stops at its time all the same.
    while written < all && start.elapsed() < time {
        let due = ((start.elapsed().as_secs_f64() * f64::from(rate)) as u64 + 1).min(all);
        if due > written {
            let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            let upto = due.min(written + BATCH_MAX);
            for n in written..upto {
                enqueue(&tx, &event(n, &body, statements)).unwrap();
            }
            written = upto;
            commits.push((written, now_ns()));
            tx.commit().unwrap();
        }
        let next = Duration::from_secs_f64(written as f64 / f64::from(rate)).saturating_sub(start.elapsed());
        std::thread::sleep(next.max(if rate > 1_000 { TICK } else { Duration::ZERO }));
    }
    let mut out = BufWriter::new(std::io::stdout());
    for (upto, at) in commits {
        writeln!(out, "{upto} {at}").unwrap();
    }
    out.flush().unwrap();
}

fn event(n: u64, body: &str, statements: bool) -> NewEvent {
    let key = (n % KEYS).to_string();
    if statements {
        let values = vec![Value::Integer(i64::try_from(n).unwrap()), Value::Text(body.to_owned())];
        NewEvent::statement("stock", INSERT, values).key(key)
    } else {
        NewEvent::new("orders", body).key(key).kind("OrderCreated")
    }
}
