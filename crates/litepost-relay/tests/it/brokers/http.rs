//! Webhooks: the http sink on a real server, judged by the libraries that receivers use.

use std::fs;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use litepost::NewEvent;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Drained;
use litepost_testkit::conformance::{
    Desk, Duplicates, Harness, MIB, Received, Target, Traits, WRONG_PASSWORD, consume_with,
};
use litepost_testkit::http::{HttpServer, Reply, Taken};
use litepost_testkit::servers::Webhooks;

const JUDGE: &str = include_str!("http.py");
const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const ALLOWED: &str = "allow_private_addresses = true";

/// A receiver in another language, in a process of its own.
pub(crate) struct HttpHarness {
    server: Webhooks,
}

pub(crate) fn harness() -> HttpHarness {
    HttpHarness { server: Webhooks::start() }
}

impl Harness for HttpHarness {
    fn traits(&self) -> Traits {
        Traits {
            kind: "webhook",
            in_flight: "batch_size = 100",
            duplicates: Duplicates::Allowed,
            large: MIB,
            too_large: Webhooks::BODY_MAX + 1,
            headers: true,
        }
    }

    fn port(&self) -> u16 {
        self.server.port()
    }

    fn connection(&self, port: u16, target: Target) -> String {
        let path = path(target);
        let password = if target == Target::WrongCredentials { WRONG_PASSWORD } else { Webhooks::PASSWORD };
        format!(
            "{{ url = \"http://{}:{password}@127.0.0.1:{port}/{path}\", format = \"raw\", parallel = 64, {ALLOWED} }}",
            Webhooks::USER
        )
    }

    fn make_missing(&mut self) {
        self.server.add_path(path(Target::Missing));
    }

