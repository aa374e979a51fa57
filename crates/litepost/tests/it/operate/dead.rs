//! Dead letters: replayed, edited, put back, discarded, purged; once each, with everything that was in them.

use litepost::dead::DeadFilter;
use litepost::lanes::Split;
use litepost::operate::{NewBody, Replayed};
use litepost_core::pipeline::{BlockedLine, BlockedState, Counters, Settlement};
use litepost_core::{DeadReason, Seq, TopicFilter};
use rusqlite::types::Value;

use super::{D, Desk, key, letter, refused, waits};

fn ids(ids: &[i64]) -> DeadFilter {
    DeadFilter { ids: ids.to_vec(), ..DeadFilter::default() }
}

/// Twenty events, all passed; 3 expired, 5 and 15 (key `k4`) are dead.
fn desk() -> Desk {
    let mut desk = Desk::new(20, 1);
    desk.delivered(20, &[(3, DeadReason::Expired), (15, DeadReason::Permanent), (5, DeadReason::MaxAttempts)]);
    desk.healthy();
    desk
}

#[test]
fn a_replay_is_the_event_again_for_the_one_destination_that_missed_it() {
    let desk = desk();
    let dry = desk.operator().dry_run(true).replay(&DeadFilter::default()).unwrap();
    let done = desk.operator().replay(&DeadFilter::default()).unwrap();
    assert_eq!(dry, done);
    let id = desk.texts("SELECT id FROM litepost_outbox WHERE seq = 3").remove(0);
    assert_eq!(done[0], Replayed { dead_id: 1, destination: D.into(), id, seq: Seq(3), replayed_as: Seq(21) });
    // In the order of the log, whatever their numbers are.
    assert_eq!(done.iter().map(|one| (one.dead_id, one.seq.0)).collect::<Vec<_>>(), [(1, 3), (3, 5), (2, 15)]);
    let same = "SELECT count(*) FROM litepost_outbox a JOIN litepost_outbox b USING (id, topic, key, type, payload, created_at) \
                WHERE a.seq <= 20 AND b.seq > 20 AND b.only_for = 'shop.audit'";
    assert_eq!(desk.number(same), 3);
    assert_eq!(refused(desk.operator().replay(&ids(&[2]))), "dead letter 2 was replayed already, as event 23");
    assert_eq!(refused(desk.operator().replay(&ids(&[9]))), "there is no dead letter 9");
    assert_eq!(refused(desk.operator().replay_edited(9, &NewBody::default())), "there is no dead letter 9");
    assert_eq!(desk.operator().replay(&DeadFilter::default()).unwrap(), [], "each once");
    assert_eq!(desk.audit(), ["ann replay - why", "ann replay - why"], "what was refused leaves no trace");
    desk.healthy();
}

