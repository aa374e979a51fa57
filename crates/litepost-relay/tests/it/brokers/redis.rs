//! Redis Streams, on a real server, consumed by redis-py.

use std::time::Duration;

use litepost::NewEvent;
use litepost::operate::{Operator, Who};
use litepost_relay::relay::Drained;
use litepost_testkit::conformance::{
    Desk, Duplicates, Harness, MIB, Received, Target, Traits, WRONG_PASSWORD, consume_with, judge,
};
use litepost_testkit::servers::Redis;
use litepost_testkit::tls::Certificate;

const CONSUMER: &str = include_str!("redis.py");

/// A server; streams are made when something is added.
pub(crate) struct RedisHarness {
    server: Redis,
}

pub(crate) fn harness() -> RedisHarness {
    RedisHarness { server: Redis::start() }
}

impl RedisHarness {
    pub(crate) fn server(&self) -> &Redis {
        &self.server
    }
}

/// Runs one command with redis-py; what it answers is not looked at.
fn command(url: &str, words: &[&str]) {
    const RUN: &str = "import sys, redis; redis.Redis.from_url(sys.argv[1]).execute_command(*sys.argv[2:])";
    consume_with(RUN, &[&[url], words].concat());
}

impl Harness for RedisHarness {
    fn traits(&self) -> Traits {
        Traits {
            kind: "redis",
            in_flight: "batch_size = 100",
            duplicates: Duplicates::Never,
            large: MIB,
            too_large: 3 << 20,
            headers: true,
        }
    }

    fn port(&self) -> u16 {
        self.server.port()
    }

    fn connection(&self, port: u16, target: Target) -> String {
        let keys = match target {
            Target::Missing => "stream = \"missing\", create_stream = false",
            Target::Ready | Target::WrongCredentials => "stream = \"ready\"",
        };
        let password = if target == Target::WrongCredentials { WRONG_PASSWORD } else { Redis::PASSWORD };
        format!("{{ url = \"redis://127.0.0.1:{port}/0\", password = \"{password}\", format = \"raw\", {keys} }}")
    }

    fn make_missing(&mut self) {
        command(&self.server.url(), &["XGROUP", "CREATE", "missing", "workers", "$", "MKSTREAM"]);
    }

