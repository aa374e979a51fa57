//! The guards in the database: each message exact, and no conflict clause gets around one.

use litepost::{EnqueueError, Enqueued, NewEvent};
use litepost_core::Seq;
use rusqlite::Connection;

use crate::support::{count, file, fill, open};

fn refused(connection: &Connection, sql: &str) -> String {
    match connection.execute(sql, []) {
        Ok(rows) => panic!("{sql} was accepted and changed {rows} rows"),
        Err(rusqlite::Error::SqliteFailure(_, Some(message))) => message,
        Err(other) => panic!("{sql}: {other}"),
    }
}

const NO_VERSION: &str = "litepost: a version needs a key, starts at 1 and ends at 9223372036854775806";

/// What a row may not be, with the message the contract promises.
const BAD_ROWS: [(&str, &str); 22] = [
    ("(seq, topic, payload) VALUES (7, 't', 'p')", "litepost: seq is assigned by the log; leave it out of the INSERT"),
    (
        "(seq, topic, payload) VALUES (-1, 't', 'p')",
        "bad JSON path: 'litepost: seq is assigned by the log; leave it out of the INSERT (-1)'",
    ),
    ("(seq, topic, payload) VALUES (0, 't', 'p')", "litepost: seq is assigned by the log; leave it out of the INSERT"),
    (
        "(topic, payload) VALUES (NULL, 'p')",
        "litepost: topic must be a text that is not empty and has no NUL character",
    ),
    ("(topic, payload) VALUES ('', 'p')", "litepost: topic must be a text that is not empty and has no NUL character"),
    (
        "(topic, payload) VALUES ('a' || char(0), 'p')",
        "litepost: topic must be a text that is not empty and has no NUL character",
    ),
    (
        "(topic, payload) VALUES ('t', NULL)",
        "litepost: payload must be TEXT or BLOB; serialise the value before the INSERT",
    ),
    (
        "(topic, payload) VALUES ('t', 1)",
        "litepost: payload must be TEXT or BLOB; serialise the value before the INSERT",
    ),
    (
        "(topic, payload) VALUES ('t', 1.5)",
        "litepost: payload must be TEXT or BLOB; serialise the value before the INSERT",
    ),
    ("(topic) VALUES ('t')", "litepost: payload must be TEXT or BLOB; serialise the value before the INSERT"),
    (
        "(topic, payload, id) VALUES ('t', 'p', NULL)",
        "litepost: id must not be NULL or empty; leave it out to have one made",
    ),
    (
        "(topic, payload, id) VALUES ('t', 'p', '')",
        "litepost: id must not be NULL or empty; leave it out to have one made",
    ),
    (
        "(topic, payload, type) VALUES ('t', 'p', NULL)",
        "litepost: type must not be NULL; leave it out for the empty type",
    ),
    (
        "(topic, payload, created_at) VALUES ('t', 'p', NULL)",
        "litepost: created_at must not be NULL; leave it out for the current time",
    ),
    ("(topic, payload, headers) VALUES ('t', 'p', '[1]')", "litepost: headers must be a JSON object"),
    ("(topic, payload, headers) VALUES ('t', 'p', '{')", "litepost: headers must be a JSON object"),
    ("(topic, payload, version) VALUES ('t', 'p', 1)", NO_VERSION),
    ("(topic, payload, key, version) VALUES ('t', 'p', 'k', 0)", NO_VERSION),
    ("(topic, payload, key, version) VALUES ('t', 'p', 'k', -9223372036854775808)", NO_VERSION),
    ("(topic, payload, key, version) VALUES ('t', 'p', 'k', 9223372036854775807)", NO_VERSION),
    (
        "(topic, payload, key, version) VALUES ('t', 'p', 'taken', 1)",
        "litepost: this key has this version already, or a later one; read the aggregate again and retry",
    ),
    (
        "(topic, payload, key, version, dedup_key) VALUES ('t', 'p', 'taken', 1, 'd')",
        "litepost: this key has this version already, or a later one; read the aggregate again and retry",
    ),
];

