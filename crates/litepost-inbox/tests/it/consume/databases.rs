//! What the loop does about the database: lost connections, conflicts, a missing table; and each driver.

use std::cell::Cell;
use std::time::Duration;

use litepost_inbox::consume::{
    Attempts, ConsumeError, Consumer, Database, HandlerError, Message, MySql, Policy, Source, SourceError, Sqlite,
    Summary,
};
use litepost_inbox::{Dialect, Inbox, Scope};
use litepost_testkit::servers::MariaDb;
use mysql_async::prelude::Queryable as _;
use tokio_postgres::Transaction;

use super::nats::Jetstream;
use super::{Broker, effects, ids, nats, suite};

fn scope() -> Scope {
    Scope::new("effects.v1").unwrap()
}

/// Sends these, one of them twice.
async fn published(broker: &Jetstream) {
    for id in ["a", "b", "a", "last"] {
        broker.publish(Some(id), "x").await;
    }
}

#[tokio::test]
async fn a_lost_connection_is_made_anew_and_the_message_handled_once() {
    lost_connections(false).await;
}

#[tokio::test]
async fn a_claim_that_is_prepared_is_prepared_again_on_the_next_connection() {
    lost_connections(true).await;
}

async fn lost_connections(prepared: bool) {
    let (client, table) = effects().await;
    let broker = nats::new().await;
    published(&broker).await;
    let (lost, stop) = (Cell::new(0), tokio::sync::Notify::new());
    let inbox = Inbox::new(&format!("inbox_{table}")).unwrap();
    let database = super::database(&super::postgres_url());
    let database = if prepared { database.prepared() } else { database };
    let mut consumer = Consumer::new(inbox, scope(), broker.source().await, database).policy(super::quick());
    let run = consumer.run(stop.notified(), async |tx: &mut Transaction<'_>, message: &Message| {
        let statements = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT INTO \"inbox%'";
        assert_eq!(tx.query_one(statements, &[]).await?.get::<_, i64>(0), i64::from(prepared));
        suite::effect(tx, &table, message).await?;
        if lost.get() < 2 {
            lost.set(lost.get() + 1);
            let pid: i32 = tx.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
            client.execute("SELECT pg_terminate_backend($1)", &[&pid]).await?;
            tx.execute("SELECT 1", &[]).await?;
        }
        if message.id.as_deref() == Some("last") {
            stop.notify_one();
        }
        Ok::<(), HandlerError>(())
    });
    let summary = tokio::time::timeout(Duration::from_secs(60), run).await.expect("it ends").unwrap();
    assert_eq!(ids(&client, &table).await, ["a", "b", "last"]);
    assert_eq!((summary.handled, summary.duplicates, summary.retries, summary.returned), (3, 1, 2, 0));
}

#[tokio::test]
async fn a_conflict_is_retried_in_place_and_then_goes_back_to_the_broker() {
    let (client, table) = effects().await;
    let broker = nats::new().await;
    published(&broker).await;
    let (conflicts, stop) = (Cell::new(0), tokio::sync::Notify::new());
    let policy = super::quick().retries_max(2);
    let mut consumer = suite::consumer(&table, broker.source().await).policy(policy);
    let run = consumer.run(stop.notified(), async |tx: &mut Transaction<'_>, message: &Message| {
        suite::effect(tx, &table, message).await?;
        if conflicts.get() < 4 {
            conflicts.set(conflicts.get() + 1);
            tx.batch_execute("DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '40001'; END $$").await?;
        }
        if message.id.as_deref() == Some("last") {
            stop.notify_one();
        }
        Ok::<(), HandlerError>(())
    });
    let summary = tokio::time::timeout(Duration::from_secs(60), run).await.expect("it ends").unwrap();
    assert_eq!(ids(&client, &table).await, ["a", "b", "last"]);
    // Three conflicts end the first message's retries; the fourth is the next message's.
    assert_eq!((summary.retries, summary.returned, summary.dead_letters), (3, 1, 0));
}

