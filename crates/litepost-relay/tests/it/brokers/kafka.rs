//! Kafka's protocol: a real broker (tansu) and librdkafka's mock cluster for errors on demand, both consumed by
//! confluent-kafka.

use litepost::NewEvent;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Drained;
use litepost_testkit::conformance::{
    Desk, Duplicates, Harness, MIB, Received, Target, Traits, WRONG_PASSWORD, consume_with, judge,
};
use litepost_testkit::servers::Kafka;
use litepost_testkit::tls::Certificate;
use litepost_testkit::{sasl_front, tls_front};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

const SCRIPT: &str = include_str!("kafka.py");
const READY: &str = "ready";
const MISSING: &str = "missing";

/// A broker with the topic `ready`.
pub(crate) struct KafkaHarness {
    server: Kafka,
}

pub(crate) fn harness() -> KafkaHarness {
    let server = Kafka::start();
    script(&server.bootstrap(), "make", READY);
    KafkaHarness { server }
}

/// A broker that has everything still when it comes back.
pub(crate) fn durable() -> KafkaHarness {
    let server = Kafka::start_durable();
    script(&server.bootstrap(), "make", READY);
    KafkaHarness { server }
}

fn script(brokers: &str, what: &str, topic: &str) -> Vec<Received> {
    consume_with(SCRIPT, &[brokers, what, topic])
}

impl Harness for KafkaHarness {
    fn traits(&self) -> Traits {
        Traits {
            kind: "kafka",
            in_flight: "batch_size = 200\nconcurrency = 4",
            duplicates: Duplicates::Allowed,
            large: MIB,
            // This broker has no limit of its own: the sink's holds, as it stands in the connection.
            too_large: 3 << 20,
            headers: true,
        }
    }

    fn port(&self) -> u16 {
        self.server.port()
    }

    fn behind(&mut self, proxy: u16) {
        self.server.advertise(proxy);
        script(&self.server.bootstrap(), "make", READY);
    }

    fn connection(&self, port: u16, target: Target) -> String {
        let topic = if target == Target::Missing { MISSING } else { READY };
        // The broker knows no users: whoever brings a password is refused.
        let user = match target {
            Target::WrongCredentials => {
                format!(", user = \"relay\", password = \"{WRONG_PASSWORD}\", connect_timeout_ms = 1500")
            }
            _ => String::new(),
        };
        format!(
            "{{ brokers = \"127.0.0.1:{port}\", topic = \"{topic}\", format = \"raw\", record_bytes_max = 2097152{user} }}"
        )
    }

    fn make_missing(&mut self) {
        script(&self.server.bootstrap(), "make", MISSING);
    }

