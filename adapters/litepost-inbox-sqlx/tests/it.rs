//! The adapter on real databases: one suite for PostgreSQL, MariaDB and SQLite, and what differs between them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

// The servers of the main workspace's tests. The crate itself links rusqlite, which would be a second SQLite here.
#[path = "../../../crates/litepost-testkit/src/servers/mod.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, clippy::pedantic, reason = "a part of another crate")]
mod servers;
#[path = "../../../crates/litepost-testkit/src/tls.rs"]
#[allow(dead_code, unreachable_pub, clippy::pedantic, reason = "a part of another crate")]
mod tls;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use litepost_inbox_sqlx::{
    Answer, Claim, Cleaner, Connection, Dialect, Digest, Horizon, Inbox, InboxDatabase, InboxError, InboxOptions,
    MessageId, Scope, claim, claim_or_answer, claim_payload, record,
};
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor, Pool};
use tempfile::TempDir;

const ALL: InboxOptions = InboxOptions { protect_duplicates: true, results: true, digests: true };

fn scope() -> Scope {
    Scope::new("Orders.ship.v1 ").unwrap()
}

fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

/// A new inbox in a table of its own, made from its own DDL.
async fn inbox<D: InboxDatabase>(pool: &Pool<D>, dialect: Dialect) -> Inbox
where
    for<'c> &'c Pool<D>: Executor<'c, Database = D>,
{
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let table = format!("inbox_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let inbox = Inbox::with_options(&table, ALL).unwrap();
    pool.execute(sqlx::raw_sql(AssertSqlSafe(inbox.schema(dialect)))).await.unwrap();
    inbox
}

async fn postgres() -> PgPool {
    static SERVER: OnceLock<servers::Postgres> = OnceLock::new();
    let url = tokio::task::spawn_blocking(|| SERVER.get_or_init(servers::Postgres::start).url()).await.unwrap();
    PgPoolOptions::new().max_connections(70).connect(&url).await.unwrap()
}

async fn mysql() -> MySqlPool {
    static SERVER: OnceLock<servers::MariaDb> = OnceLock::new();
    let url = tokio::task::spawn_blocking(|| SERVER.get_or_init(servers::MariaDb::start).url()).await.unwrap();
    MySqlPoolOptions::new().max_connections(70).connect(&url).await.unwrap()
}

async fn sqlite() -> (SqlitePool, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("consumer.db"))
        .create_if_missing(true)
        .busy_timeout(Duration::from_secs(30))
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
    (SqlitePoolOptions::new().max_connections(16).connect_with(options).await.unwrap(), folder)
}

/// First, duplicate, rollback, savepoint; results and digests.
async fn contract<D: InboxDatabase>(pool: Pool<D>, inbox: Inbox) {
    let mut tx = pool.begin().await.unwrap();
    let mut savepoint = tx.begin().await.unwrap();
    assert_eq!(claim(&mut savepoint, &inbox, &scope(), &id("m")).await.unwrap(), Claim::First);
    savepoint.rollback().await.unwrap();
    assert_eq!(claim(&mut tx, &inbox, &scope(), &id("m")).await.unwrap(), Claim::First);
    assert_eq!(claim(&mut tx, &inbox, &scope(), &id("m")).await.unwrap(), Claim::Duplicate);
    assert_eq!(claim(&mut tx, &inbox, &scope(), &id("M")).await.unwrap(), Claim::First, "byte for byte");
    tx.rollback().await.unwrap();
    for expected in [Claim::First, Claim::Duplicate] {
        let mut tx = pool.begin().await.unwrap();
        assert_eq!(claim(&mut tx, &inbox, &scope(), &id("m")).await.unwrap(), expected);
        tx.commit().await.unwrap();
    }
    let (ours, theirs) = (Digest::from_bytes([1; 32]), Digest::from_bytes([2; 32]));
    let mut tx = pool.begin().await.unwrap();
    let first = claim_or_answer(&mut tx, &inbox, &scope(), &id("r"), Some(&ours)).await.unwrap();
    assert_eq!(first, Answer::First);
    record(&mut tx, &inbox, &scope(), &id("r"), b"\0answer").await.unwrap();
    record(&mut tx, &inbox, &scope(), &id("r"), b"\0answer").await.unwrap();
    let second = claim_or_answer(&mut tx, &inbox, &scope(), &id("r"), None).await.unwrap();
    assert_eq!(second, Answer::Duplicate(Some(b"\0answer".to_vec())));
    assert_eq!(claim_payload(&mut tx, &inbox, &scope(), &id("r"), &ours).await.unwrap(), Claim::Duplicate);
    let error = claim_payload(&mut tx, &inbox, &scope(), &id("r"), &theirs).await.unwrap_err();
    assert!(matches!(error, InboxError::PayloadMismatch { .. }), "{error}");
    let error = record(&mut tx, &inbox, &scope(), &id("nobody"), b"x").await.unwrap_err();
    assert!(matches!(error, InboxError::NotClaimed { .. }), "{error}");
    tx.rollback().await.unwrap();

    let nowhere = Inbox::new("nowhere").unwrap();
    let mut tx = pool.begin().await.unwrap();
    let error = claim(&mut tx, &nowhere, &scope(), &id("m")).await.unwrap_err();
    assert!(error.hint().starts_with("create the table"), "{error:?}");
}

