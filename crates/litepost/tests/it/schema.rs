//! Migrations, and what is refused instead of migrated; opening files that are something else.

use std::sync::Barrier;

use litepost::connection::{self, Access, Options};
use litepost::schema::{self, SchemaState};
use litepost::{NewEvent, StoreError};
use rusqlite::Connection;

use crate::support::{file_with, fill, open};

#[test]
fn ten_connections_migrate_a_new_file_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.db");
    let start = Barrier::new(10);
    let firsts: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..10)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    let mut own = Options::new(Access::ReadWrite).create(true).open(&path).unwrap();
                    schema::migrate(&mut own).unwrap().from
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(firsts.iter().filter(|from| from.is_none()).count(), 1, "one does it, the others find it done");
    let own = open(&path);
    assert_eq!(schema::version(&own).unwrap(), SchemaState::Current(1));
    let rows: i64 = own.query_row("SELECT count(*) FROM litepost_schema", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 1);
}

#[test]
fn the_ddl_text_makes_the_same_schema() {
    let dump = |connection: &Connection| -> Vec<(String, String)> {
        let mut statement = connection.prepare("SELECT name, coalesce(sql, '') FROM sqlite_schema ORDER BY 1").unwrap();
        statement.query_map([], |r| Ok((r.get(0)?, r.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    let mut migrated = Connection::open_in_memory().unwrap();
    schema::migrate(&mut migrated).unwrap();
    let by_hand = Connection::open_in_memory().unwrap();
    by_hand.execute_batch(&format!("BEGIN; {} COMMIT;", schema::ddl())).unwrap();
    assert_eq!(dump(&migrated), dump(&by_hand));
    assert_eq!(schema::version(&by_hand).unwrap(), SchemaState::Current(1));
}

#[test]
fn foreign_newer_and_damaged_files_are_refused_and_left_alone() {
    let state = |sql: &str| {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(sql).unwrap();
        let before: i64 = connection.query_row("PRAGMA schema_version", [], |r| r.get(0)).unwrap();
        let error = schema::migrate(&mut connection).unwrap_err().to_string();
        let after: i64 = connection.query_row("PRAGMA schema_version", [], |r| r.get(0)).unwrap();
        assert_eq!(before, after, "{sql} was changed");
        error
    };
    let ours = schema::ddl();
    assert_eq!(
        state("CREATE TABLE LitePost_Outbox (x)"),
        "the database has an object named litepost_outbox that litepost did not make"
    );
    assert_eq!(
        state("CREATE TABLE litepost_schema (a, b)"),
        "the database has an object named litepost_schema that litepost did not make"
    );
    assert_eq!(
        state(&format!("{ours} INSERT INTO litepost_schema VALUES (7, 0, 'later')")),
        "the litepost tables have schema version 7, this program knows up to 1"
    );
    assert_eq!(
        state(&format!("{ours} DROP TRIGGER litepost_outbox_delete")),
        "the litepost schema is incomplete: litepost_outbox_delete is missing"
    );
    let mut beside = Connection::open_in_memory().unwrap();
    beside.execute_batch("CREATE TABLE litepost_stamps (x)").unwrap();
    assert_eq!(schema::migrate(&mut beside).unwrap().from, None, "only our own names count");
}

#[test]
fn what_is_no_database_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.db");
    let error = connection::open(&missing, Access::ReadWrite).unwrap_err();
    assert_eq!(error.to_string(), format!("{} does not exist", missing.display()));
    assert!(!missing.exists());
    let error = connection::open(folder.path(), Access::ReadOnly).unwrap_err();
    assert_eq!(error.to_string(), format!("{} is not a file", folder.path().display()));
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "x".repeat(5000)).unwrap();
    let error = connection::open(&text, Access::ReadWrite).unwrap_err();
    assert_eq!(error.to_string(), format!("{} is not a SQLite database, or it is encrypted", text.display()));
    assert!(!error.hint().is_empty());
    assert_eq!(std::fs::read(&text).unwrap().len(), 5000);
    let plain = folder.path().join("plain.db");
    Connection::open(&plain).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let error = litepost::log::LogReader::open(&plain).unwrap_err();
    assert!(matches!(error, StoreError::NotMigrated), "{error}");
}

/// What an application may have set, and what must be as it was after litepost has done all it does.
#[test]
fn the_applications_pragmas_stay_as_they_are() {
    const PRAGMAS: [&str; 8] = [
        "journal_mode",
        "page_size",
        "user_version",
        "application_id",
        "auto_vacuum",
        "encoding",
        "journal_size_limit",
        "max_page_count",
    ];
    let read = |path: &std::path::Path| -> Vec<String> {
        let connection = Connection::open(path).unwrap();
        let one = |name: &&str| {
            connection
                .query_row(&format!("PRAGMA {name}"), [], |r| r.get::<_, rusqlite::types::Value>(0))
                .map(|value| format!("{name} {value:?}"))
                .unwrap()
        };
        PRAGMAS.iter().map(one).collect()
    };
    for mode in ["WAL", "DELETE", "TRUNCATE", "PERSIST"] {
        for page in [512, 1024, 4096, 65536] {
            for encoding in ["UTF-8", "UTF-16le"] {
                let file = file_with(&format!(
                    "PRAGMA page_size = {page}; PRAGMA encoding = '{encoding}'; PRAGMA auto_vacuum = INCREMENTAL; \
                     PRAGMA user_version = 42; PRAGMA application_id = 7; PRAGMA journal_mode = {mode}"
                ));
                let before = read(&file.path);
                assert!(before.contains(&format!("page_size Integer({page})")), "{before:?}");
                fill(&file.path, 20);
                let mut store = litepost::lanes::LaneStore::open(&file.path).unwrap();
                store.register("a.b", 1, litepost::lanes::Start::Earliest).unwrap();
                let mut log = litepost::log::LogReader::open(&file.path).unwrap();
                log.make_durable().unwrap();
                let chunk = log.read_after(litepost_core::Seq::ZERO, 100, usize::MAX).unwrap();
                assert_eq!(chunk.events().len(), 20);
                assert_eq!(chunk.events()[3].payload.as_str(), Some("{\"n\":3}"));
                store.checkpoint(litepost::lanes::Mode::Truncate).unwrap();
                litepost::status::read(&file.path, litepost_core::Millis(0)).unwrap();
                drop((store, log));
                assert_eq!(read(&file.path), before, "{mode} {page} {encoding}");
            }
        }
    }
}

#[test]
fn status_looks_without_touching() {
    let file = file_with("PRAGMA journal_mode = DELETE");
    fill(&file.path, 5);
    let mut store = litepost::lanes::LaneStore::open(&file.path).unwrap();
    store.register("shop.audit", 2, litepost::lanes::Start::Earliest).unwrap();
    drop(store);
    let before = std::fs::read(&file.path).unwrap();
    let at: i64 = open(&file.path).query_row("SELECT created_at FROM litepost_outbox", [], |r| r.get(0)).unwrap();
    let status = litepost::status::read(&file.path, litepost_core::Millis(at + 1500)).unwrap();
    assert_eq!(std::fs::read(&file.path).unwrap(), before);
    let [one] = status.destinations.as_slice() else { panic!("{status:?}") };
    assert_eq!((one.destination.as_str(), one.pending, one.oldest_age_ms), ("shop.audit", 5, Some(1500)));
    assert_eq!((one.state.as_str(), one.dead, one.blocked_keys, one.lanes.len()), ("closed", 0, 0, 2));
}

#[test]
fn an_unmigrated_database_is_told_to_the_producer() {
    let mut plain = Connection::open_in_memory().unwrap();
    let tx = plain.transaction().unwrap();
    let error = litepost::enqueue(&tx, &NewEvent::new("t", "p")).unwrap_err();
    assert_eq!(error.to_string(), "the database has no litepost_outbox table");
    assert!(error.hint().contains("litepost migrate"));
}
