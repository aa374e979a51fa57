//! SQLite: the nearest to the contract, where one transaction writes at a time.

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use litepost_inbox::{Answer, Claim, Cleaner, Dialect, Horizon, Inbox, InboxError, InboxOptions, MessageId, Scope};
use rusqlite::{Connection, TransactionBehavior};

use crate::{NO_HORIZON, digest, hours, id, scope, table_name};

struct Database {
    folder: tempfile::TempDir,
    inbox: Inbox,
}

impl Database {
    fn new() -> Self {
        Self::with(InboxOptions::default())
    }

    fn with(options: InboxOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let inbox = Inbox::with_options(&table_name(), options).unwrap();
        let database = Self { folder, inbox };
        let connection = database.connect();
        connection.execute_batch("PRAGMA journal_mode = wal").unwrap();
        connection.execute_batch(&database.inbox.schema(Dialect::Sqlite)).unwrap();
        connection.execute_batch(&database.inbox.schema(Dialect::Sqlite)).expect("the DDL can run twice");
        database
    }

    fn connect(&self) -> Connection {
        open(self.folder.path())
    }

    fn table(&self) -> String {
        format!("\"{}\"", self.inbox.table().to_string().replace('"', "\"\""))
    }

    fn count(&self) -> i64 {
        self.connect().query_row(&format!("SELECT count(*) FROM {}", self.table()), [], |row| row.get(0)).unwrap()
    }

    /// Inserts markers a second apart, the newest `days` old.
    fn markers(&self, scope: &str, count: u32, days: u32) {
        let insert = format!(
            "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {count}) \
             INSERT INTO {} (scope, message_id, processed_at) \
             SELECT '{scope}', '{days} ' || n, CAST(strftime('%s', 'now') AS INTEGER) * 1000 - {days} * 86400000 - n * 1000 FROM n",
            self.table()
        );
        self.connect().execute_batch(&insert).unwrap();
    }
}

fn open(folder: &Path) -> Connection {
    let connection = Connection::open(folder.join("consumer.sqlite")).unwrap();
    connection.busy_timeout(Duration::from_secs(60)).unwrap();
    connection
}

#[test]
fn first_then_duplicate_rollback_and_savepoint() {
    let database = Database::new();
    let mut connection = database.connect();
    let inbox = &database.inbox;
    let mut tx = connection.transaction().unwrap();
    let mut savepoint = tx.savepoint().unwrap();
    assert_eq!(inbox.claim(&savepoint, &scope(), &id("m")).unwrap(), Claim::First);
    savepoint.rollback().unwrap();
    savepoint.commit().unwrap();
    assert_eq!(inbox.claim(&tx, &scope(), &id("m")).unwrap(), Claim::First);
    assert_eq!(inbox.claim(&mut tx, &scope(), &id("m")).unwrap(), Claim::Duplicate);
    tx.rollback().unwrap();
    for expected in [Claim::First, Claim::Duplicate] {
        let tx = connection.transaction().unwrap();
        assert_eq!(inbox.claim(&tx, &scope(), &id("m")).unwrap(), expected);
        tx.commit().unwrap();
    }
    assert_eq!(database.count(), 1);
}

#[test]
fn a_connection_in_no_transaction_is_refused() {
    let database = Database::new();
    let mut connection = database.connect();
    let tx = connection.transaction().unwrap();
    tx.execute_batch("COMMIT").unwrap();
    let error = database.inbox.claim(&tx, &scope(), &id("m")).unwrap_err();
    assert!(matches!(error, InboxError::NoTransaction));
    assert_eq!(database.count(), 0);
}

#[test]
fn a_claim_waits_for_the_writer_and_a_stale_snapshot_is_retryable() {
    let database = Database::new();
    let (mut a, mut b) = (database.connect(), database.connect());
    b.busy_timeout(Duration::from_millis(20)).unwrap();
    let held = a.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    assert_eq!(database.inbox.claim(&held, &scope(), &id("m")).unwrap(), Claim::First);
    let tx = b.transaction().unwrap();
    let error = database.inbox.claim(&tx, &scope(), &id("m")).unwrap_err();
    assert!(error.is_retryable(), "SQLITE_BUSY after the busy timeout: {error}");
    tx.rollback().unwrap();
    let stale = b.transaction().unwrap();
    stale.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get::<_, i64>(0)).unwrap();
    held.commit().unwrap();
    let error = database.inbox.claim(&stale, &scope(), &id("m")).unwrap_err();
    assert!(error.is_retryable(), "SQLITE_BUSY_SNAPSHOT: {error}");
    stale.rollback().unwrap();
    let tx = b.transaction().unwrap();
    assert_eq!(database.inbox.claim(&tx, &scope(), &id("m")).unwrap(), Claim::Duplicate);
}

#[test]
fn a_missing_table_or_column_keeps_its_code_and_says_what_to_do() {
    let database = Database::new();
    let mut connection = database.connect();
    let tx = connection.transaction().unwrap();
    let elsewhere = Inbox::new("nowhere").unwrap();
    let options = InboxOptions { results: true, ..InboxOptions::default() };
    let wider = Inbox::with_options(&database.inbox.table().to_string(), options).unwrap();
    assert_eq!(wider.claim(&tx, &scope(), &id("m")).unwrap(), Claim::First);
    let missing = [
        elsewhere.claim(&tx, &scope(), &id("m")).unwrap_err(),
        wider.record(&tx, &scope(), &id("m"), b"x").unwrap_err(),
    ];
    for error in missing {
        assert!(matches!(error, InboxError::Database { code: Some(1), .. }), "{error:?}");
        assert!(error.hint().starts_with("create the table"), "{}", error.hint());
        assert!(!error.is_retryable());
    }
}

