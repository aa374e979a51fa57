//! Tables that were made by hand: one that would take two messages for one, or one for two, is refused by the first claim.

use std::time::Duration;

use litepost_inbox::{Claim, Dialect, Inbox, InboxError, MessageId};
use litepost_testkit::servers::MariaDb;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, TxOpts};
use rusqlite::Connection;
use tokio_postgres::{IsolationLevel, NoTls};

use crate::{id, scope};

/// What the refusal of a table must say; nothing for one that is in order.
type Made<'a> = (&'a str, Option<&'a str>);

fn inbox() -> Inbox {
    Inbox::new("inbox").unwrap()
}

fn refused(made: Made<'_>, found: Result<(), InboxError>) {
    match (made.1, found) {
        (None, found) => found.unwrap_or_else(|error| panic!("{}: {error}", made.0)),
        (Some(_), Ok(())) => panic!("{}: not refused", made.0),
        (Some(words), Err(error)) => {
            let text = error.to_string();
            assert!(matches!(error, InboxError::Table { .. }) && text.contains(words), "{}: {text}", made.0);
            assert!(error.hint().contains("litepost inbox schema") && !error.is_retryable(), "{}", error.hint());
        }
    }
}

/// A claim says so, too, or the database does, where it has no key to name.
fn claimed(made: Made<'_>, found: Result<Claim, InboxError>) {
    match (made.1, found) {
        (None, found) => assert_eq!(found.unwrap(), Claim::First, "{}", made.0),
        (Some(_), Ok(claim)) => panic!("{}: {claim:?}", made.0),
        (Some(_), Err(error)) => {
            let keyless = error.sqlstate() == Some("42P10") || error.to_string().contains("ON CONFLICT");
            let refused = matches!(error, InboxError::Table { .. }) || keyless;
            assert!(refused && error.hint().contains("litepost inbox schema"), "{}: {error}", made.0);
        }
    }
}

