//! Batches that are added without a script: whatever else happens to the lane and to the streams between two of them,
//! each event is added once and in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use litepost::NewEvent;
use litepost_testkit::conformance::{Desk, Duplicates, Harness as _, Target, judge};
use litepost_testkit::proxy::Proxy;
use litepost_testkit::servers::Redis;
use redis::{Connection, Value};

use super::redis::{RedisHarness, arrived, desk};

const OPEN: &str = include_str!("../../../src/sinks/redis/open.lua");
const GUARD: &str = include_str!("../../../src/sinks/redis/guard.lua");
const FINISH: &str = include_str!("../../../src/sinks/redis/finish.lua");
/// Batches that are large enough, and not so large that there are few of them.
const BATCHES: &str = "batch_size = 50";

fn connect(server: &Redis) -> Connection {
    ::redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

fn ask<T: ::redis::FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    ::redis::cmd(words[0]).arg(&words[1..]).query(connection).unwrap()
}

/// How often the server has carried out a command; inside of scripts counts too.
fn calls(connection: &mut Connection, command: &str) -> u64 {
    let all: String = ask(connection, &["INFO", "commandstats"]);
    let line = all.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.map_or(0, |rest| rest.split(',').next().unwrap().parse().unwrap())
}

/// Does this to the server over and over, until it is dropped.
struct Meanwhile(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Meanwhile {
    fn start(server: &Redis, mut act: impl FnMut(&mut Connection) + Send + 'static) -> Self {
        let (mut connection, ends) = (connect(server), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                act(&mut connection);
            }
        });
        Self(ends, Some(thread))
    }
}

impl Drop for Meanwhile {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "it failed");
        }
    }
}

#[test]
fn a_backlog_goes_without_scripts_and_a_few_events_with_one() {
    let mut harness = super::redis::harness();
    let mut connection = connect(harness.server());
    let mut desk = desk(&harness, BATCHES);
    desk.write_many(2_000, 20);
    desk.drain_everything();
    arrived(&mut harness, &desk);
    // The first goes through the script, which looks at the stream for the second.
    assert_eq!((calls(&mut connection, "evalsha"), calls(&mut connection, "exec")), (1, 39));
    desk.write_many(10, 5);
    desk.drain_everything();
    assert_eq!((calls(&mut connection, "evalsha"), calls(&mut connection, "exec")), (2, 39));
    arrived(&mut harness, &desk);
}

#[test]
fn a_relay_that_was_taken_over_between_two_batches_adds_nothing() {
    let mut harness = super::redis::harness();
    let mut connection = connect(harness.server());
    let mut desk = desk(&harness, BATCHES);
    desk.write_many(200, 5);
    let relay = desk.start();
    desk.until_settled();
    assert!(calls(&mut connection, "exec") >= 3, "the next transaction is begun");
    // What a relay with a newer lease does first.
    let states: Vec<String> = ask(&mut connection, &["KEYS", "litepost:*"]);
    let opened: Vec<String> =
        ask(&mut connection, &["EVAL", OPEN, "1", &states[0], "1000000", "0", "0", "86400000", "1"]);
    assert_eq!(opened[..2], ["KNOWN", "200"]);
    let scripts = calls(&mut connection, "evalsha");
    desk.write_many(100, 5);
    desk.until("it has tried", |_| calls(&mut connect(harness.server()), "evalsha") > scripts);
    assert_eq!((ask::<i64>(&mut connection, &["XLEN", "ready"]), desk.delivered()), (200, 200));
    relay.stop();
    let _: Value = ask(&mut connection, &["HSET", &states[0], "token", "0"]);
    desk.drain_everything();
    arrived(&mut harness, &desk);
}

