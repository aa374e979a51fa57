//! Webhooks: one POST an event, over connections that stay open, without and with a signature.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::{StreamExt as _, stream};
use litepost_testkit::http::HttpServer;
use reqwest::Client;
use reqwest::redirect::Policy;
use ring::hmac::{Context, HMAC_SHA256, Key};

use super::{Backlog, Bench, Row, save, window};

/// Requests under way at once, for both.
const PARALLEL: usize = 64;
/// What webhooks are signed with.
const SECRET: &[u8] = b"a secret of thirty-two bytes....";

pub(super) fn bench(bench: &Bench) {
    one(bench, "http", None);
    one(bench, "webhook, signed", Some(&Key::new(HMAC_SHA256, SECRET)));
}

fn one(bench: &Bench, name: &str, key: Option<&Key>) {
    let server = HttpServer::start();
    let url = server.url("/ready");
    let config = |_: i64| {
        let kind = match key {
            Some(_) => format!("\"webhook\"\nconnection = {{ signing_secrets = [\"whsec_{}\"]", BASE64.encode(SECRET)),
            None => "\"http\"\nconnection = { format = \"raw\"".to_owned(),
        };
        format!("type = {kind}, url = \"{url}\", parallel = {PARALLEL}, allow_private_addresses = true }}")
    };
    let hand = |backlog: &Backlog, _: i64| bench.runtime.block_on(by_hand(&url, backlog, key));
    bench.compare(name, &config, &hand);
}

async fn by_hand(url: &str, backlog: &Backlog, key: Option<&Key>) {
    // Both use the provider that the relay installs.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder().redirect(Policy::none()).timeout(Duration::from_secs(10)).build().unwrap();
    let outbox = backlog.open();
    let mut after = 0;
    loop {
        let rows = window(&outbox, after);
        let Some(last) = rows.last() else { return };
        after = last.seq;
        let posts = rows.into_iter().map(|row| post(&client, url, row, key));
        let mut answers = stream::iter(posts).buffer_unordered(PARALLEL);
        while let Some(status) = answers.next().await {
            assert!(status.is_success(), "{status}");
        }
        save(&outbox, after);
    }
}

async fn post(client: &Client, url: &str, row: Row, key: Option<&Key>) -> reqwest::StatusCode {
    let timestamp = row.created_at / 1_000;
    let mut request = client.post(url).header("webhook-id", &row.id).header("idempotency-key", &row.id);
    for (name, value) in row.headers() {
        request = request.header(name, value);
    }
    request = request.header("webhook-timestamp", timestamp);
    if let Some(key) = key {
        let mut context = Context::with_key(key);
        context.update(format!("{}.{timestamp}.", row.id).as_bytes());
        context.update(&row.payload);
        request = request.header("webhook-signature", format!("v1,{}", BASE64.encode(context.sign())));
    }
    let response = request.body(row.payload).send().await.unwrap();
    let status = response.status();
    response.bytes().await.unwrap();
    status
}
