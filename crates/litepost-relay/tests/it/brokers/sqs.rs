//! AWS SQS on moto's server, consumed by boto3; and the server for SNS, which is read through a queue.

use litepost::NewEvent;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Drained;
use litepost_testkit::conformance::{Desk, Duplicates, Harness, Received, Target, Traits, WRONG_PASSWORD};
use litepost_testkit::http::{HttpServer, Reply};
use litepost_testkit::proxy::Proxy;
use litepost_testkit::servers::Moto;

use super::aws::Account;

/// moto's number of its only account.
const OWNER: &str = "123456789012";

/// An account with the queue `ready` (for `sns`, a topic of this name, too), and a proxy in front of it. AWS forgets nothing
/// when it is out of reach, and moto everything when it ends: so a crash, here, is nobody at the address.
pub(crate) struct AwsHarness {
    account: Account,
    front: Proxy,
    kind: &'static str,
    suffix: &'static str,
}

pub(crate) fn fifo() -> AwsHarness {
    AwsHarness::start("sqs", ".fifo")
}

pub(crate) fn standard() -> AwsHarness {
    AwsHarness::start("sqs", "")
}

impl AwsHarness {
    /// One of a kind of destination; queues and topics with the suffix `.fifo` keep order.
    pub(super) fn start(kind: &'static str, suffix: &'static str) -> Self {
        let account = Account::whose_user_may("sqs:*,sns:*");
        let front = Proxy::start(account.server().port());
        let harness = Self { account, front, kind, suffix };
        harness.make(&harness.name(Target::Ready));
        harness
    }

    /// Makes a queue, and for `sns` a topic that it subscribes to.
    pub(super) fn make(&self, name: &str) {
        self.account.script(if self.kind == "sns" { "topic" } else { "queue" }, name);
    }

    /// What has arrived in a queue.
    pub(super) fn messages(&self, name: &str) -> Vec<Received> {
        self.account.script("messages", name)
    }

    fn name(&self, target: Target) -> String {
        format!("{}{}", if target == Target::Missing { "missing" } else { "ready" }, self.suffix)
    }

    /// The keys of a connection through this port.
    pub(super) fn keys(&self, port: u16, target: Target) -> String {
        let secret = if target == Target::WrongCredentials { WRONG_PASSWORD } else { self.account.secret() };
        let (name, region) = (self.name(target), Moto::REGION);
        let place = match self.kind {
            "sns" => format!("topic_arn = \"arn:aws:sns:{region}:{OWNER}:{name}\""),
            _ => format!("queue_url = \"http://127.0.0.1:{port}/{OWNER}/{name}\""),
        };
        format!("{place}, {}", self.account.keys_at(port, secret))
    }

    /// What the SDK of CloudEvents is checked with: keys, and for boto3 the key and the queue.
    pub(super) fn for_cloudevents(self) -> (Self, String, String) {
        let (port, secret) = (self.account.server().port(), self.account.secret());
        let keys = self.keys(port, Target::Ready);
        let id = keys.split("access_key_id = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        let url = format!("{id} {secret} http://127.0.0.1:{port}/{OWNER}/{}", self.name(Target::Ready));
        (self, keys, url)
    }
}

impl Harness for AwsHarness {
    fn traits(&self) -> Traits {
        Traits {
            kind: self.kind,
            in_flight: "batch_size = 100",
            // Within five minutes, that is.
            duplicates: if self.suffix == ".fifo" { Duplicates::Never } else { Duplicates::Allowed },
            // 256 KiB as base64, with the attributes.
            large: 180_000,
            too_large: 300_000,
            headers: true,
        }
    }

    fn port(&self) -> u16 {
        self.front.port()
    }

    fn connection(&self, port: u16, target: Target) -> String {
        if target == Target::WrongCredentials {
            self.account.lock();
        }
        // (On a busy machine a request to moto takes seconds; one that is given up and sent again would arrive twice.)
        format!("{{ {}, format = \"raw\", timeout_ms = 60000 }}", self.keys(port, target))
    }

