//! RabbitMQ, on a real server, consumed by pika.

use litepost::NewEvent;
use litepost_relay::relay::Drained;
use litepost_testkit::conformance::{
    Desk, Duplicates, Harness, MIB, Received, Target, Traits, WRONG_PASSWORD, consume_with, judge,
};
use litepost_testkit::servers::RabbitMq;

use super::certificate;

const SCRIPT: &str = include_str!("rabbitmq.py");
const READY: &str = "ready";
const MISSING: &str = "missing";

/// A server with the exchange `ready` and a queue behind it.
pub(crate) struct RabbitHarness {
    server: RabbitMq,
}

pub(crate) fn harness() -> RabbitHarness {
    // The server's default is 128 MiB.
    let server = RabbitMq::start_with("max_message_size = 2097152");
    make(&server, READY);
    RabbitHarness { server }
}

fn make(server: &RabbitMq, name: &str) {
    consume_with(SCRIPT, &[&server.url(), "make", name]);
}

fn consume(server: &RabbitMq, name: &str) -> Vec<Received> {
    consume_with(SCRIPT, &[&server.url(), "consume", name])
}

/// Runs a Python program on a channel of the server.
fn on_channel(server: &RabbitMq, code: &str) {
    let script = format!(
        "import pika, sys\nconnection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))\n\
         channel = connection.channel()\n{code}\nconnection.close()\n"
    );
    consume_with(&script, &[&server.url()]);
}

impl Harness for RabbitHarness {
    fn traits(&self) -> Traits {
        Traits {
            kind: "rabbitmq",
            in_flight: "batch_size = 200\nconcurrency = 4",
            duplicates: Duplicates::Allowed,
            large: MIB,
            too_large: 3 << 20,
            headers: true,
        }
    }

    fn port(&self) -> u16 {
        self.server.port()
    }

    fn connection(&self, port: u16, target: Target) -> String {
        let exchange = if target == Target::Missing { MISSING } else { READY };
        let password = if target == Target::WrongCredentials { WRONG_PASSWORD } else { "guest" };
        format!(
            "{{ url = \"amqp://guest:{password}@127.0.0.1:{port}/%2f\", exchange = \"{exchange}\", \
             routing_key = \"{{topic}}.{{key}}\", format = \"raw\" }}"
        )
    }

    fn make_missing(&mut self) {
        make(&self.server, MISSING);
    }

