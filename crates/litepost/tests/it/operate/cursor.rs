//! Skip, holes, rewind, adopt, fast-forward: where a cursor may go, and what the books say then.

use litepost::operate::{Moved, RewindTo, Rewound, Scope};
use litepost_core::pipeline::{BlockedState, Counters, Settlement};
use litepost_core::{DeadReason, Millis, Seq, SeqRanges};

use super::{D, Desk, key, refused, waits};

fn seqs(of: &[i64]) -> Vec<Seq> {
    of.iter().copied().map(Seq).collect()
}

/// Thirty events: 1 to 20 passed, of which 4 and 14 (key `k3`) wait; 25 and 26 settled above.
fn under_way() -> Desk {
    let mut desk = Desk::new(30, 1);
    let mut above = SeqRanges::default();
    above.insert_range(Seq(25), Seq(26));
    let settlement = Settlement {
        acked: Seq(20),
        acked_above: above,
        added: Counters { delivered: 20, ..Counters::default() },
        delivered: vec![("orders".into(), 20)],
        blocked: vec![(key("k3"), waits(4, 2, BlockedState::Backoff))],
        ..Settlement::default()
    };
    desk.settle(0, &settlement);
    desk.healthy();
    desk
}

#[test]
fn what_is_settled_is_not_skipped_and_what_is_open_is_marked_once() {
    let desk = under_way();
    for settled in [3, 5, 20, 25, 26] {
        let said = refused(desk.operator().skip(D, &[Seq(21), Seq(settled)]));
        assert_eq!(said, format!("shop.audit has settled event {settled} already"));
    }
    assert_eq!(desk.number("SELECT count(*) FROM litepost_skip"), 0, "all or nothing");
    assert_eq!(refused(desk.operator().skip(D, &[Seq(31)])), "event 31 is not in the log, which holds 1 to 30");
    assert_eq!(refused(desk.operator().skip(D, &[Seq(0)])), "event 0 is not in the log, which holds 1 to 30");
    let open = seqs(&[4, 14, 21, 24, 27, 30]);
    assert_eq!(desk.operator().skip(D, &open).unwrap(), open);
    assert_eq!(desk.operator().skip(D, &open).unwrap(), []);
    assert_eq!(desk.operator().skip_all(D, &Scope::Key("k3".into())).unwrap(), []);
    assert_eq!(desk.operator().skip_all(D, &Scope::Key("k1".into())).unwrap(), seqs(&[22]));
    assert_eq!(desk.operator().skip_all(D, &Scope::Topic("other".into())).unwrap(), []);
    assert_eq!(desk.operator().skip_all(D, &Scope::Destination).unwrap(), seqs(&[23, 28, 29]));
    let empty = Desk::new(0, 1);
    assert_eq!(refused(empty.operator().skip(D, &[Seq(1)])), "event 1 is not in the log, which is empty");
}

#[test]
fn with_lanes_an_event_is_open_for_its_own_lane_alone() {
    let mut desk = Desk::new(10, 2);
    // Lane 0 has looked at everything, lane 1 at nothing.
    let unrouted = i64::try_from((1..=10).filter(|n| lane_of(*n) == 1).count()).unwrap();
    assert!((1..10).contains(&unrouted), "both lanes have keys");
    let added = Counters { delivered: 10 - unrouted, unrouted, ..Counters::default() };
    let delivered = vec![("orders".into(), 10 - unrouted)];
    desk.settle(0, &Settlement { acked: Seq(10), added, delivered, ..Settlement::default() });
    let of = |lane| (1..=10).filter(|n| lane_of(*n) == lane).map(Seq).collect::<Vec<_>>();
    assert_eq!(desk.operator().skip_all(D, &Scope::Destination).unwrap(), of(1));
    assert!(refused(desk.operator().skip(D, &of(0)[..1])).contains("has settled event"));
}

fn lane_of(seq: i64) -> u32 {
    let split = litepost::lanes::Split::from(2);
    let mut event = litepost_core::Event::new(Seq(seq), "", "orders", "{}");
    event.key = Some(format!("k{}", (seq - 1) % 10).as_str().into());
    split.lane_of(&event)
}

#[test]
fn holes_are_accepted_by_name_and_only_where_they_are() {
    let mut desk = Desk::new(12, 1);
    assert!(refused(desk.operator().accept_holes(D)).contains("nothing is missing from the log"));
    desk.delivered(2, &[]);
    desk.lose("seq IN (1, 3, 4, 8)");
    let found = desk.operator().accept_holes(D).unwrap();
    assert_eq!(found, [(Seq(3), Seq(4)), (Seq(8), Seq(8))]);
    let rows =
        "SELECT first_seq || '-' || last_seq || ' ' || actor || ' ' || reason FROM litepost_hole ORDER BY first_seq";
    assert_eq!(desk.texts(rows), ["3-4 ann why", "8-8 ann why"]);
    // A hole that has grown is accepted again, as a whole.
    desk.lose("seq = 5");
    assert_eq!(desk.operator().accept_holes(D).unwrap()[0], (Seq(3), Seq(5)));
    assert_eq!(desk.texts(rows)[0], "3-5 ann why");
}

