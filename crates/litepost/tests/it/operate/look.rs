//! What is paused, how far a destination is, and what became of an event.

use litepost::locate::Routing;
use litepost::operate::{Operator, Progress, Resumed, Scope, destinations, head, journeys, pauses, progress};
use litepost_core::pipeline::{BlockedState, Counters, Settlement};
use litepost_core::{DeadReason, HeaderFilter, Line, LineKind, Seq, TopicFilter};
use serde_json::json;

use super::{D, Desk, key, letter, refused, waits};

#[test]
fn a_pause_holds_until_it_is_resumed_as_it_was_paused() {
    let mut desk = Desk::new(30, 1);
    let line = Line { kind: LineKind::Topic, name: "orders".into() };
    let held = |first| waits(first, 1, BlockedState::Held);
    let settlement = Settlement {
        acked: Seq(10),
        added: Counters { delivered: 7, ..Counters::default() },
        delivered: vec![("orders".into(), 7)],
        blocked: vec![(key("k1"), held(2)), (key("k2"), held(3)), (line, held(4))],
        ..Settlement::default()
    };
    desk.settle(0, &settlement);
    desk.app.execute_batch("UPDATE litepost_blocked SET error_code = 'paused' WHERE line = 'k2'").unwrap();
    let scopes = [Scope::Destination, Scope::Key("k1".into()), Scope::Topic("orders".into())];
    for scope in &scopes {
        assert!(desk.operator().pause(D, scope).unwrap());
        assert!(!desk.operator().pause(D, scope).unwrap(), "it was");
    }
    assert!(desk.operator().pause(D, &Scope::Key(String::new())).unwrap(), "a key may be empty");
    assert_eq!(refused(desk.operator().pause(D, &Scope::Topic(String::new()))), "no topic is empty");
    let shown: Vec<String> = pauses(&desk.app)
        .unwrap()
        .iter()
        .map(|pause| format!("{} {}:{} {} {:?}", pause.destination, pause.kind, pause.name, pause.actor, pause.reason))
        .collect();
    let expected = ["destination:", "key:", "key:k1", "topic:orders"];
    assert_eq!(shown, expected.map(|what| format!("{D} {what} ann Some(\"why\")")));
    assert!(pauses(&desk.app).unwrap().iter().all(|pause| pause.paused_at.0 > 0));
    // Of a topic or key everything that is paused flows again, and what a dead letter holds of its own.
    let states = "SELECT group_concat(line || ' ' || state || coalesce(error_code, ''), ', ') FROM (SELECT * FROM litepost_blocked ORDER BY line)";
    let resume = |scope: &Scope| desk.operator().resume(D, scope).unwrap();
    assert_eq!(resume(&scopes[0]), Resumed { pauses: 1, lines: 0 });
    assert_eq!(desk.texts(states), ["k1 held, k2 heldpaused, orders held"]);
    assert_eq!(resume(&scopes[1]), Resumed { pauses: 1, lines: 2 });
    assert_eq!(desk.texts(states), ["k1 releasing, k2 releasing, orders held"]);
    assert_eq!(resume(&scopes[2]), Resumed { pauses: 1, lines: 1 });
    for scope in &scopes {
        assert!(refused(desk.operator().resume(D, scope)).contains("nothing of the kind is paused or held"));
    }
    desk.app.execute_batch("UPDATE litepost_blocked SET state = 'held' WHERE line = 'orders'").unwrap();
    assert_eq!(resume(&scopes[2]), Resumed { pauses: 0, lines: 1 }, "held, and not paused");
    assert_eq!(pauses(&desk.app).unwrap().len(), 1);
    assert_eq!(desk.audit().len(), 11);
}

#[test]
fn a_drain_is_done_when_everything_has_gone_that_goes_by_itself() {
    let mut desk = Desk::new(30, 1);
    assert_eq!(head(&desk.app).unwrap(), Seq(30));
    assert_eq!(destinations(&desk.app).unwrap(), [D]);
    assert_eq!(refused(progress(&desk.app, "shop.none", Seq(1))), "this file knows no destination shop.none");
    let line = |kind, name: &str| Line { kind, name: name.into() };
    let settlement = Settlement {
        acked: Seq(20),
        added: Counters { delivered: 10, ..Counters::default() },
        delivered: vec![("orders".into(), 10)],
        blocked: vec![
            (key("k1"), waits(2, 1, BlockedState::Backoff)),
            (key("k2"), waits(3, 2, BlockedState::Releasing)),
            (key("k3"), waits(4, 2, BlockedState::Held)),
            (line(LineKind::Event, "15"), waits(15, 1, BlockedState::Scheduled)),
            (key("k8"), waits(9, 2, BlockedState::Held)),
            (key("k7"), waits(18, 1, BlockedState::Backoff)),
        ],
        ..Settlement::default()
    };
    desk.settle(0, &settlement);
    let now = |until| progress(&desk.app, D, Seq(until)).unwrap();
    assert_eq!(now(20), Progress { until: Seq(20), acked: Seq(20), retrying: 4, waiting: 5 });
    assert_eq!(now(17), Progress { until: Seq(17), acked: Seq(20), retrying: 3, waiting: 5 });
    assert_eq!(now(1), Progress { until: Seq(1), acked: Seq(20), retrying: 0, waiting: 0 });
    let done =
        |until, acked, retrying| Progress { until: Seq(until), acked: Seq(acked), retrying, waiting: 3 }.is_done();
    assert!(done(20, 20, 0) && done(20, 21, 0));
    assert!(!done(21, 20, 0) && !done(20, 20, 1) && !done(20, 21, 1) && !done(21, 20, 1));
}