    fn consume(&mut self, target: Target) -> Vec<Received> {
        script(&self.server.bootstrap(), "consume", if target == Target::Missing { MISSING } else { READY })
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

/// This broker forgets everything when it is killed, topics and producers included: what is written meanwhile waits until
/// somebody has made the topic again, and arrives then.
#[test]
fn a_broker_that_comes_back_empty_blames_nobody() {
    let mut harness = harness();
    let connection = harness.connection(harness.port(), Target::Ready);
    let mut desk = Desk::new("kafka", "timeout = \"2s\"\nmax_attempts = 2", &connection);
    desk.write_many(200, 10);
    let relay = desk.start();
    desk.until_settled();
    judge(desk.sent(), &harness.consume(Target::Ready), Duplicates::Never).unwrap();
    harness.kill();
    for sent in desk.sent().to_vec() {
        desk.unsend(&sent.id);
    }
    let before = desk.delivered();
    let tx = desk.outbox().unchecked_transaction().unwrap();
    for n in 0..60 {
        let key = format!("k{}", n % 4);
        litepost::enqueue(&tx, &NewEvent::new("orders", n.to_string()).id(format!("late-{n:03}")).key(key)).unwrap();
    }
    tx.commit().unwrap();
    harness.start_again();
    script(&harness.server.bootstrap(), "make", READY);
    desk.until("the rest has arrived", |desk| desk.delivered() == before + 60);
    relay.stop();
    assert_eq!(desk.dead(), 0);
    let received = harness.consume(Target::Ready);
    for key in 0..4 {
        let mut ids: Vec<&str> = received
            .iter()
            .filter(|r| r.key.as_deref() == Some(format!("k{key}").as_bytes()))
            .map(|r| r.id.as_str())
            .collect();
        ids.dedup();
        let expected: Vec<String> = (0..60).filter(|n| n % 4 == key).map(|n| format!("late-{n:03}")).collect();
        assert_eq!(ids, expected);
    }
}

/// A topic made of what events hold: what is no name of a topic is a dead letter, before any broker is asked.
#[test]
fn values_that_are_no_topic_are_dead_letters_and_the_others_arrive() {
    let mut harness = harness();
    let connection = harness.connection(harness.port(), Target::Ready).replace("\"ready\"", "\"{key}\"");
    let mut desk = Desk::new("kafka", "", &connection);
    let long = "x".repeat(250);
    for key in ["", ".", "..", "a b", "a/b", "*", "\u{e9}", "a\r\nb", "\u{0}", &long] {
        let id = desk.write(NewEvent::new("orders", "1"), Some(key), b"1");
        desk.unsend(&id);
        desk.write(NewEvent::new("orders", "2"), Some(READY), b"2");
    }
    desk.drain_everything();
    assert_eq!(desk.text("SELECT group_concat(DISTINCT error_code) || count(*) FROM litepost_dead"), "template10");
    judge(desk.sent(), &harness.consume(Target::Ready), Duplicates::Never).unwrap();
}

#[test]
fn events_without_a_key_keep_their_order_in_one_partition() {
    let mut harness = harness();
    let connection = harness.connection(harness.port(), Target::Ready);
    let mut desk = Desk::new("kafka", "batch_size = 50", &connection);
    for n in 0..300 {
        let body = n.to_string();
        desk.write(NewEvent::new("orders", body.as_str()), None, body.as_bytes());
    }
    desk.drain_everything();
    judge(desk.sent(), &harness.consume(Target::Ready), Duplicates::Never).unwrap();
}

/// A mock cluster with a topic of one partition, and the connection to it. Requests go one after the other and in small
/// sets, so that something stands behind what fails.
fn mock(topics: &[&str]) -> (MockCluster<'static, DefaultProducerContext>, String) {
    let cluster = MockCluster::new(1).unwrap();
    for topic in topics {
        cluster.create_topic(topic, 1, 1).unwrap();
    }
    let brokers = cluster.bootstrap_servers();
    let connection = format!(
        "{{ brokers = \"{brokers}\", settings = {{ \"batch.num.messages\" = \"10\", \
         \"max.in.flight.requests.per.connection\" = \"1\" }} }}"
    );
    (cluster, connection)
}

/// The first set of records is refused while others stand behind it in the client: none of them may pass it.
#[test]
fn a_partition_keeps_its_order_when_a_set_of_records_is_refused() {
    let (cluster, connection) = mock(&["orders"]);
    let mut desk = Desk::new("kafka", "batch_size = 100", &connection);
    desk.write_many(100, 3);
    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::Produce, &[refused]);
    desk.drain_everything();
    let received = script(&cluster.bootstrap_servers(), "consume", "orders");
    judge(desk.sent(), &received, Duplicates::Never).unwrap();
}

/// The broker refuses the set, and then, when each record comes alone, the one at fault.
#[test]
fn the_record_at_fault_is_found_and_its_neighbours_arrive() {
    let (cluster, connection) = mock(&["orders"]);
    let mut desk = Desk::new("kafka", "batch_size = 100", &connection);
    desk.write_many(50, 50);
    let refused = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;
    cluster.request_errors(RDKafkaApiKey::Produce, &[refused, refused]);
    let relay = desk.start();
    desk.until_settled();
    relay.stop();
    let first = desk.sent()[0].id.clone();
    assert_eq!(
        desk.text("SELECT group_concat(id || ' ' || error_code || ' ' || reason) FROM litepost_dead"),
        format!("{first} 10 permanent")
    );
    desk.unsend(&first);
    let received = script(&cluster.bootstrap_servers(), "consume", "orders");
    judge(desk.sent(), &received, Duplicates::Never).unwrap();
}

#[test]
fn a_broker_in_trouble_is_retried_and_blames_nobody() {
    use RDKafkaRespErr::{
        RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS as FEW, RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION as MOVED,
    };

    let (cluster, connection) = mock(&["orders"]);
    let mut desk = Desk::new("kafka", "", &connection);
    desk.write_many(100, 3);
    cluster.request_errors(RDKafkaApiKey::Produce, &[MOVED, FEW, FEW, MOVED]);
    desk.drain_everything();
    let received = script(&cluster.bootstrap_servers(), "consume", "orders");
    judge(desk.sent(), &received, Duplicates::Never).unwrap();
    assert_eq!((desk.dead(), desk.number("SELECT count(*) FROM litepost_blocked")), (0, 0));
}

#[test]
fn a_topic_that_is_not_allowed_holds_its_own_events_only() {
    let (cluster, connection) = mock(&["orders", "secret"]);
    cluster.topic_error("secret", RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED).unwrap();
    let mut desk = Desk::new("kafka", "max_attempts = 2", &connection);
    for n in 0..30 {
        let (topic, key) = (if n % 3 == 0 { "secret" } else { "orders" }, format!("k{n}"));
        desk.write(NewEvent::new(topic, "1"), Some(&key), b"1");
    }
    let relay = desk.start();
    desk.until("the others are delivered", |desk| desk.delivered() == 20);
    relay.stop();
    assert_eq!((desk.dead(), desk.number("SELECT count(*) FROM litepost_blocked WHERE error_code = '29'")), (0, 10));
}

#[test]
fn batches_are_compressed_as_every_consumer_undoes_it() {
    let mut harness = harness();
    let connection = harness.connection(harness.port(), Target::Ready);
    let connection = connection.strip_suffix('}').unwrap();
    let mut desk = Desk::new("kafka", "", &format!("{connection} }}"));
    let body = "{\"total\": 1.10} ".repeat(1_000);
    for compression in ["gzip", "snappy", "lz4", "zstd"] {
        desk.configure("kafka", "", &format!("{connection}, compression = \"{compression}\" }}"));
        for key in ["a", "b"] {
            desk.write(NewEvent::new("orders", body.as_str()), Some(key), body.as_bytes());
        }
        desk.drain_everything();
    }
    judge(desk.sent(), &harness.consume(Target::Ready), Duplicates::Never).unwrap();
}

/// Whether this librdkafka was built with OpenSSL (`--features rdkafka/ssl`); ordinary builds are not.
fn has_openssl() -> bool {
    let native = rdkafka::ClientConfig::new().create_native_config().unwrap();
    native.get("builtin.features").unwrap().split(',').any(|feature| feature == "ssl")
}

/// The settings reach librdkafka: it speaks TLS, trusts who it is told to trust, and says so when it does not. A build without
/// OpenSSL says how to make one with it.
#[test]
fn over_tls_the_certificate_is_checked() {
    let mut server = Kafka::start();
    let certificate = Certificate::new();
    let trusted = certificate.cert().display().to_string();
    let front = tls_front::front(&certificate, server.port());
    server.advertise(front);
    let brokers = format!("127.0.0.1:{front}");
    let connection = |more: &str| {
        let settings = format!("settings = {{ \"security.protocol\" = \"ssl\"{more} }}");
        format!(
            "{{ brokers = \"{brokers}\", topic = \"{READY}\", format = \"raw\", connect_timeout_ms = 5000, {settings} }}"
        )
    };
    let mut desk = Desk::new("kafka", "", &connection(""));
    desk.write_many(50, 4);
    if !has_openssl() {
        let error = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).map(drop).unwrap_err().to_string();
        assert!(error.contains("needs OpenSSL") && error.contains("--features rdkafka/ssl"), "{error}");
        return;
    }
    let run = |what: &str| consume_with(SCRIPT, &[&brokers, what, READY, &trusted]);
    run("make");
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("nobody knows it: {report:?}") };
    assert!(error.contains("certificate verify failed"), "{error}");
    desk.configure("kafka", "", &connection(&format!(", \"ssl.ca.location\" = {trusted:?}")));
    desk.drain_everything();
    judge(desk.sent(), &run("consume"), Duplicates::Never).unwrap();
}