#[test]
fn a_rewind_goes_back_to_an_event_of_the_log_and_the_books_follow() {
    let desk = under_way();
    assert_eq!(refused(desk.operator().rewind(D, RewindTo::Seq(Seq(31)))), "the log ends at event 30");
    let waits = refused(desk.operator().rewind(D, RewindTo::Seq(Seq(5))));
    assert_eq!(waits, "event 4 (line k3) is behind event 5 and still waits");
    let far = RewindTo::Time(Millis(i64::MAX));
    assert!(refused(desk.operator().rewind(D, far)).contains("no event in the log was written at or after"));
    let back = Rewound { first: Seq(4), from: Seq(26), events: 23, reapplied: false };
    assert_eq!(desk.operator().dry_run(true).rewind(D, RewindTo::Seq(Seq(4))).unwrap(), back);
    assert_eq!(desk.number("SELECT acked FROM litepost_cursor"), 20);
    assert_eq!(desk.operator().rewind(D, RewindTo::Seq(Seq(4))).unwrap(), back);
    assert_eq!(desk.texts("SELECT acked || acked_above FROM litepost_cursor"), ["3"]);
    assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked"), 0, "its lines are read again");
    assert_eq!(desk.number("SELECT again FROM litepost_tally"), 23);
    desk.healthy();
    // To where it is, and to the end: nothing is looked at again.
    for (to, events) in [(4, 0), (30, 0)] {
        let stays = desk.operator().rewind(D, RewindTo::Seq(Seq(to))).unwrap();
        assert_eq!((stays.first, stays.events), (Seq(to), events));
        assert_eq!(desk.number("SELECT acked FROM litepost_cursor"), 3);
    }
    desk.healthy();
    desk.lose("seq < 3");
    let gone = refused(desk.operator().rewind(D, RewindTo::Seq(Seq(2))));
    assert_eq!(gone, "event 2 has been pruned; the oldest one in the log is 3");
    assert_eq!(desk.operator().rewind(D, RewindTo::Seq(Seq(3))).unwrap().first, Seq(3));
    assert_eq!(desk.operator().rewind(D, RewindTo::Time(Millis(0))).unwrap().first, Seq(3), "the oldest");
    assert_eq!(refused(Desk::new(0, 1).operator().rewind(D, RewindTo::Seq(Seq(1)))), "the log is empty");
    assert!(desk.audit().iter().all(|deed| deed == "ann rewind shop.audit why") && desk.audit().len() == 5);
}

#[test]
fn a_ledger_is_applied_again_only_when_asked_for_and_begins_anew() {
    let mut desk = Desk::new(10, 2);
    desk.store.note_ledger(D, true).unwrap();
    let lane = |acked| Settlement {
        acked: Seq(acked),
        reached: Seq(acked),
        added: Counters { delivered: acked, ..Counters::default() },
        delivered: vec![("orders".into(), acked)],
        ..Settlement::default()
    };
    desk.settle(0, &lane(9));
    desk.settle(1, &lane(5));
    assert!(refused(desk.operator().rewind(D, RewindTo::Seq(Seq(3)))).contains("applies every event exactly once"));
    let mut operator = desk.operator().reapply(true);
    assert_eq!(
        refused(operator.rewind(D, RewindTo::Seq(Seq(7)))),
        "lane 1 is at event 5 itself: that is no way back for it"
    );
    let done = operator.rewind(D, RewindTo::Seq(Seq(6))).unwrap();
    assert_eq!(done, Rewound { first: Seq(6), from: Seq(9), events: 4, reapplied: true });
    assert_eq!(
        desk.texts("SELECT acked || ' ' || generation || ' ' || reached FROM litepost_cursor"),
        ["5 1 0", "5 1 0"]
    );
    let splits =
        "SELECT generation || ' ' || lanes || ' ' || counts || ' ' || newest FROM litepost_split ORDER BY generation";
    assert_eq!(desk.texts(splits), ["0 2 0 10"]);
    operator.rewind(D, RewindTo::Seq(Seq(2))).unwrap();
    assert_eq!(desk.texts(splits), ["0 2 0 10", "1 2 0 10"]);
    // Of a destination without a ledger nothing of the kind is kept.
    let plain = under_way();
    assert!(!plain.operator().reapply(true).rewind(D, RewindTo::Seq(Seq(4))).unwrap().reapplied);
    assert_eq!(plain.number("SELECT count(*) FROM litepost_split"), 0);
}