/// Of many at once one is first.
async fn concurrent<D: InboxDatabase>(pool: Pool<D>, inbox: Inbox, begin: Option<&'static str>, claimers: usize)
where
    for<'t> sqlx::Transaction<'t, D>: Send,
{
    let tasks = (0..claimers).map(|_| async {
        let mut tx = match begin {
            Some(begin) => pool.begin_with(begin).await.unwrap(),
            None => pool.begin().await.unwrap(),
        };
        let answer = claim(&mut tx, &inbox, &scope(), &id("one")).await.unwrap();
        tx.commit().await.unwrap();
        answer
    });
    let answers = futures_util::future::join_all(tasks).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_first()).count(), 1);
}

const DAY: Duration = Duration::from_secs(86_400);

fn cleaner(inbox: &Inbox) -> Cleaner {
    let horizon = Horizon::new(Duration::ZERO, Duration::ZERO);
    Cleaner::new(inbox, 7 * DAY, horizon).unwrap().batch_size(100).unwrap()
}

/// What the operator and the cleaner see and do, whatever the database.
macro_rules! cleaning {
    ($pool:expr, $inbox:expr, $fill:expr) => {{
        let (pool, inbox) = ($pool, $inbox);
        pool.execute(sqlx::raw_sql(AssertSqlSafe($fill.replace("TABLE", &inbox.table().to_string())))).await.unwrap();
        let mut acquired = pool.acquire().await.unwrap();
        let mut connection = Connection(&mut *acquired);
        let status = inbox.status(&mut connection).await.unwrap();
        let seen: Vec<_> = status.scopes.iter().map(|scope| (scope.scope.as_str(), scope.markers)).collect();
        assert_eq!((status.markers, seen.as_slice()), (262, &[("new", 12), ("old", 250)][..]));
        assert_eq!(cleaner(&inbox).plan(&mut connection).await.unwrap().doomed, 250);
        assert_eq!(cleaner(&inbox).run(&mut connection).await.unwrap().deleted, 250);
        let new = Scope::new("new").unwrap();
        assert!(inbox.forget(&mut connection, &new, &id("3")).await.unwrap());
        assert!(!inbox.forget(&mut connection, &new, &id("3")).await.unwrap());
        assert_eq!(inbox.forget_scope(&mut connection, &new).await.unwrap(), 11);
        assert_eq!(inbox.status(&mut connection).await.unwrap().markers, 0);
    }};
}

#[tokio::test]
async fn on_postgres() {
    let pool = postgres().await;
    contract(pool.clone(), inbox(&pool, Dialect::Postgres).await).await;
    concurrent(pool.clone(), inbox(&pool, Dialect::Postgres).await, None, 64).await;
    let fill = "INSERT INTO TABLE (scope, message_id, processed_at)
                SELECT 'old', n::text, now() - interval '30 days' FROM generate_series(1, 250) n;
                INSERT INTO TABLE (scope, message_id) SELECT 'new', n::text FROM generate_series(1, 12) n";
    cleaning!(&pool, inbox(&pool, Dialect::Postgres).await, fill);
}

#[tokio::test]
async fn on_mariadb() {
    let pool = mysql().await;
    contract(pool.clone(), inbox(&pool, Dialect::MySql).await).await;
    concurrent(pool.clone(), inbox(&pool, Dialect::MySql).await, None, 64).await;
    let fill = "INSERT INTO TABLE (scope, message_id, processed_at)
                SELECT 'old', seq, UTC_TIMESTAMP(6) - INTERVAL 30 DAY FROM seq_1_to_250;
                INSERT INTO TABLE (scope, message_id) SELECT 'new', seq FROM seq_1_to_12";
    cleaning!(&pool, inbox(&pool, Dialect::MySql).await, fill);
}

#[tokio::test]
async fn on_sqlite() {
    let (pool, _folder) = sqlite().await;
    contract(pool.clone(), inbox(&pool, Dialect::Sqlite).await).await;
    concurrent(pool.clone(), inbox(&pool, Dialect::Sqlite).await, Some("BEGIN IMMEDIATE"), 16).await;
    let fill = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 250)
                INSERT INTO TABLE (scope, message_id, processed_at)
                SELECT 'old', n, CAST(strftime('%s', 'now') AS INTEGER) * 1000 - 30 * 86400000 FROM n;
                WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 12)
                INSERT INTO TABLE (scope, message_id) SELECT 'new', n FROM n";
    cleaning!(&pool, inbox(&pool, Dialect::Sqlite).await, fill);
}

