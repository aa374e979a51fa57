//! The sqlite destination: what a statement event may do, how its values arrive, and what it is told when it is wrong.

use litepost::{NewEvent, enqueue};
use litepost_core::Value;
use rusqlite::types::Value as Stored;

use crate::desk::Desk;

const AT_ONCE: &str = "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }";
const GUARDED: &str = "a statement event may not begin or end transactions, attach files, set pragmas, make temporary objects, or touch the ledger";

/// The only dead letter: its reason, code and message.
fn dead(desk: &Desk) -> String {
    desk.text(
        "SELECT coalesce(group_concat(reason || '|' || error_code || '|' || error, char(10)), '') FROM litepost_dead",
    )
}

/// What becomes of one statement, in a fresh outbox beside a target with the row (1, 1).
async fn fate(sql: &str, args: Vec<Value>) -> String {
    let mut desk = Desk::new();
    desk.target().execute_batch("INSERT INTO stock VALUES (1, 1)").unwrap();
    desk.config("", None, Some(AT_ONCE));
    desk.values("INSERT INTO stock VALUES (2, 2)", vec![]);
    desk.values(sql, args);
    desk.values("INSERT INTO stock VALUES (3, 3)", vec![]);
    desk.drain().await;
    assert_eq!(desk.stock(), [(1, 1), (2, 2), (3, 3)], "{sql}: the others go through, it leaves nothing");
    desk.verify();
    dead(&desk)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_reaches_around_the_transaction_is_refused() {
    for sql in [
        "ATTACH 'other.db' AS other",
        "DETACH main",
        "PRAGMA user_version = 7",
        "PRAGMA journal_mode = DELETE",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT mine",
        "RELEASE litepost_event",
        "DELETE FROM litepost_ledger",
        "UPDATE LitePost_Ledger SET seq = 0",
        "INSERT INTO litepost_ledger_event SELECT * FROM litepost_ledger_event",
        "DROP TABLE litepost_ledger",
        "ALTER TABLE litepost_ledger RENAME TO gone",
        "CREATE TRIGGER t AFTER INSERT ON litepost_ledger BEGIN DELETE FROM stock; END",
        "CREATE UNIQUE INDEX i ON litepost_ledger (epoch)",
        "CREATE TEMP TABLE litepost_ledger AS SELECT * FROM main.litepost_ledger",
        "CREATE TEMP TRIGGER t AFTER INSERT ON stock BEGIN DELETE FROM stock; END",
        "CREATE TEMP VIEW stock AS SELECT 1",
    ] {
        assert_eq!(fate(sql, vec![]).await, format!("permanent|SQLITE_AUTH|not authorized: {GUARDED}"), "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_sql_is_told_exactly() {
    for (sql, args, message) in [
        ("SELCT 1", vec![], "permanent|SQLITE_ERROR|near \"SELCT\": syntax error"),
        ("INSERT INTO stock VALUES (4", vec![], "permanent|SQLITE_ERROR|incomplete input"),
        ("INSERT INTO stock VALUES (4, 'a", vec![], "permanent|SQLITE_ERROR|unrecognized token: \"'a\""),
        ("SELECT * FROM stock", vec![], "permanent|read_only|the statement only reads; a statement event must write"),
        ("", vec![], "permanent|empty|the payload's sql holds no statement"),
        (" -- nothing", vec![], "permanent|empty|the payload's sql holds no statement"),
        (
            "INSERT INTO stock VALUES (4, 4); DELETE FROM stock",
            vec![],
            "permanent|multiple|the payload's sql holds more than one statement; send one event for each",
        ),
        (
            "INSERT INTO stock VALUES (?, ?)",
            vec![Value::Integer(4)],
            "permanent|bind|the statement has 2 placeholders, but the payload brings 1 values",
        ),
        (
            "INSERT INTO stock VALUES (4, 4)",
            vec![Value::Integer(4)],
            "permanent|bind|the statement has 0 placeholders, but the payload brings 1 values",
        ),
        (
            "INSERT INTO stock VALUES (4, ?)",
            vec![Value::Real(f64::NAN)],
            "permanent|bind|argument 1: SQLite stores NaN as NULL; send null if that is meant",
        ),
        (
            "INSERT INTO stock VALUES (1, 5)",
            vec![],
            "max_attempts|SQLITE_CONSTRAINT_PRIMARYKEY|UNIQUE constraint failed: stock.id",
        ),
        (
            "INSERT INTO stock VALUES (4, -1)",
            vec![],
            "max_attempts|SQLITE_CONSTRAINT_CHECK|CHECK constraint failed: n > 0",
        ),
        ("INSERT INTO stock VALUES ('a', 4)", vec![], "max_attempts|SQLITE_MISMATCH|datatype mismatch"),
        ("INSERT INTO stock SELECT load_extension('x'), 1", vec![], "max_attempts|SQLITE_ERROR|not authorized"),
    ] {
        assert_eq!(fate(sql, args).await, message, "{sql}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_is_no_statement_is_told_exactly() {
    for (kind, payload, message) in [
        (
            // A type of another name would be a business event, which is left to other destinations.
            "",
            "{}",
            "permanent|undecodable|a SQL destination takes statement events (type \"sql\"), and this event has the type \"\"",
        ),
        (
            "sql",
            "DELETE FROM stock",
            "permanent|undecodable|the payload of a statement event must be a JSON object {\"sql\": \"…\", \"args\": […]}: expected value at line 1 column 1",
        ),
        (
            "sql",
            "{\"args\": []}",
            "permanent|undecodable|the payload of a statement event must be a JSON object {\"sql\": \"…\", \"args\": […]}: missing field `sql` at line 1 column 12",
        ),
        (
            "sql",
            "{\"sql\": 5}",
            "permanent|undecodable|the payload of a statement event must be a JSON object {\"sql\": \"…\", \"args\": […]}: invalid type: integer `5`, expected a string at line 1 column 9",
        ),
        (
            "sql",
            "{\"sql\": \"DELETE FROM stock WHERE id = ?\", \"args\": [1180591620717411303424]}",
            "permanent|undecodable|argument 1: the integer 1180591620717411303424 does not fit 64 bits; send it as text or as {\"$decimal\": \"1180591620717411303424\"}",
        ),
        (
            "sql",
            "{\"sql\": \"DELETE FROM stock WHERE id = ?\", \"args\": [\"\\ud800\"]}",
            "permanent|undecodable|the payload of a statement event must be a JSON object {\"sql\": \"…\", \"args\": […]}: unexpected end of hex escape at line 1 column 8",
        ),
    ] {
        let mut desk = Desk::new();
        desk.target();
        desk.config("", None, Some(AT_ONCE));
        let tx = desk.outbox.transaction().unwrap();
        enqueue(&tx, &NewEvent::new("stock", payload).kind(kind)).unwrap();
        tx.commit().unwrap();
        desk.drain().await;
        assert_eq!(dead(&desk), message, "{payload}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_rolls_everything_back_takes_nothing_with_it() {
    for sql in ["INSERT OR ROLLBACK INTO stock VALUES (1, 5)", "INSERT INTO trap VALUES (1)"] {
        let mut desk = Desk::new();
        desk.target()
            .execute_batch(
                "INSERT INTO stock VALUES (1, 1); CREATE TABLE trap (x);
                 CREATE TRIGGER snap BEFORE INSERT ON trap BEGIN SELECT RAISE(ROLLBACK, 'snap'); END;",
            )
            .unwrap();
        desk.config("", None, Some(AT_ONCE));
        for n in 2..5 {
            desk.statement("before", "INSERT INTO stock VALUES (?, 1)", &[n]);
        }
        desk.statement("bad", sql, &[]);
        for n in 5..8 {
            desk.statement("behind", "INSERT INTO stock VALUES (?, 1)", &[n]);
        }
        desk.drain().await;
        assert_eq!(desk.stock(), (1..8).map(|n| (n, 1)).collect::<Vec<_>>(), "{sql}");
        let expected = if sql.contains("trap") {
            "max_attempts|SQLITE_CONSTRAINT_TRIGGER|snap"
        } else {
            "max_attempts|SQLITE_CONSTRAINT_PRIMARYKEY|UNIQUE constraint failed: stock.id"
        };
        assert_eq!(dead(&desk), expected);
        desk.verify();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_value_arrives_as_it_was_written() {
    let mut desk = Desk::new();
    desk.target().execute_batch("CREATE TABLE held (n INTEGER PRIMARY KEY, v)").unwrap();
    desk.config("", None, Some(AT_ONCE));
    let large = "x".repeat(17 << 20);
    let text = |text: &str| Stored::Text(text.into());
    let values = [
        (Value::Null, Stored::Null),
        (Value::Bool(true), Stored::Integer(1)),
        (Value::Bool(false), Stored::Integer(0)),
        (Value::Integer(i64::MAX), Stored::Integer(i64::MAX)),
        (Value::Integer(i64::MIN), Stored::Integer(i64::MIN)),
        (Value::Integer((1 << 53) + 1), Stored::Integer((1 << 53) + 1)),
        (Value::Real(0.1), Stored::Real(0.1)),
        (Value::Real(1e308), Stored::Real(1e308)),
        (Value::Real(-0.0), Stored::Real(-0.0)),
        (Value::Real(f64::INFINITY), Stored::Real(f64::INFINITY)),
        (Value::Real(f64::NEG_INFINITY), Stored::Real(f64::NEG_INFINITY)),
        (Value::Text(String::new()), text("")),
        (Value::Text("a\0b".into()), text("a\0b")),
        (Value::Text("'; DROP TABLE held; -- \u{1d11e}".into()), text("'; DROP TABLE held; -- \u{1d11e}")),
        (Value::Text(large.clone()), text(&large)),
        (Value::Blob(vec![]), Stored::Blob(vec![])),
        (Value::Blob(vec![0, 255, 39]), Stored::Blob(vec![0, 255, 39])),
        (Value::Decimal("12.30".into()), text("12.30")),
        (Value::Timestamp("2026-11-30T04:05:06.789Z".into()), text("2026-11-30T04:05:06.789Z")),
        (Value::Uuid("018f0000-0000-7000-8000-000000000000".into()), text("018f0000-0000-7000-8000-000000000000")),
        (Value::Json("{\"a\":[1,2]}".into()), text("{\"a\":[1,2]}")),
    ];
    for (n, (value, _)) in values.iter().enumerate() {
        let n = i64::try_from(n).unwrap();
        desk.values("INSERT INTO held VALUES (?2, ?1)", vec![value.clone(), Value::Integer(n)]);
    }
    desk.drain_everything().await;
    assert_eq!(dead(&desk), "");
    let target = desk.target();
    for (n, (value, stored)) in values.iter().enumerate() {
        let n = i64::try_from(n).unwrap();
        let found: Stored = target.query_row("SELECT v FROM held WHERE n = ?1", [n], |row| row.get(0)).unwrap();
        assert!(found == *stored, "{n}: {:.60}", format!("{value:?} became {found:?}"));
    }
}