#[test]
fn where_an_event_is_follows_from_the_file_and_nothing_else() {
    let mut desk = Desk::new(30, 1);
    let settlement = Settlement {
        acked: Seq(20),
        added: Counters { delivered: 11, dead: 4, ..Counters::default() },
        delivered: vec![("orders".into(), 11)],
        dead: [5, 6, 7, 8].map(|seq| letter(seq, DeadReason::Permanent)).to_vec(),
        blocked: vec![
            (key("k1"), waits(2, 2, BlockedState::Backoff)),
            (key("k2"), waits(3, 2, BlockedState::Held)),
            (Line { kind: LineKind::Event, name: "15".into() }, waits(15, 1, BlockedState::Scheduled)),
        ],
        ..Settlement::default()
    };
    desk.settle(0, &settlement);
    let ids = |id| litepost::dead::DeadFilter { ids: vec![id], ..Default::default() };
    desk.operator().replay(&ids(2)).unwrap();
    desk.operator().discard(&ids(3)).unwrap();
    desk.operator().skip(D, &[Seq(22)]).unwrap();
    desk.store.register("shop.new", 1, litepost::lanes::Start::Now).unwrap();
    desk.healthy();
    let at = |seq| {
        let journey = journeys(&desk.app, Seq(seq), &[]).unwrap().remove(0);
        assert_eq!(journey.destination, D);
        let what: Vec<String> = journey.moments.iter().map(|moment| moment.what.clone()).collect();
        (journey.standing, what.join(" "))
    };
    for (seq, standing, moments) in [
        (1, "settled", ""),
        (2, "backoff", "blocked next_attempt"),
        (12, "behind", ""),
        (3, "held", "blocked"),
        (13, "behind", ""),
        (15, "scheduled", "next_attempt"),
        (5, "dead", "dead"),
        (6, "replayed", "dead replayed"),
        (7, "discarded", "dead discarded"),
        (21, "waiting", ""),
        (22, "skipping", ""),
        (31, "waiting", ""),
    ] {
        assert_eq!(at(seq), (standing.to_owned(), moments.to_owned()), "event {seq}");
    }
    let elsewhere = &journeys(&desk.app, Seq(31), &[]).unwrap()[1];
    assert_eq!((elsewhere.destination.as_str(), elsewhere.standing.as_str()), ("shop.new", "elsewhere"));
    let moments = &journeys(&desk.app, Seq(2), &[]).unwrap()[0].moments;
    assert_eq!((moments[0].at.0, moments[0].detail.as_str(), moments[1].at.0), (5, "1 attempts; no", 7));
    let told = &journeys(&desk.app, Seq(6), &[]).unwrap()[0].moments;
    assert_eq!(told[0].detail, "dead letter 2: permanent after 3 attempts; no");
    assert_eq!(told[1].detail, "dead letter 2 as event 31");
    // What it takes says whether "settled" is "delivered".
    for (topics, standing) in [("orders", "delivered"), ("other", "not_for_it")] {
        let rules = Routing {
            destination: D.into(),
            topics: TopicFilter::parse([topics]).unwrap(),
            headers: HeaderFilter::default(),
            statements_only: false,
        };
        assert_eq!(journeys(&desk.app, Seq(1), &[rules]).unwrap()[0].standing, standing);
    }
}

#[test]
fn a_deed_that_was_done_elsewhere_is_written_down() {
    let desk = Desk::new(1, 1);
    let mut operator: Operator = desk.operator();
    operator.record("reload", &json!({ "a": 1 })).unwrap();
    assert_eq!(desk.audit(), ["ann reload - why"]);
    assert_eq!(desk.texts("SELECT detail FROM litepost_audit"), [r#"{"a":1}"#]);
    assert_eq!(
        operator.connection().query_row("SELECT count(*) FROM litepost_audit", [], |row| row.get::<_, i64>(0)).unwrap(),
        1
    );
}
