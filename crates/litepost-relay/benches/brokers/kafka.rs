//! Kafka's protocol: the idempotent producer with `acks=all`.

use futures_util::future::join_all;
use litepost_testkit::servers::Kafka;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

use super::{Backlog, Bench, save, window};

pub(super) fn bench(bench: &Bench) {
    let server = Kafka::start();
    let brokers = server.bootstrap();
    let config = |round: i64| {
        format!(
            "type = \"kafka\"\nconnection = {{ brokers = \"{brokers}\", topic = \"t{round}\", format = \"raw\", \
             settings = {{ \"allow.auto.create.topics\" = \"true\" }} }}"
        )
    };
    let hand = |backlog: &Backlog, round: i64| bench.runtime.block_on(by_hand(&brokers, backlog, round));
    bench.compare("kafka", &config, &hand);
}

async fn by_hand(brokers: &str, backlog: &Backlog, round: i64) {
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "1")
        .set("partitioner", "murmur2_random")
        .create()
        .unwrap();
    let topic = format!("t{round}");
    let outbox = backlog.open();
    let mut after = 0;
    loop {
        let rows = window(&outbox, after);
        let Some(last) = rows.last() else { return };
        after = last.seq;
        let reports = rows.iter().map(|row| {
            let headers = row.headers().iter().fold(OwnedHeaders::new_with_capacity(7), |headers, (key, value)| {
                headers.insert(Header { key, value: Some(value) })
            });
            let record = FutureRecord::to(&topic).key(&row.key).payload(&row.payload).headers(headers);
            producer.send_result(record).unwrap()
        });
        for report in join_all(reports).await {
            report.unwrap().unwrap();
        }
        save(&outbox, after);
    }
}
