//! RabbitMQ: publisher confirms, mandatory and persistent, into a durable queue.

use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use litepost_testkit::servers::RabbitMq;

use super::{Backlog, Bench, save, window};

pub(super) fn bench(bench: &Bench) {
    let server = RabbitMq::start();
    let url = server.url();
    let config = |round: i64| {
        bench.runtime.block_on(async { drop(queue(&url, round).await) });
        format!("type = \"rabbitmq\"\nconnection = {{ url = \"{url}\", routing_key = \"q{round}\", format = \"raw\" }}")
    };
    let hand = |backlog: &Backlog, round: i64| bench.runtime.block_on(by_hand(&url, backlog, round));
    bench.compare("rabbitmq", &config, &hand);
}

async fn queue(url: &str, round: i64) -> (Connection, Channel) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(format!("q{round}").into(), options, FieldTable::default()).await.unwrap();
    (connection, channel)
}

async fn by_hand(url: &str, backlog: &Backlog, round: i64) {
    let (_connection, channel) = queue(url, round).await;
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let key = ShortString::from(format!("q{round}"));
    let outbox = backlog.open();
    let mut after = 0;
    loop {
        let rows = window(&outbox, after);
        let Some(last) = rows.last() else { return };
        after = last.seq;
        let publishing = rows.iter().map(|row| {
            let mut headers = FieldTable::default();
            for (name, value) in row.headers() {
                headers.insert(name.into(), AMQPValue::LongString(value.into()));
            }
            let properties = BasicProperties::default()
                .with_message_id(row.id.clone().into())
                .with_type(row.kind.clone().into())
                .with_delivery_mode(2)
                .with_headers(headers);
            channel.basic_publish("".into(), key.clone(), options, &row.payload, properties)
        });
        let confirms = join_all(publishing).await;
        for confirmation in join_all(confirms.into_iter().map(Result::unwrap)).await {
            let confirmation = confirmation.unwrap();
            assert!(confirmation.is_ack() && confirmation.take_message().is_none());
        }
        save(&outbox, after);
    }
}