#[test]
fn no_conflict_clause_drops_or_replaces_an_event() {
    let file = file();
    let app = open(&file.path);
    app.execute("INSERT INTO litepost_outbox (topic, key, version, payload) VALUES ('t', 'taken', 1, 'first')", [])
        .unwrap();
    for verb in ["INSERT", "INSERT OR IGNORE", "INSERT OR FAIL", "INSERT OR ABORT"] {
        for (rest, message) in BAD_ROWS {
            assert_eq!(refused(&app, &format!("{verb} INTO litepost_outbox {rest}")), message, "{verb} {rest}");
        }
    }
    for (rest, message) in BAD_ROWS.iter().filter(|(rest, _)| rest.contains("seq,") || rest.contains("taken")) {
        assert_eq!(refused(&app, &format!("REPLACE INTO litepost_outbox {rest}")), *message, "REPLACE {rest}");
        // The same, as UPSERT.
        let upsert = format!("INSERT INTO litepost_outbox {rest} ON CONFLICT DO NOTHING");
        assert_eq!(refused(&app, &upsert), *message, "{upsert}");
    }
    let stored: (i64, String) = app
        .query_row("SELECT count(*), max(payload) FROM litepost_outbox", [], |r| Ok((r.get(0)?, r.get(1)?)))
        .unwrap();
    assert_eq!(stored, (1, "first".into()));
}

#[test]
fn a_value_of_the_wrong_type_is_an_error_with_every_conflict_clause() {
    let file = file();
    let app = open(&file.path);
    for verb in ["INSERT", "INSERT OR IGNORE", "REPLACE"] {
        for column in ["id", "topic", "key", "type", "dedup_key", "source"] {
            let rest = match column {
                "topic" => "(topic, payload) VALUES (x'41', 'p')".to_owned(),
                other => format!("(topic, payload, {other}) VALUES ('t', 'p', x'41')"),
            };
            let message = refused(&app, &format!("{verb} INTO litepost_outbox {rest}"));
            assert!(message.contains("cannot store BLOB value in TEXT column"), "{verb} {column}: {message}");
        }
        for column in ["created_at", "deliver_after", "expires_at"] {
            let sql = format!("{verb} INTO litepost_outbox (topic, payload, {column}) VALUES ('t', 'p', 'soon')");
            let message = refused(&app, &sql);
            assert!(message.contains("cannot store TEXT value in INTEGER column"), "{verb} {column}: {message}");
        }
    }
    assert_eq!(count(&file.path), 0);
}

#[test]
fn events_are_immutable() {
    let file = file();
    fill(&file.path, 2);
    let app = open(&file.path);
    for sql in [
        "UPDATE litepost_outbox SET payload = 'x'",
        "UPDATE OR IGNORE litepost_outbox SET payload = 'x' WHERE seq = 1",
        "UPDATE OR REPLACE litepost_outbox SET seq = 1 WHERE seq = 2",
    ] {
        assert_eq!(refused(&app, sql), "litepost: events are immutable; write a new event instead");
    }
}

#[test]
fn only_settled_events_can_be_deleted_from_the_oldest_on() {
    let file = file();
    fill(&file.path, 10);
    let app = open(&file.path);
    let undelivered = "litepost: this event is not delivered yet and cannot be deleted";
    assert_eq!(refused(&app, "DELETE FROM litepost_outbox"), undelivered, "without a destination nothing is delivered");
    app.execute_batch(
        "INSERT INTO litepost_cursor (destination, lane, lanes, start_after, acked, updated_at) VALUES ('a', 0, 1, 0, 10, 0), ('b', 0, 1, 0, 4, 0)",
    )
    .unwrap();
    assert_eq!(refused(&app, "DELETE FROM litepost_outbox WHERE seq = 5"), undelivered, "b has not got it");
    assert_eq!(
        refused(&app, "DELETE FROM litepost_outbox WHERE seq = 2"),
        "litepost: events are deleted from the oldest on, so that the log has no holes"
    );
    assert_eq!(app.execute("DELETE FROM litepost_outbox WHERE seq <= 2", []).unwrap(), 2);
    app.execute_batch(
        "INSERT INTO litepost_blocked VALUES ('b', 0, 'key', 'k', 3, 1, 'backoff', 1, NULL, NULL, 0, 0);
         UPDATE litepost_cursor SET acked = 10",
    )
    .unwrap();
    assert_eq!(
        refused(&app, "DELETE FROM litepost_outbox WHERE seq = 3"),
        "litepost: this event may wait behind a blocked one and cannot be deleted"
    );
    app.execute("DELETE FROM litepost_blocked", []).unwrap();
    assert_eq!(
        refused(&app, "DELETE FROM litepost_outbox"),
        "litepost: the newest event is kept so that its seq is never used again"
    );
    assert_eq!(app.execute("DELETE FROM litepost_outbox WHERE seq < 10", []).unwrap(), 7);
    let seq: i64 = app
        .query_row("INSERT INTO litepost_outbox (topic, payload) VALUES ('t', 'p') RETURNING seq", [], |r| r.get(0))
        .unwrap();
    assert_eq!(seq, 11, "no position is used twice");
}

