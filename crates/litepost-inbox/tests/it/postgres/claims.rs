//! What one claim answers, and what it leaves alone.

use litepost_inbox::{Claim, Dialect, Inbox, InboxError, InboxOptions, MessageId, Scope};
use tokio_postgres::error::SqlState;

use super::{LEVELS, begin, connect, count, inbox, quoted};
use crate::{id, scope};

#[tokio::test]
async fn first_then_duplicate_once_committed() {
    let inbox = inbox().await;
    let mut client = connect().await;
    for level in LEVELS {
        let message = id(&format!("{level:?}"));
        for expected in [Claim::First, Claim::Duplicate, Claim::Duplicate] {
            let tx = begin(&mut client, level).await;
            assert_eq!(inbox.claim(&tx, &scope(), &message).await.unwrap(), expected);
            tx.commit().await.unwrap();
        }
    }
    assert_eq!(count(&inbox).await, 3);
}

#[tokio::test]
async fn a_rolled_back_or_dropped_transaction_leaves_nothing() {
    let inbox = inbox().await;
    let mut client = connect().await;
    let tx = client.transaction().await.unwrap();
    assert_eq!(inbox.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::First);
    tx.rollback().await.unwrap();
    {
        let tx = client.transaction().await.unwrap();
        assert_eq!(inbox.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::First);
    }
    let tx = client.transaction().await.unwrap();
    assert_eq!(inbox.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::First);
}