    /// What the receiver itself has kept.
    fn consume(&mut self, target: Target) -> Vec<Received> {
        const SHOW: &str = "import json, sys\nfor line in open(sys.argv[1], encoding='ascii'):\n    \
            if json.loads(line)['path'] == sys.argv[2]: print(line, end='')";
        consume_with(SHOW, &[&self.server.taken().display().to_string(), path(target)])
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

fn path(target: Target) -> &'static str {
    if target == Target::Missing { "missing" } else { "ready" }
}

fn text(taken: &Taken, name: &str) -> Option<String> {
    taken.headers.get(name).map(|value| String::from_utf8(value.as_bytes().to_vec()).unwrap())
}

fn received(taken: &Taken) -> Received {
    let headers = taken.headers.iter().map(|(n, v)| (n.to_string(), String::from_utf8(v.as_bytes().to_vec()).unwrap()));
    Received {
        id: text(taken, "webhook-id").unwrap(),
        key: text(taken, "litepost-key").map(String::into_bytes),
        body: taken.body.to_vec(),
        headers: headers.collect(),
    }
}

/// A desk whose webhook is this server's `/ready`, with further keys of the connection.
fn desk(server: &HttpServer, keys: &str, connection: &str) -> Desk {
    Desk::new("webhook", keys, &format!("{{ url = \"{}\", {ALLOWED}, {connection} }}", server.url("/ready")))
}

/// Lets Python judge these requests.
fn judge(desk: &Desk, what: &str, taken: &[Taken], secrets: &[&str]) {
    let requests = taken.iter().map(|taken| {
        let headers = received(taken).headers;
        serde_json::json!({ "headers": headers, "body": BASE64.encode(&taken.body) })
    });
    let path = desk.path("requests.json");
    fs::write(&path, requests.collect::<serde_json::Value>().to_string()).unwrap();
    let mut arguments = vec![what, path.to_str().unwrap()];
    arguments.extend(secrets);
    assert_eq!(consume_with(JUDGE, &arguments), []);
}

#[test]
fn the_official_library_accepts_every_signature_and_nothing_that_was_changed() {
    let server = HttpServer::start();
    let secrets = format!("signing_secrets = [\"{OLD}\", \"{NEW}\"]");
    let mut desk = desk(&server, "", &secrets);
    desk.write_many(3, 2);
    desk.drain_everything();
    for (connection, payload) in [("format = \"raw\"", &b"\"\xe2\x82\xac\""[..]), ("batch = \"array\"", b"1")] {
        let url = server.url("/ready");
        desk.configure("webhook", "", &format!("{{ url = \"{url}\", {ALLOWED}, {secrets}, {connection} }}"));
        for key in ["a", "b"] {
            desk.write(NewEvent::new("orders", payload).header("Webhook-Id", "forged"), Some(key), payload);
        }
        desk.drain_everything();
    }
    let taken = server.taken();
    assert_eq!(taken.len(), 3 + 2 + 1, "and the batch is one");
    judge(&desk, "signatures", &taken, &[OLD, NEW]);
    let ids: Vec<String> = taken.iter().map(|taken| text(taken, "webhook-id").unwrap()).collect();
    assert!(ids[5].starts_with("batch_") && ids.iter().all(|id| id != "forged"), "{ids:?}");
    assert_eq!(ids.iter().filter(|id| id.starts_with("e-")).count(), 5, "{ids:?}");
}

#[test]
fn the_cloudevents_sdk_reads_all_three_forms() {
    let server = HttpServer::start();
    let mut all = desk(&server, "", "format = \"cloudevents_binary\"");
    let event = |id: &str| {
        let event = NewEvent::new("orders", "{\"total\": 4999}").kind("Créé").header("traceparent", "00-ab");
        event.id(id).key("k 1")
    };
    let put = |desk: &Desk, event: &NewEvent| {
        let tx = desk.outbox().unchecked_transaction().unwrap();
        litepost::enqueue(&tx, event).unwrap();
        tx.commit().unwrap();
    };
    put(&all, &event("a"));
    all.drain_everything();
    for (connection, second) in
        [("format = \"cloudevents\"", false), ("format = \"cloudevents\", batch = \"array\"", true)]
    {
        all = desk(&server, "", connection);
        put(&all, &event("a"));
        if second {
            put(&all, &NewEvent::new("orders", &b"\0\xff"[..]).id("b"));
        }
        all.drain_everything();
    }
    judge(&all, "cloudevents", &server.taken(), &[]);
}

#[test]
fn bodies_of_any_content_type_and_headers_from_the_event() {
    let server = HttpServer::start();
    let mut desk = desk(
        &server,
        "",
        "format = \"raw\", content_type = \"{header.content-type|application/octet-stream}\", \
         headers = { X-Tenant = \"t-{key}\", Authorization = \"Bearer t0ken\" }",
    );
    server.answer_next([Reply::status(200), Reply::status(200)]);
    let event = NewEvent::new("orders", "<a/>").header("content-type", "application/xml").header("x-tenant", "forged");
    desk.write(event, Some("7"), b"<a/>");
    desk.write(NewEvent::new("orders", "text"), Some("7"), b"text");
    desk.drain_everything();
    let taken = server.taken();
    let of = |at: usize, name: &str| text(&taken[at], name).unwrap();
    assert_eq!(
        (of(0, "content-type"), of(1, "content-type")),
        ("application/xml".into(), "application/octet-stream".into())
    );
    assert_eq!((of(0, "x-tenant"), of(0, "authorization")), ("t-7".into(), "Bearer t0ken".into()));
    assert_eq!(&taken[0].body[..], b"<a/>");
}

#[test]
fn a_batch_of_lines_is_one_request() {
    let server = HttpServer::start();
    let mut desk = desk(&server, "", "batch = \"ndjson\"");
    for payload in ["{\"a\":\n1}", "text\nwith lines"] {
        desk.write(NewEvent::new("orders", payload), Some("k"), payload.as_bytes());
    }
    desk.drain_everything();
    let taken = server.taken();
    assert_eq!((server.asked(), taken.len()), (1, 1));
    assert_eq!(text(&taken[0], "content-type").unwrap(), "application/x-ndjson");
    let body = String::from_utf8(taken[0].body.to_vec()).unwrap();
    let lines: Vec<serde_json::Value> = body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (lines.len(), &lines[0]["payload"]["a"], &lines[1]["payload"]),
        (2, &1.into(), &"text\nwith lines".into())
    );
}

#[test]
fn an_endpoint_that_is_gone_is_left_alone_and_told() {
    let server = HttpServer::start();
    let mut desk = desk(&server, "max_attempts = 2", "parallel = 1");
    server.answer_next([Reply::status(410)]);
    desk.write_many(20, 5);
    let relay = desk.start();
    desk.until("it is told", |desk| {
        desk.text("SELECT coalesce(max(state_error), '') FROM litepost_cursor")
            .contains("the endpoint is gone for good")
    });
    let asked = server.asked();
    std::thread::sleep(Duration::from_millis(700));
    // With the retry's pause of at most 50 ms it would have been asked a dozen times.
    assert_eq!((server.asked(), desk.delivered(), desk.dead()), (asked, 0, 0));
    relay.stop();
}