#[test]
fn an_answer_to_a_transaction_that_is_lost_adds_nothing_twice() {
    let mut harness = super::redis::harness();
    let proxy = Proxy::start(harness.port());
    let mut connection = connect(harness.server());
    let mut desk =
        Desk::new("redis", "timeout = \"2s\"\nbatch_size = 50", &harness.connection(proxy.port(), Target::Ready));
    desk.write_many(150, 5);
    let relay = desk.start();
    desk.until_settled();
    for _ in 0..3 {
        let before = calls(&mut connection, "exec");
        proxy.swallow_replies(true);
        desk.write_many(40, 5);
        let there = i64::try_from(desk.sent().len()).unwrap();
        desk.until("the server has them", |_| ask::<i64>(&mut connect(harness.server()), &["XLEN", "ready"]) == there);
        assert_eq!(calls(&mut connection, "exec"), before + 1);
        proxy.cut();
        proxy.swallow_replies(false);
        desk.until_settled();
        // The next one is begun again.
        desk.write_many(100, 5);
        desk.until_settled();
    }
    relay.stop();
    arrived(&mut harness, &desk);
}

#[test]
fn groups_that_read_and_acknowledge_do_not_disturb() {
    let mut harness = super::redis::harness();
    let mut connection = connect(harness.server());
    let () = ask(&mut connection, &["XGROUP", "CREATE", "ready", "workers", "0", "MKSTREAM"]);
    let mut desk = desk(&harness, BATCHES);
    desk.write_many(3_000, 20);
    let reading = Meanwhile::start(harness.server(), |connection| {
        let read = ["XREADGROUP", "GROUP", "workers", "me", "COUNT", "10", "STREAMS", "ready", ">"];
        let found: ::redis::streams::StreamReadReply = ask(connection, &read);
        for entry in found.keys.iter().flat_map(|key| &key.ids) {
            assert_eq!(ask::<i64>(connection, &["XACK", "ready", "workers", &entry.id]), 1);
        }
    });
    desk.drain_everything();
    drop(reading);
    assert_eq!(calls(&mut connection, "exec"), 59, "no transaction was in vain");
    assert!(calls(&mut connection, "xack") > 0);
    arrived(&mut harness, &desk);
}

/// Another writer, with ids of its own, far above all positions: no event is added before it is known that its id ascends.
#[test]
fn others_that_add_to_the_stream_at_the_same_time_cost_no_event() {
    let mut harness = super::redis::harness();
    let mut connection = connect(harness.server());
    let mut desk = desk(&harness, BATCHES);
    desk.write_many(3_000, 20);
    let adding = Meanwhile::start(harness.server(), |connection| {
        let _: Option<String> =
            ask(connection, &["XADD", "ready", "NOMKSTREAM", "*", "litepost-id", "x", "payload", "x"]);
        thread::sleep(std::time::Duration::from_millis(3));
    });
    desk.drain_everything();
    drop(adding);
    let mut received = harness.consume(Target::Ready);
    let all = received.len();
    received.retain(|message| message.id != "x");
    assert!(received.len() < all, "somebody has added something");
    judge(desk.sent(), &received, Duplicates::Never).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(calls(&mut connection, "exec") >= 1);
    desk.verify();
}

/// What stands in the stream already: ids in the middle of the positions that follow.
#[test]
fn positions_that_others_have_used_as_ids_are_no_gap() {
    let mut harness = super::redis::harness();
    let mut connection = connect(harness.server());
    let mut desk = desk(&harness, BATCHES);
    let mut add = |id: &str| ask::<String>(&mut connection, &["XADD", "ready", id, "litepost-id", "x", "payload", "x"]);
    // Seen when the second batch is prepared for, ten ids short of the first's end.
    add("60-0");
    desk.write_many(150, 5);
    desk.drain_everything();
    let relay = desk.start();
    for id in ["275-0", "999999-0"] {
        desk.write_many(50, 5);
        desk.until_settled();
        desk.write_many(50, 5);
        desk.until_settled();
        // Between what was looked at and the next batch.
        add(id);
        desk.write_many(50, 5);
        desk.until_settled();
    }
    relay.stop();
    let mut received = harness.consume(Target::Ready);
    received.retain(|message| message.id != "x");
    judge(desk.sent(), &received, Duplicates::Never).unwrap_or_else(|wrong| panic!("{wrong}"));
    desk.verify();
}

