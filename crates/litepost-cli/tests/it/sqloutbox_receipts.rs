//! sqloutbox's sync log as receipts: brought over whatever is killed, shown, verified, kept as long as others, and no obstacle
//! to finding what is lost.

use std::process::Stdio;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::Value;

use crate::sqloutbox::{number, written};
use crate::support::Place;

const IMPORT: [&str; 5] = ["import", "--from", "data", "--config", "litepost.toml"];

/// What a sync log says, as the receipts must say it: number and time, milliseconds since the Unix epoch.
fn lines(db: &Connection) -> Vec<(i64, i64)> {
    let sql = "SELECT seq, CAST(round((julianday(synced_at) - 2440587.5) * 86400000.0) AS INTEGER) FROM outbox_sync_log \
               ORDER BY seq";
    let mut statement = db.prepare(sql).unwrap();
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
}

/// Days of deliveries, more than one transaction takes over.
fn many(db: &Connection) {
    db.execute_batch(
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 29999)
         INSERT INTO outbox_sync_log SELECT 1000000 + i, 'orders',
           strftime('%Y-%m-%dT%H:%M:%S+00:00', 'now', '-' || (172800 - i) || ' seconds') FROM n;
         DELETE FROM outbox_sync_log WHERE seq = 1020000",
    )
    .unwrap();
}

#[test]
fn every_line_becomes_part_of_one_receipt_whatever_is_killed() {
    for version in ["0.3", "0.6"] {
        let place = Place::new();
        let told = written(&place, version);
        let orders = place.path("data/orders.db");
        let db = Connection::open(&orders).unwrap();
        many(&db);
        let before = lines(&db);
        assert!(before.len() > 30_000, "{version}");
        let mut kills = 0;
        for wait_ms in [15, 20, 25, 30, 40, 50] {
            let mut child = place.command(&IMPORT).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(wait_ms));
            let _ = child.kill();
            kills += u32::from(!child.wait().unwrap().success());
        }
        let part = number(&orders, "SELECT count(*) FROM outbox_sync_log");
        place.good(&IMPORT);
        assert!(kills > 0 && part > 0, "{version}: {kills} kills, {part} lines were left");
        for (seq, at) in &before {
            let sql = "SELECT count(*) FROM litepost_receipt_imported WHERE ?1 BETWEEN first_seq AND last_seq \
                       AND ?2 BETWEEN first_at - 1 AND last_at + 1 AND namespace = 'orders' AND destination = 'shop.warehouse'";
            let found: i64 = db.query_row(sql, [seq, at], |row| row.get(0)).unwrap();
            assert_eq!(found, 1, "{version}: {seq} of {at}");
        }
        // Nothing beside them and the rows that sqloutbox had delivered and not deleted.
        let all = number(&orders, "SELECT sum(events) FROM litepost_receipt_imported");
        let leftovers = told["leftovers"].as_i64().unwrap();
        assert_eq!(all, i64::try_from(before.len()).unwrap() + leftovers, "{version}");
        assert_eq!(number(&orders, "SELECT count(*) FROM outbox_sync_log"), 0, "{version}");
        let largest = "SELECT max(events) FROM litepost_receipt_imported";
        let longest = "SELECT max(last_at - first_at) FROM litepost_receipt_imported";
        assert!(number(&orders, largest) <= 10_000 && number(&orders, longest) <= 3_600_000, "{version}");
        // What was moved has no receipt of a delivery.
        let moved = "SELECT count(*) FROM litepost_outbox AS e JOIN litepost_receipt_imported AS r \
                     ON e.headers ->> '$.sqloutbox-seq' BETWEEN r.first_seq AND r.last_seq";
        assert_eq!(number(&orders, moved), 0, "{version}");
        assert_eq!(number(&orders, "SELECT count(*) FROM litepost_meta WHERE name LIKE 'sqloutbox_kept%'"), 0);
        place.good(&["run", "--config", "litepost.toml", "--until-idle"]);
        let verified = place.good(&["verify", "--config", "litepost.toml", "--json"]);
        let verified: Value = serde_json::from_str(&verified).unwrap();
        assert!(verified["databases"][0]["imported_receipts"].as_i64().unwrap() > 8, "{verified:#}");
        assert!(place.good(&["verify", "--config", "litepost.toml"]).contains(" receipts of sqloutbox's"));
    }
}