#[tokio::test]
async fn without_its_table_the_consumer_ends_with_the_error_and_loses_nothing() {
    let (client, table) = effects().await;
    let broker = nats::new().await;
    broker.publish(Some("last"), "x").await;
    client.batch_execute(&format!("ALTER TABLE inbox_{table} RENAME TO away_{table}")).await.unwrap();
    let handle = async |tx: &mut Transaction<'_>, message: &Message| suite::effect(tx, &table, message).await;
    let mut consumer = suite::consumer(&table, broker.source().await);
    let ended = tokio::time::timeout(Duration::from_secs(30), consumer.run(std::future::pending(), handle)).await;
    let error = ended.expect("it ends").unwrap_err();
    assert!(matches!(&error, ConsumeError::Claim(claim) if claim.sqlstate() == Some("42P01")), "{error}");
    assert!(error.hint().contains("litepost inbox schema"));
    client.batch_execute(&format!("ALTER TABLE away_{table} RENAME TO inbox_{table}")).await.unwrap();
    let stop = async { while ids(&client, &table).await.is_empty() {} };
    let mut consumer = suite::consumer(&table, broker.source().await);
    let run = consumer
        .run(stop, async |tx: &mut Transaction<'_>, message: &Message| suite::effect(tx, &table, message).await);
    assert_eq!(tokio::time::timeout(Duration::from_secs(30), run).await.expect("it ends").unwrap().handled, 1);
}

/// A source of one message that the broker has delivered too often.
struct Worn(Option<&'static str>);

impl Source for Worn {
    type Token = ();

    async fn next(&mut self) -> Result<(Message, ()), SourceError> {
        match self.0.take() {
            Some(id) => Ok((Message { id: Some(id.into()), attempt: 4, ..Message::default() }, ())),
            None => std::future::pending().await,
        }
    }

    async fn ack(&mut self, (): ()) -> Result<(), SourceError> {
        Ok(())
    }

    async fn nack(&mut self, (): (), _delay: Duration) -> Result<(), SourceError> {
        Ok(())
    }

    async fn dead_letter(&mut self, (): (), _message: &Message, _reason: &str) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}

#[tokio::test]
async fn a_message_that_ends_its_handlers_becomes_a_dead_letter_unless_it_was_handled() {
    let (client, table) = effects().await;
    let broker = Some("worn");
    for (handled_before, expected) in [(false, (0, 1)), (true, (1, 0))] {
        if handled_before {
            let insert = format!("INSERT INTO inbox_{table} (scope, message_id) VALUES ('effects.v1', 'worn')");
            client.execute(&insert, &[]).await.unwrap();
        }
        let mut consumer = suite::consumer(&table, Worn(broker)).policy(Policy::default().attempts_max(3));
        let stop = tokio::time::sleep(Duration::from_millis(500));
        let run = consumer.run(stop, async |_: &mut Transaction<'_>, _: &Message| {
            Err::<(), _>(HandlerError::failed("it must not be handled"))
        });
        let summary = run.await.unwrap();
        assert_eq!((summary.duplicates, summary.dead_letters), expected);
    }
}

/// A source of one message, again and again, whose broker does not count.
struct Again;

impl Source for Again {
    type Token = ();

    async fn next(&mut self) -> Result<(Message, ()), SourceError> {
        Ok((Message { id: Some("again".into()), attempt: 1, suspect: true, ..Message::default() }, ()))
    }

    async fn ack(&mut self, (): ()) -> Result<(), SourceError> {
        Ok(())
    }

    async fn nack(&mut self, (): (), _delay: Duration) -> Result<(), SourceError> {
        Ok(())
    }

    async fn dead_letter(&mut self, (): (), _message: &Message, _reason: &str) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}

/// Three consumers, one after the other, see one attempt each, and the third gives up.
async fn attempts_are_counted<D: Database>(inbox: &Inbox, attempts: &Attempts, database: impl Fn() -> D) {
    for number in 1..=3 {
        let stop = tokio::sync::Notify::new();
        let mut consumer = Consumer::new(inbox.clone(), scope(), Again, database())
            .policy(super::quick().attempts_max(3))
            .attempts(attempts.clone());
        let run = consumer.run(stop.notified(), async |_: &mut D::Tx<'_>, _: &Message| {
            stop.notify_one();
            Err::<(), _>(HandlerError::failed("it never works"))
        });
        let summary = tokio::time::timeout(Duration::from_secs(30), run).await.expect("it ends").unwrap();
        let expected = if number == 3 { (0, 1) } else { (1, 0) };
        assert_eq!((summary.returned, summary.dead_letters), expected, "consumer {number}");
    }
}