/// A consumer that deletes what it has read: each event is read once.
#[test]
fn entries_that_are_deleted_at_the_same_time_come_once() {
    let harness = super::redis::harness();
    let mut desk = desk(&harness, BATCHES);
    desk.write_many(3_000, 20);
    let (sender, taken) = std::sync::mpsc::channel();
    let deleting = Meanwhile::start(harness.server(), move |connection| {
        let found: ::redis::streams::StreamRangeReply = ask(connection, &["XRANGE", "ready", "-", "+", "COUNT", "20"]);
        for entry in found.ids {
            assert_eq!(ask::<i64>(connection, &["XDEL", "ready", &entry.id]), 1);
            sender.send(entry.get::<String>("litepost-id").unwrap()).unwrap();
        }
    });
    desk.drain_everything();
    let read: Vec<String> = (0..3_000).map(|_| taken.recv().unwrap()).collect();
    drop(deleting);
    let sent: Vec<&str> = desk.sent().iter().map(|sent| sent.id.as_str()).collect();
    assert_eq!(read, sent);
    assert!(taken.try_recv().is_err(), "nothing came a second time");
    desk.verify();
}

#[test]
fn a_stream_that_goes_between_two_batches_is_made_anew_or_missed() {
    for create in [true, false] {
        let mut harness = super::redis::harness();
        let mut connection = connect(harness.server());
        let keys = if create { " }" } else { ", create_stream = false }" };
        let configured = harness.connection(harness.port(), Target::Ready).replace(" }", keys);
        let mut desk = Desk::new("redis", BATCHES, &configured);
        let () = ask(&mut connection, &["XGROUP", "CREATE", "ready", "workers", "0", "MKSTREAM"]);
        desk.write_many(150, 5);
        let relay = desk.start();
        desk.until_settled();
        assert_eq!(ask::<i64>(&mut connection, &["DEL", "ready"]), 1);
        for sent in desk.sent().to_vec() {
            desk.unsend(&sent.id);
        }
        desk.write_many(100, 5);
        if !create {
            desk.until("it is missed", |desk| {
                desk.number("SELECT count(*) FROM litepost_blocked WHERE error_code = 'no_stream'") > 0
            });
            let () = ask(&mut connection, &["XGROUP", "CREATE", "ready", "workers", "0", "MKSTREAM"]);
        }
        desk.until_settled();
        relay.stop();
        arrived(&mut harness, &desk);
    }
}

#[test]
fn what_was_held_back_goes_through_the_script_and_what_follows_without() {
    let mut harness = super::redis::harness();
    let mut connection = connect(harness.server());
    let configured =
        format!("{{ url = \"{}\", stream = \"{{header.to|ready}}\", format = \"raw\" }}", harness.server().url());
    let mut desk = Desk::new("redis", BATCHES, &configured);
    let () = ask(&mut connection, &["SET", "busy", "1"]);
    let blocked = desk.write(NewEvent::new("orders", "1").header("to", "busy"), Some("k0"), b"1");
    desk.unsend(&blocked);
    desk.write_many(150, 3);
    let relay = desk.start();
    desk.until("the other keys' events are through", |desk| desk.delivered() >= 100);
    let () = ask(&mut connection, &["DEL", "busy"]);
    desk.until_settled();
    relay.stop();
    let before = calls(&mut connection, "exec");
    desk.write_many(300, 3);
    desk.drain_everything();
    assert!(calls(&mut connection, "exec") > before, "what was added out of order lies behind");
    arrived(&mut harness, &desk);
}

/// A server that does not allow transactions would carry out what was meant for one at once, one by one, and unfenced.
#[test]
fn a_user_who_may_not_use_transactions_gets_everything_by_script() {
    for missing in ["-@transaction", "-multi", "-watch"] {
        let mut harness = super::redis::harness();
        let mut connection = connect(harness.server());
        let mut desk = Desk::new("redis", BATCHES, &limited(&mut connection, &harness, missing));
        desk.write_many(500, 5);
        desk.drain_everything();
        assert_eq!(calls(&mut connection, "evalsha"), 10, "{missing}");
        arrived(&mut harness, &desk);
    }
}

