//! What relays ask each other for, and what registering a destination leaves alone.

use litepost::lanes::{Acquire, Beat, LaneStore, Lease, LeaseClaim, Start, Wish};
use litepost_core::Seq;
use litepost_core::pipeline::Settlement;

use crate::support::{file, fill, open};

const D: &str = "shop.audit";

fn claim(owner: &str) -> LeaseClaim {
    LeaseClaim { owner: owner.into(), holder_json: format!("{{\"host\":\"{owner}\"}}"), lease_ms: 70 }
}

fn granted(answer: Acquire) -> Lease {
    match answer {
        Acquire::Granted(lease) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn a_relay_with_fewer_lanes_asks_for_one_at_a_time_until_all_have_as_many() {
    let file = file();
    let mut store = LaneStore::open(&file.path).unwrap();
    store.register(D, 4, Start::Earliest).unwrap();
    store.register("shop.other", 4, Start::Earliest).unwrap();
    let mut leases: Vec<Lease> =
        (0..4).map(|lane| granted(store.acquire(D, lane, &claim("a"), None).unwrap())).collect();
    let ask = |store: &mut LaneStore, owner: &str, lane| store.ask_for_share(D, lane, &claim(owner)).unwrap();
    assert!(!ask(&mut store, "a", 3), "nobody else has any");
    assert!(!ask(&mut store, "b", 0) && !ask(&mut store, "b", 2), "the last one is given away first");
    assert_eq!(wishes(&file.path), []);
    assert!(ask(&mut store, "b", 3) && ask(&mut store, "b", 3), "asked for, and still");
    assert!(!ask(&mut store, "b", 2) && !ask(&mut store, "c", 3) && !ask(&mut store, "c", 2), "one at a time");
    assert_eq!(wishes(&file.path), [(3, "b".to_owned())]);
    // Of another destination nobody has a lane: there is nothing to ask for.
    assert!(!store.ask_for_share("shop.other", 3, &claim("b")).unwrap());
    assert!(store.renew(&leases[3]).unwrap(), "a wish takes nothing");
    assert!(store.release(&leases.pop().unwrap()).unwrap());
    let wish = match store.acquire(D, 3, &claim("c"), None).unwrap() {
        Acquire::WantedBy(wish) => wish,
        other => panic!("{other:?}"),
    };
    let expected =
        Wish { destination: D.into(), lane: 3, nonce: "b".into(), holder: "{\"host\":\"b\"}".into(), patience_ms: 70 };
    assert_eq!(wish, expected);
    granted(store.acquire(D, 3, &claim("b"), None).unwrap());
    assert_eq!(wishes(&file.path), []);
    assert!(!store.lapse(&wish).unwrap(), "it is gone");
    // Three and one: one more goes. Two and two: none.
    assert!(!ask(&mut store, "b", 1) && ask(&mut store, "b", 2));
    assert!(!store.lapse(&wish).unwrap(), "another's wish stays");
    assert!(store.release(&leases.pop().unwrap()).unwrap());
    granted(store.acquire(D, 2, &claim("b"), None).unwrap());
    assert!((0..4).all(|lane| !ask(&mut store, "b", lane) && !ask(&mut store, "a", lane)));
    // A third has none yet.
    assert!(ask(&mut store, "c", 3) || ask(&mut store, "c", 1));
    let (lane, nonce) = wishes(&file.path).remove(0);
    assert_eq!(nonce, "c");
    let wish = Wish { lane, nonce, ..wish };
    assert!(store.lapse(&wish).unwrap() && !store.lapse(&wish).unwrap(), "once");
}

fn wishes(path: &std::path::Path) -> Vec<(u32, String)> {
    let app = open(path);
    let mut rows = app.prepare("SELECT lane, nonce FROM litepost_wanted ORDER BY lane").unwrap();
    rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_pulse_is_the_same_only_when_token_and_beat_are() {
    let beat = Beat { token: 3, beat: 8, lease_ms: 1, owner: "a".into(), holder: None };
    assert!(beat.is_same(&Beat { lease_ms: 2, owner: "b".into(), ..beat.clone() }));
    assert!(!beat.is_same(&Beat { token: 4, ..beat.clone() }) && !beat.is_same(&Beat { beat: 9, ..beat.clone() }));
}

#[test]
fn registering_makes_what_is_missing_and_leaves_what_is_there() {
    let file = file();
    fill(&file.path, 30);
    let mut store = LaneStore::open(&file.path).unwrap();
    for lanes in [0, 1_025] {
        assert_eq!(
            store.register("shop.x", lanes, Start::Now).unwrap_err().to_string(),
            "lanes must be between 1 and 1024"
        );
    }
    store.register("shop.x", 1_024, Start::Now).unwrap();
    store.register(D, 3, Start::Earliest).unwrap();
    let lease = granted(store.acquire(D, 0, &claim("a"), None).unwrap());
    let settlement = Settlement { acked: Seq(9), ..Settlement::default() };
    store.settle(&[(&lease, &settlement)], litepost_core::Millis(1)).unwrap();
    let app = open(&file.path);
    let rows = || -> Vec<String> {
        let sql = "SELECT lane || ' ' || start_after || ' ' || acked || ' ' || ledger FROM litepost_cursor \
                   WHERE destination = 'shop.audit' ORDER BY lane";
        let mut statement = app.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(rows(), ["0 0 9 0", "1 0 0 0", "2 0 0 0"]);
    app.execute_batch("DELETE FROM litepost_cursor WHERE destination = 'shop.audit' AND lane = 1").unwrap();
    // From its beginning on, whatever is asked for now: rather twice than never.
    store.register(D, 3, Start::Now).unwrap();
    assert_eq!(rows(), ["0 0 9 0", "1 0 0 0", "2 0 0 0"]);
    store.note_ledger(D, true).unwrap();
    assert_eq!(rows(), ["0 0 9 1", "1 0 0 1", "2 0 0 1"]);
    store.note_ledger(D, true).unwrap();
    store.note_ledger("shop.x", false).unwrap();
    assert_eq!(rows(), ["0 0 9 1", "1 0 0 1", "2 0 0 1"]);
    store.note_ledger(D, false).unwrap();
    assert_eq!(rows(), ["0 0 9 0", "1 0 0 0", "2 0 0 0"]);
    assert_eq!(
        app.query_row("SELECT max(start_after) FROM litepost_cursor", [], |row| row.get::<_, i64>(0)).unwrap(),
        30
    );
}