#[tokio::test]
async fn errors_are_sorted_by_their_codes() {
    let pool = postgres().await;
    let inbox = inbox(&pool, Dialect::Postgres).await;
    let level = "BEGIN ISOLATION LEVEL REPEATABLE READ";
    let mut stale = pool.begin_with(level).await.unwrap();
    sqlx::query("SELECT 1 FROM pg_class").fetch_all(&mut *stale).await.unwrap();
    let mut other = pool.begin().await.unwrap();
    assert_eq!(claim(&mut other, &inbox, &scope(), &id("m")).await.unwrap(), Claim::First);
    other.commit().await.unwrap();
    let error = claim(&mut stale, &inbox, &scope(), &id("m")).await.unwrap_err();
    assert!(error.is_retryable() && error.sqlstate() == Some("40001"), "{error}");
    stale.rollback().await.unwrap();

    let mut killed = pool.begin().await.unwrap();
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *killed).await.unwrap();
    sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(&pool).await.unwrap();
    let error = claim(&mut killed, &inbox, &scope(), &id("n")).await.unwrap_err();
    assert!(error.is_disconnected() && !error.is_retryable(), "{error}");

    let (pool, _folder) = sqlite().await;
    let inbox = self::inbox(&pool, Dialect::Sqlite).await;
    let held = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let options = (*pool.connect_options()).clone().busy_timeout(Duration::from_millis(20));
    let hasty = SqlitePool::connect_with(options).await.unwrap();
    let mut tx = hasty.begin().await.unwrap();
    let error = claim(&mut tx, &inbox, &scope(), &id("m")).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    drop(held);
}

#[tokio::test]
async fn a_transaction_that_was_rolled_back_underneath_takes_no_marker() {
    let (pool, _folder) = sqlite().await;
    let inbox = inbox(&pool, Dialect::Sqlite).await;
    let mut tx = pool.begin().await.unwrap();
    // What SQLite does by itself after a full disk.
    sqlx::query("ROLLBACK").execute(&mut *tx).await.unwrap();
    let error = claim(&mut tx, &inbox, &scope(), &id("m")).await.unwrap_err();
    assert!(matches!(error, InboxError::NoTransaction), "{error}");
    drop(tx);
    let mut acquired = pool.acquire().await.unwrap();
    assert_eq!(inbox.status(&mut Connection(&mut *acquired)).await.unwrap().markers, 0);
}

/// A table that is altered after its first claim is refused when a claim looks at it again.
async fn altered<D: InboxDatabase>(pool: Pool<D>, inbox: Inbox, how: impl Fn(&str) -> String)
where
    for<'c> &'c Pool<D>: Executor<'c, Database = D>,
{
    let inbox = inbox.check_every(Duration::from_millis(200));
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(claim(&mut tx, &inbox, &scope(), &id("m")).await.unwrap(), Claim::First);
    tx.commit().await.unwrap();
    pool.execute(sqlx::raw_sql(AssertSqlSafe(how(&inbox.table().to_string())))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut tx = pool.begin().await.unwrap();
    let refused = claim(&mut tx, &inbox, &scope(), &id("n")).await.unwrap_err();
    assert!(matches!(refused, InboxError::Table { .. }), "{refused}");
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn an_altered_table_is_refused_on_postgres() {
    let pool = postgres().await;
    let inbox = inbox(&pool, Dialect::Postgres).await;
    altered(pool, inbox, |table| format!("ALTER TABLE {table} SET UNLOGGED")).await;
}

#[tokio::test]
async fn an_altered_table_is_refused_on_mariadb() {
    let pool = mysql().await;
    let inbox = inbox(&pool, Dialect::MySql).await;
    altered(pool, inbox, |table| format!("ALTER TABLE {table} DROP PRIMARY KEY")).await;
}

#[tokio::test]
async fn an_altered_table_is_refused_on_sqlite() {
    let (pool, _folder) = sqlite().await;
    let inbox = inbox(&pool, Dialect::Sqlite).await;
    let again = |table: &str| {
        format!(
            "DROP TABLE {table}; CREATE TABLE {table} (scope TEXT, message_id TEXT COLLATE NOCASE, \
             processed_at INTEGER NOT NULL DEFAULT 0, result BLOB, digest BLOB, PRIMARY KEY (scope, message_id))"
        )
    };
    altered(pool, inbox, again).await;
}

/// Its words are those of the marker's own, `Duplicate entry '1' for key 'PRIMARY'`: only the marker tells.
#[tokio::test]
async fn a_duplicate_key_that_a_trigger_meets_is_not_the_markers() {
    let pool = mysql().await;
    let inbox = Inbox::new("inbox_logged").unwrap();
    pool.execute(sqlx::raw_sql(AssertSqlSafe(inbox.schema(Dialect::MySql)))).await.unwrap();
    let logs = "CREATE TABLE logged (id int PRIMARY KEY); INSERT INTO logged VALUES (1);
                CREATE TRIGGER t AFTER INSERT ON inbox_logged FOR EACH ROW INSERT INTO logged VALUES (1)";
    pool.execute(sqlx::raw_sql(logs)).await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    let error = claim(&mut tx, &inbox, &scope(), &id("m")).await.unwrap_err();
    assert!(matches!(error, InboxError::Database { code: Some(1062), .. }), "{error}");
    tx.rollback().await.unwrap();
}