/// A connection of a user who may do everything but this.
fn limited(connection: &mut Connection, harness: &RedisHarness, missing: &str) -> String {
    let () = ask(connection, &["ACL", "SETUSER", "limited", "on", ">pw", "~*", "+@all", missing]);
    format!("{{ url = \"redis://limited:pw@127.0.0.1:{}\", stream = \"ready\", format = \"raw\" }}", harness.port())
}

#[test]
fn rights_that_are_taken_away_between_two_batches_add_nothing_twice() {
    for taken in ["-multi", "-exec", "-xadd", "-eval"] {
        let mut harness = super::redis::harness();
        let mut connection = connect(harness.server());
        let mut desk = Desk::new("redis", BATCHES, &limited(&mut connection, &harness, "+@all"));
        desk.write_many(150, 5);
        let relay = desk.start();
        desk.until_settled();
        let () = ask(&mut connection, &["ACL", "SETUSER", "limited", taken]);
        desk.write_many(100, 5);
        thread::sleep(std::time::Duration::from_millis(500));
        let () = ask(&mut connection, &["ACL", "SETUSER", "limited", "+@all"]);
        desk.until_settled();
        relay.stop();
        arrived(&mut harness, &desk);
    }
}

/// What moves the position looks at the streams first.
#[test]
fn a_position_does_not_pass_an_entry_that_is_not_there() {
    let server = Redis::start();
    let mut connection = connect(&server);
    let () = ask(&mut connection, &["HSET", "state", "token", "1", "seq", "5", "id", "e5"]);
    let _: String = ask(&mut connection, &["XADD", "s", "7-0", "a", "b"]);
    let mut finish = |last: &str| ask::<String>(&mut connection, &["EVAL", FINISH, "2", "state", "s", "8", "e8", last]);
    assert_eq!(finish("8-0"), "s");
    assert_eq!(finish("7-0"), "OK");
    let _: i64 = ask(&mut connection, &["DEL", "s"]);
    let answer: String = ask(&mut connection, &["EVAL", FINISH, "2", "state", "s", "9", "e9", "9-0"]);
    assert_eq!(answer, "s");
    let state: Vec<String> = ask(&mut connection, &["HMGET", "state", "seq", "id"]);
    assert_eq!(state, ["8", "e8"]);
}

#[test]
fn nothing_goes_without_a_script_where_something_was_added_ahead_of_the_position() {
    let server = Redis::start();
    let mut connection = connect(&server);
    let _: Value = ask(&mut connection, &["HSET", "state", "token", "1", "seq", "5", "id", "e5"]);
    let _: Value = ask(&mut connection, &["SET", "other", "1"]);
    let _: String = ask(&mut connection, &["XADD", "s", "7-3", "a", "b"]);
    let mut guard =
        |token: &str| ask::<Vec<String>>(&mut connection, &["EVAL", GUARD, "4", "state", "s", "none", "other", token]);
    assert_eq!(guard("1"), ["5", "7-3", "", "-"]);
    assert!(guard("2").is_empty());
    let mut second = connect(&server);
    let _: Value = ask(&mut second, &["HSET", "state", "e:5", "1700000000000 e5"]);
    assert_eq!(guard("1")[0], "5");
    let _: Value = ask(&mut second, &["HSET", "state", "e:6", "1700000000000 e6"]);
    assert!(guard("1").is_empty());
}

#[test]
fn data_that_is_lost_between_two_batches_is_noticed() {
    let harness = super::redis::harness();
    let mut connection = connect(harness.server());
    let mut desk = desk(&harness, BATCHES);
    desk.write_many(150, 5);
    let relay = desk.start();
    desk.until_settled();
    assert!(calls(&mut connection, "exec") >= 2, "the next transaction is begun");
    let () = ask(&mut connection, &["FLUSHALL"]);
    desk.write_many(100, 5);
    desk.until("the loss is noticed", |desk| {
        desk.text("SELECT coalesce(max(state_error), '') FROM litepost_cursor").contains("has lost data")
    });
    assert_eq!((ask::<i64>(&mut connection, &["XLEN", "ready"]), desk.delivered()), (0, 150));
    relay.stop();
}
