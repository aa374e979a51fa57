//! MQTT 5, QoS 1, on Mosquitto without subscribers: the broker acknowledges and drops.

use litepost_testkit::servers::Mosquitto;
use rumqttc::mqttbytes::v5::PublishProperties;
use rumqttc::{AsyncClient, MqttOptions, PublishOptions, QoS};

use super::{Backlog, Bench, WINDOW, save, window};

pub(super) fn bench(bench: &Bench) {
    let server = Mosquitto::start();
    let url = server.url();
    let config = |round: usize| {
        format!("type = \"mqtt\"\nconnection = {{ url = \"{url}\", topic = \"r{round}/{{key}}\", format = \"raw\" }}")
    };
    let hand = |backlog: &Backlog, round: usize| bench.runtime.block_on(by_hand(server.port(), backlog, round));
    bench.compare("mqtt, qos 1", &config, &hand);
}

async fn by_hand(port: u16, backlog: &Backlog, round: usize) {
    let options = MqttOptions::new(format!("by-hand-{round}"), ("127.0.0.1", port));
    let capacity = usize::try_from(WINDOW).unwrap();
    let (client, mut events) = AsyncClient::builder(options).capacity(capacity).build();
    let driver = tokio::spawn(async move { while events.poll().await.is_ok() {} });
    let outbox = backlog.open();
    let mut after = 0;
    loop {
        let rows = window(&outbox, after);
        let Some(last) = rows.last() else { break };
        after = last.seq;
        let mut notices = Vec::with_capacity(rows.len());
        for row in rows {
            let headers = row.headers().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            let properties = PublishProperties { user_properties: headers, ..PublishProperties::default() };
            let options = PublishOptions::new(QoS::AtLeastOnce).properties(properties);
            notices.push(client.publish_tracked(format!("r{round}/{}", row.key), row.payload, options).await.unwrap());
        }
        for notice in notices {
            notice.wait_completion_async().await.unwrap();
        }
        save(&outbox, after);
    }
    driver.abort();
}
