//! MariaDB: the nearest to the contract. What differs from PostgreSQL is named in the test that shows it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use litepost_inbox::{Answer, Claim, Cleaner, Dialect, Horizon, Inbox, InboxError, InboxOptions, MessageId, Scope};
use litepost_testkit::servers::MariaDb;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, IsolationLevel, Opts, Transaction, TxOpts};
use tokio::sync::Barrier;

use crate::{NO_HORIZON, digest, hours, id, scope, table_name};

const LEVELS: [IsolationLevel; 3] =
    [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

async fn connect() -> Conn {
    static SERVER: OnceLock<MariaDb> = OnceLock::new();
    let url = tokio::task::spawn_blocking(|| SERVER.get_or_init(MariaDb::start).url()).await.unwrap();
    Conn::new(Opts::from_url(&url).unwrap()).await.unwrap()
}

async fn inbox_with(options: InboxOptions) -> Inbox {
    let inbox = Inbox::with_options(&table_name(), options).unwrap();
    let mut conn = connect().await;
    conn.query_drop(inbox.schema(Dialect::MySql)).await.unwrap();
    conn.query_drop(inbox.schema(Dialect::MySql)).await.expect("the DDL can run twice");
    inbox
}

async fn inbox() -> Inbox {
    inbox_with(InboxOptions::default()).await
}

fn quoted(inbox: &Inbox) -> String {
    format!("`{}`", inbox.table())
}

async fn begin(conn: &mut Conn, level: IsolationLevel) -> Transaction<'_> {
    let mut options = TxOpts::new();
    options.with_isolation_level(level);
    conn.start_transaction(options).await.unwrap()
}

