//! The adapter on a real file: the event lives and dies with the sqlx transaction, and the errors are litepost's own.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

use std::time::Duration;

use litepost_sqlx::{EnqueueError, Enqueued, NewEvent, enqueue, enqueue_many};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Row as _, SqlitePool};
use tempfile::TempDir;

struct Shop {
    pool: SqlitePool,
    _folder: TempDir,
}

/// A shop's database with litepost's tables, made from the DDL that `litepost schema` prints.
async fn shop() -> Shop {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("shop.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_millis(100));
    let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(litepost::schema::ddl())).execute(&mut *tx).await.unwrap();
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    Shop { pool, _folder: folder }
}

impl Shop {
    async fn number(&self, sql: &'static str) -> i64 {
        sqlx::query(sql).fetch_one(&self.pool).await.unwrap().get(0)
    }

    async fn events(&self) -> i64 {
        self.number("SELECT count(*) FROM litepost_outbox").await
    }
}

#[tokio::test]
async fn an_event_lives_and_dies_with_its_transaction() {
    let shop = shop().await;
    for (commit, expected) in [(false, 0), (true, 1)] {
        let mut tx = shop.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        sqlx::query("INSERT INTO orders (total) VALUES (4999)").execute(&mut *tx).await.unwrap();
        let written = enqueue(&mut tx, &NewEvent::new("orders", "{}").key("501")).await.unwrap();
        assert_eq!(written.seq().map(|seq| seq.0), Some(1), "a position that was rolled back is given again");
        if commit {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        assert_eq!((shop.events().await, shop.number("SELECT count(*) FROM orders").await), (expected, expected));
    }
    let mut tx = shop.pool.begin().await.unwrap();
    enqueue(&mut tx, &NewEvent::new("orders", "{}")).await.unwrap();
    drop(tx);
    assert_eq!(shop.events().await, 1, "a dropped transaction leaves nothing");
}

#[tokio::test]
async fn every_column_arrives_as_it_was_given() {
    let shop = shop().await;
    let mut tx = shop.pool.begin().await.unwrap();
    let event = NewEvent::new("orders", vec![0u8, 255, 1])
        .key("k\0k")
        .kind("OrderCreated")
        .header("traceparent", "00-1")
        .version(7)
        .dedup_key("d")
        .source("shop-1")
        .deliver_after(i64::MAX)
        .expires_at(i64::MIN)
        .id("id-1");
    let Enqueued::Written { seq, id, .. } = enqueue(&mut tx, &event).await.unwrap() else { panic!("a duplicate") };
    assert_eq!((seq.0, id.as_str()), (1, "id-1"));
    assert_eq!(enqueue(&mut tx, &NewEvent::new("orders", "").dedup_key("d")).await.unwrap(), Enqueued::Duplicate);
    let Enqueued::Written { seq, id, .. } = enqueue(&mut tx, &NewEvent::new("orders", "text")).await.unwrap() else {
        panic!("a duplicate")
    };
    assert_eq!((seq.0, id.len()), (2, 36));
    tx.commit().await.unwrap();
    let row = sqlx::query("SELECT * FROM litepost_outbox WHERE seq = 1").fetch_one(&shop.pool).await.unwrap();
    assert_eq!(row.get::<Vec<u8>, _>("payload"), [0, 255, 1]);
    assert_eq!(row.get::<String, _>("key"), "k\0k");
    assert_eq!(row.get::<String, _>("type"), "OrderCreated");
    assert_eq!(row.get::<String, _>("headers"), r#"{"traceparent":"00-1"}"#);
    assert_eq!((row.get::<i64, _>("version"), row.get::<String, _>("source")), (7, "shop-1".into()));
    assert_eq!((row.get::<i64, _>("deliver_after"), row.get::<i64, _>("expires_at")), (i64::MAX, i64::MIN));
    assert_eq!(shop.number("SELECT typeof(payload) = 'text' FROM litepost_outbox WHERE seq = 2").await, 1);
}

#[tokio::test]
async fn a_version_is_assigned_or_checked() {
    let shop = shop().await;
    let next = NewEvent::new("t", "p").key("k").next_version();
    let mut tx = shop.pool.begin().await.unwrap();
    assert_eq!(enqueue(&mut tx, &next).await.unwrap().version(), Some(1));
    tx.rollback().await.unwrap();
    let mut tx = shop.pool.begin().await.unwrap();
    assert_eq!(enqueue(&mut tx, &next.clone().dedup_key("d")).await.unwrap().version(), Some(1));
    assert_eq!(enqueue(&mut tx, &next.clone().dedup_key("d")).await.unwrap(), Enqueued::Duplicate);
    let written = enqueue_many(&mut tx, [&next, &next]).await.unwrap();
    assert_eq!(written.iter().filter_map(Enqueued::version).collect::<Vec<_>>(), [2, 3]);
    let given = NewEvent::new("t", "p").key("k").version(3);
    assert_eq!(enqueue(&mut tx, &given).await, Err(EnqueueError::DuplicateVersion));
    assert_eq!(enqueue(&mut tx, &NewEvent::new("t", "p").next_version()).await, Err(EnqueueError::BadVersion));
    tx.commit().await.unwrap();
    assert_eq!(shop.events().await, 3);
}

#[tokio::test]
async fn many_events_are_all_or_none() {
    let shop = shop().await;
    let mut tx = shop.pool.begin().await.unwrap();
    let (good, bad) = (NewEvent::new("t", "p"), NewEvent::new("", "p"));
    assert_eq!(enqueue_many(&mut tx, [&good, &good, &bad]).await, Err(EnqueueError::BadTopic));
    let written = enqueue_many(&mut tx, [&good, &good]).await.unwrap();
    assert_eq!(written.iter().filter_map(Enqueued::seq).map(|seq| seq.0).collect::<Vec<_>>(), [1, 2]);
    tx.commit().await.unwrap();
    assert_eq!(shop.events().await, 2);
}

#[tokio::test]
async fn the_errors_are_those_of_every_other_way_in() {
    let shop = shop().await;
    let mut tx = shop.pool.begin().await.unwrap();
    let versioned = NewEvent::new("t", "p").key("k").version(1);
    enqueue(&mut tx, &versioned).await.unwrap();
    assert_eq!(enqueue(&mut tx, &versioned).await, Err(EnqueueError::DuplicateVersion));
    assert_eq!(enqueue(&mut tx, &NewEvent::new("t", "p").version(1)).await, Err(EnqueueError::BadVersion));
    tx.commit().await.unwrap();

    let mut reader = shop.pool.begin().await.unwrap();
    sqlx::query("SELECT * FROM orders").fetch_all(&mut *reader).await.unwrap();
    let mut writer = shop.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    assert_eq!(enqueue(&mut reader, &NewEvent::new("t", "p")).await, Err(EnqueueError::Busy));
    enqueue(&mut writer, &NewEvent::new("t", "p")).await.unwrap();
    writer.commit().await.unwrap();
    assert_eq!(enqueue(&mut reader, &NewEvent::new("t", "p")).await, Err(EnqueueError::StaleSnapshot));
    reader.rollback().await.unwrap();

    sqlx::query("ALTER TABLE litepost_outbox RENAME TO elsewhere").execute(&shop.pool).await.unwrap();
    let mut tx = shop.pool.begin().await.unwrap();
    assert_eq!(enqueue(&mut tx, &NewEvent::new("t", "p")).await, Err(EnqueueError::NotMigrated));
}

#[tokio::test]
async fn a_transaction_that_was_rolled_back_underneath_takes_no_event() {
    let shop = shop().await;
    let mut tx = shop.pool.begin().await.unwrap();
    sqlx::query("INSERT INTO orders (total) VALUES (1)").execute(&mut *tx).await.unwrap();
    // What SQLite does by itself after a full disk.
    sqlx::query("ROLLBACK").execute(&mut *tx).await.unwrap();
    let event = NewEvent::new("t", "p");
    assert_eq!(enqueue(&mut tx, &event).await, Err(EnqueueError::NoTransaction));
    assert_eq!(enqueue_many(&mut tx, [&event]).await, Err(EnqueueError::NoTransaction));
    drop(tx);
    assert_eq!(shop.events().await, 0);
}
