//! Dead letters by filter: each condition picks what it says, and all of them together.

use litepost::dead::{DeadFilter, list};
use litepost::operate::{Operator, Who};
use litepost_core::Millis;

use crate::support::{file, open};

fn picked(filter: &DeadFilter, path: &std::path::Path) -> Vec<i64> {
    list(&open(path), filter).unwrap().iter().map(|letter| letter.dead_id).collect()
}

#[test]
fn each_condition_picks_what_it_says() {
    let file = file();
    open(&file.path)
        .execute_batch(
            "INSERT INTO litepost_dead (destination, lane, reason, attempts, error_code, dead_at, seq, id, topic, key, type,
               payload, created_at) VALUES
             ('a.x', 0, 'max_attempts', 3, '500', 1000, 1, 'i1', 'orders', 'k', 'Placed', '{}', 0),
             ('a.y', 0, 'max_attempts', 3, '500', 1000, 1, 'i1', 'orders', 'k', 'Placed', '{}', 0),
             ('a.x', 0, 'max_attempts', 3, '500', 1000, 2, 'i2', 'pays', 'k', 'Placed', '{}', 0),
             ('a.x', 0, 'max_attempts', 3, '500', 1000, 3, 'i3', 'orders', 'l', 'Placed', '{}', 0),
             ('a.x', 0, 'max_attempts', 3, '500', 1000, 4, 'i4', 'orders', 'k', 'Paid', '{}', 0),
             ('a.x', 0, 'expired', 0, '500', 1000, 5, 'i5', 'orders', 'k', 'Placed', '{}', 0),
             ('a.x', 0, 'max_attempts', 3, '422', 1000, 6, 'i6', 'orders', 'k', 'Placed', '{}', 0),
             ('a.x', 0, 'max_attempts', 3, '500', 2000, 7, 'i7', 'orders', 'k', 'Placed', '{}', 0)",
        )
        .unwrap();
    let text = |text: &str| Some(text.to_owned());
    let none = DeadFilter::default;
    for (filter, ids) in [
        (none(), vec![1, 2, 3, 4, 5, 6, 7, 8]),
        (DeadFilter { ids: vec![2, 5], ..none() }, vec![2, 5]),
        (DeadFilter { destination: text("a.y"), ..none() }, vec![2]),
        (DeadFilter { topic: text("pays"), ..none() }, vec![3]),
        (DeadFilter { key: text("l"), ..none() }, vec![4]),
        (DeadFilter { kind: text("Paid"), ..none() }, vec![5]),
        (DeadFilter { reason: text("expired"), ..none() }, vec![6]),
        (DeadFilter { error_code: text("422"), ..none() }, vec![7]),
        (DeadFilter { dead_since: Some(Millis(2_000)), ..none() }, vec![8]),
        (DeadFilter { dead_until: Some(Millis(2_000)), ..none() }, vec![1, 2, 3, 4, 5, 6, 7]),
        (DeadFilter { after: 6, ..none() }, vec![7, 8]),
        (DeadFilter { limit: 2, ..none() }, vec![1, 2]),
    ] {
        assert_eq!(picked(&filter, &file.path), ids, "{filter:?}");
    }
    let all = DeadFilter {
        destination: text("a.x"),
        topic: text("orders"),
        key: text("k"),
        kind: text("Placed"),
        reason: text("max_attempts"),
        error_code: text("500"),
        dead_since: Some(Millis(1_000)),
        dead_until: Some(Millis(2_000)),
        ..none()
    };
    assert_eq!(picked(&all, &file.path), [1]);
    // A deed takes the same letters that the list shows.
    let who = Who { actor: "test".into(), reason: None };
    let discard = |dry_run: bool| -> Vec<i64> {
        let mut operator = Operator::open(&file.path, who.clone()).unwrap().dry_run(dry_run);
        operator.discard(&all).unwrap().iter().map(|letter| letter.dead_id).collect()
    };
    assert_eq!(discard(true), [1]);
    assert_eq!(picked(&DeadFilter { done: Some(true), ..none() }, &file.path), [0_i64; 0], "a dry run does nothing");
    assert_eq!(discard(false), [1]);
    assert_eq!(picked(&DeadFilter { done: Some(true), ..none() }, &file.path), [1]);
}