    fn consume(&mut self, target: Target) -> Vec<Received> {
        consume(&self.server, if target == Target::Missing { MISSING } else { READY })
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

fn desk(server: &RabbitMq, keys: &str, connection: &str) -> Desk {
    Desk::new("rabbitmq", keys, &format!("{{ url = \"{}\", {connection} }}", server.url()))
}

/// Events that no queue takes are interleaved with others, so that the broker acknowledges both kinds together.
#[test]
fn an_event_that_no_queue_takes_is_never_called_delivered() {
    let server = RabbitMq::start();
    on_channel(
        &server,
        "channel.exchange_declare('e', 'topic', durable=True)\nchannel.queue_declare('q', durable=True)\n\
         channel.queue_bind('q', 'e', 'taken.#')",
    );
    let mut desk = desk(&server, "batch_size = 500", "exchange = \"e\", routing_key = \"{topic}.{key}\"");
    let mut lost = Vec::new();
    for n in 0..400 {
        let (topic, key, body) = (if n % 3 == 0 { "nowhere" } else { "taken" }, format!("k{n}"), n.to_string());
        let id = desk.write(NewEvent::new(topic, body.as_str()), Some(&key), body.as_bytes());
        if n % 3 == 0 {
            lost.push(id);
        }
    }
    let relay = desk.start();
    desk.until("what can be delivered is", |desk| desk.delivered() == 266);
    relay.stop();
    assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked WHERE error_code = '312'"), 134);
    let received = consume(&server, "q");
    let sent: Vec<_> = desk.sent().iter().filter(|sent| !lost.contains(&sent.id)).cloned().collect();
    judge(&sent, &received, Duplicates::Never).unwrap();
    // A binding is all that they wait for.
    on_channel(&server, "channel.queue_bind('q', 'e', '#')");
    desk.drain_everything();
    assert_eq!((desk.delivered(), desk.dead()), (400, 0));
    judge(desk.sent(), &consume(&server, "q"), Duplicates::Never).unwrap();
}

#[test]
fn unroutable_events_become_dead_letters_when_that_is_asked_for() {
    let server = RabbitMq::start();
    let mut desk = desk(&server, "max_attempts = 2", "routing_key = \"no-queue\", unroutable = \"retry\"");
    desk.write_many(3, 3);
    let relay = desk.start();
    desk.until("they are given up", |desk| desk.dead() == 3);
    relay.stop();
    assert_eq!(
        desk.text("SELECT group_concat(DISTINCT error_code || ' ' || reason) FROM litepost_dead"),
        "312 max_attempts"
    );
}

/// The queue of the first event is full, that of its successor is not: the successor waits.
#[test]
fn what_a_full_queue_refuses_is_not_overtaken() {
    let server = RabbitMq::start();
    on_channel(
        &server,
        "channel.queue_declare('small', durable=True, arguments={'x-max-length': 1, 'x-overflow': 'reject-publish'})\n\
         channel.queue_declare('big', durable=True)\nchannel.basic_publish('', 'small', b'here first')",
    );
    let mut desk = desk(&server, "", "routing_key = \"{type}\"");
    desk.write(NewEvent::new("orders", "1").kind("small"), Some("k"), b"1");
    desk.write(NewEvent::new("orders", "2").kind("big"), Some("k"), b"2");
    assert!(!desk.drain().drained_everything());
    assert!(consume(&server, "big").is_empty(), "the second event has overtaken the first");
    assert_eq!((desk.dead(), desk.number("SELECT count(*) FROM litepost_blocked")), (0, 0));
    on_channel(&server, "channel.queue_purge('small')");
    desk.drain_everything();
    let received = [consume(&server, "small"), consume(&server, "big")].concat();
    judge(desk.sent(), &received, Duplicates::Never).unwrap();
}

/// A full queue refuses a message and takes a later one as soon as there is room.
#[test]
fn a_full_queue_is_an_outage_and_no_key_is_reordered() {
    let server = RabbitMq::start();
    on_channel(
        &server,
        "channel.queue_declare('small', durable=True, arguments={'x-max-length': 50, 'x-overflow': 'reject-publish'})",
    );
    let mut desk = desk(&server, "batch_size = 100", "routing_key = \"small\"");
    desk.write_many(600, 3);
    let relay = desk.start();
    let mut received = Vec::new();
    while desk.delivered() < 600 {
        received.extend(consume_with(SCRIPT, &[&server.url(), "take", "small"]));
    }
    relay.stop();
    received.extend(consume_with(SCRIPT, &[&server.url(), "take", "small"]));
    assert_eq!(desk.dead(), 0);
    assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked"), 0, "a full queue blames no event");
    judge(desk.sent(), &received, Duplicates::Allowed).unwrap();
}

/// The broker closes the channel for a missing exchange: the other events of the batch do not pay for it.
#[test]
fn a_missing_exchange_holds_its_own_events_only() {
    let server = RabbitMq::start();
    make(&server, "there");
    let mut desk = desk(&server, "max_attempts = 2", "exchange = \"{topic}\", routing_key = \"k\"");
    for n in 0..60 {
        let (topic, key) = (if n % 6 == 5 { "absent" } else { "there" }, format!("k{n}"));
        desk.write(NewEvent::new(topic, "1"), Some(&key), b"1");
    }
    let relay = desk.start();
    desk.until("the others are delivered", |desk| desk.delivered() == 50);
    assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked WHERE error_code = '404'"), 10);
    make(&server, "absent");
    desk.until("the exchange is there", |desk| desk.delivered() == 60);
    relay.stop();
    assert_eq!((desk.dead(), consume(&server, "absent").len()), (0, 10));
}

#[test]
fn over_tls_the_certificate_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = certificate(folder.path());
    let port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let server = RabbitMq::start_with(&format!(
        "listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.certfile = {cert}\nssl_options.keyfile = {key}\n\
         ssl_options.verify = verify_none\nssl_options.fail_if_no_peer_cert = false"
    ));
    make(&server, "there");
    let with = |password: &str, more: &str| {
        format!("{{ url = \"amqps://guest:{password}@localhost:{port}/%2f\", exchange = \"there\"{more} }}")
    };
    let connection = |more: &str| with("guest", more);
    let mut desk = Desk::new("rabbitmq", "", &connection(""));
    desk.write_many(20, 4);
    let report = desk.drain();
    assert!(!report.drained_everything(), "nobody knows this certificate");
    desk.configure("rabbitmq", "", &with(WRONG_PASSWORD, &format!(", tls_root_cert = \"{cert}\"")));
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
    assert!(error.contains("ACCESS_REFUSED") && !error.contains(WRONG_PASSWORD), "{error}");
    desk.configure("rabbitmq", "", &connection(&format!(", tls_root_cert = \"{cert}\"")));
    desk.drain_everything();
    judge(desk.sent(), &consume(&server, "there"), Duplicates::Never).unwrap();
}

#[test]
fn cloudevents_are_read_by_the_sdk() {
    super::cloudevents::check("rabbitmq", || {
        let server = RabbitMq::start();
        make(&server, READY);
        let url = server.url();
        (server, format!("url = \"{url}\", exchange = \"{READY}\", routing_key = \"x\""), url)
    });
}