#[tokio::test]
async fn the_same_transaction_twice_is_first_then_duplicate() {
    let inbox = inbox().await;
    let mut client = connect().await;
    for level in LEVELS {
        let mut tx = begin(&mut client, level).await;
        assert_eq!(inbox.claim(&mut tx, &scope(), &id("m")).await.unwrap(), Claim::First);
        assert_eq!(inbox.claim(&mut tx, &scope(), &id("m")).await.unwrap(), Claim::Duplicate);
        tx.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn rolling_back_to_a_savepoint_frees_the_key() {
    let inbox = inbox().await;
    let mut client = connect().await;
    for level in LEVELS {
        let mut tx = begin(&mut client, level).await;
        let savepoint = tx.savepoint("before").await.unwrap();
        assert_eq!(inbox.claim(&savepoint, &scope(), &id("m")).await.unwrap(), Claim::First);
        savepoint.rollback().await.unwrap();
        assert_eq!(inbox.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::First);
        tx.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn it_begins_commits_and_rolls_back_nothing() {
    let inbox = inbox().await;
    let mut client = connect().await;
    let tx = client.transaction().await.unwrap();
    let before: String = tx.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap().get(0);
    assert_eq!(inbox.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::First);
    assert_eq!(inbox.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::Duplicate);
    let after: String = tx.query_one("SELECT pg_current_xact_id()::text", &[]).await.unwrap().get(0);
    assert_eq!(before, after);
    assert_eq!(count(&inbox).await, 0, "another session sees the marker before the commit");
    tx.commit().await.unwrap();
    assert_eq!(count(&inbox).await, 1);
}

#[tokio::test]
async fn scopes_are_apart_and_keys_are_exact() {
    let inbox = inbox().await;
    let mut client = connect().await;
    let tx = client.transaction().await.unwrap();
    let other = Scope::new("orders.bill.v1").unwrap();
    for (scope, message) in
        [(&scope(), "m"), (&other, "m"), (&other, "M"), (&other, "m "), (&other, "\u{e9}"), (&other, "e\u{301}")]
    {
        assert_eq!(inbox.claim(&tx, scope, &id(message)).await.unwrap(), Claim::First, "{scope} {message:?}");
    }
    let longest = MessageId::new("\u{1f4ee}".repeat(255)).unwrap();
    assert_eq!(inbox.claim(&tx, &other, &longest).await.unwrap(), Claim::First);
    assert_eq!(inbox.claim(&tx, &other, &longest).await.unwrap(), Claim::Duplicate);
}

/// The types refuse with the very SQLSTATE that the database has for the same key.
#[tokio::test]
async fn overlong_and_nul_keys_are_refused_before_any_query() {
    let inbox = inbox().await;
    let client = connect().await;
    let insert = format!("INSERT INTO {} (scope, message_id) VALUES ('s', $1)", quoted(&inbox));
    for (text, state) in [("x".repeat(256), "22001"), ("a\0b".to_owned(), "22021")] {
        let refused = client.execute(&insert, &[&text]).await.unwrap_err();
        assert_eq!(refused.code().map(SqlState::code), Some(state));
        let error = InboxError::from(MessageId::new(text.clone()).unwrap_err());
        assert_eq!(error.sqlstate(), Some(state));
        assert!(!error.is_retryable());
        assert_eq!(Scope::new(text).unwrap_err().sqlstate(), Some(state));
    }
}

#[tokio::test]
async fn the_table_is_that_of_sqlalchemy_inbox() {
    let inbox = inbox().await;
    let client = connect().await;
    let columns = client
        .query(
            "SELECT column_name || ' ' || data_type || coalesce(' ' || character_maximum_length, '') || ' ' || is_nullable \
             || coalesce(' ' || column_default, '') FROM information_schema.columns WHERE table_name = $1 ORDER BY ordinal_position",
            &[&inbox.table().to_string()],
        )
        .await
        .unwrap();
    let columns: Vec<String> = columns.iter().map(|row| row.get(0)).collect();
    assert_eq!(
        columns,
        [
            "scope character varying 255 NO",
            "message_id character varying 255 NO",
            "processed_at timestamp with time zone NO now()"
        ]
    );
    let indexes = client
        .query("SELECT indexdef FROM pg_indexes WHERE tablename = $1 ORDER BY 1", &[&inbox.table().to_string()])
        .await
        .unwrap();
    let indexes: Vec<String> = indexes.iter().map(|row| row.get(0)).collect();
    assert!(indexes[0].ends_with("(processed_at)") && indexes[1].ends_with("(scope, message_id)"), "{indexes:?}");
    client.batch_execute(&inbox.schema(Dialect::Postgres)).await.expect("the DDL can run twice");
}

/// A conflict on anything but the key is an error of the caller's schema, not a duplicate message.
#[tokio::test]
async fn another_unique_index_is_not_taken_for_the_key() {
    let inbox = inbox().await;
    let mut client = connect().await;
    client.batch_execute(&format!("CREATE UNIQUE INDEX ON {} (message_id)", quoted(&inbox))).await.unwrap();
    let tx = client.transaction().await.unwrap();
    assert_eq!(inbox.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::First);
    let error = inbox.claim(&tx, &Scope::new("other").unwrap(), &id("m")).await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("23505"));
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn a_missing_table_says_what_to_do() {
    let inbox = Inbox::with_options("no such table", InboxOptions::default()).unwrap();
    let mut client = connect().await;
    let tx = client.transaction().await.unwrap();
    let error = inbox.claim(&tx, &scope(), &id("m")).await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("42P01"));
    assert!(error.hint().contains("litepost inbox schema"));
    let error = inbox.claim(&tx, &scope(), &id("m")).await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("25P02"), "an aborted transaction must not look like a duplicate");
}

/// A table without its key would take every message for a new one.
#[tokio::test]
async fn a_table_without_its_key_and_a_user_without_privileges_claim_nothing() {
    let inbox = inbox().await;
    let mut client = connect().await;
    let table = quoted(&inbox);
    let role = format!("role_{}", table.trim_matches('"').replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
    client.batch_execute(&format!("CREATE ROLE {role}; SET ROLE {role}")).await.unwrap();
    let tx = client.transaction().await.unwrap();
    let error = inbox.claim(&tx, &scope(), &id("m")).await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("42501"));
    assert!(error.hint().starts_with("grant") && !error.is_retryable());
    tx.rollback().await.unwrap();
    let key = format!("RESET ROLE; ALTER TABLE {table} DROP CONSTRAINT {}", quoted_key(&client, &inbox).await);
    client.batch_execute(&key).await.unwrap();
    let tx = client.transaction().await.unwrap();
    let error = inbox.claim(&tx, &scope(), &id("m")).await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("42P10"));
    assert!(error.to_string().contains("ON CONFLICT specification"), "the server's own words: {error}");
    assert!(error.hint().contains("primary key") && !error.is_retryable());
}

async fn quoted_key(client: &tokio_postgres::Client, inbox: &Inbox) -> String {
    let sql = "SELECT quote_ident(conname) FROM pg_constraint WHERE conrelid = $1::text::regclass AND contype = 'p'";
    client.query_one(sql, &[&quoted(inbox)]).await.unwrap().get(0)
}
