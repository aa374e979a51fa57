//! The http destination against a real server: what a request is, and what each answer makes of the event.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use litepost_relay::relay::Drained;

use crate::desk::{Desk, only};

/// What the server answers next; 204 when nothing is left.
#[derive(Clone, Default)]
struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: String,
    after: Duration,
}

fn status(status: u16) -> Reply {
    Reply { status, ..Reply::default() }
}

/// A request as it arrived.
#[derive(Clone)]
struct Seen {
    at: Instant,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
}

impl Seen {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

#[derive(Clone, Default)]
struct Server {
    port: u16,
    script: Arc<Mutex<VecDeque<Reply>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    async fn start(script: impl IntoIterator<Item = Reply>) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            script: Arc::new(Mutex::new(script.into_iter().collect())),
            seen: Arc::default(),
        };
        let router = Router::new().fallback(answer).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        server
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/hook", self.port)
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

#[allow(clippy::disallowed_methods, reason = "a test of how long the relay waits must read a clock")]
async fn answer(State(server): State<Server>, method: Method, headers: HeaderMap, body: Bytes) -> Response {
    server.seen.lock().unwrap().push(Seen { at: Instant::now(), method, headers, body });
    let reply = server.script.lock().unwrap().pop_front().unwrap_or_else(|| status(204));
    tokio::time::sleep(reply.after).await;
    let mut response = (StatusCode::from_u16(reply.status).unwrap(), reply.body).into_response();
    for (name, value) in reply.headers {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

/// An outbox whose only destination is this URL; `keys` of the destination, `connection` beside the URL.
fn desk(url: &str, keys: &str, connection: &str) -> Desk {
    let desk = Desk::new();
    let mut text = "[app.shop]\ndatabase = \"shop.db\"\n[app.shop.sink.hook]\ntype = \"http\"\n".to_owned();
    let _ = write!(text, "retry = {{ first = \"1ms\", cap = \"5ms\", max_attempts = 3 }}\n{keys}\n");
    let _ = write!(
        text,
        "[app.shop.sink.hook.connection]\nurl = \"{url}\"\nallow_private_addresses = true\n{connection}\n"
    );
    std::fs::write(desk.path("litepost.toml"), text).unwrap();
    desk
}

fn dead(desk: &Desk) -> String {
    desk.text(
        "SELECT coalesce(group_concat(reason || '|' || attempts || '|' || error_code || '|' || error, char(10)), '')
         FROM litepost_dead",
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_holds_the_event_and_what_is_configured() {
    let server = Server::start([]).await;
    let mut desk = desk(&server.url(), "", "headers = { Authorization = \"Bearer s3cret-token\" }");
    desk.event("orders", "501", "{\"total\":4999}");
    desk.drain_everything().await;
    let [seen] = server.seen().try_into().unwrap_or_else(|seen: Vec<_>| panic!("{} requests", seen.len()));
    let id = desk.text("SELECT id FROM litepost_outbox");
    assert_eq!((seen.method.as_str(), seen.header("content-type")), ("POST", "application/json"));
    assert_eq!((seen.header("authorization"), seen.header("idempotency-key")), ("Bearer s3cret-token", id.as_str()));
    assert!(seen.header("user-agent").starts_with("litepost/"));
    let body = seen.json();
    assert_eq!((&body["id"], &body["seq"], &body["topic"]), (&id.into(), &1.into(), &"orders".into()));
    assert_eq!((&body["key"], &body["payload"]["total"]), (&"501".into(), &4999.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_class_of_status_has_its_fate() {
    // What the event is to blame for, and after how many requests it is given up.
    for (code, times, fate) in [
        (400, 3, "max_attempts|3|400|URL answered 400 Bad Request: no"),
        (409, 3, "max_attempts|3|409|URL answered 409 Conflict: no"),
        (422, 3, "max_attempts|3|422|URL answered 422 Unprocessable Entity: no"),
        (413, 1, "permanent|1|413|URL answered 413 Payload Too Large: no"),
        (431, 1, "permanent|1|431|URL answered 431 Request Header Fields Too Large: no"),
    ] {
        let server = Server::start(vec![Reply { body: "no".into(), ..status(code) }; times]).await;
        let mut desk = desk(&server.url(), "", "");
        desk.event("orders", "bad", "1");
        desk.event("orders", "bad", "2");
        let relay = desk.start();
        desk.until("the successor arrived", |_| server.seen().len() == times + 1).await;
        desk.until("it is settled", |d| d.number("SELECT coalesce(sum(delivered), 0) FROM litepost_cursor") == 1).await;
        relay.stop().await;
        assert_eq!(dead(&desk), fate.replace("URL", &server.url()), "{code}");
        desk.verify();
    }
    // What no event is to blame for: tried until it works, however often, and no attempt is counted. Side by side,
    // since the breaker's pauses take a while.
    let codes = [301, 401, 403, 404, 405, 407, 408, 415, 425, 429, 500, 502, 503, 504, 599];
    futures_util::future::join_all(codes.map(async |code| {
        let server = Server::start(vec![status(code); 4]).await;
        let mut desk = desk(&server.url(), "", "");
        desk.event("orders", "k", "1");
        let relay = desk.start();
        let delivered = "SELECT coalesce(sum(delivered), 0) FROM litepost_cursor";
        desk.until("it went through", |d| d.number(delivered) == 1).await;
        relay.stop().await;
        assert_eq!((dead(&desk), server.seen().len()), (String::new(), 5), "{code}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::start([]).await;
    let to = Reply { headers: vec![("location", elsewhere.url())], ..status(302) };
    let server = Server::start(vec![to; 100]).await;
    let mut desk = desk(&server.url(), "", "");
    desk.event("orders", "k", "1");
    let report = desk.drain().await;
    let Drained::Unavailable { error } = only(&report) else { panic!("{report:?}") };
    assert_eq!(
        *error,
        format!("{} answered 302 Found (redirects are not followed; set the url to where it leads)", server.url())
    );
    assert!(elsewhere.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_waited_for() {
    for code in [429, 503, 400] {
        let wait = Reply { headers: vec![("retry-after", "1".into())], ..status(code) };
        let server = Server::start([wait]).await;
        let mut desk = desk(&server.url(), "", "");
        desk.event("orders", "k", "1");
        let relay = desk.start();
        desk.until("it came again", |_| server.seen().len() == 2).await;
        relay.stop().await;
        let waited = server.seen()[1].at - server.seen()[0].at;
        assert!(waited >= Duration::from_millis(950), "{code}: after {waited:?}");
        assert_eq!(dead(&desk), "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_costs_no_attempt_and_is_told() {
    let slow = Reply { after: Duration::from_secs(30), ..status(200) };
    let server = Server::start(vec![slow; 50]).await;
    let mut desk = desk(&server.url(), "", "timeout_ms = 100");
    desk.event("orders", "k", "1");
    let report = desk.drain().await;
    let Drained::Unavailable { error } = only(&report) else { panic!("{report:?}") };
    assert_eq!(*error, format!("{}: error sending request: operation timed out", server.url()));
    assert_eq!((dead(&desk), desk.number("SELECT count(*) FROM litepost_blocked")), (String::new(), 0));
    server.script.lock().unwrap().clear();
    desk.drain_everything().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_is_told() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    drop(listener);
    let mut desk = desk(&url.replace("http://", "http://user:hunter22@"), "", "");
    desk.event("orders", "k", "1");
    let report = desk.drain().await;
    let Drained::Unavailable { error } = only(&report) else { panic!("{report:?}") };
    assert!(error.starts_with(&url) && error.contains("Connection refused"), "{error}");
    assert!(!error.contains("hunter22"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_configured_never_shows_whatever_the_server_says() {
    let echo = Reply { body: "you sent Bearer s3cret-token\nand k3y-value".into(), ..status(500) };
    let server = Server::start(vec![echo; 100]).await;
    let connection = "headers = { Authorization = \"Bearer s3cret-token\" }";
    let mut desk = desk(&format!("{}?key=k3y-value", server.url()), "", connection);
    desk.event("orders", "k", "1");
    let report = desk.drain().await;
    let Drained::Unavailable { error } = only(&report) else { panic!("{report:?}") };
    assert!(!error.contains("s3cret-token"), "{error}");
    let shown = desk.text("SELECT coalesce(state_error, '') FROM litepost_cursor");
    assert!(!shown.contains("s3cret-token"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_one_array_and_what_is_refused_in_it_is_found() {
    let server = Server::start([]).await;
    let mut desk = desk(&server.url(), "", "batch = \"array\"");
    for n in 0..5 {
        desk.event("orders", &n.to_string(), &n.to_string());
    }
    desk.drain_everything().await;
    let [seen] = server.seen().try_into().unwrap_or_else(|seen: Vec<_>| panic!("{} requests", seen.len()));
    assert_eq!(seen.json().as_array().unwrap().len(), 5);
    assert_eq!(seen.header("idempotency-key"), "", "an array has no single id");
    // The whole is refused, then the second of the five.
    server.script.lock().unwrap().extend([status(400), status(200), status(413)]);
    let one_at_a_time = "batch = \"array\"\nparallel = 1";
    let text = std::fs::read_to_string(desk.path("litepost.toml")).unwrap().replace("batch = \"array\"", one_at_a_time);
    std::fs::write(desk.path("litepost.toml"), text).unwrap();
    for n in 5..10 {
        desk.event("orders", &n.to_string(), &n.to_string());
    }
    desk.drain().await;
    assert_eq!(desk.text("SELECT group_concat(seq || ' ' || reason) FROM litepost_dead"), "7 permanent");
    assert_eq!(desk.number("SELECT coalesce(sum(delivered), 0) FROM litepost_cursor"), 9);
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_event_holds_back_its_key_and_no_other() {
    let server = Server::start([status(400)]).await;
    let mut desk = desk(&server.url(), "", "parallel = 1");
    for (key, payload) in [("a", "1"), ("a", "2"), ("b", "3"), ("a", "4"), ("b", "5")] {
        desk.event("orders", key, payload);
    }
    let relay = desk.start();
    desk.until("all are there", |d| d.number("SELECT coalesce(sum(delivered), 0) FROM litepost_cursor") == 5).await;
    relay.stop().await;
    let bodies: Vec<i64> = server.seen().iter().map(|seen| seen.json()["payload"].as_i64().unwrap()).collect();
    let of = |key: &[i64]| bodies.iter().copied().filter(|n| key.contains(n)).collect::<Vec<_>>();
    assert_eq!((of(&[1, 2, 4]), of(&[3, 5])), (vec![1, 1, 2, 4], vec![3, 5]), "{bodies:?}");
    desk.verify();
}
