//! Splitting a destination into lanes anew, and rewinding it, while its ledger knows more than the outbox file: every
//! statement is applied once, or as often as an operator has asked for, and those of a key in order.

use std::collections::BTreeMap;
use std::time::Duration;

use litepost::lanes::FormerSplit;
use litepost::operate::RewindTo;
use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{Chunk, Event, EventRef, Lane, Ordering, Outcome, Seq, UnavailableKind};
use litepost_relay::config::{Config, Purpose};
use litepost_relay::sink::{Batch, LogPeek, SinkContext};
use rusqlite::Connection;

use crate::desk::Desk;
use crate::operate::operator;

const KEYS: i64 = 7;
/// Every so many cannot be applied: its key's successors leave out of order.
const POISONED: i64 = 31;

/// A target database that remembers in which order it was written to.
pub(crate) trait Target {
    fn config(&self) -> String;
    fn rows(&self) -> Vec<i64>;
    /// The highest position that its ledger holds.
    fn ledger(&self) -> i64;
    /// How often it may be asked for that while a relay lives.
    fn looks(&self) -> u32;
}

pub(crate) struct Sqlite(std::path::PathBuf);

impl Sqlite {
    pub(crate) fn new(desk: &Desk) -> Self {
        let path = desk.path("copy.db");
        let schema = "CREATE TABLE stock (at INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER CHECK (n > 0))";
        Connection::open(&path).unwrap().execute_batch(schema).unwrap();
        Self(path)
    }

    fn open(&self) -> Connection {
        let connection = Connection::open(&self.0).unwrap();
        connection.busy_timeout(Duration::from_secs(10)).unwrap();
        connection
    }
}

impl Target for Sqlite {
    fn config(&self) -> String {
        "type = 'sqlite'\nconnection = { path = 'copy.db' }".into()
    }

    fn rows(&self) -> Vec<i64> {
        let connection = self.open();
        let mut rows = connection.prepare("SELECT n FROM stock ORDER BY at").unwrap();
        rows.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }

    fn ledger(&self) -> i64 {
        self.open().query_row("SELECT coalesce(max(seq), 0) FROM litepost_ledger", [], |row| row.get(0)).unwrap_or(0)
    }

    fn looks(&self) -> u32 {
        150
    }
}

#[cfg(feature = "postgres")]
impl Target for litepost_testkit::servers::Postgres {
    fn config(&self) -> String {
        format!("type = 'postgres'\nconnection = {{ url = '{}' }}", self.url())
    }

    fn rows(&self) -> Vec<i64> {
        self.psql("SELECT n FROM stock ORDER BY at").split_whitespace().map(|n| n.parse().unwrap()).collect()
    }

    fn ledger(&self) -> i64 {
        let sql = "SELECT CASE WHEN to_regclass('litepost_ledger') IS NULL THEN 0 ELSE 1 END";
        if self.psql(sql).trim() == "0" {
            return 0;
        }
        self.psql("SELECT coalesce(max(seq), 0) FROM litepost_ledger").trim().parse().unwrap()
    }

    /// Each is a process of its own.
    fn looks(&self) -> u32 {
        3
    }
}

fn configure(desk: &Desk, target: &dyn Target, keys: &str) {
    let text = format!(
        "[app.shop]\ndatabase = 'shop.db'\nlease = '1s'\nretain = '1h'\n[app.shop.db.copy]\ntables = ['stock']\nbatch_size = 7\n\
         retry = {{ first = '1ms', cap = '1ms', max_attempts = 2 }}\n{keys}\n{}\n",
        target.config()
    );
    std::fs::write(desk.path("litepost.toml"), text).unwrap();
}

fn write(desk: &mut Desk, numbers: std::ops::Range<i64>) {
    for n in numbers {
        let value = if n % POISONED == 0 { -n } else { n };
        desk.statement(&(n % KEYS).to_string(), "INSERT INTO stock (n) VALUES (?)", &[value]);
    }
}

/// Each once, those of a key in order.
fn check(written: i64, got: &[i64]) {
    let mut sorted = got.to_vec();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=written).filter(|n| n % POISONED != 0).collect::<Vec<_>>(), "lost or doubled");
    let mut last: BTreeMap<i64, i64> = BTreeMap::new();
    for &n in got {
        assert!(last.insert(n % KEYS, n).is_none_or(|before| before < n), "{n} came too late");
    }
}