async fn until_blocked(id: u32) {
    let mut observer = connect().await;
    for _ in 0..200 {
        let waits = format!(
            "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT' AND trx_mysql_thread_id = {id}"
        );
        if observer.query_first::<u32, _>(waits).await.unwrap() == Some(1) {
            return;
        }
        // InnoDB refreshes what it shows here only when nobody has looked for 100 ms.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    panic!("the claim never waited");
}

async fn count(inbox: &Inbox) -> u64 {
    connect().await.query_first(format!("SELECT COUNT(*) FROM {}", quoted(inbox))).await.unwrap().unwrap()
}

async fn markers(inbox: &Inbox, scope: &str, count: u32, days: u32) {
    let insert = format!(
        "INSERT INTO {} (scope, message_id, processed_at) \
         SELECT '{scope}', CONCAT('{days} ', seq), UTC_TIMESTAMP(6) - INTERVAL {days} DAY - INTERVAL seq SECOND FROM seq_1_to_{count}",
        quoted(inbox)
    );
    connect().await.query_drop(insert).await.unwrap();
}

#[tokio::test]
async fn first_then_duplicate_rollback_and_savepoint() {
    let inbox = inbox().await;
    let mut conn = connect().await;
    for level in LEVELS {
        let message = id(&level.to_string());
        let mut tx = begin(&mut conn, level).await;
        tx.query_drop("SAVEPOINT mark").await.unwrap();
        assert_eq!(inbox.claim(&mut tx, &scope(), &message).await.unwrap(), Claim::First);
        tx.query_drop("ROLLBACK TO mark").await.unwrap();
        assert_eq!(inbox.claim(&mut tx, &scope(), &message).await.unwrap(), Claim::First);
        assert_eq!(inbox.claim(&mut tx, &scope(), &message).await.unwrap(), Claim::Duplicate);
        assert_eq!(count(&inbox).await, 0);
        tx.rollback().await.unwrap();
        for expected in [Claim::First, Claim::Duplicate] {
            let mut tx = begin(&mut conn, level).await;
            assert_eq!(inbox.claim(&mut tx, &scope(), &message).await.unwrap(), expected);
            tx.commit().await.unwrap();
        }
        connect().await.query_drop(format!("DELETE FROM {}", quoted(&inbox))).await.unwrap();
    }
}

/// Difference: under REPEATABLE READ and SERIALIZABLE too the answer is `Duplicate`, not a conflict.
#[tokio::test]
async fn waits_for_an_uncommitted_holder() {
    for level in LEVELS {
        for (commits, expected) in [(true, Claim::Duplicate), (false, Claim::First)] {
            let inbox = inbox().await;
            let (mut holder, mut waiter) = (connect().await, connect().await);
            let waiting = waiter.id();
            let mut held = begin(&mut holder, level).await;
            assert_eq!(inbox.claim(&mut held, &scope(), &id("m")).await.unwrap(), Claim::First);
            let second = inbox.clone();
            let claim = tokio::spawn(async move {
                let mut tx = begin(&mut waiter, level).await;
                let claim = second.claim(&mut tx, &scope(), &id("m")).await.unwrap();
                tx.commit().await.unwrap();
                claim
            });
            until_blocked(waiting).await;
            if commits {
                held.commit().await.unwrap();
            } else {
                held.rollback().await.unwrap();
            }
            assert_eq!(claim.await.unwrap(), expected, "{level}");
        }
    }
}

#[tokio::test]
async fn crossed_claims_are_a_retryable_deadlock() {
    let inbox = inbox().await;
    let (mut a, mut b) = (connect().await, connect().await);
    let blocked = a.id();
    let mut tx = b.start_transaction(TxOpts::new()).await.unwrap();
    assert_eq!(inbox.claim(&mut tx, &scope(), &id("y")).await.unwrap(), Claim::First);
    let other = inbox.clone();
    let first = tokio::spawn(async move {
        let mut tx = a.start_transaction(TxOpts::new()).await.unwrap();
        assert_eq!(other.claim(&mut tx, &scope(), &id("x")).await.unwrap(), Claim::First);
        let claim = other.claim(&mut tx, &scope(), &id("y")).await;
        tx.rollback().await.unwrap();
        claim
    });
    until_blocked(blocked).await;
    let second = inbox.claim(&mut tx, &scope(), &id("x")).await;
    tx.rollback().await.unwrap();
    let first = first.await.unwrap();
    let (failed, went_on) = if first.is_err() { (first, second) } else { (second, first) };
    let error = failed.unwrap_err();
    assert_eq!(error.sqlstate(), Some("40001"));
    assert!(error.is_retryable());
    assert_eq!(went_on.unwrap(), Claim::First);
}

/// Difference: a lock wait has an end, innodb_lock_wait_timeout. It is retryable.
#[tokio::test]
async fn waiting_too_long_is_retryable() {
    let inbox = inbox().await;
    let (mut holder, mut waiter) = (connect().await, connect().await);
    waiter.query_drop("SET innodb_lock_wait_timeout = 1").await.unwrap();
    let mut held = holder.start_transaction(TxOpts::new()).await.unwrap();
    assert_eq!(inbox.claim(&mut held, &scope(), &id("m")).await.unwrap(), Claim::First);
    let mut tx = waiter.start_transaction(TxOpts::new()).await.unwrap();
    let error = inbox.claim(&mut tx, &scope(), &id("m")).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_64_concurrent_claimers_one_is_first() {
    let inbox = inbox().await;
    let gate = Arc::new(Barrier::new(64));
    let mut claimers = Vec::new();
    for _ in 0..64 {
        let (inbox, gate, mut conn) = (inbox.clone(), Arc::clone(&gate), connect().await);
        claimers.push(tokio::spawn(async move {
            gate.wait().await;
            loop {
                let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
                match inbox.claim(&mut tx, &scope(), &id("m")).await {
                    Ok(claim) => {
                        tx.commit().await.unwrap();
                        return claim;
                    }
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
        }));
    }
    let mut firsts = 0;
    for claimer in claimers {
        firsts += usize::from(claimer.await.unwrap().is_first());
    }
    assert_eq!(firsts, 1);
}

#[tokio::test]
async fn keys_are_exact_and_the_table_refuses_what_the_types_refuse() {
    let inbox = inbox().await;
    let mut conn = connect().await;
    let insert = format!("INSERT INTO {} (scope, message_id) VALUES ('s', ?)", quoted(&inbox));
    assert!(conn.exec_drop(&insert, ("x".repeat(256),)).await.is_err());
    assert!(conn.exec_drop(&insert, ("",)).await.is_err());
    let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
    for message in ["m", "M", "m ", "\u{e9}", "e\u{301}"] {
        assert_eq!(inbox.claim(&mut tx, &scope(), &id(message)).await.unwrap(), Claim::First, "{message:?}");
    }
    let longest = MessageId::new("\u{1f4ee}".repeat(255)).unwrap();
    assert_eq!(
        inbox.claim(&mut tx, &Scope::new("\u{1f4ee}".repeat(255)).unwrap(), &longest).await.unwrap(),
        Claim::First
    );
}

#[tokio::test]
async fn another_unique_index_is_not_taken_for_the_key() {
    let inbox = inbox().await;
    let mut conn = connect().await;
    conn.query_drop(format!("CREATE UNIQUE INDEX ids ON {} (message_id)", quoted(&inbox))).await.unwrap();
    for language in ["en_US", "ja_JP"] {
        conn.query_drop(format!("SET lc_messages = '{language}'")).await.unwrap();
        let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
        assert_eq!(inbox.claim(&mut tx, &scope(), &id("m")).await.unwrap(), Claim::First);
        let error = inbox.claim(&mut tx, &Scope::new("other").unwrap(), &id("m")).await.unwrap_err();
        assert!(matches!(error, InboxError::Database { code: Some(1062), .. }), "{error:?}");
        tx.rollback().await.unwrap();
    }
}

/// The server says in words which key was met twice, and in some languages the key does not come last.
#[tokio::test]
async fn a_duplicate_is_one_in_every_language_of_the_server() {
    let inbox = inbox().await;
    let mut conn = connect().await;
    for language in ["en_US", "ja_JP", "hu_HU", "de_DE"] {
        conn.query_drop(format!("SET lc_messages = '{language}'")).await.unwrap();
        let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
        assert_eq!(inbox.claim(&mut tx, &scope(), &id("m")).await.unwrap(), Claim::First, "{language}");
        assert_eq!(inbox.claim(&mut tx, &scope(), &id("m")).await.unwrap(), Claim::Duplicate, "{language}");
        tx.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn a_missing_table_says_what_to_do() {
    let mut conn = connect().await;
    let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
    let missing = Inbox::new("nowhere").unwrap();
    let error = missing.claim(&mut tx, &scope(), &id("m")).await.unwrap_err();
    assert!(error.hint().starts_with("create the table") && !error.is_retryable(), "{error:?}");
}

/// Difference: a duplicate's marker is always protected, the failed INSERT holds a shared lock on it.
#[tokio::test]
async fn a_seen_marker_is_kept_and_the_options_hold() {
    let inbox = inbox_with(InboxOptions { protect_duplicates: true, results: true, digests: true }).await;
    let plain = Inbox::new(&inbox.table().to_string()).unwrap();
    let (mut conn, mut cleaning) = (connect().await, connect().await);
    markers(&inbox, scope().as_str(), 1, 8).await;
    for inbox in [&inbox, &plain] {
        let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
        assert_eq!(inbox.claim(&mut tx, &scope(), &id("8 1")).await.unwrap(), Claim::Duplicate);
        let mut cleaner = Cleaner::new(inbox, hours(24), NO_HORIZON).unwrap();
        assert_eq!(cleaner.run(&mut cleaning).await.unwrap().deleted, 0);
        tx.rollback().await.unwrap();
    }
    let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
    assert_eq!(inbox.claim_or_answer(&mut tx, &scope(), &id("m"), Some(&digest("a"))).await.unwrap(), Answer::First);
    inbox.record(&mut tx, &scope(), &id("m"), b"\0answer").await.unwrap();
    inbox.record(&mut tx, &scope(), &id("m"), b"\0answer").await.expect("the same result again");
    let answer = inbox.claim_or_answer(&mut tx, &scope(), &id("m"), None).await.unwrap();
    assert_eq!(answer, Answer::Duplicate(Some(b"\0answer".to_vec())));
    let error = inbox.claim_payload(&mut tx, &scope(), &id("m"), &digest("b")).await.unwrap_err();
    assert!(matches!(error, InboxError::PayloadMismatch { .. }));
    assert!(matches!(inbox.record(&mut tx, &scope(), &id("n"), b"x").await, Err(InboxError::NotClaimed { .. })));
}

#[tokio::test]
async fn cleaning_skips_locked_markers_and_shares_the_work() {
    let inbox = inbox().await;
    let (mut a, mut b, mut holder) = (connect().await, connect().await, connect().await);
    markers(&inbox, "old", 4_000, 8).await;
    markers(&inbox, "older", 1_000, 9).await;
    markers(&inbox, "new", 10, 1).await;
    let mut held = holder.start_transaction(TxOpts::new()).await.unwrap();
    held.query_drop(format!(
        "SELECT 1 FROM {} WHERE scope = 'old' AND message_id = '8 100' FOR UPDATE",
        quoted(&inbox)
    ))
    .await
    .unwrap();
    let mut first = Cleaner::new(&inbox, hours(7 * 24), NO_HORIZON).unwrap().batch_size(100).unwrap();
    let mut second = Cleaner::new(&inbox, hours(7 * 24), NO_HORIZON).unwrap().batch_size(100).unwrap();
    assert_eq!(first.plan(&mut a).await.unwrap().doomed, 5_000);
    let (x, y) = tokio::join!(first.run(&mut a), second.run(&mut b));
    let (x, y) = (x.unwrap().deleted, y.unwrap().deleted);
    assert_eq!(x + y, 4_999);
    assert!(x > 0 && y > 0, "one did everything: {x} and {y}");
    held.rollback().await.unwrap();
    assert_eq!(first.run(&mut a).await.unwrap().deleted, 1);
    assert_eq!(count(&inbox).await, 10);
}

#[tokio::test]
async fn downtime_is_counted_and_status_shows_it() {
    let inbox = inbox().await;
    let mut conn = connect().await;
    markers(&inbox, "down", 10, 20).await;
    for day in 0..30 {
        markers(&inbox, "busy", 1, day).await;
    }
    let mut cleaner = Cleaner::new(&inbox, hours(7 * 24), Horizon::new(hours(5 * 24), hours(48))).unwrap();
    let result = cleaner.run(&mut conn).await.unwrap();
    assert_eq!((result.deleted, result.own[0].scope.as_str(), result.own.len()), (23, "down", 1));
    let status = inbox.status(&mut conn).await.unwrap();
    let scopes: Vec<_> = status.scopes.iter().map(|scope| (scope.scope.as_str(), scope.markers)).collect();
    assert_eq!(scopes, [("busy", 7), ("down", 10)]);
    assert!(inbox.forget(&mut conn, &Scope::new("down").unwrap(), &id("20 1")).await.unwrap());
    assert_eq!(inbox.forget_scope(&mut conn, &Scope::new("down").unwrap()).await.unwrap(), 9);
}

/// A dropped run is rolled back with its connection's next statement; what was committed stays.
#[tokio::test]
async fn a_cancelled_run_keeps_its_batches() {
    let inbox = inbox().await;
    let mut conn = connect().await;
    markers(&inbox, "old", 3_000, 8).await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    {
        let mut cleaner = Cleaner::new(&inbox, hours(24), NO_HORIZON)
            .unwrap()
            .batch_size(100)
            .unwrap()
            .on_progress(move |progress| tell.send(progress.deleted).unwrap());
        tokio::select! {
            result = cleaner.run(&mut conn) => panic!("not cancelled: {result:?}"),
            _ = told.recv() => {}
        }
    }
    drop(conn);
    let left = count(&inbox).await;
    assert!(left > 0 && left < 3_000 && left % 100 == 0, "{left}");
    let mut conn = connect().await;
    let mut cleaner = Cleaner::new(&inbox, hours(24), NO_HORIZON).unwrap();
    let mut deleted = 0;
    while deleted < left {
        deleted += cleaner.run(&mut conn).await.unwrap().deleted;
    }
}
