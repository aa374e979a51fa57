//! What `litepost check --connect` asks of brokers, on real ones: what is there, what is missing, what is weaker; and
//! that asking makes nothing.

use litepost_core::{Lane, Ordering};
use litepost_relay::config::{Config, Purpose, Variables};
use litepost_relay::sink::{LogPeek, SinkContext};
use litepost_testkit::conformance::consume_with;
use litepost_testkit::servers::{Kafka, Mosquitto, RabbitMq};

/// `kind: message` of every finding of a destination with these topics and this connection.
fn look(kind: &str, topics: &[&str], connection: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("litepost.toml");
    let text = format!(
        "[app.a]\ndatabase = 'a.db'\n[app.a.sink.s]\ntype = '{kind}'\ntopics = {topics:?}\nconnection = {{ {connection} }}\n"
    );
    std::fs::write(&path, text).unwrap();
    let config = Config::load_with(&path, Variables::of([("A", "b")]), Purpose::Deliver).unwrap();
    let destination = &config.apps[0].destinations[0];
    let context = SinkContext {
        destination: destination.name.clone(),
        origin: "origin".into(),
        epoch: 0,
        lane: Lane { index: 0, count: 1 },
        generation: 0,
        former: [].into(),
        settled_by_all: 0,
        slot: usize::MAX,
        ordering: Ordering::Key,
        token: 0,
        deadline: std::time::Duration::from_secs(20),
        topics: destination.topics.iter().filter(|topic| !topic.contains('*')).cloned().collect(),
        acked: 0,
        confirmed: 0,
        log: LogPeek::default(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let found = runtime.block_on(destination.factory.inspect(&context)).unwrap();
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    let line = |f: &litepost_relay::inspect::Finding| format!("{:?}: {}", f.kind, f.message);
    found.iter().map(line).collect()
}

#[test]
fn kafka_says_which_topics_are_there_and_how_well_they_are_kept() {
    let broker = Kafka::start();
    let script = "import sys\nfrom confluent_kafka.admin import AdminClient, NewTopic\n\
        client = AdminClient({'bootstrap.servers': sys.argv[1]})\n\
        [made.result() for made in client.create_topics([NewTopic('shop.orders', 3, 1)], operation_timeout=20).values()]\n";
    consume_with(script, &[&broker.bootstrap()]);
    let brokers = format!("brokers = '{}', topic = 'shop.{{topic}}'", broker.bootstrap());
    let found = look("kafka", &["orders", "refunds"], &brokers);
    assert!(found[0].starts_with("Found: the topic shop.orders: partitions 3, copies of each 1"), "{found:#?}");
    assert!(found[1].starts_with("Weaker: the topic shop.orders has one copy"), "{found:#?}");
    let missing = "Broken: there is no topic shop.refunds: events for it wait until there is one";
    assert_eq!(found.last().unwrap(), missing, "{found:#?}");
    // Once more: asking for it has not made it.
    let found = look("kafka", &["refunds"], &format!("{brokers}, keyless = 'any'"));
    assert_eq!(found[0], missing, "{found:#?}");
    assert!(found[1].starts_with("Weaker: keyless = \"any\""), "{found:#?}");
    let automatic = format!("{brokers}, settings = {{ 'allow.auto.create.topics' = 'true' }}");
    let found = look("kafka", &["other"], &automatic);
    assert!(found[0].starts_with("Creates: the topic shop.other"), "{found:#?}");
    let found = look("kafka", &["*"], &brokers);
    assert_eq!(found, ["Found: topics that fit shop.*: shop.orders"]);
    let found = look("kafka", &["*"], &format!("brokers = '{}', topic = 'x.{{key}}'", broker.bootstrap()));
    assert!(found[0].starts_with("Broken: no topic there fits x.*"), "{found:#?}");
}

#[test]
fn rabbitmq_says_which_exchanges_and_queues_are_there() {
    let server = RabbitMq::start();
    let script = "import pika, sys\nconnection = pika.BlockingConnection(pika.URLParameters(sys.argv[1]))\n\
        channel = connection.channel()\nchannel.queue_declare('orders', durable=True)\n\
        channel.exchange_declare('shop', 'topic', durable=True)\nconnection.close()\n";
    consume_with(script, &[&server.url()]);
    let url = format!("url = '{}'", server.url());
    for _ in 0..2 {
        // The second time: asking for it has not made it.
        assert_eq!(
            look("rabbitmq", &["orders", "refunds"], &url),
            [
                "Found: publisher confirms",
                "Found: the queue orders: messages 0, consumers 0",
                "Broken: there is no queue refunds: events for it wait until there is one",
            ]
        );
        assert_eq!(
            look("rabbitmq", &["*"], &format!("{url}, exchange = 'absent', unroutable = 'retry'"))[1],
            "Broken: there is no exchange absent: events for it wait until there is one"
        );
    }
    let found =
        look("rabbitmq", &["*"], &format!("{url}, exchange = 'shop', persistent = false, per_key_in_flight = 5"));
    assert!(found[1].starts_with("Found: the exchange shop;"), "{found:#?}");
    assert!(
        found[2].starts_with("Weaker: persistent = false") && found[3].starts_with("Weaker: per_key"),
        "{found:#?}"
    );
    let found = look("rabbitmq", &["refunds"], &format!("{url}, unroutable = 'retry'"));
    assert_eq!(found[1], "Broken: there is no queue refunds: events for it become dead letters");
    assert!(look("rabbitmq", &["*"], &url)[1].starts_with("Found: queues by template"));
}

#[test]
fn mqtt_says_how_it_confirms_and_what_a_missing_subscriber_means() {
    let broker = Mosquitto::start();
    let url = format!("url = '{}'", broker.url());
    let found = look("mqtt", &["*"], &url);
    assert_eq!(found[0], "Found: confirmations by PUBACK (qos 1); topics are made by publishing");
    assert!(found[1].starts_with("Weaker: no_subscriber = \"accept\"") && found.len() == 2, "{found:#?}");
    assert_eq!(look("mqtt", &["*"], &format!("{url}, no_subscriber = 'hold'")).len(), 1);
    let found = look("mqtt", &["*"], &format!("{url}, no_subscriber = 'hold', qos = 2, per_key_in_flight = 2"));
    assert!(
        found[0].contains("PUBCOMP") && found[1].contains("with qos 2") && found[2].contains("per_key"),
        "{found:#?}"
    );
}

#[cfg(feature = "aws")]
#[test]
fn aws_says_which_queues_and_topics_are_there() {
    let account = crate::brokers::aws::Account::whose_user_may("sqs:*,sns:*");
    account.script("queue", "orders.fifo");
    account.script("topic", "orders-all");
    let at = format!("http://127.0.0.1:{}/123456789012", account.server().port());
    let keys = account.keys().replace('"', "'");
    let queues = format!("queue_url = '{at}/{{topic}}.fifo', {keys}");
    for _ in 0..2 {
        // The second time: asking for it has not made it.
        let found = look("sqs", &["orders", "refunds"], &queues);
        assert_eq!(found[0], format!("Found: the queue {at}/orders.fifo"));
        let missing = format!("Broken: the queue {at}/refunds.fifo: sqs: NonExistentQueue");
        assert!(found[1].starts_with(&missing), "{found:#?}");
    }
    let found = look("sqs", &["orders-all"], &format!("queue_url = '{at}/{{topic}}', {keys}"));
    let weaker = format!("Weaker: the queue {at}/orders-all is a standard one");
    assert!(found.len() == 1 && found[0].starts_with(&weaker), "{found:#?}");

    let arn = "arn:aws:sns:eu-west-1:123456789012";
    let topics = format!("topic_arn = '{arn}:{{topic}}', {keys}");
    let found = look("sns", &["orders-all", "refunds"], &topics);
    let weaker = format!("Weaker: the topic {arn}:orders-all is a standard one");
    assert!(found.len() == 2 && found[0].starts_with(&weaker), "{found:#?}");
    assert!(found[1].starts_with(&format!("Broken: the topic {arn}:refunds: sns: NotFound")), "{found:#?}");
    account.script("alone", "alone.fifo");
    let found = look("sns", &["alone"], &format!("topic_arn = '{arn}:{{topic}}.fifo', {keys}"));
    assert_eq!(found[0], format!("Found: the topic {arn}:alone.fifo"));
    assert!(found[1].starts_with(&format!("Weaker: nobody subscribes to the topic {arn}:alone.fifo")), "{found:#?}");
}