#[tokio::test]
async fn postgres() {
    let server = tokio::task::spawn_blocking(litepost_testkit::servers::Postgres::start).await.unwrap();
    let (mut client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let types = "CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
                 CREATE DOMAIN key AS varchar(255) CHECK (value <> '')";
    client.batch_execute(types).await.unwrap();
    let all: [Made<'_>; 12] = [
        ("", None),
        ("ALTER TABLE inbox ALTER message_id TYPE key, ALTER scope TYPE text", None),
        ("ALTER TABLE inbox DROP CONSTRAINT inbox_pkey; CREATE UNIQUE INDEX ON inbox (message_id, scope)", None),
        ("ALTER TABLE inbox RENAME TO behind; CREATE VIEW inbox AS SELECT * FROM behind", None),
        ("ALTER TABLE inbox SET UNLOGGED", Some("it is UNLOGGED, and forgets its markers")),
        ("ALTER TABLE inbox DROP CONSTRAINT inbox_pkey", Some("no unique key on exactly (scope, message_id)")),
        (
            "ALTER TABLE inbox DROP CONSTRAINT inbox_pkey; ALTER TABLE inbox ADD UNIQUE (message_id)",
            Some("no unique key"),
        ),
        (
            "ALTER TABLE inbox DROP CONSTRAINT inbox_pkey; ALTER TABLE inbox ADD PRIMARY KEY (scope, message_id, processed_at)",
            Some("no unique key"),
        ),
        (
            "ALTER TABLE inbox DROP CONSTRAINT inbox_pkey; CREATE UNIQUE INDEX ON inbox (scope, message_id) WHERE scope <> ''",
            Some("no unique key"),
        ),
        (
            "ALTER TABLE inbox ALTER message_id TYPE varchar(255) COLLATE any_case",
            Some("its column message_id is character varying(255) COLLATE any_case, which does not keep"),
        ),
        ("ALTER TABLE inbox ALTER message_id TYPE char(255)", Some("its column message_id is character(255)")),
        ("ALTER TABLE inbox ALTER scope TYPE name", Some("its column scope is name")),
    ];
    for made in all {
        let remake = format!("{};{}", inbox().schema(Dialect::Postgres), made.0);
        client.batch_execute(&remake).await.unwrap();
        refused(made, inbox().check(&mut client).await);
        refused(made, inbox().prepare(&client).await.map(drop));
        let (inbox, tx) = (inbox(), client.transaction().await.unwrap());
        claimed(made, inbox.claim(&tx, &scope(), &id("a")).await);
        tx.rollback().await.unwrap();
        client.batch_execute("DROP TABLE IF EXISTS behind CASCADE").await.unwrap();
        client.batch_execute("DROP TABLE IF EXISTS inbox").await.unwrap();
    }
    inbox().check(&mut client).await.expect("a table that is not there is left to whoever uses it");
}

#[tokio::test]
async fn mariadb() {
    let server = tokio::task::spawn_blocking(MariaDb::start).await.unwrap();
    let mut conn = Conn::from_url(server.url()).await.unwrap();
    let columns = "processed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)), INDEX (processed_at)";
    let binary = "scope VARBINARY(1020) NOT NULL, message_id VARBINARY(1020) NOT NULL";
    let text =
        |kind: &str| format!("scope {kind} NOT NULL, message_id {kind} NOT NULL, PRIMARY KEY (scope, message_id)");
    let any_case = text("VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci");
    let padded = text("VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin");
    let short = text("VARBINARY(255)");
    let prefix = format!("{binary}, PRIMARY KEY (scope(100), message_id(100))");
    let dated = format!("{binary}, PRIMARY KEY (scope, message_id, processed_at)");
    let other = format!("{binary}, UNIQUE KEY own (message_id, scope)");
    let sound = format!("{binary}, PRIMARY KEY (scope, message_id)");
    // A table whose name differs in its case alone is another one.
    conn.query_drop(format!("CREATE TABLE INBOX ({any_case}, {columns})")).await.unwrap();
    let all: [(Made<'_>, &str); 9] = [
        ((sound.as_str(), None), "InnoDB"),
        ((&other, None), "InnoDB"),
        ((binary, Some("no unique key on exactly (scope, message_id)")), "InnoDB"),
        ((&prefix, Some("no unique key")), "InnoDB"),
        ((&dated, Some("no unique key")), "InnoDB"),
        ((&any_case, Some("varchar(255) COLLATE utf8mb4_general_ci, which does not keep")), "InnoDB"),
        ((&padded, Some("COLLATE utf8mb4_bin")), "InnoDB"),
        ((&short, Some("its column scope is varbinary(255)")), "InnoDB"),
        ((&sound, Some("its engine MEMORY has no transactions")), "MEMORY"),
    ];
    for (made, engine) in all {
        conn.query_drop(format!("CREATE TABLE inbox ({}, {columns}) ENGINE = {engine}", made.0)).await.unwrap();
        refused(made, inbox().check(&mut conn).await);
        let (inbox, mut tx) = (inbox(), conn.start_transaction(TxOpts::new()).await.unwrap());
        claimed(made, inbox.claim(&mut tx, &scope(), &id("a")).await);
        tx.rollback().await.unwrap();
        conn.query_drop("DROP TABLE inbox").await.unwrap();
    }
    inbox().check(&mut conn).await.expect("a table that is not there is left to whoever uses it");
}

#[test]
fn sqlite() {
    let columns = "processed_at INTEGER NOT NULL DEFAULT 0";
    let typed =
        |kind: &str| format!("scope TEXT NOT NULL, message_id {kind} NOT NULL, PRIMARY KEY (scope, message_id)");
    let (any_case, number) = (typed("TEXT COLLATE NOCASE"), typed("INTEGER"));
    let (decimal, untyped) = (typed("DECIMAL(10)"), typed(""));
    let all: [Made<'_>; 8] = [
        (untyped.as_str(), None),
        ("Scope VARCHAR(255) NOT NULL, message_id CLOB NOT NULL, UNIQUE (message_id, scope)", None),
        ("scope TEXT NOT NULL, message_id TEXT NOT NULL", Some("no unique key on exactly (scope, message_id)")),
        ("scope TEXT NOT NULL, message_id TEXT NOT NULL UNIQUE", Some("no unique key")),
        (
            "scope TEXT NOT NULL, message_id TEXT NOT NULL, PRIMARY KEY (scope, message_id, processed_at)",
            Some("no unique key"),
        ),
        (&any_case, Some("another collation than BINARY")),
        (&number, Some("its column message_id is INTEGER, which does not keep")),
        (&decimal, Some("its column message_id is DECIMAL(10)")),
    ];
    for made in all {
        let mut db = Connection::open_in_memory().unwrap();
        // The constraints of a table follow its columns.
        let (names, keys) =
            made.0.split_once(", PRIMARY").or_else(|| made.0.split_once(", UNIQUE")).unwrap_or((made.0, ""));
        let keys = if keys.is_empty() { String::new() } else { made.0.replacen(names, "", 1) };
        for (place, table) in [("main", "inbox"), ("other", "other.inbox")] {
            if place == "other" {
                db.execute_batch("DROP TABLE inbox; ATTACH ':memory:' AS other").unwrap();
            }
            db.execute_batch(&format!("CREATE TABLE {place}.inbox ({names}, {columns}{keys})")).unwrap();
            let inbox = Inbox::new(table).unwrap();
            refused(made, inbox.check_blocking(&mut db));
            let (inbox, tx) = (Inbox::new(table).unwrap(), db.transaction().unwrap());
            claimed(made, inbox.claim(&tx, &scope(), &MessageId::new("1").unwrap()));
            tx.rollback().unwrap();
        }
        db.execute_batch("DROP TABLE other.inbox").unwrap();
        inbox().check_blocking(&mut db).expect("a table that is not there is left to whoever uses it");
    }
}

/// How long a look at the table holds, and a moment.
const WINDOW: Duration = Duration::from_millis(10_200);

fn noticed(found: Result<Claim, InboxError>, words: &str) {
    match found {
        Ok(claim) => panic!("{claim:?} although the table was altered"),
        Err(error) => {
            assert!(matches!(error, InboxError::Table { .. }) && error.to_string().contains(words), "{error}");
        }
    }
}

#[tokio::test]
async fn postgres_is_looked_at_again() {
    let server = tokio::task::spawn_blocking(litepost_testkit::servers::Postgres::start).await.unwrap();
    let (mut client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let inbox = inbox();
    client.batch_execute(&inbox.schema(Dialect::Postgres)).await.unwrap();
    let tx = client.transaction().await.unwrap();
    assert_eq!(inbox.claim(&tx, &scope(), &id("a")).await.unwrap(), Claim::First);
    tx.commit().await.unwrap();
    let altered = "CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
                   ALTER TABLE inbox ALTER message_id TYPE varchar(255) COLLATE any_case";
    client.batch_execute(altered).await.unwrap();
    // This is the window that the page tells of.
    let tx = client.transaction().await.unwrap();
    assert_eq!(inbox.claim(&tx, &scope(), &id("A")).await.unwrap(), Claim::Duplicate);
    tx.rollback().await.unwrap();
    tokio::time::sleep(WINDOW).await;
    for key in ["A", "b"] {
        let tx = client.transaction().await.unwrap();
        noticed(inbox.claim(&tx, &scope(), &id(key)).await, "COLLATE any_case");
        tx.rollback().await.unwrap();
    }
    // A claim that was prepared before is no exception; and once the table is in order, all is well again.
    client.batch_execute("ALTER TABLE inbox ALTER message_id TYPE varchar(255) COLLATE \"default\"").await.unwrap();
    let prepared = inbox.prepare(&client).await.unwrap();
    let tx = client.transaction().await.unwrap();
    assert_eq!(inbox.claim(prepared.on(&tx), &scope(), &id("A")).await.unwrap(), Claim::First);
    tx.rollback().await.unwrap();
    let inbox = inbox.check_every(Duration::ZERO);
    // The catalog that a transaction sees is that of its snapshot.
    let (mut other, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    let level = other.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let before = level.start().await.unwrap();
    before.query_one("SELECT count(*) FROM pg_class", &[]).await.unwrap();
    client.batch_execute("ALTER TABLE inbox ALTER message_id TYPE varchar(255) COLLATE any_case").await.unwrap();
    let claim = inbox.claim(&before, &scope(), &id("c")).await.unwrap();
    assert_eq!(claim, Claim::First);
    before.rollback().await.unwrap();
    let tx = client.transaction().await.unwrap();
    noticed(inbox.claim(prepared.on(&tx), &scope(), &id("c")).await, "COLLATE any_case");
}

#[tokio::test]
async fn mariadb_is_looked_at_again() {
    let server = tokio::task::spawn_blocking(MariaDb::start).await.unwrap();
    let mut conn = Conn::from_url(server.url()).await.unwrap();
    let inbox = inbox();
    for text in inbox.schema(Dialect::MySql).split(';').filter(|text| !text.trim().is_empty()) {
        conn.query_drop(text).await.unwrap();
    }
    for expected in [Claim::First, Claim::Duplicate] {
        let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
        assert_eq!(inbox.claim(&mut tx, &scope(), &id("a")).await.unwrap(), expected);
        tx.commit().await.unwrap();
    }
    conn.query_drop("ALTER TABLE inbox DROP PRIMARY KEY").await.unwrap();
    let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
    assert_eq!(inbox.claim(&mut tx, &scope(), &id("a")).await.unwrap(), Claim::First, "the window");
    tx.rollback().await.unwrap();
    tokio::time::sleep(WINDOW).await;
    for key in ["a", "b"] {
        let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
        noticed(inbox.claim(&mut tx, &scope(), &id(key)).await, "no unique key");
        tx.rollback().await.unwrap();
    }
}

#[test]
fn sqlite_is_looked_at_again() {
    let mut db = Connection::open_in_memory().unwrap();
    let inbox = inbox();
    db.execute_batch(&inbox.schema(Dialect::Sqlite)).unwrap();
    let tx = db.transaction().unwrap();
    assert_eq!(inbox.claim(&tx, &scope(), &id("a")).unwrap(), Claim::First);
    tx.commit().unwrap();
    let altered = "ALTER TABLE inbox RENAME TO before;
                   CREATE TABLE inbox (scope TEXT, message_id TEXT COLLATE NOCASE, processed_at INTEGER DEFAULT 0,
                   PRIMARY KEY (scope, message_id));
                   INSERT INTO inbox SELECT * FROM before";
    db.execute_batch(altered).unwrap();
    let tx = db.transaction().unwrap();
    assert_eq!(inbox.claim(&tx, &scope(), &id("A")).unwrap(), Claim::Duplicate, "the window");
    tx.rollback().unwrap();
    std::thread::sleep(WINDOW);
    for key in ["A", "b"] {
        let tx = db.transaction().unwrap();
        noticed(inbox.claim(&tx, &scope(), &id(key)), "another collation than BINARY");
        tx.rollback().unwrap();
    }
}
