//! SQS and SNS on moto's server, which is slower than both: requests of ten events, several at once.

use aws_sdk_sns::types as sns;
use aws_sdk_sqs::config::{BehaviorVersion, Region, SharedCredentialsProvider};
use aws_sdk_sqs::types as sqs;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_types::SdkConfig;
use futures_util::{StreamExt as _, stream};
use litepost_testkit::servers::Moto;

use super::{Backlog, Bench, Row, save, window};

/// Requests under way at once, for both, and the events of one.
const PARALLEL: usize = 8;
const ENTRIES: usize = 10;
/// moto takes some hundreds a second.
const EVENTS_MAX: i64 = 2_000;
const OWNER: &str = "123456789012";

pub(super) fn queues(bench: &Bench) {
    let server = Moto::start();
    let client = aws_sdk_sqs::Client::new(&config(&server));
    let made = |round: i64| {
        bench.runtime.block_on(client.create_queue().queue_name(format!("q{round}")).send()).unwrap();
        format!("{}/{OWNER}/q{round}", server.url())
    };
    let ours =
        |round: i64| format!("type = \"sqs\"\nconnection = {{ queue_url = \"{}\", {} }}", made(round), keys(&server));
    let hand = |backlog: &Backlog, round: i64| {
        let url = made(round);
        bench.runtime.block_on(by_hand(backlog, |rows| send(&client, &url, rows)));
    };
    bench.compare_with("sqs", bench.events.min(EVENTS_MAX), &ours, &hand);
}

pub(super) fn topics(bench: &Bench) {
    let server = Moto::start();
    let client = aws_sdk_sns::Client::new(&config(&server));
    let made = |round: i64| {
        bench.runtime.block_on(client.create_topic().name(format!("t{round}")).send()).unwrap();
        format!("arn:aws:sns:{}:{OWNER}:t{round}", Moto::REGION)
    };
    let ours =
        |round: i64| format!("type = \"sns\"\nconnection = {{ topic_arn = \"{}\", {} }}", made(round), keys(&server));
    let hand = |backlog: &Backlog, round: i64| {
        let arn = made(round);
        bench.runtime.block_on(by_hand(backlog, |rows| publish(&client, &arn, rows)));
    };
    bench.compare_with("sns", bench.events.min(EVENTS_MAX), &ours, &hand);
}

fn keys(server: &Moto) -> String {
    let (url, region) = (server.url(), Moto::REGION);
    format!(
        "endpoint = \"{url}\", region = \"{region}\", access_key_id = \"one\", secret_access_key = \"two\", \
         format = \"raw\", parallel = {PARALLEL}, timeout_ms = 60000"
    )
}

fn config(server: &Moto) -> SdkConfig {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let key = aws_credential_types::Credentials::new("one", "two", None, None, "bench");
    SdkConfig::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new(Moto::REGION))
        .http_client(http)
        .credentials_provider(SharedCredentialsProvider::new(key))
        .endpoint_url(server.url())
        .build()
}

async fn by_hand<F: Future<Output = usize>>(backlog: &Backlog, send: impl Fn(Vec<Row>) -> F) {
    let outbox = backlog.open();
    let mut after = 0;
    loop {
        let mut rows = window(&outbox, after);
        let Some(last) = rows.last() else { return };
        after = last.seq;
        let count = rows.len();
        let mut requests = Vec::new();
        while !rows.is_empty() {
            let rest = rows.split_off(rows.len().min(ENTRIES));
            requests.push(send(std::mem::replace(&mut rows, rest)));
        }
        let taken: Vec<usize> = stream::iter(requests).buffer_unordered(PARALLEL).collect().await;
        assert_eq!(taken.iter().sum::<usize>(), count);
        save(&outbox, after);
    }
}

async fn send(client: &aws_sdk_sqs::Client, url: &str, rows: Vec<Row>) -> usize {
    let mut request = client.send_message_batch().queue_url(url);
    for (at, row) in rows.iter().enumerate() {
        let body = String::from_utf8_lossy(&row.payload);
        let mut entry = sqs::SendMessageBatchRequestEntry::builder().id(at.to_string()).message_body(body);
        for (name, value) in row.headers() {
            let value = sqs::MessageAttributeValue::builder().data_type("String").string_value(value).build().unwrap();
            entry = entry.message_attributes(name, value);
        }
        request = request.entries(entry.build().unwrap());
    }
    request.send().await.unwrap().successful().len()
}

async fn publish(client: &aws_sdk_sns::Client, arn: &str, rows: Vec<Row>) -> usize {
    let mut request = client.publish_batch().topic_arn(arn);
    for (at, row) in rows.iter().enumerate() {
        let body = String::from_utf8_lossy(&row.payload);
        let mut entry = sns::PublishBatchRequestEntry::builder().id(at.to_string()).message(body);
        for (name, value) in row.headers() {
            let value = sns::MessageAttributeValue::builder().data_type("String").string_value(value).build().unwrap();
            entry = entry.message_attributes(name, value);
        }
        request = request.publish_batch_request_entries(entry.build().unwrap());
    }
    request.send().await.unwrap().successful().len()
}