/// Relays die at any moment, the next one splits into another number of lanes, or by another order where that is possible.
async fn split_again_and_again(mut desk: Desk, target: &dyn Target) {
    const ROUNDS: i64 = 14;
    const EVENTS: i64 = 120;
    let splits = ["lanes = 1", "lanes = 3", "lanes = 2", "lanes = 5", "lanes = 3", "lanes = 4"];
    let (mut ahead, mut changed) = (0, 0);
    for round in 0..ROUNDS {
        write(&mut desk, round * EVENTS + 1..(round + 1) * EVENTS + 1);
        let split = splits[usize::try_from(round).unwrap() % splits.len()];
        configure(&desk, target, split);
        let settled = desk.number("SELECT coalesce(min(acked), 0) FROM litepost_cursor");
        ahead += i64::from(target.ledger() > settled && settled > 0);
        let before = desk.number("SELECT coalesce(max(generation), 0) FROM litepost_cursor");
        let relay = desk.start();
        desk.until("it is split", |d| {
            let lanes = d.number("SELECT count(*) FROM litepost_cursor");
            lanes == split["lanes = ".len()..].parse::<i64>().unwrap()
        })
        .await;
        changed += desk.number("SELECT max(generation) FROM litepost_cursor") - before;
        let from = target.ledger();
        // Killed when it has gone on by a few batches, or after a while.
        for _ in 0..target.looks() {
            if target.ledger() > from + 20 + 9 * (round % 4) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        relay.kill().await;
        desk.outbox.execute_batch("UPDATE litepost_cursor SET owner = NULL").unwrap();
    }
    assert!(changed > ROUNDS / 2, "it was split {changed} times");
    assert!(ahead > 0, "the ledger never knew more than the file");
    desk.drain().await;
    desk.until("the poisoned are through", |d| d.number("SELECT count(*) FROM litepost_blocked") == 0).await;
    let poisoned = ROUNDS * EVENTS / POISONED;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), poisoned);
    check(ROUNDS * EVENTS, &target.rows());
    let settled = desk.number("SELECT sum(delivered) FROM litepost_cursor");
    assert_eq!(settled, ROUNDS * EVENTS - poisoned, "delivered as often as applied");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_applies_once_however_often_its_lanes_change() {
    let desk = Desk::new();
    let target = Sqlite::new(&desk);
    split_again_and_again(desk, &target).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn postgres_applies_once_however_often_its_lanes_change() {
    let server = litepost_testkit::servers::Postgres::start();
    server.psql("DROP TABLE IF EXISTS stock; CREATE TABLE stock (at bigserial PRIMARY KEY, n bigint CHECK (n > 0))");
    split_again_and_again(Desk::new(), &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_order_splits_anew_and_is_refused_while_a_line_waits() {
    let mut desk = Desk::new();
    let target = Sqlite::new(&desk);
    for round in 0..6 {
        write(&mut desk, round * 29 + 1..(round + 1) * 29 + 1);
        configure(&desk, &target, ["lanes = 3", "lanes = 3\nordering = 'strict'"][usize::try_from(round % 2).unwrap()]);
        let blocked = "SELECT count(*) FROM litepost_blocked";
        loop {
            let relay = desk.start();
            let through = |d: &Desk| d.number("SELECT coalesce(sum(delivered + dead), 0) FROM litepost_cursor");
            desk.until("some of it is through, and no line waits", |d| {
                through(d) >= round * 29 + 10 && d.number(blocked) == 0
            })
            .await;
            relay.stop().await;
            if desk.number(blocked) == 0 {
                break;
            }
        }
    }
    desk.drain_everything().await;
    check(6 * 29, &target.rows());
    assert_eq!(desk.number("SELECT max(generation) FROM litepost_cursor"), 5);
    desk.verify();
    // A line that waits has the order it was made with.
    configure(&desk, &target, "lanes = 3\nordering = 'strict'\non_dead = 'hold'");
    desk.statement("k", "INSERT INTO stock (n) VALUES (?)", &[-1]);
    desk.drain().await;
    configure(&desk, &target, "lanes = 3\non_dead = 'hold'");
    let report = desk.drain().await;
    let said = format!("{report:?}");
    assert!(said.contains("wait behind a failed or paused one"), "{said}");
    assert_eq!(desk.text("SELECT max(ordering) FROM litepost_cursor"), "strict");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewound_ledger_applies_again_what_was_asked_for_and_nothing_else() {
    const EVENTS: i64 = 200;
    let mut desk = Desk::new();
    let target = Sqlite::new(&desk);
    configure(&desk, &target, "lanes = 2");
    for n in 1..=EVENTS {
        let value = if n == 150 { -n } else { n };
        desk.statement(&(n % KEYS).to_string(), "INSERT INTO stock (n) VALUES (?)", &[value]);
    }
    let relay = desk.start();
    let settled = |d: &Desk| {
        d.number("SELECT coalesce(min(acked), 0) FROM litepost_cursor") == EVENTS
            && d.number("SELECT count(*) FROM litepost_blocked") == 0
    };
    desk.until("all is settled", settled).await;
    let refused = desk.deed(|o| o.rewind("shop.copy", RewindTo::Seq(Seq(101)))).await.unwrap_err();
    assert!(refused.to_string().contains("exactly once"), "{refused}");
    let mut operator = operator(&desk.path("shop.db")).reapply(true);
    let rewind = move || operator.rewind("shop.copy", RewindTo::Seq(Seq(101)));
    let rewound = tokio::task::spawn_blocking(rewind).await.unwrap().unwrap();
    assert!(rewound.reapplied);
    assert!(desk.text("SELECT detail FROM litepost_audit WHERE action = 'rewind'").contains("\"reapplied\":true"));
    // Killed in the middle, again and again: the new generation's ledger is as exact as the old one's.
    let mut relay = relay;
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        relay.kill().await;
        desk.outbox.execute_batch("UPDATE litepost_cursor SET owner = NULL").unwrap();
        relay = desk.start();
    }
    desk.until("all is settled again", settled).await;
    relay.stop().await;
    let mut times: BTreeMap<i64, u32> = BTreeMap::new();
    target.rows().into_iter().for_each(|n| *times.entry(n).or_default() += 1);
    for n in (1..=EVENTS).filter(|n| *n != 150) {
        assert_eq!(times.get(&n).copied(), Some(1 + u32::from(n > 100)), "event {n}");
    }
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead WHERE seq = 150"), 2, "it was tried again");
    desk.verify();
}

/// A lane of a split, as a relay opens it.
fn context(generation: i64, lane: Lane, token: i64, former: &[FormerSplit]) -> SinkContext {
    SinkContext {
        destination: "shop.copy".into(),
        origin: "o".into(),
        epoch: 1,
        lane,
        generation,
        former: former.into(),
        settled_by_all: 0,
        slot: 0,
        ordering: Ordering::Key,
        token,
        deadline: Duration::from_secs(10),
        topics: Vec::new(),
        acked: 0,
        confirmed: 0,
        log: LogPeek::default(),
    }
}

fn batch(seqs: std::ops::RangeInclusive<i64>) -> Batch {
    let event = |n: i64| {
        let statement = format!("{{\"sql\":\"INSERT INTO stock (n) VALUES ({n})\",\"args\":[]}}");
        let mut event = Event::new(Seq(n), &format!("id-{n}"), "stock", &statement);
        event.kind = "sql".into();
        event
    };
    let chunk = Chunk::new(seqs.map(event).collect());
    let events = (0..chunk.events().len()).filter_map(|at| EventRef::new(&chunk, at)).collect();
    Batch { order: DeliveryOrder::InOrder, events, upcoming: Vec::new() }
}

/// A relay that is still connected under the split of before, or that connects late, when a new one has begun.
async fn only_the_newest_split_commits(desk: Desk, target: &dyn Target) {
    configure(&desk, target, "");
    let config = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).unwrap();
    let factory = config.apps[0].destinations[0].factory.clone();
    let before = [FormerSplit { generation: 0, split: 1.into(), counts: true }];
    let mut old = factory.connect(&context(0, Lane::ONLY, 1, &[])).await.unwrap();
    assert!(old.deliver(&batch(1..=3)).await.iter().all(|o| *o == Outcome::Delivered));
    // All the events have one topic and no key: they are of one lane, whichever it is.
    let mut new = Vec::new();
    for index in 0..2 {
        new.push(factory.connect(&context(1, Lane { index, count: 2 }, 2, &before)).await.unwrap());
    }
    let fenced = |outcomes: &[Outcome]| {
        outcomes.iter().any(|o| matches!(o, Outcome::Unavailable(u) if u.kind == UnavailableKind::Fenced))
    };
    let outcomes = old.deliver(&batch(4..=6)).await;
    assert!(fenced(&outcomes), "{outcomes:?}");
    for (lane, token, says) in [
        (Lane::ONLY, 1, "another relay has taken over"),
        // As a file does that was restored from before the split.
        (Lane::ONLY, 9, "a later split"),
        (Lane { index: 1, count: 9 }, 1, "written with lanes = 1"),
    ] {
        let Err(late) = factory.connect(&context(0, lane, token, &[])).await else { panic!("{says}: it connects") };
        assert!(late.message.contains(says), "{late:?}");
    }
    // What the old split has applied is passed over, by whichever of the new lanes has it now.
    let outcomes = new[0].deliver(&batch(2..=5)).await;
    assert!(outcomes.iter().all(|o| *o == Outcome::Delivered), "{outcomes:?}");
    assert_eq!(target.rows(), [1, 2, 3, 4, 5]);
    // After a rewind it does not count.
    let rewound = [
        FormerSplit { generation: 0, split: 1.into(), counts: false },
        FormerSplit { generation: 1, split: 2.into(), counts: false },
    ];
    let mut newest = factory.connect(&context(2, Lane::ONLY, 3, &rewound)).await.unwrap();
    assert!(newest.deliver(&batch(1..=2)).await.iter().all(|o| *o == Outcome::Delivered));
    assert!(fenced(&new[0].deliver(&batch(6..=6)).await));
    assert_eq!(target.rows(), [1, 2, 3, 4, 5, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_sqlite_only_the_newest_split_commits() {
    let desk = Desk::new();
    let target = Sqlite::new(&desk);
    only_the_newest_split_commits(desk, &target).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn in_postgres_only_the_newest_split_commits() {
    let server = litepost_testkit::servers::Postgres::start();
    server.psql("DROP TABLE IF EXISTS stock; CREATE TABLE stock (at bigserial PRIMARY KEY, n bigint CHECK (n > 0))");
    only_the_newest_split_commits(Desk::new(), &server).await;
}