#[test]
fn of_64_concurrent_claimers_one_is_first() {
    let database = Arc::new(Database::new());
    let gate = Arc::new(Barrier::new(64));
    let claimers: Vec<_> = (0..64)
        .map(|_| {
            let (database, gate) = (Arc::clone(&database), Arc::clone(&gate));
            std::thread::spawn(move || {
                let mut connection = database.connect();
                gate.wait();
                let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
                let claim = database.inbox.claim(&tx, &scope(), &id("m")).unwrap();
                tx.commit().unwrap();
                claim
            })
        })
        .collect();
    let firsts = claimers.into_iter().map(|claimer| claimer.join().unwrap()).filter(|claim| claim.is_first()).count();
    assert_eq!(firsts, 1);
}

#[test]
fn the_options_hold() {
    let database = Database::with(InboxOptions { protect_duplicates: true, results: true, digests: true });
    let mut connection = database.connect();
    let inbox = &database.inbox;
    let tx = connection.transaction().unwrap();
    assert_eq!(inbox.claim_or_answer(&tx, &scope(), &id("m"), Some(&digest("a"))).unwrap(), Answer::First);
    inbox.record(&tx, &scope(), &id("m"), b"\0answer").unwrap();
    assert_eq!(
        inbox.claim_or_answer(&tx, &scope(), &id("m"), None).unwrap(),
        Answer::Duplicate(Some(b"\0answer".to_vec()))
    );
    assert_eq!(inbox.claim_payload(&tx, &scope(), &id("m"), &digest("a")).unwrap(), Claim::Duplicate);
    let error = inbox.claim_payload(&tx, &scope(), &id("m"), &digest("b")).unwrap_err();
    assert!(matches!(error, InboxError::PayloadMismatch { .. }));
    assert!(matches!(inbox.record(&tx, &scope(), &id("n"), b"x"), Err(InboxError::NotClaimed { .. })));
}

#[test]
fn the_table_refuses_what_the_types_refuse() {
    let database = Database::new();
    let insert = format!("INSERT INTO {} (scope, message_id) VALUES ('s', ?)", database.table());
    assert!(database.connect().execute(&insert, ["x".repeat(256)]).is_err());
    assert!(database.connect().execute(&insert, [""]).is_err());
    let mut connection = database.connect();
    let tx = connection.transaction().unwrap();
    let longest = MessageId::new("\u{1f4ee}".repeat(255)).unwrap();
    assert_eq!(database.inbox.claim(&tx, &scope(), &longest).unwrap(), Claim::First);
}

#[test]
fn cleaning_in_batches_with_one_cutoff() {
    let database = Database::new();
    database.markers("old", 2_500, 8);
    database.markers("new", 10, 1);
    let mut connection = database.connect();
    let mut cleaner = Cleaner::new(&database.inbox, hours(7 * 24), NO_HORIZON).unwrap();
    assert_eq!(cleaner.plan_blocking(&mut connection).unwrap().doomed, 2_500);
    assert_eq!(database.count(), 2_510);
    assert_eq!(cleaner.run_blocking(&mut connection).unwrap().deleted, 2_500);
    assert_eq!(database.count(), 10);
}

#[test]
fn two_cleaners_take_turns() {
    let database = Arc::new(Database::new());
    database.markers("old", 5_000, 8);
    let cleaners: Vec<_> = (0..2)
        .map(|_| {
            let database = Arc::clone(&database);
            std::thread::spawn(move || {
                let mut cleaner =
                    Cleaner::new(&database.inbox, hours(24), NO_HORIZON).unwrap().batch_size(100).unwrap();
                cleaner.run_blocking(&mut database.connect()).unwrap().deleted
            })
        })
        .collect();
    assert_eq!(cleaners.into_iter().map(|cleaner| cleaner.join().unwrap()).sum::<u64>(), 5_000);
}

#[test]
fn downtime_is_counted_and_forget_ends_it() {
    let database = Database::new();
    database.markers("down", 10, 20);
    for day in 0..30 {
        database.markers("busy", 1, day);
    }
    let mut connection = database.connect();
    let horizon = Horizon::new(hours(5 * 24), hours(48));
    let mut cleaner = Cleaner::new(&database.inbox, hours(7 * 24), horizon).unwrap();
    let result = cleaner.run_blocking(&mut connection).unwrap();
    assert_eq!((result.deleted, result.own[0].scope.as_str(), result.own.len()), (23, "down", 1));
    let status = database.inbox.status_blocking(&mut connection).unwrap();
    let scopes: Vec<_> = status.scopes.iter().map(|scope| (scope.scope.as_str(), scope.markers)).collect();
    assert_eq!(scopes, [("busy", 7), ("down", 10)]);
    assert!(database.inbox.forget_blocking(&mut connection, &Scope::new("down").unwrap(), &id("20 1")).unwrap());
    assert_eq!(database.inbox.forget_scope_blocking(&mut connection, &Scope::new("down").unwrap()).unwrap(), 9);
}
