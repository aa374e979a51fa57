//! The view's queries and the guards: what must be a search is one, by SQLite's own plan. What the crate itself runs is
//! explained beside its code.

use litepost::views;
use rusqlite::Connection;

use crate::support::{file, open};

/// The plan of `sql`, one step a line.
fn plan(db: &Connection, sql: &str) -> Vec<String> {
    let mut statement = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    // Parameters stay unbound: the plan does not depend on them.
    let mut steps = statement.raw_query();
    let mut plan = Vec::new();
    while let Some(step) = steps.next().unwrap() {
        plan.push(step.get(3).unwrap());
    }
    plan
}

fn no_scan_of(db: &Connection, sql: &str, tables: &[&str]) {
    let steps = plan(db, sql);
    for step in &steps {
        let scans = step.strip_prefix("SCAN ").is_some_and(|rest| {
            tables.iter().any(|table| rest.split(' ').next() == Some(table)) && !rest.contains("COVERING INDEX")
        });
        assert!(!scans, "{sql}\n{}", steps.join("\n"));
    }
    assert!(!steps.iter().any(|step| step.contains("AUTOMATIC")), "{sql}\n{}", steps.join("\n"));
}

#[test]
fn the_guards_of_the_log_search() {
    let file = file();
    let db = open(&file.path);
    // EXPLAIN QUERY PLAN of a statement shows its triggers' queries, too.
    for sql in
        ["DELETE FROM litepost_outbox WHERE seq = 5", "INSERT INTO litepost_outbox (topic, payload) VALUES ('t', 'p')"]
    {
        no_scan_of(&db, sql, &["litepost_outbox", "litepost_dead", "litepost_receipt"]);
    }
}

const BY_STATUS: &str = "SELECT Status, COUNT(*) AS EventCount FROM OutboxEvents GROUP BY Status";
const DELAYED: &str = "SELECT EventID, EventType, CreatedAt, AttemptCount, LastError FROM OutboxEvents \
    WHERE Status = 'pending' AND NextAttemptAt <= :now ORDER BY CreatedAt LIMIT 20";

#[test]
fn the_patterns_monitoring_queries_answer() {
    let file = file();
    let mut db = open(&file.path);
    views::create(&mut db).unwrap();
    views::create(&mut db).unwrap();
    let statuses = |db: &Connection| -> Vec<(String, i64)> {
        let mut statement = db.prepare(BY_STATUS).unwrap();
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    db.execute_batch(
        "INSERT INTO litepost_outbox (topic, key, type, payload, created_at)
           WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10)
           SELECT 'orders', 'k' || (i % 3), 'T', '{}', i FROM n",
    )
    .unwrap();
    assert_eq!(statuses(&db), [("pending".to_owned(), 10)], "nobody delivers yet");
    // 1 to 6 and 8 are passed: 2 is dead, 3 blocks key k0 (3, 6), the others are through.
    db.execute_batch(
        "INSERT INTO litepost_cursor (destination, lane, lanes, start_after, acked, acked_above, delivered, dead, updated_at)
           VALUES ('d', 0, 1, 0, 6, '8-8', 4, 1, 0);
         INSERT INTO litepost_blocked VALUES ('d', 0, 'key', 'k0', 3, 2, 'backoff', 4, NULL, 'no stock', 0, 500);
         INSERT INTO litepost_dead (destination, lane, reason, attempts, error, dead_at, seq, id, topic, type, payload, created_at)
           SELECT 'd', 0, 'permanent', 1, 'bad', 9, seq, id, topic, type, payload, created_at FROM litepost_outbox WHERE seq = 2;
         INSERT INTO litepost_receipt VALUES ('d', 0, 1, 6, 6, 3, 3, '00', 70, 80)",
    )
    .unwrap();
    assert_eq!(statuses(&db), [("failed".to_owned(), 1), ("pending".to_owned(), 5), ("published".to_owned(), 4)]);
    let delayed = |now: i64| -> Vec<(i64, i64, Option<String>)> {
        let mut statement = db.prepare(DELAYED).unwrap();
        let rows = statement.query_map([now], |row| Ok((row.get(2)?, row.get(3)?, row.get(4)?))).unwrap();
        rows.map(Result::unwrap).collect()
    };
    assert_eq!(delayed(400), [(7, 0, None), (10, 0, None)], "the blocked key waits for its time");
    assert_eq!(delayed(500)[0], (3, 4, Some("no stock".into())));
    let published: i64 =
        db.query_row("SELECT count(*) FROM OutboxEvents WHERE PublishedAt = 80", [], |row| row.get(0)).unwrap();
    assert_eq!(published, 3, "1, 4 and 5; the receipt does not speak of 8");
    for sql in [BY_STATUS, DELAYED] {
        no_scan_of(&db, sql, &["e", "b", "litepost_dead", "litepost_receipt"]);
        let steps = plan(&db, sql).join("\n");
        assert!(
            steps.contains("SEARCH d USING INDEX litepost_dead_by_destination (destination=? AND seq=?)"),
            "{steps}"
        );
    }
}

#[test]
fn a_table_of_that_name_is_left_alone() {
    let file = file();
    let mut db = open(&file.path);
    db.execute_batch("CREATE TABLE outboxevents (x)").unwrap();
    assert_eq!(
        views::create(&mut db).unwrap_err().to_string(),
        "the database has an object named OutboxEvents that litepost did not make"
    );
}