#[test]
fn adopt_moves_only_what_is_beyond_the_log_and_makes_the_file_another_one() {
    let mut desk = under_way();
    desk.store.register("shop.beyond", 1, litepost::lanes::Start::Earliest).unwrap();
    desk.app
        .execute_batch(
            "UPDATE litepost_cursor SET acked = 40, delivered = 40, reached = 40 WHERE destination = 'shop.beyond';
             INSERT INTO litepost_tally (destination, topic, delivered) VALUES ('shop.beyond', 'orders', 40);
             INSERT INTO litepost_receipt VALUES ('shop.beyond', 0, 1, 30, 1, 1, 1, '', 1, 1), ('shop.beyond', 0, 31, 40, 1, 1, 1, '', 1, 1);
             INSERT INTO litepost_split VALUES ('shop.audit', 0, 1, 'key', '', 1, 1, 1)",
        )
        .unwrap();
    let was = desk.texts("SELECT value FROM litepost_meta WHERE name = 'incarnation'");
    let lease = desk.acquire(0, 20);
    let mut patient = desk.operator().patience(std::time::Duration::from_secs(60));
    let done = patient.adopt().unwrap();
    let moved = |from, to, taken| Moved {
        destination: "shop.beyond".into(),
        lane: 0,
        from: Seq(from),
        to: Seq(to),
        taken_for_delivered: taken,
    };
    assert_eq!((done.epoch, done.lanes), (2, vec![moved(40, 30, 0)]));
    assert!(!desk.store.renew(&lease).unwrap(), "whoever delivered before stops");
    assert_ne!(desk.texts("SELECT value FROM litepost_meta WHERE name = 'incarnation'"), was);
    assert_eq!(
        desk.texts("SELECT acked || ' ' || reached FROM litepost_cursor ORDER BY destination"),
        ["20 0", "30 0"]
    );
    assert_eq!(desk.number("SELECT count(*) FROM litepost_split"), 0);
    assert_eq!(desk.texts("SELECT CAST(last_seq AS TEXT) FROM litepost_receipt"), ["30"], "what the log does not hold");
    assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked"), 1, "what waits still does");
    assert_eq!(desk.operator().adopt().unwrap().epoch, 3);
}

#[test]
fn fast_forward_takes_what_is_pending_for_delivered_and_goes_neither_back_nor_beyond() {
    let mut desk = under_way();
    desk.store.register("shop.other", 1, litepost::lanes::Start::Earliest).unwrap();
    assert_eq!(
        refused(desk.operator().fast_forward(Some("shop.none"), None)),
        "this file knows no destination shop.none"
    );
    let to = |desk: &Desk, to| desk.operator().fast_forward(Some(D), Some(Seq(to)));
    assert_eq!(refused(to(&desk, 31)), "the cursor cannot be moved to 31: it must be between 26 and 30");
    assert_eq!(refused(to(&desk, 25)), "the cursor cannot be moved to 25: it must be between 26 and 30");
    let done = to(&desk, 26).unwrap();
    // Of 26 positions 20 were delivered before; the other six were pending or waiting.
    let moved =
        |to, taken| Moved { destination: D.into(), lane: 0, from: Seq(20), to: Seq(to), taken_for_delivered: taken };
    assert_eq!((done.epoch, done.lanes), (2, vec![moved(26, 6)]));
    assert_eq!(
        desk.texts("SELECT acked || acked_above || ' ' || delivered FROM litepost_cursor ORDER BY destination"),
        ["26 26", "0 0"]
    );
    assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked"), 0);
    desk.healthy();
    let all = desk.operator().fast_forward(None, None).unwrap();
    let taken: Vec<(i64, i64)> = all.lanes.iter().map(|lane| (lane.to.0, lane.taken_for_delivered)).collect();
    assert_eq!(taken, [(30, 4), (30, 30)]);
    assert_eq!(desk.operator().fast_forward(None, Some(Seq(30))).unwrap().lanes.len(), 2, "it may stay where it is");
    desk.healthy();
    assert_eq!(desk.audit().last().unwrap(), "ann fast-forward - why");
}

#[test]
fn from_a_copy_nobody_delivers_so_that_nobody_is_waited_for() {
    let mut desk = under_way();
    litepost::incarnation::claim(&mut desk.app, &desk.file.path).unwrap();
    let lease = desk.acquire(0, 600_000);
    assert!(refused(desk.operator().adopt()).contains("is held by"));
    desk.app.execute_batch("UPDATE litepost_meta SET value = '0:0' WHERE name = 'file_mark'").unwrap();
    assert_eq!(desk.operator().adopt().unwrap().epoch, 2);
    assert!(!desk.store.renew(&lease).unwrap());
    litepost::incarnation::claim(&mut desk.app, &desk.file.path).unwrap();
    let marked = litepost::incarnation::marked(&desk.app, &desk.file.path).unwrap();
    assert_eq!(marked, litepost::incarnation::Marked::Same, "it carries its own mark now");
}

#[test]
fn what_is_counted_as_dead_stays_so_when_the_cursor_is_set() {
    let mut desk = Desk::new(30, 1);
    desk.delivered(10, &[(2, DeadReason::Permanent), (3, DeadReason::Expired), (4, DeadReason::Skipped)]);
    let done = desk.operator().fast_forward(Some(D), Some(Seq(20))).unwrap();
    assert_eq!(done.lanes[0].taken_for_delivered, 10);
    let books = "SELECT delivered || ' ' || dead || ' ' || expired || ' ' || skipped || ' ' || start_after FROM litepost_cursor";
    assert_eq!(desk.texts(books), ["17 1 1 1 0"]);
    desk.healthy();
}
