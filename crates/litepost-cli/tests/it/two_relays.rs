//! Two relays in processes of their own on one outbox: one is frozen past its lease and wakes up, one is killed.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use litepost::{NewEvent, enqueue};
use litepost_core::Value;
use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::Place;

const CONFIG: &str = "[app.shop]\ndatabase = 'shop.db'\nlease = '1s'\nretain = '1h'\nbatch_size = 5\n\
    [app.shop.sink.audit]\ntype = 'file'\nconnection = { path = 'events.jsonl' }\n\
    [app.shop.db.copy]\ntype = 'sqlite'\ntables = ['stock']\nlanes = 2\nconnection = { path = 'copy.db' }\n";
pub(crate) const KEYS: i64 = 5;

struct Relays(Vec<Child>);

impl Drop for Relays {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Relays {
    fn start(&mut self, place: &Place) {
        let child = place.command(&["run"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.0.push(child);
    }

    fn signal(&self, pid: u32, signal: Signal) {
        assert!(self.0.iter().any(|child| child.id() == pid), "{pid} is none of ours");
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
    }

    /// Freezes a relay at a moment when it holds no lock of a database that keeps others out: nobody could take it from
    /// a process that stands still. Asking for the write lock would not tell: a checkpoint holds others, by which SQLite
    /// makes a reader give up after ten seconds.
    fn freeze(&self, place: &Place, pid: u32) {
        for _ in 0..2_000 {
            self.signal(pid, Signal::STOP);
            if !keeps_others_out(place, pid) {
                return;
            }
            self.signal(pid, Signal::CONT);
            std::thread::sleep(Duration::from_millis(3));
        }
        panic!("the relay always holds a lock");
    }
}

/// Whether a process that stands still has an exclusive lock on one of the databases or their shared memory
/// (proc_locks(5)).
fn keeps_others_out(place: &Place, pid: u32) -> bool {
    until("it stands still", || {
        // proc_pid_stat(5): the state follows the name in parentheses.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    });
    let files = ["shop.db", "shop.db-shm", "copy.db", "copy.db-shm"];
    let inodes: Vec<String> = files
        .iter()
        .filter_map(|file| std::fs::metadata(place.path(file)).ok())
        .map(|metadata| std::os::unix::fs::MetadataExt::ino(&metadata).to_string())
        .collect();
    let pid = pid.to_string();
    std::fs::read_to_string("/proc/locks").unwrap().lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let inode = words.get(5).and_then(|file| file.rsplit(':').next());
        words.get(3) == Some(&"WRITE")
            && words.get(4) == Some(&pid.as_str())
            && inode.is_some_and(|inode| inodes.iter().any(|one| one == inode))
    })
}

fn look<T: rusqlite::types::FromSql>(place: &Place, file: &str, sql: &str) -> Option<T> {
    Connection::open(place.path(file)).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

/// The process that has the lane of the file destination.
fn holder(place: &Place) -> Option<u32> {
    let text: String =
        look(place, "shop.db", "SELECT max(holder) FROM litepost_cursor WHERE destination = 'shop.audit'")?;
    let holder: serde_json::Value = serde_json::from_str(&text).unwrap();
    holder["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())
}

fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("never happened: {what}");
}

fn produce(place: &Place, stop: &AtomicBool) -> i64 {
    let mut outbox = Connection::open(place.path("shop.db")).unwrap();
    outbox.busy_timeout(Duration::from_secs(30)).unwrap();
    let mut n = 0;
    while !stop.load(Ordering::Acquire) {
        n += 1;
        let tx = outbox.transaction().unwrap();
        let event = NewEvent::statement("stock", "INSERT INTO stock (n) VALUES (?)", [Value::Integer(n)]);
        enqueue(&tx, &event.key((n % KEYS).to_string())).unwrap();
        tx.commit().unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    n
}

#[test]
fn frozen_past_its_lease_or_killed_a_relay_changes_nothing_and_the_other_goes_on() {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    place.good(&["migrate", "--database", "shop.db"]);
    Connection::open(place.path("copy.db"))
        .unwrap()
        .execute_batch("CREATE TABLE stock (at INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER UNIQUE)")
        .unwrap();
    let stop = AtomicBool::new(false);
    let mut relays = Relays(Vec::new());
    let written = std::thread::scope(|scope| {
        let producer = scope.spawn(|| produce(&place, &stop));
        relays.start(&place);
        until("the first delivers", || holder(&place).is_some());
        relays.start(&place);
        for _ in 0..2 {
            until("somebody has the lane", || holder(&place).is_some());
            let frozen = holder(&place).unwrap();
            relays.freeze(&place, frozen);
            until("the other takes over", || holder(&place).is_some_and(|pid| pid != frozen));
            std::thread::sleep(Duration::from_millis(300));
            relays.signal(frozen, Signal::CONT);
            std::thread::sleep(Duration::from_millis(300));
        }
        until("somebody has the lane", || holder(&place).is_some());
        let killed = holder(&place).unwrap();
        relays.signal(killed, Signal::KILL);
        until("the other takes over", || holder(&place).is_some_and(|pid| pid != killed));
        stop.store(true, Ordering::Release);
        producer.join().unwrap()
    });
    until("all is settled", || {
        look::<i64>(&place, "shop.db", "SELECT min(acked) FROM litepost_cursor") == Some(written)
    });
    drop(relays);
    let copied: Vec<i64> = Connection::open(place.path("copy.db"))
        .unwrap()
        .prepare("SELECT n FROM stock ORDER BY at")
        .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
        .unwrap();
    check(written, &copied);
    let text = std::fs::read_to_string(place.path("events.jsonl")).unwrap();
    let number = |line: &str| -> i64 {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        event["payload"]["args"][0].as_i64().unwrap()
    };
    check(written, &text.lines().map(number).collect::<Vec<_>>());
    let outbox = Connection::open(place.path("shop.db")).unwrap();
    assert!(litepost::verify(&outbox).unwrap().problems.is_empty());
    assert_eq!(look::<i64>(&place, "shop.db", "SELECT count(*) FROM litepost_dead"), Some(0));
}

/// Each once, those of a key in order.
pub(crate) fn check(written: i64, got: &[i64]) {
    let mut sorted = got.to_vec();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=written).collect::<Vec<_>>(), "lost or doubled");
    let mut last: BTreeMap<i64, i64> = BTreeMap::new();
    for &n in got {
        assert!(last.insert(n % KEYS, n).is_none_or(|before| before < n), "{n} came too late");
    }
}