#[test]
fn names_that_lead_inside_are_refused_when_they_are_resolved() {
    let server = HttpServer::start();
    let url = format!("http://localhost:{}/ready", server.port());
    let mut desk = Desk::new("webhook", "", &format!("{{ url = \"{url}\" }}"));
    desk.write_many(3, 2);
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
    assert!(error.contains("which is no public address; allow_private_addresses = true allows it"), "{error}");
    assert_eq!((server.asked(), desk.dead()), (0, 0));
    // An address is refused before anything runs, in every spelling.
    for host in ["127.0.0.1", "2130706433", "0x7f.1", "[::1]", "[::ffff:10.0.0.1]", "169.254.169.254", "[fd00::1]"] {
        desk.configure("webhook", "", &format!("{{ url = \"http://{host}/\" }}"));
        let error = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).map(drop);
        let error = error.expect_err(host).to_string();
        assert!(error.contains("is no public address"), "{host}: {error}");
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
fn a_host_gets_no_more_at_once_and_no_faster_than_it_should() {
    let server = HttpServer::start();
    let slow = Reply { after: Duration::from_millis(20), ..Reply::status(204) };
    server.answer_next(vec![slow; 40]);
    let mut desk1 = desk(&server, "lanes = 4", "format = \"raw\", parallel = 8, host_parallel = 3");
    desk1.write_many(40, 40);
    desk1.drain_everything();
    assert_eq!(server.most_at_once(), 3);
    let server = HttpServer::start();
    // Slower than a delivery may take: what does not fit is left for the next one, and nobody is blamed.
    let mut desk2 = desk(&server, "timeout = \"1s\"", "format = \"raw\", timeout_ms = 500, host_per_second = 20");
    desk2.write_many(30, 30);
    let start = Instant::now();
    desk2.drain_everything();
    assert!(start.elapsed() >= Duration::from_millis(1_400), "{:?}", start.elapsed());
    assert_eq!((server.taken().len(), desk2.dead()), (30, 0), "each once");
}

#[test]
fn an_endless_answer_is_not_read_to_its_end_and_secrets_do_not_show() {
    let server = HttpServer::start();
    let body = format!("{OLD} {}", "x".repeat(8 << 20));
    server.answer_next(vec![Reply { body, ..Reply::status(400) }; 2]);
    let mut desk = desk(&server, "max_attempts = 2", &format!("signing_secrets = [\"{OLD}\"], timeout_ms = 5000"));
    desk.write(NewEvent::new("orders", "1"), Some("k"), b"1");
    let relay = desk.start();
    desk.until("it is given up", |desk| desk.dead() == 1);
    relay.stop();
    let error = desk.text("SELECT error FROM litepost_dead");
    assert!(error.len() < 1_000 && error.contains("400") && !error.contains(OLD), "{error}");
}

#[test]
fn what_http_cannot_carry_is_a_dead_letter_and_its_neighbours_arrive() {
    let server = HttpServer::start();
    let mut desk = desk(&server, "", &format!("format = \"raw\", signing_secrets = [\"{OLD}\"]"));
    for (name, value) in [("h", " blank"), ("h", "del\u{7f}"), ("a:b", "x"), ("h\r\nwebhook-id", "x")] {
        let id = desk.write(NewEvent::new("orders", "1").header(name, value), Some("k"), b"1");
        desk.unsend(&id);
    }
    let tx = desk.outbox().unchecked_transaction().unwrap();
    litepost::enqueue(&tx, &NewEvent::new("orders", "1").id("\u{20AC}")).unwrap();
    tx.commit().unwrap();
    desk.write(NewEvent::new("orders", "2").header("Host", "evil").header("Content-Length", 3), Some("k"), b"2");
    desk.drain_everything();
    let taken = server.taken();
    assert_eq!((desk.dead(), taken.len(), &taken[0].body[..]), (5, 1, &b"2"[..]));
    assert_eq!(desk.text("SELECT DISTINCT error_code || reason FROM litepost_dead"), "headerpermanent");
    assert_eq!(text(&taken[0], "host").unwrap(), format!("127.0.0.1:{}", server.port()));
}

#[test]
fn settings_that_cannot_work_are_told_at_start() {
    for (connection, why) in [
        ("signing_secrets = [\"whsec_c2hvcnQ=\"]", "secret 1 has 5 bytes"),
        ("headers = { Webhook-Id = \"x\" }", "is set by the request itself"),
        ("headers = { A = \"{nothing}\" }", "is no template"),
        ("headers = { A = \"{key}\" }, batch = \"array\"", "holds one event's value"),
        ("format = \"raw\", batch = \"array\"", "one event into one request"),
        ("content_type = \"text/plain\"", "needs format"),
        ("host_per_second = 0", "must be at least 1"),
    ] {
        let desk = Desk::new("webhook", "", &format!("{{ url = \"https://example.com/\", {connection} }}"));
        let error = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).map(drop);
        let error = error.expect_err(connection).to_string();
        assert!(error.contains(why), "{connection}: {error}");
    }
}