#[test]
fn an_edit_changes_what_it_names_and_nothing_else() {
    let body = |payload: Option<&str>, headers: Option<Option<&str>>| NewBody {
        payload: payload.map(|text| Value::Text(text.to_owned())),
        headers: headers.map(|headers| headers.map(str::to_owned)),
    };
    let with = r#"{"a":"b"}"#;
    for (new, expected) in [
        (body(None, None), r#"{"n":4} {"old":"x"}"#),
        (body(Some("7"), None), r#"7 {"old":"x"}"#),
        (body(None, Some(None)), r#"{"n":4} -"#),
        (body(Some("8"), Some(Some(with))), r#"8 {"a":"b"}"#),
    ] {
        let desk = desk();
        desk.app.execute_batch(r#"UPDATE litepost_dead SET headers = '{"old":"x"}'"#).unwrap();
        let done = desk.operator().replay_edited(3, &new).unwrap();
        assert_eq!((done.seq, done.replayed_as), (Seq(5), Seq(21)));
        let row = "SELECT payload || ' ' || coalesce(headers, '-') FROM litepost_outbox WHERE seq = 21";
        assert_eq!(desk.texts(row), [expected]);
        let kept = "SELECT payload || headers FROM litepost_dead WHERE dead_id = 3";
        assert_eq!(desk.texts(kept), [r#"{"n":4}{"old":"x"}"#], "the letter keeps the old one");
    }
}

#[test]
fn what_is_done_with_stays_until_it_is_purged_and_purging_is_counted() {
    let desk = desk();
    let some = ids(&[1, 3]);
    assert_eq!(desk.operator().purge(&DeadFilter::default(), 0).unwrap(), 0, "nobody has dealt with them");
    assert_eq!(desk.operator().discard(&some).unwrap().len(), 2);
    assert_eq!(refused(desk.operator().discard(&some)), "dead letter 1 was discarded");
    assert_eq!(refused(desk.operator().replay(&some)), "dead letter 1 was discarded");
    desk.operator().replay(&ids(&[2])).unwrap();
    let hour = 3_600_000;
    // They died at 1, the beginning of 1970; "older than" counts from now.
    assert_eq!(
        desk.operator()
            .purge(&DeadFilter { destination: Some("shop.none".into()), ..DeadFilter::default() }, hour)
            .unwrap(),
        0
    );
    assert_eq!(desk.operator().purge(&DeadFilter::default(), i64::MAX).unwrap(), 0, "none is that old");
    assert_eq!(desk.operator().dry_run(true).purge(&DeadFilter::default(), hour).unwrap(), 3);
    assert_eq!(desk.operator().purge(&DeadFilter { limit: 2, ..DeadFilter::default() }, hour).unwrap(), 2);
    assert_eq!(desk.number("SELECT purged FROM litepost_cursor"), 2);
    desk.healthy();
    assert_eq!(desk.operator().purge(&DeadFilter::default(), hour).unwrap(), 1);
    assert_eq!(desk.number("SELECT purged FROM litepost_cursor"), 3);
    assert_eq!(desk.number("SELECT purged FROM litepost_tally"), 3);
    desk.healthy();
}

/// Thirty events; of the key `k4` (5, 15, 25) some are dead, and the line is held behind them.
fn held(dead: &[(i64, DeadReason)], line: BlockedLine) -> Desk {
    let mut desk = Desk::new(30, 1);
    let mut added = Counters { delivered: 30 - line.waiting, ..Counters::default() };
    for (_, reason) in dead {
        added.delivered -= 1;
        match reason {
            DeadReason::Expired => added.expired += 1,
            DeadReason::Skipped => added.skipped += 1,
            _ => added.dead += 1,
        }
    }
    let settlement = Settlement {
        acked: Seq(30),
        added,
        delivered: vec![("orders".into(), added.delivered)],
        dead: dead.iter().map(|&(seq, reason)| letter(seq, reason)).collect(),
        blocked: vec![(key("k4"), line)],
        ..Settlement::default()
    };
    desk.settle(0, &settlement);
    desk.healthy();
    desk
}

const ROW: &str = "SELECT first_seq || ' ' || waiting || ' ' || state || ' ' || attempts || coalesce(error, '') FROM litepost_blocked";

#[test]
fn letters_go_back_in_front_of_the_line_that_is_held_behind_them() {
    for reason in [DeadReason::Permanent, DeadReason::Expired, DeadReason::Skipped] {
        let desk = held(&[(5, reason), (15, DeadReason::MaxAge)], waits(25, 1, BlockedState::Held));
        let done = desk.operator().replay_in_order(D, "k4").unwrap();
        assert!(done.put_back);
        assert_eq!(
            done.replayed.iter().map(|one| (one.seq.0, one.replayed_as.0)).collect::<Vec<_>>(),
            [(5, 5), (15, 15)]
        );
        assert_eq!(desk.texts(ROW), ["5 3 releasing 0"]);
        assert_eq!(desk.number("SELECT max(seq) FROM litepost_outbox"), 30, "nothing is written anew");
        assert_eq!(desk.number("SELECT dead + expired + skipped FROM litepost_cursor"), 0);
        assert_eq!(desk.number("SELECT buried FROM litepost_tally"), 0);
        desk.healthy();
        assert!(refused(desk.operator().replay_in_order(D, "k4")).contains("no dead letter with the key k4"));
    }
}

#[test]
fn letters_that_nothing_waits_behind_follow_at_the_end_of_the_log() {
    // The line is held behind another, later failure; it is not held; it holds an event before the letter.
    for line in [waits(15, 2, BlockedState::Backoff), waits(5, 2, BlockedState::Held)] {
        let seq = if line.first == Seq(5) { 25 } else { 5 };
        let desk = held(&[(seq, DeadReason::Permanent)], line.clone());
        let done = desk.operator().replay_in_order(D, "k4").unwrap();
        assert!(!done.put_back);
        assert_eq!(done.replayed[0].replayed_as, Seq(31));
        assert_eq!(desk.number("SELECT waiting FROM litepost_blocked"), line.waiting);
        desk.healthy();
    }
    let desk = held(&[(5, DeadReason::Permanent)], waits(15, 2, BlockedState::Held));
    assert!(refused(desk.operator().replay_in_order(D, "k5")).contains("no dead letter with the key k5"));
    assert!(refused(desk.operator().replay_in_order("shop.none", "k4")).contains("no destination shop.none"));
}

#[test]
fn letters_with_a_settled_event_between_them_or_that_the_log_lost_are_not_put_back() {
    let desk = held(&[(5, DeadReason::Permanent)], waits(25, 1, BlockedState::Held));
    let between = refused(desk.operator().replay_in_order(D, "k4"));
    assert_eq!(between, "event 15 of the same line stands between the dead letters and is settled already");
    let desk = held(&[(5, DeadReason::Permanent), (15, DeadReason::Permanent)], waits(25, 1, BlockedState::Held));
    desk.lose("seq <= 5");
    let gone = refused(desk.operator().replay_in_order(D, "k4"));
    assert_eq!(gone, "event 5 of dead letter 1 is not in the log any more");
    assert_eq!(desk.texts(ROW), ["25 1 held 1no"]);
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead WHERE replayed_at IS NOT NULL"), 0);
}

#[test]
fn with_priority_topics_each_of_the_two_lines_of_a_key_gets_its_own_letters() {
    let split = Split { lanes: 2, priority: TopicFilter::parse(["alarms"]).unwrap(), ..1.into() };
    let mut desk = Desk::new(0, split);
    for topic in ["orders", "alarms", "orders", "alarms"] {
        desk.app.execute("INSERT INTO litepost_outbox (topic, key, payload) VALUES (?1, 'k', '1')", [topic]).unwrap();
    }
    // Lane 1 has the alarms.
    for (lane, topic, dead, waiting) in [(0, "orders", 1, 3), (1, "alarms", 2, 4)] {
        let settlement = Settlement {
            acked: Seq(4),
            added: Counters { dead: 1, unrouted: 2, ..Counters::default() },
            dead: vec![letter(dead, DeadReason::Permanent)],
            blocked: vec![(key("k"), waits(waiting, 1, BlockedState::Held))],
            ..Settlement::default()
        };
        desk.settle(lane, &settlement);
        assert_eq!(desk.texts(&format!("SELECT topic FROM litepost_dead WHERE seq = {dead}")), [topic]);
    }
    desk.healthy();
    let done = desk.operator().replay_in_order(D, "k").unwrap();
    assert!(done.put_back);
    assert_eq!(done.replayed.iter().map(|one| one.replayed_as.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(
        desk.texts("SELECT lane || ' ' || first_seq || ' ' || waiting FROM litepost_blocked ORDER BY lane"),
        ["0 1 2", "1 2 2"]
    );
    desk.healthy();
}