    fn consume(&mut self, target: Target) -> Vec<Received> {
        consume_with(CONSUMER, &[&self.server.url(), if target == Target::Missing { "missing" } else { "ready" }])
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn start_again(&mut self) {
        self.server.start_again();
    }

    fn pause(&mut self) {
        self.server.pause();
    }

    fn resume(&mut self) {
        self.server.resume();
    }
}

pub(super) fn desk(harness: &RedisHarness, keys: &str) -> Desk {
    Desk::new("redis", keys, &harness.connection(harness.port(), Target::Ready))
}

/// What the stream holds is what was sent, each once, each key's in order, and the file keeps its promises.
pub(super) fn arrived(harness: &mut RedisHarness, desk: &Desk) {
    let received = harness.consume(Target::Ready);
    judge(desk.sent(), &received, Duplicates::Never).unwrap_or_else(|wrong| panic!("{wrong}"));
    desk.verify();
}

#[test]
fn a_cursor_that_was_set_back_adds_nothing_twice() {
    let mut harness = harness();
    let mut desk = desk(&harness, "batch_size = 7");
    desk.write_many(100, 5);
    desk.drain_everything();
    // As after a crash in which the cursor's last writes were lost, all of them.
    let lost = "UPDATE litepost_cursor SET acked = 0, acked_above = '', delivered = 0; UPDATE litepost_tally SET delivered = 0";
    desk.outbox().execute_batch(lost).unwrap();
    desk.write_many(20, 5);
    desk.drain_everything();
    arrived(&mut harness, &desk);
}

#[test]
fn events_that_were_held_back_are_added_once_behind_the_others() {
    let mut harness = harness();
    let connection =
        format!("{{ url = \"{}\", stream = \"{{header.to|ready}}\", format = \"raw\" }}", harness.server.url());
    let mut desk = Desk::new("redis", "batch_size = 10", &connection);
    // A key that is no stream: what goes there waits, and its line with it.
    command(&harness.server.url(), &["SET", "busy", "1"]);
    let blocked = desk.write(NewEvent::new("orders", "1").header("to", "busy"), Some("a"), b"1");
    desk.unsend(&blocked);
    for n in 2..60_i64 {
        let key = if n % 3 == 0 { "a" } else { "b" };
        desk.write(NewEvent::new("orders", n.to_string()), Some(key), n.to_string().as_bytes());
    }
    let relay = desk.start();
    desk.until("the other key's events are through", |desk| desk.delivered() >= 39);
    relay.kill(&desk);
    command(&harness.server.url(), &["DEL", "busy"]);
    for round in 0..4 {
        let relay = desk.start();
        desk.until("it goes on", |desk| desk.delivered() >= 45 + 4 * round);
        relay.kill(&desk);
        desk.outbox().execute_batch("UPDATE litepost_cursor SET delivered = delivered").unwrap();
    }
    desk.drain_everything();
    arrived(&mut harness, &desk);
}

/// What the destination says of itself.
fn state_error(desk: &Desk) -> String {
    desk.text("SELECT coalesce(max(state_error), '') FROM litepost_cursor")
}

/// A replica that was behind has become the master: the last events and their positions are gone.
const BEHIND: &str =
    "for _, k in ipairs(redis.call('KEYS', 'litepost:*')) do redis.call('HSET', k, 'seq', 40, 'id', 'e-000039') end";

#[test]
fn a_server_that_has_lost_data_is_noticed() {
    let mut harness = harness();
    let mut desk = desk(&harness, "");
    desk.write_many(50, 5);
    let relay = desk.start();
    desk.until_settled();
    command(&harness.server.url(), &["EVAL", BEHIND, "0"]);
    harness.kill();
    harness.start_again();
    desk.write_many(10, 5);
    desk.until("the loss is noticed", |desk| state_error(desk).contains("has lost data"));
    assert_eq!(desk.delivered(), 50);
    relay.stop();
}

#[test]
fn a_loss_is_noticed_by_a_relay_that_starts_after_it_and_as_often_as_it_looks() {
    for lost in [vec!["EVAL", BEHIND, "0"], vec!["FLUSHALL"]] {
        let mut harness = harness();
        let mut desk = desk(&harness, "");
        desk.write_many(50, 5);
        desk.drain_everything();
        command(&harness.server.url(), &lost);
        desk.write_many(10, 5);
        for _ in 0..2 {
            let report = desk.drain();
            let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
            assert!(error.contains("up to position 50 and now remembers") && error.contains("on_loss"), "{error}");
            assert_eq!(desk.delivered(), 50);
        }
        let connection = harness.connection(harness.port(), Target::Ready).replace(" }", ", on_loss = \"continue\" }");
        desk.configure("redis", "", &connection);
        desk.drain_everything();
        let arrived = harness.consume(Target::Ready);
        assert_eq!(arrived.iter().filter(|message| *message.id > *"e-000049").count(), 10);
        // From here on it is as if nothing had been: the server remembers all that the file knows of.
        desk.configure("redis", "", &harness.connection(harness.port(), Target::Ready));
        desk.write_many(10, 5);
        desk.drain_everything();
        assert_eq!(desk.delivered(), 70);
    }
}

#[test]
fn an_adopted_file_has_lost_nothing() {
    let harness = harness();
    let mut desk = desk(&harness, "");
    desk.write_many(20, 5);
    desk.drain_everything();
    let path = desk.path("shop.db");
    let who = Who { actor: "test".into(), reason: None };
    Operator::open(&path, who).unwrap().adopt().unwrap();
    desk.write_many(20, 5);
    desk.drain_everything();
    assert_eq!(desk.delivered(), 40);
}

#[test]
fn a_relay_that_was_taken_over_adds_nothing() {
    let mut harness = harness();
    let mut desk = desk(&harness, "");
    let taken = |token: &str| {
        let script = format!(
            "for _, k in ipairs(redis.call('KEYS', 'litepost:*')) do redis.call('HSET', k, 'token', {token}) end"
        );
        command(&harness.server.url(), &["EVAL", &script, "0"]);
    };
    desk.write_many(10, 2);
    let relay = desk.start();
    desk.until_settled();
    // A relay with a newer lease has connected: the one that is connected still must add nothing more, nor may it again.
    taken("1000000");
    desk.write_many(10, 2);
    std::thread::sleep(Duration::from_millis(1_500));
    assert_eq!(desk.delivered(), 10);
    relay.stop();
    taken("0");
    desk.drain_everything();
    arrived(&mut harness, &desk);
}

#[test]
fn a_restored_outbox_is_recognised() {
    let harness = harness();
    let mut desk = desk(&harness, "");
    desk.write_many(10, 2);
    desk.drain_everything();
    let mut older = Desk::new("redis", "", &harness.connection(harness.port(), Target::Ready));
    let origin = desk.text("SELECT value FROM litepost_meta WHERE name = 'origin'");
    older.outbox().execute("UPDATE litepost_meta SET value = ?1 WHERE name = 'origin'", [origin]).unwrap();
    older.write(NewEvent::new("orders", "1").header("x", "y"), Some("k"), b"1");
    let report = older.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
    assert!(error.contains("restored from a backup or copied"), "{error}");
    assert_eq!(older.delivered(), 0);
}

#[test]
fn tls_with_a_certificate_that_is_trusted_and_with_none() {
    let certificate = Certificate::new();
    let server = Redis::start_tls(&certificate);
    let deliver = |password: &str, keys: &str| {
        let port = server.port();
        let connection = format!("{{ url = \"rediss://127.0.0.1:{port}\", password = \"{password}\"{keys} }}");
        let mut desk = Desk::new("redis", "timeout = \"5s\"", &connection);
        desk.write_many(10, 2);
        desk.drain().lanes.swap_remove(0).drained
    };
    let trusted = format!(", tls_root_cert = {:?}", certificate.cert());
    assert_eq!(deliver(Redis::PASSWORD, &trusted), Drained::Everything);
    assert!(matches!(deliver(Redis::PASSWORD, ""), Drained::Unavailable { .. }), "nobody trusts it");
    let Drained::Unavailable { error } = deliver(WRONG_PASSWORD, &trusted) else { panic!("another password") };
    assert!(error.to_lowercase().contains("auth") && !error.contains(WRONG_PASSWORD), "{error}");
}

/// Any text is a key of Redis, and each event's is its own; only the keys that hold positions are out of reach.
#[test]
fn values_make_streams_of_their_own_and_reach_no_position() {
    const READ: &str = "
import base64, json, sys, redis
client = redis.Redis.from_url(sys.argv[1])
for name in client.scan_iter('*', _type='stream'):
    for _, fields in client.xrange(name):
        encoded = {part: base64.b64encode(text).decode() for part, text in (('key', name), ('body', fields[b'payload']))}
        print(json.dumps({'id': fields[b'litepost-id'].decode(), 'headers': [], **encoded}))
";
    let server = Redis::start();
    let connection =
        format!("{{ url = \"{}\", stream = \"{{header.to}}\", headers = {{ h = \"x{{header.to}}\" }} }}", server.url());
    let mut desk = Desk::new("redis", "", &connection);
    let long = "x".repeat(1_025);
    let mut reached: Vec<(String, String)> = Vec::new();
    for to in [
        "plain",
        "a b",
        "*",
        "{a}{b}",
        "it's \u{20AC}",
        "%41",
        "litepost:shop.out",
        "litepost:",
        "",
        &long,
        "a\nb",
        "\u{0}",
    ] {
        let id = desk.write(NewEvent::new("orders", "1").header("to", to), Some(to), b"1");
        // The configured header is checked too: a line break does not leave, whatever the stream's name may be.
        if !(to.starts_with("litepost:") || to.is_empty() || to.len() > 1_024 || to.contains(['\n', '\0'])) {
            reached.push((id, to.into()));
        }
    }
    desk.drain_everything();
    let codes = "SELECT coalesce(group_concat(DISTINCT error_code), '') FROM litepost_dead";
    assert_eq!((desk.dead(), desk.text(codes)), (6, "template".into()));
    let mut streams: Vec<(String, String)> = consume_with(READ, &[&server.url()])
        .into_iter()
        .map(|message| (message.id, String::from_utf8(message.key.unwrap()).unwrap()))
        .collect();
    streams.sort();
    assert_eq!(streams, reached);
}

#[test]
fn what_a_stream_keeps_is_bounded_when_that_is_wanted() {
    let mut harness = harness();
    let connection = harness.connection(harness.port(), Target::Ready).replace(" }", ", max_len = 100 }");
    let mut desk = Desk::new("redis", "", &connection);
    desk.write_many(3_000, 5);
    desk.drain_everything();
    let kept = harness.consume(Target::Ready);
    assert!((100..1_000).contains(&kept.len()), "{}", kept.len());
    assert_eq!(kept.last().map(|message| message.id.as_str()), Some("e-002999"));
}

#[test]
fn cloudevents_are_read_by_the_sdk() {
    super::cloudevents::check("redis", || {
        let server = Redis::start();
        let url = server.url();
        (server, format!("url = \"{url}\", stream = \"ready\""), url)
    });
}

#[test]
fn nothing_is_lost_doubled_or_reordered_when_the_number_of_lanes_changes() {
    let mut harness = harness();
    let mut desk = desk(&harness, "lanes = 2\nbatch_size = 5");
    let connection = harness.connection(harness.port(), Target::Ready);
    let mut most = 0;
    for lanes in [2, 3, 1, 4, 2, 3] {
        desk.configure("redis", &format!("lanes = {lanes}\nbatch_size = 5"), &connection);
        desk.write_many(60, 7);
        let relay = desk.start();
        desk.until("it is split", |desk| desk.number("SELECT count(*) FROM litepost_cursor") == lanes);
        // The cursor is saved late: what the server has by now it does not know.
        desk.until("some of it is there", |desk| desk.delivered() > most);
        relay.kill(&desk);
        most = desk.delivered();
    }
    desk.drain_everything();
    arrived(&mut harness, &desk);
}
