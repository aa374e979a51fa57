//! Lanes are taken from whoever delivers, politely: a wish, patience, force; and never from a relay that is alive.

use std::time::Duration;

use litepost::StoreError;
use litepost::lanes::{Acquire, LaneStore, LeaseClaim};
use litepost::operate::{Scope, audit_trail};

use super::{D, Desk, refused};

const LONG_MS: i64 = 600_000;

#[test]
fn a_lane_that_is_not_handed_over_is_left_alone_unless_it_is_taken_by_force() {
    let mut desk = Desk::new(5, 2);
    let lease = desk.acquire(1, LONG_MS);
    let held = desk.operator().pause(D, &Scope::Destination).unwrap_err();
    assert!(
        matches!(&held, StoreError::LaneHeld { lane: 1, destination, by } if destination == D && by.contains("elsewhere")),
        "{held}"
    );
    assert_eq!(desk.number("SELECT count(*) FROM litepost_wanted"), 0, "the wish is taken back");
    assert_eq!(desk.number("SELECT count(*) FROM litepost_pause"), 0);
    assert!(desk.store.renew(&lease).unwrap(), "the relay still has it");
    assert!(desk.operator().force(true).pause(D, &Scope::Destination).unwrap());
    assert!(!desk.store.renew(&lease).unwrap(), "its token is gone");
    let trail = audit_trail(&desk.app, Some(D), 9).unwrap();
    assert_eq!(trail.len(), 1);
    assert_eq!(trail[0].detail["taken_by_force"], 1, "one of the two lanes was held");
    // With nobody there, force is no force.
    desk.operator().force(true).resume(D, &Scope::Destination).unwrap();
    assert!(audit_trail(&desk.app, None, 9).unwrap()[1].detail.get("taken_by_force").is_none());
    assert_eq!(audit_trail(&desk.app, None, 1).unwrap()[0].action, "resume", "the newest");
    assert_eq!(audit_trail(&desk.app, Some("shop.other"), 9).unwrap(), []);
}

#[test]
fn a_pulse_that_stands_still_for_its_lease_time_is_nobody_and_one_that_beats_is_waited_for() {
    let mut desk = Desk::new(5, 1);
    let still = desk.acquire(0, 20);
    let mut patient = desk.operator().patience(Duration::from_secs(60));
    assert!(patient.pause(D, &Scope::Destination).unwrap());
    assert!(!desk.store.renew(&still).unwrap());
    assert_eq!(desk.number("SELECT token FROM litepost_cursor"), still.token + 1);
    desk.operator().resume(D, &Scope::Destination).unwrap();

    // A relay that beats, sees the wish and gives the lane back.
    let lease = desk.acquire(0, 200);
    let path = desk.file.path.clone();
    let relay = std::thread::spawn(move || {
        let mut store = LaneStore::open(&path).unwrap();
        let app = crate::support::open(&path);
        let wishes = || -> i64 { app.query_row("SELECT count(*) FROM litepost_wanted", [], |row| row.get(0)).unwrap() };
        while wishes() == 0 {
            assert!(store.renew(&lease).unwrap(), "it was taken from a relay that lives");
            std::thread::sleep(Duration::from_millis(2));
        }
        // As long as its lease is, and longer: it still has to settle what is in flight.
        for _ in 0..200 {
            assert!(store.renew(&lease).unwrap(), "it was taken from a relay that lives");
            std::thread::sleep(Duration::from_millis(2));
        }
        let claim = LeaseClaim { owner: "other".into(), holder_json: "{}".into(), lease_ms: LONG_MS };
        assert!(store.release(&lease).unwrap());
        let next = store.acquire(D, 0, &claim, None).unwrap();
        assert!(!matches!(next, Acquire::Granted(_)), "what an operator asks for is not for another relay: {next:?}");
    });
    assert!(patient.pause(D, &Scope::Key("k1".into())).unwrap());
    relay.join().unwrap();
    assert_eq!(desk.number("SELECT count(*) FROM litepost_wanted"), 0);
    assert_eq!(desk.texts("SELECT owner FROM litepost_cursor WHERE owner IS NOT NULL"), [""; 0]);
}

#[test]
fn the_wish_of_another_stays_and_a_dry_run_asks_for_nothing() {
    let mut desk = Desk::new(5, 2);
    let lease = desk.acquire(0, LONG_MS);
    desk.app.execute_batch("INSERT INTO litepost_wanted VALUES ('shop.audit', 0, 'other', '{}', 60000)").unwrap();
    assert!(desk.operator().dry_run(true).pause(D, &Scope::Destination).unwrap(), "it would be");
    assert_eq!(desk.number("SELECT count(*) FROM litepost_pause"), 0);
    assert_eq!(desk.audit(), [""; 0]);
    assert!(desk.store.renew(&lease).unwrap());
    assert!(refused(desk.operator().pause(D, &Scope::Destination)).contains("is held by"));
    assert_eq!(desk.texts("SELECT lane || nonce FROM litepost_wanted"), ["0other"]);
    assert_eq!(
        refused(desk.operator().pause("shop.none", &Scope::Destination)),
        "this file knows no destination shop.none"
    );
    assert_eq!(
        refused(desk.operator().dry_run(true).pause("shop.none", &Scope::Destination)),
        "this file knows no destination shop.none"
    );
}