/// The password is asked for by a front, since this broker knows no users; the broker behind it is a real one.
#[test]
fn a_user_is_asked_for_the_password() {
    let mut server = Kafka::start();
    let front = sasl_front::front(server.port(), "relay", "right-s3cret");
    let brokers = format!("127.0.0.1:{front}");
    server.advertise(front);
    let connection = |password: &str| {
        format!(
            "{{ brokers = \"{brokers}\", topic = \"{READY}\", format = \"raw\", connect_timeout_ms = 5000, user = \"relay\", password = \"{password}\" }}"
        )
    };
    let plain = |what: &str| consume_with(SCRIPT, &[&brokers, what, READY, "", "relay", "right-s3cret"]);
    plain("make");
    let mut desk = Desk::new("kafka", "", &connection(WRONG_PASSWORD));
    desk.write_many(50, 4);
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("nobody asked: {report:?}") };
    assert!(error.contains("SASL authentication error") && !error.contains(WRONG_PASSWORD), "{error}");
    assert_eq!((desk.dead(), desk.delivered()), (0, 0));
    desk.configure("kafka", "", &connection("right-s3cret"));
    desk.drain_everything();
    judge(desk.sent(), &plain("consume"), Duplicates::Never).unwrap();
}

#[test]
fn over_tls_a_user_is_asked_for_the_password_by_scram() {
    let mut server = Kafka::start();
    let certificate = Certificate::new();
    let trusted = certificate.cert().display().to_string();
    let front = tls_front::front(&certificate, sasl_front::front(server.port(), "relay", "right-s3cret"));
    server.advertise(front);
    let brokers = format!("127.0.0.1:{front}");
    let connection = |password: &str| {
        let settings = format!(
            "{{ \"security.protocol\" = \"sasl_ssl\", \"sasl.mechanism\" = \"SCRAM-SHA-256\", \"ssl.ca.location\" = {trusted:?} }}"
        );
        format!(
            "{{ brokers = \"{brokers}\", topic = \"{READY}\", format = \"raw\", connect_timeout_ms = 5000, user = \"relay\", password = \"{password}\", settings = {settings} }}"
        )
    };
    let mut desk = Desk::new("kafka", "", &connection(WRONG_PASSWORD));
    desk.write_many(50, 4);
    if !has_openssl() {
        let error = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).map(drop).unwrap_err().to_string();
        assert!(error.contains("needs OpenSSL") && error.contains("--features rdkafka/ssl"), "{error}");
        return;
    }
    let run = |what: &str| consume_with(SCRIPT, &[&brokers, what, READY, &trusted, "relay", "right-s3cret"]);
    run("make");
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("nobody asked: {report:?}") };
    assert!(error.contains("SASL authentication error") && !error.contains(WRONG_PASSWORD), "{error}");
    assert_eq!((desk.dead(), desk.delivered()), (0, 0));
    desk.configure("kafka", "", &connection("right-s3cret"));
    desk.drain_everything();
    judge(desk.sent(), &run("consume"), Duplicates::Never).unwrap();
}

#[test]
fn cloudevents_are_read_by_the_sdk() {
    super::cloudevents::check("kafka", || {
        let server = harness().server;
        let brokers = server.bootstrap();
        (server, format!("brokers = \"{brokers}\", topic = \"{READY}\""), brokers)
    });
}