fn once(summary: Summary) {
    assert_eq!((summary.handled, summary.duplicates), (3, 1));
}

#[tokio::test]
async fn on_mariadb() {
    let server = tokio::task::spawn_blocking(MariaDb::start).await.unwrap();
    let mut conn = mysql_async::Conn::from_url(server.url()).await.unwrap();
    let inbox = Inbox::new("inbox").unwrap();
    conn.query_drop(inbox.schema(Dialect::MySql)).await.unwrap();
    conn.query_drop("CREATE TABLE effects (id VARCHAR(20)) ENGINE = InnoDB").await.unwrap();
    let broker = nats::new().await;
    published(&broker).await;
    let stop = tokio::sync::Notify::new();
    let database = MySql::new(mysql_async::Opts::from_url(&server.url()).unwrap());
    let mut consumer = Consumer::new(inbox, scope(), broker.source().await, database);
    let run = consumer.run(stop.notified(), async |tx: &mut mysql_async::Transaction<'_>, message: &Message| {
        tx.exec_drop("INSERT INTO effects (id) VALUES (?)", (message.id.as_deref(),)).await?;
        if message.id.as_deref() == Some("last") {
            stop.notify_one();
        }
        Ok::<(), HandlerError>(())
    });
    once(tokio::time::timeout(Duration::from_secs(60), run).await.expect("it ends").unwrap());
    let effects: Vec<String> = conn.query("SELECT id FROM effects ORDER BY id").await.unwrap();
    assert_eq!(effects, ["a", "b", "last"]);

    let (inbox, attempts) = (Inbox::new("inbox").unwrap(), Attempts::new("inbox_attempts").unwrap());
    conn.query_drop(attempts.schema(Dialect::MySql)).await.unwrap();
    let database = || MySql::new(mysql_async::Opts::from_url(&server.url()).unwrap());
    attempts_are_counted(&inbox, &attempts, database).await;
    let left: u64 = conn.query_first("SELECT COUNT(*) FROM inbox_attempts").await.unwrap().unwrap();
    assert_eq!(left, 0, "what is done with is forgotten");
}

#[tokio::test]
async fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("consumer.db");
    let inbox = Inbox::new("inbox").unwrap();
    let observer = rusqlite::Connection::open(&path).unwrap();
    observer.execute_batch(&inbox.schema(Dialect::Sqlite)).unwrap();
    observer.execute_batch("CREATE TABLE effects (id TEXT)").unwrap();
    let broker = nats::new().await;
    published(&broker).await;
    let stop = tokio::sync::Notify::new();
    let opened = path.clone();
    let database = Sqlite::new(move || rusqlite::Connection::open(&opened));
    let mut consumer = Consumer::new(inbox, scope(), broker.source().await, database);
    let run = consumer.run(stop.notified(), async |tx: &mut rusqlite::Transaction<'_>, message: &Message| {
        tx.execute("INSERT INTO effects (id) VALUES (?)", [message.id.as_deref()])?;
        if message.id.as_deref() == Some("last") {
            stop.notify_one();
        }
        Ok::<(), HandlerError>(())
    });
    once(tokio::time::timeout(Duration::from_secs(60), run).await.expect("it ends").unwrap());
    let count = |table: &str| {
        let sql = format!("SELECT count(*) FROM {table}");
        observer.query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!(count("effects"), 3);

    let (inbox, attempts) = (Inbox::new("inbox").unwrap(), Attempts::new("inbox_attempts").unwrap());
    observer.execute_batch(&attempts.schema(Dialect::Sqlite)).unwrap();
    let database = || {
        let path = path.clone();
        Sqlite::new(move || rusqlite::Connection::open(&path))
    };
    // What a crash has left long ago is not counted on, nor kept.
    let old = "INSERT INTO inbox_attempts (scope, message_id, attempts, tried_at) VALUES ('effects.v1', ?, 9, 0)";
    observer.execute(old, ["again"]).unwrap();
    observer.execute(old, ["another"]).unwrap();
    attempts_are_counted(&inbox, &attempts, database).await;
    assert_eq!(count("inbox_attempts"), 0, "what is done with is forgotten");
}
