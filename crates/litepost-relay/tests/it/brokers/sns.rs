//! AWS SNS on moto's server: a queue subscribes to each topic, with raw delivery, and boto3 consumes it.

use litepost::NewEvent;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Drained;
use litepost_testkit::conformance::{Desk, Harness as _, Target, WRONG_PASSWORD};
use litepost_testkit::http::{HttpServer, Reply};

use super::sqs::AwsHarness;

pub(crate) fn fifo() -> AwsHarness {
    AwsHarness::start("sns", ".fifo")
}

pub(crate) fn standard() -> AwsHarness {
    AwsHarness::start("sns", "")
}

#[test]
fn what_is_published_again_is_dropped_by_a_topic_that_keeps_order() {
    // (moto keeps the number against duplicates for the queue behind the topic, which drops it.)
    for (mut harness, arrive) in [(fifo(), 20), (standard(), 40)] {
        for _ in 0..2 {
            // The ids of both outboxes are the same.
            let mut desk = Desk::new("sns", "", &harness.connection(harness.port(), Target::Ready));
            desk.write_many(20, 4);
            desk.drain_everything();
        }
        assert_eq!(harness.consume(Target::Ready).len(), arrive);
    }
}

#[test]
fn the_topic_is_a_template() {
    let harness = fifo();
    harness.make("orders-a.fifo");
    let keys = harness.keys(harness.port(), Target::Ready).replace("ready.fifo", "{topic}-{header.to}.fifo");
    let mut desk = Desk::new("sns", "", &format!("{{ {keys} }}"));
    for (to, key) in [("a", "1"), ("b", "2"), ("a", "3"), ("a.b", "4")] {
        desk.write(NewEvent::new("orders", to).header("to", to), Some(key), to.as_bytes());
    }
    desk.drain();
    assert_eq!(harness.messages("orders-a.fifo").len(), 2);
    let waiting = desk.text("SELECT group_concat(error_code) FROM litepost_blocked");
    let dead = desk.text("SELECT group_concat(id || ' ' || error_code) FROM litepost_dead");
    assert_eq!((&*waiting, &*dead), ("NotFound", "e-000003 template"));
}

/// A service that answers as it is told, and from then on as it did last.
fn scripted(replies: &[(u16, &str)]) -> (HttpServer, Desk) {
    let server = HttpServer::start();
    let last = std::iter::repeat_n(replies.last(), 100).flatten();
    server.answer_next(replies.iter().chain(last).map(|&(status, body)| Reply {
        headers: vec![("content-type", "text/xml")],
        body: body.to_owned(),
        ..Reply::status(status)
    }));
    let at = format!("http://127.0.0.1:{}", server.port());
    let keys = "access_key_id = \"id\", secret_access_key = \"a-secret-key\", parallel = 1";
    let arn = "arn:aws:sns:eu-west-1:1:orders.fifo";
    let mut desk = Desk::new("sns", "", &format!("{{ topic_arn = \"{arn}\", endpoint = \"{at}\", {keys} }}"));
    // The first and the last are of one key.
    for key in ["a", "b", "a"] {
        desk.write(NewEvent::new("orders", key), Some(key), key.as_bytes());
    }
    (server, desk)
}

/// The answer to a batch: members of `Failed` and of `Successful`.
fn answer(failed: &str, taken: &str) -> String {
    format!(
        "<PublishBatchResponse xmlns=\"http://sns.amazonaws.com/doc/2010-03-31/\"><PublishBatchResult><Failed>{failed}</Failed>\
         <Successful>{taken}</Successful></PublishBatchResult></PublishBatchResponse>"
    )
}

fn failed(id: &str, code: &str, of_the_sender: bool) -> String {
    format!("<member><Id>{id}</Id><Code>{code}</Code><SenderFault>{of_the_sender}</SenderFault></member>")
}

fn taken(id: &str) -> String {
    format!("<member><Id>{id}</Id><MessageId>m</MessageId></member>")
}

#[test]
fn an_entry_that_fails_is_not_overtaken_by_the_next_of_its_key() {
    let (server, desk) = scripted(&[(200, &answer(&failed("0", "InternalError", false), &taken("1")))]);
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
    assert!(error.contains("InternalError"), "{error}");
    let left = server.taken().iter().any(|taken| String::from_utf8_lossy(&taken.body).contains("e-000002"));
    assert!(!left && server.asked() > 0, "the last event has not left");
    assert_eq!((desk.delivered(), desk.dead()), (1, 0));

    let first = answer(&failed("0", "InvalidParameter", true), &taken("1"));
    let (server, desk) = scripted(&[(200, &first), (200, &answer("", &taken("0")))]);
    desk.drain_everything();
    assert_eq!((desk.delivered(), server.asked()), (2, 2), "the last event goes when the first is a dead letter");
    assert_eq!(desk.text("SELECT id || error_code || reason FROM litepost_dead"), "e-000000InvalidParameterpermanent");
}

#[test]
fn an_entry_without_an_answer_is_not_delivered() {
    let (_server, desk) = scripted(&[(200, &answer("", ""))]);
    let report = desk.drain();
    assert!(matches!(report.lanes[0].drained, Drained::Unavailable { .. }), "{report:?}");
    assert_eq!((desk.delivered(), desk.dead()), (0, 0));
}

#[test]
fn a_service_that_asks_to_slow_down_or_denies_costs_no_event_an_attempt() {
    for (status, code) in
        [(400, "Throttled"), (403, "AuthorizationError"), (400, "KMSAccessDenied"), (500, "InternalError")]
    {
        let error = format!("<Error><Type>Sender</Type><Code>{code}</Code><Message>so it is</Message></Error>");
        let body = format!("<ErrorResponse>{error}<RequestId>r</RequestId></ErrorResponse>");
        let (server, desk) = scripted(&[(status, &body)]);
        let report = desk.drain();
        let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
        assert!(error.contains(code) && error.contains("so it is") && !error.contains("a-secret-key"), "{error}");
        assert!(server.asked() > 0);
        assert_eq!((desk.delivered(), desk.dead()), (0, 0));
        assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked"), 0);
    }
}

#[test]
fn settings_that_cannot_work_are_told_at_start() {
    let arn = "topic_arn = \"arn:aws:sns:eu-west-1:1:orders.fifo\"";
    for (connection, why) in [
        ("region = \"eu-west-1\"", "needs topic_arn"),
        ("topic_arn = \"orders.fifo\", region = \"x\"", "it must be an ARN"),
        ("topic_arn = \"arn:aws:sqs:eu-west-1:1:orders.fifo\"", "it must be an ARN"),
        (&format!("{arn}, session_token = \"{WRONG_PASSWORD}\""), "are needed together"),
        (&format!("{arn}, endpoint = \"https://user:{WRONG_PASSWORD}@host\""), "is no URL such as"),
    ] {
        let desk = Desk::new("sns", "", &format!("{{ {connection} }}"));
        let error = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).map(drop);
        let error = error.expect_err(connection).to_string();
        assert!(error.contains(why) && !error.contains(WRONG_PASSWORD), "{connection}: {error}");
    }
}

#[test]
fn cloudevents_are_read_by_the_sdk() {
    super::cloudevents::check("sns", || standard().for_cloudevents());
}
