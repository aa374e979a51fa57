//! MQTT 5 and 3.1.1, QoS 1 and 2, on Mosquitto without subscribers: the broker acknowledges and drops.

use litepost_testkit::servers::Mosquitto;
use rumqttc::mqttbytes::v5::PublishProperties;
use rumqttc::{AsyncClient, MqttOptions, PublishOptions, QoS};

use super::{Backlog, Bench, WINDOW, save, window};

pub(super) fn bench(bench: &Bench) {
    let server = Mosquitto::start();
    let (url, port) = (server.url(), server.port());
    for qos in [1, 2] {
        let ours = |topic: String, version: &str| {
            format!(
                "type = \"mqtt\"\nconnection = {{ url = \"{url}\", qos = {qos}, version = \"{version}\", format = \"raw\", \
                 topic = \"{topic}\" }}"
            )
        };
        let config = |round: i64| ours(format!("r{round}/{{key}}"), "5");
        let hand = |backlog: &Backlog, round: i64| bench.runtime.block_on(by_hand(port, qos, backlog, round));
        bench.compare(&format!("mqtt 5, qos {qos}"), &config, &hand);
        let config = |round: i64| ours(format!("r{round}/{{id}}"), "3.1.1");
        let hand = |backlog: &Backlog, round: i64| bench.runtime.block_on(by_hand_3_1_1(port, qos, backlog, round));
        bench.compare(&format!("mqtt 3.1.1, qos {qos}"), &config, &hand);
    }
}

async fn by_hand(port: u16, qos: u8, backlog: &Backlog, round: i64) {
    let options = MqttOptions::new(format!("by-hand-{round}"), ("127.0.0.1", port));
    let (client, mut events) = AsyncClient::builder(options).capacity(usize::try_from(WINDOW).unwrap()).build();
    let driver = tokio::spawn(async move { while events.poll().await.is_ok() {} });
    let qos = if qos == 2 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
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
            let options = PublishOptions::new(qos).properties(properties);
            notices.push(client.publish_tracked(format!("r{round}/{}", row.key), row.payload, options).await.unwrap());
        }
        for notice in notices {
            notice.wait_completion_async().await.unwrap();
        }
        save(&outbox, after);
    }
    driver.abort();
}

async fn by_hand_3_1_1(port: u16, qos: u8, backlog: &Backlog, round: i64) {
    use rumqttc_v4::{AsyncClient, MqttOptions, PublishOptions, QoS};

    let mut options = MqttOptions::new(format!("by-hand-{round}"), ("127.0.0.1", port));
    options.set_inflight(u16::try_from(WINDOW).unwrap());
    let (client, mut events) = AsyncClient::builder(options).capacity(usize::try_from(WINDOW).unwrap()).build();
    let driver = tokio::spawn(async move { while events.poll().await.is_ok() {} });
    let qos = if qos == 2 { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
    let outbox = backlog.open();
    let mut after = 0;
    loop {
        let rows = window(&outbox, after);
        let Some(last) = rows.last() else { break };
        after = last.seq;
        let mut notices = Vec::with_capacity(rows.len());
        for row in rows {
            let options = PublishOptions::new(qos);
            notices.push(client.publish_tracked(format!("r{round}/{}", row.id), row.payload, options).await.unwrap());
        }
        for notice in notices {
            notice.wait_completion_async().await.unwrap();
        }
        save(&outbox, after);
    }
    driver.abort();
}