    fn make_missing(&mut self) {
        // Behind closed doors: a topic that nobody subscribes to yet takes events, and keeps none.
        self.front.away(true);
        self.make(&self.name(Target::Missing));
        self.front.away(false);
    }

    fn consume(&mut self, target: Target) -> Vec<Received> {
        self.messages(&self.name(target))
    }

    fn kill(&mut self) {
        self.front.away(true);
    }

    fn start_again(&mut self) {
        self.front.away(false);
    }

    fn pause(&mut self) {
        self.account.server().pause();
    }

    fn resume(&mut self) {
        self.account.server().resume();
    }
}

#[test]
fn what_is_sent_again_is_dropped_by_a_queue_that_keeps_order() {
    for (mut harness, arrive) in [(fifo(), 20), (standard(), 40)] {
        for _ in 0..2 {
            // The ids of both outboxes are the same.
            let mut desk = Desk::new("sqs", "", &harness.connection(harness.port(), Target::Ready));
            desk.write_many(20, 4);
            desk.drain_everything();
        }
        assert_eq!(harness.consume(Target::Ready).len(), arrive);
    }
}

#[test]
fn the_queue_is_a_template() {
    let mut harness = fifo();
    harness.make("orders-a.fifo");
    let keys = harness.keys(harness.port(), Target::Ready).replace("ready.fifo", "{topic}-{header.to}.fifo");
    let mut desk = Desk::new("sqs", "", &format!("{{ {keys} }}"));
    for (to, key) in [("a", "1"), ("b", "2"), ("a", "3"), ("a.b", "4")] {
        desk.write(NewEvent::new("orders", to).header("to", to), Some(key), to.as_bytes());
    }
    desk.drain();
    assert_eq!(harness.messages("orders-a.fifo").len(), 2);
    let waiting = desk.text("SELECT group_concat(error_code) FROM litepost_blocked");
    let dead = desk.text("SELECT group_concat(id || ' ' || error_code) FROM litepost_dead");
    assert_eq!((&*waiting, &*dead), ("NonExistentQueue", "e-000003 template"));
    let _ = harness.consume(Target::Ready);
}

/// A service that answers as it is told, and from then on as it did last.
fn scripted(replies: &[(u16, &str)]) -> (HttpServer, Desk) {
    let server = HttpServer::start();
    let last = std::iter::repeat_n(replies.last(), 100).flatten();
    server.answer_next(replies.iter().chain(last).map(|&(status, body)| {
        let headers = vec![("content-type", "application/x-amz-json-1.0")];
        Reply { headers, body: body.to_owned(), ..Reply::status(status) }
    }));
    let at = format!("http://127.0.0.1:{}", server.port());
    let key = "region = \"eu-west-1\", access_key_id = \"id\", secret_access_key = \"a-secret-key\"";
    let desk =
        Desk::new("sqs", "", &format!("{{ queue_url = \"{at}/1/q.fifo\", endpoint = \"{at}\", parallel = 1, {key} }}"));
    (server, desk)
}

fn one_of_two_taken(code: &str, of_the_sender: bool) -> String {
    let failed = format!("{{\"Id\":\"0\",\"Code\":\"{code}\",\"SenderFault\":{of_the_sender}}}");
    let taken = "{\"Id\":\"1\",\"MessageId\":\"m\",\"MD5OfMessageBody\":\"m\"}";
    format!("{{\"Failed\":[{failed}],\"Successful\":[{taken}]}}")
}

/// Three events, the first and the last of one key.
fn write_three(desk: &mut Desk) {
    for key in ["a", "b", "a"] {
        desk.write(NewEvent::new("orders", key), Some(key), key.as_bytes());
    }
}

#[test]
fn an_entry_that_fails_is_not_overtaken_by_the_next_of_its_key() {
    let (server, mut desk) = scripted(&[(200, &one_of_two_taken("InternalError", false))]);
    write_three(&mut desk);
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
    assert!(error.contains("InternalError"), "{error}");
    let left = server.taken().iter().any(|taken| String::from_utf8_lossy(&taken.body).contains("e-000002"));
    assert!(!left && server.asked() > 0, "the last event has not left");
    assert_eq!((desk.delivered(), desk.dead()), (1, 0));
    assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked"), 0, "nobody was blamed");

    let last = "{\"Failed\":[],\"Successful\":[{\"Id\":\"0\",\"MessageId\":\"m\",\"MD5OfMessageBody\":\"m\"}]}";
    let (server, mut desk) = scripted(&[(200, &one_of_two_taken("InvalidMessageContents", true)), (200, last)]);
    write_three(&mut desk);
    desk.drain_everything();
    assert_eq!((desk.delivered(), server.asked()), (2, 2), "the last event goes when the first is a dead letter");
    assert_eq!(
        desk.text("SELECT id || error_code || reason FROM litepost_dead"),
        "e-000000InvalidMessageContentspermanent"
    );
}

#[test]
fn an_entry_without_an_answer_is_not_delivered() {
    let (_server, mut desk) = scripted(&[(200, "{\"Failed\":[],\"Successful\":[]}")]);
    write_three(&mut desk);
    let report = desk.drain();
    assert!(matches!(report.lanes[0].drained, Drained::Unavailable { .. }), "{report:?}");
    assert_eq!((desk.delivered(), desk.dead()), (0, 0));
}

#[test]
fn a_service_that_asks_to_slow_down_or_denies_costs_no_event_an_attempt() {
    for (status, code, told) in [
        (400, "com.amazonaws.sqs#RequestThrottled", "RequestThrottled"),
        (400, "com.amazonaws.sqs#KmsAccessDenied", "KmsAccessDenied"),
        (503, "ServiceUnavailable", "ServiceUnavailable"),
    ] {
        let (server, mut desk) = scripted(&[(status, &format!("{{\"__type\":\"{code}\",\"message\":\"so it is\"}}"))]);
        write_three(&mut desk);
        let report = desk.drain();
        let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
        assert!(error.contains(told) && error.contains("so it is") && !error.contains("a-secret-key"), "{error}");
        assert!(server.asked() > 0);
        assert_eq!((desk.delivered(), desk.dead()), (0, 0));
        assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked"), 0);
    }
}

#[test]
fn a_user_without_the_permission_is_told() {
    let account = Account::whose_user_may("sqs:CreateQueue");
    account.script("queue", "ready.fifo");
    account.lock();
    let url = format!("http://127.0.0.1:{}/{OWNER}/ready.fifo", account.server().port());
    let mut desk = Desk::new("sqs", "", &format!("{{ queue_url = \"{url}\", {} }}", account.keys()));
    write_three(&mut desk);
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
    // (moto tells the code in a form that the protocol does not have; AWS tells AccessDenied.)
    assert!(error.contains("403") && !error.contains(account.secret()), "{error}");
    assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked"), 0);
}

#[test]
fn settings_that_cannot_work_are_told_at_start() {
    let url = "queue_url = \"https://sqs.eu-west-1.amazonaws.com/1/q.fifo\"";
    for (connection, why) in [
        ("region = \"eu-west-1\"", "needs queue_url"),
        ("queue_url = \"orders.fifo\", region = \"x\"", "it must be a URL"),
        (&format!("{url}, parallel = 65"), "must lie between 1 and 64"),
        (&format!("{url}, access_key_id = \"id\""), "are needed together"),
        (&format!("{url}, endpoint = \"https://user:{WRONG_PASSWORD}@host\""), "is no URL such as"),
        (&format!("{url}, headers = {{ litepost-id = \"x\" }}"), "belongs to the broker or to litepost"),
    ] {
        let desk = Desk::new("sqs", "", &format!("{{ {connection} }}"));
        let error = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).map(drop);
        let error = error.expect_err(connection).to_string();
        assert!(error.contains(why) && !error.contains(WRONG_PASSWORD), "{connection}: {error}");
    }
}

#[test]
fn cloudevents_are_read_by_the_sdk() {
    super::cloudevents::check("sqs", || standard().for_cloudevents());
}