#[test]
fn a_duplicate_adds_nothing_and_leaves_no_gap() {
    let file = file();
    let mut app = open(&file.path);
    let tx = app.transaction().unwrap();
    let event = NewEvent::new("t", "p").dedup_key("d");
    assert_eq!(litepost::enqueue(&tx, &event).unwrap().seq(), Some(Seq(1)));
    assert_eq!(litepost::enqueue(&tx, &event).unwrap(), Enqueued::Duplicate);
    assert_eq!(litepost::enqueue(&tx, &NewEvent::new("u", "p").dedup_key("d")).unwrap().seq(), Some(Seq(2)));
    tx.commit().unwrap();
    let changed =
        app.execute("INSERT INTO litepost_outbox (topic, payload, dedup_key) VALUES ('t', 'p', 'd')", []).unwrap();
    assert_eq!(changed, 0, "plain SQL sees the duplicate by the count of rows");
    // Outside the window the same key is a new event.
    app.execute("UPDATE litepost_meta SET value = '0' WHERE name = 'dedup_window_ms'", []).unwrap();
    let tx = app.transaction().unwrap();
    assert_eq!(litepost::enqueue(&tx, &event).unwrap().seq(), Some(Seq(3)));
}

#[test]
fn a_full_outbox_fails_the_producers_own_transaction() {
    let file = file();
    let mut app = open(&file.path);
    litepost::schema::set_max_pending(&mut app, Some(3)).unwrap();
    fill(&file.path, 2);
    let once = NewEvent::new("t", "p").dedup_key("once");
    let tx = app.transaction().unwrap();
    assert_eq!(litepost::enqueue(&tx, &once).unwrap().seq(), Some(Seq(3)));
    assert_eq!(litepost::enqueue(&tx, &once).unwrap(), Enqueued::Duplicate, "a duplicate needs no room");
    let other = litepost::enqueue(&tx, &NewEvent::new("t", "p").dedup_key("other"));
    assert_eq!(other, Err(EnqueueError::Full { max_pending: 3 }));
    tx.commit().unwrap();
    let insert = "INSERT INTO litepost_outbox (topic, payload) VALUES ('t', 'p')";
    let full = "litepost: outbox is full: max_pending is 3, and at least that many events wait for delivery";
    assert_eq!(refused(&app, insert), full);
    assert_eq!(refused(&app, &insert.replace("INSERT", "INSERT OR IGNORE")), full);
    let tx = app.transaction().unwrap();
    assert_eq!(litepost::enqueue(&tx, &NewEvent::new("t", "p")), Err(EnqueueError::Full { max_pending: 3 }));
    drop(tx);
    app.execute_batch(
        "INSERT INTO litepost_cursor (destination, lane, lanes, start_after, acked, updated_at) VALUES ('a', 0, 1, 0, 1, 0)",
    )
    .unwrap();
    assert_eq!(app.execute(insert, []).unwrap(), 1, "a delivered event makes room for one");
    assert_eq!(refused(&app, insert), full);
    litepost::schema::set_max_pending(&mut app, None).unwrap();
    assert_eq!(app.execute(insert, []).unwrap(), 1);
    assert!(litepost::schema::set_max_pending(&mut app, Some(0)).unwrap_err().to_string().contains("at least 1"));
}