#[test]
fn a_receipt_is_shown_verified_and_kept_as_long_as_others() {
    let place = Place::new();
    written(&place, "0.6");
    let orders = place.path("data/orders.db");
    let db = Connection::open(&orders).unwrap();
    let (seq, _) = lines(&db)[0];
    place.good(&["run", "--config", "litepost.toml", "--until-idle"]);
    let asked = seq.to_string();
    let ask = ["where", "-c", "litepost.toml", "--namespace", "orders", "--seq", &asked];
    let told = place.good(&ask);
    assert!(told.contains("delivered by sqloutbox to what is shop.warehouse now; receipt of its rows "), "{told}");
    assert!(told.contains(", imported without a digest"), "{told}");
    let found: Value = serde_json::from_str(&place.good(&[&ask[..], &["--json"]].concat())).unwrap();
    let receipt = &found["sightings"][0]["receipt"];
    assert_eq!(receipt["destination"], "shop.warehouse", "{found}");
    assert!(receipt["first"].as_i64().unwrap() <= seq && receipt["last"].as_i64().unwrap() >= seq, "{found}");

    let finds = |damage: &str, repair: &str, words: &str| {
        db.execute_batch(damage).unwrap();
        let answer = place.litepost(&["verify", "--config", "litepost.toml"]);
        assert!(answer.code == 1 && answer.stdout.contains(words), "{damage}: {answer:#?}");
        db.execute_batch(repair).unwrap();
        place.good(&["verify", "--config", "litepost.toml"]);
    };
    let (count, recount) = (
        "UPDATE litepost_receipt_imported SET events = events + 1",
        "UPDATE litepost_receipt_imported SET events = events - 1",
    );
    finds(count, recount, "is not as it was brought over");
    let overlap = "INSERT INTO litepost_receipt_imported SELECT last_seq + 1000, last_seq + 1001, namespace, '', 2, 1, 1 \
                   FROM litepost_receipt_imported UNION ALL SELECT last_seq + 1001, last_seq + 1001, namespace, '', 1, 1, 1 \
                   FROM litepost_receipt_imported ORDER BY 1 LIMIT 2";
    finds(overlap, "DELETE FROM litepost_receipt_imported WHERE last_at = 1", "is not as it was brought over");
    // No destination takes that table, so the row stays where it is.
    let waits = "INSERT INTO litepost_receipt_imported VALUES (9000, 9000, 'others', '', 1, 1, 1);
                 INSERT INTO outbox_queue (seq, created_at, namespace, tag, payload) VALUES (9000, '2026-01-01', 'others', '', '[]')";
    let gone =
        "DELETE FROM litepost_receipt_imported WHERE first_seq = 9000; DELETE FROM outbox_queue WHERE seq = 9000";
    finds(waits, gone, "row 9000 of \"others\" waits in its queue, and a receipt says that it was delivered");

    for (days, stays) in [(29, true), (31, false)] {
        let age = format!(
            "UPDATE litepost_receipt_imported SET last_at = (unixepoch() - {days} * 86400) * 1000, first_at = 0"
        );
        db.execute_batch(&age).unwrap();
        place.good(&["prune", "--config", "litepost.toml"]);
        assert_eq!(number(&orders, "SELECT count(*) FROM litepost_receipt_imported") > 0, stays, "{days} days");
    }
    place.bad(1, &ask);
}

#[test]
fn a_loss_is_told_from_what_was_pruned_by_the_receipts_too() {
    let place = Place::new();
    written(&place, "0.6");
    let orders = place.path("data/orders.db");
    place.good(&IMPORT);
    let db = Connection::open(&orders).unwrap();
    assert_eq!(number(&orders, "SELECT count(*) FROM outbox_sync_log"), 0, "nothing but receipts is left");
    let delivered = number(&orders, "SELECT max(last_seq) FROM litepost_receipt_imported");
    let push = |seq: i64, prev: i64| {
        let sql = "INSERT INTO outbox_queue (seq, created_at, namespace, tag, payload, prev_seq) \
                   VALUES (?1, '2026-01-01T00:00:00+00:00', 'orders', 'INSERT INTO orders (n) VALUES (1)', '[]', ?2)";
        db.execute(sql, [seq, prev]).unwrap();
    };
    // One whose predecessor has a receipt, and one whose predecessor is nowhere.
    push(9_001, delivered);
    place.good(&IMPORT);
    push(9_010, 9_008);
    let answer = place.litepost(&[&IMPORT[..], &["--json"]].concat());
    let report: Value = serde_json::from_str(&answer.stdout).unwrap();
    let finding = &report["files"][0]["findings"][0];
    assert_eq!(
        (answer.code, &finding["kind"], &finding["prev_seq"]),
        (1, &"missing".into(), &9_008.into()),
        "{report}"
    );
}

#[test]
fn lines_that_a_waiting_row_needs_stay_and_none_of_them_is_taken_for_a_delivery() {
    let place = Place::new();
    written(&place, "0.6");
    let orders = place.path("data/orders.db");
    let db = Connection::open(&orders).unwrap();
    place.good(&IMPORT);
    // A table that no destination takes waits behind a row that is moved, and names it.
    let push = "INSERT INTO outbox_queue (seq, created_at, namespace, tag, payload, prev_seq) VALUES \
                (9000, '2026-01-01', 'orders', 'INSERT INTO orders (n) VALUES (2)', '[]', NULL), \
                (9001, '2026-01-01', 'others', 'INSERT INTO others (n) VALUES (2)', '[]', 9000)";
    db.execute_batch(push).unwrap();
    place.litepost(&IMPORT);
    assert_eq!(number(&orders, "SELECT count(*) FROM outbox_sync_log WHERE seq = 9000"), 1);
    let ask = ["where", "-c", "litepost.toml", "--namespace", "orders", "--seq", "9000", "--json"];
    let places = || -> Vec<String> {
        let found: Value = serde_json::from_str(&place.litepost(&ask).stdout).unwrap();
        let all = found["sightings"].as_array().unwrap().iter();
        all.map(|one| one["place"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(places(), ["moved"]);
    place.good(&["run", "--config", "litepost.toml", "--until-idle"]);
    db.execute_batch("DELETE FROM outbox_queue").unwrap();
    place.good(&IMPORT);
    assert_eq!(number(&orders, "SELECT count(*) FROM outbox_sync_log"), 0);
    let told = "SELECT count(*) FROM litepost_receipt_imported WHERE last_seq >= 9000";
    assert_eq!(number(&orders, told), 0, "it was moved, and is no delivery of sqloutbox's");
    assert!(places() == ["moved"] || places().is_empty(), "{:?}", places());
}
