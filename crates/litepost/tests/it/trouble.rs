//! Files, disks and folders that are not as they should be, told exactly; and many processes at one new file.
//!
//! A full disk and a read-only folder are real: file systems mounted where only a child process sees them (`unshare`),
//! and a limit on the size of its files.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use litepost::connection::{self, Access, Options};
use litepost::schema::{self, SchemaState};
use litepost::{Durability, EnqueueError, Enqueued, GroupWriter, NewEvent, Outbox, StoreError};
use rusqlite::Connection;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::support::{count, file, file_with, fill, open};

/// This test binary as another process that does `work` in `path`, after what `script` has made of its surroundings.
fn child(script: &[&str], work: &str, path: &Path) -> Command {
    let binary = std::env::current_exe().unwrap();
    let mut command = Command::new(script.first().map_or(binary.as_os_str(), |program| program.as_ref()));
    if let Some((_, rest)) = script.split_first() {
        command.args(rest).arg(binary);
    }
    command
        .args(["trouble::another_process", "--exact", "--ignored", "--nocapture"])
        .env("LITEPOST_TEST_WORK", work)
        .env("LITEPOST_TEST_PATH", path)
        .env("D", if path.is_dir() { path } else { path.parent().unwrap() })
        .env("F", path)
        .stdin(Stdio::null());
    command
}

/// Runs it to its end, which must be a good one.
#[track_caller]
fn well(mut command: Command) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && out.contains("1 passed"), "{status}\n{out}\n{err}");
}

/// In a mount namespace of its own.
const MOUNTED: [&str; 5] = ["unshare", "--map-root-user", "--mount", "sh", "-ec"];

/// Whether this system lets a process mount something for itself; some containers do not.
fn can_mount() -> bool {
    let probe = Command::new(MOUNTED[0]).args(&MOUNTED[1..3]).arg("true").stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}

fn mounted(script: &str) -> Vec<&str> {
    [&MOUNTED[..], &[script]].concat()
}

#[test]
#[ignore = "the body of the other processes in this module; does nothing by itself"]
fn another_process() {
    let (Ok(work), Ok(path)) = (std::env::var("LITEPOST_TEST_WORK"), std::env::var("LITEPOST_TEST_PATH")) else {
        return;
    };
    let path = Path::new(&path);
    match work.as_str() {
        "migrate" => migrate_when_told(path),
        "fill the disk" => fill_the_disk(path, "the disk is full; the event was not written"),
        "exceed the limit" => {
            fill_the_disk(path, "input/output error (SQLite code 778); the event was not written");
        }
        "read-only file" => {
            let error = connection::open(path, Access::ReadWrite).unwrap_err();
            assert_eq!(error.to_string(), format!("{} cannot be opened: the file is not writable", path.display()));
        }
        "read-only folder" => {
            let error = Outbox::open(path).unwrap_err();
            let reason = "unable to open database file";
            assert_eq!(error.to_string(), format!("{} cannot be opened: {reason}", path.display()));
            assert_eq!(
                error.hint(),
                "check the permissions of the file and of its directory, which needs to be writable"
            );
        }
        "read-only folder, rollback journal" => {
            let mut outbox = Outbox::open(path).unwrap();
            let error = outbox.enqueue(&NewEvent::new("t", "p")).unwrap_err();
            assert_eq!(
                error.to_string(),
                "SQLite cannot open the database, or a file beside it (code 14); the event was not written"
            );
        }
        other => panic!("{other}?"),
    }
}

fn migrate_when_told(path: &Path) {
    while !path.with_extension("go").exists() {
        std::thread::yield_now();
    }
    let mut own = Options::new(Access::ReadWrite).create(true).open(path).unwrap();
    let done = schema::migrate(&mut own).unwrap();
    if done.from.is_none() {
        std::fs::write(path.with_extension(format!("first-{}", std::process::id())), "").unwrap();
    }
    drop(own);
    Outbox::open(path).unwrap().enqueue(&NewEvent::new("t", "p")).unwrap();
}

#[test]
fn ten_processes_migrate_a_new_file_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new.db");
    let children: Vec<_> = (0..10)
        .map(|_| child(&[], "migrate", &path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .collect();
    std::fs::write(path.with_extension("go"), "").unwrap();
    for child in children {
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    }
    let names =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.contains("first-")).count(), 1, "one does it, the others find it done");
    assert!(matches!(schema::version(&open(&path)).unwrap(), SchemaState::Current(_)));
    assert_eq!(count(&path), 10, "each then wrote its event");
}

/// In the child: a database, little room for it, and 16 producers.
fn fill_the_disk(folder: &Path, message: &str) {
    let ballast = folder.join("ballast");
    for durability in [Durability::Normal, Durability::Full] {
        let path = folder.join(format!("{durability:?}.db"));
        let mut app = Options::new(Access::ReadWrite).create(true).open(&path).unwrap();
        connection::enable_wal(&app).unwrap();
        schema::migrate(&mut app).unwrap();
        // Nothing is moved out of the WAL meanwhile: it grows until the disk is full.
        let reader = open(&path);
        let pinned = reader.unchecked_transaction().unwrap();
        let _: i64 = pinned.query_row("SELECT count(*) FROM litepost_outbox", [], |row| row.get(0)).unwrap();
        std::fs::write(&ballast, vec![1; 200 << 10]).unwrap();
        let writer = GroupWriter::open(&path, durability).unwrap();
        let body = "x".repeat(3_000);
        let told: Vec<(String, Result<Enqueued, EnqueueError>)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16)
                .map(|thread| {
                    let (writer, body) = (writer.clone(), &body);
                    scope.spawn(move || {
                        let one = |n: usize| {
                            let id = format!("{durability:?}-{thread}-{n}");
                            (id.clone(), writer.enqueue(NewEvent::new("t", body.as_str()).id(id)))
                        };
                        (0..40).map(one).collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let failed = told.iter().filter(|(_, answer)| answer.is_err()).count();
        assert!(failed > 0 && failed < told.len(), "{failed} of {} failed", told.len());
        for (id, answer) in &told {
            let found: Option<i64> =
                app.query_row("SELECT max(seq) FROM litepost_outbox WHERE id = ?1", [id], |row| row.get(0)).unwrap();
            match answer {
                Ok(written) => assert_eq!(written.seq().map(|seq| seq.0), found, "{id} was acknowledged"),
                Err(error) => {
                    assert_eq!(error.to_string(), message, "{id}");
                    assert_eq!(found, None, "{id} was refused and is there all the same");
                }
            }
        }
        // Room again: a file less, a higher limit.
        std::fs::remove_file(&ballast).unwrap();
        let limit = getrlimit(Resource::Fsize);
        let more = limit.current.map(|bytes| bytes + (400 << 10));
        setrlimit(Resource::Fsize, Rlimit { current: more, maximum: limit.maximum }).unwrap();
        writer.enqueue(NewEvent::new("t", "p")).unwrap();
        let check: String = app.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        drop((pinned, writer, app));
        drop(reader);
        for file in std::fs::read_dir(folder).unwrap().flatten() {
            std::fs::remove_file(file.path()).unwrap();
        }
    }
}

#[test]
fn on_a_full_disk_every_waiter_of_a_group_is_told_the_truth() {
    let folder = tempfile::tempdir().unwrap();
    let limited = ["sh", "-ec", "trap '' XFSZ; ulimit -S -f 800; exec \"$0\" \"$@\""];
    well(child(&limited, "exceed the limit", folder.path()));
    if can_mount() {
        let folder = tempfile::tempdir().unwrap();
        let small = mounted("mount -t tmpfs -o size=1200k litepost \"$D\"; exec \"$0\" \"$@\"");
        well(child(&small, "fill the disk", folder.path()));
    }
}

#[test]
fn what_is_read_only_is_told() {
    // The superuser, whom permissions do not hold, needs a file system that is read-only.
    if !can_mount() {
        return;
    }
    let (wal, other, rollback) = (file(), file(), file_with("PRAGMA journal_mode = DELETE"));
    let file_only = "mount --bind \"$F\" \"$F\"; mount -o remount,ro,bind \"$F\"; exec \"$0\" \"$@\"";
    well(child(&mounted(file_only), "read-only file", &wal.path));
    // The folder is read-only, the file in it is not.
    let folder_only = "way=$(mktemp -d); mount --bind \"$D\" \"$way\"; mount --bind \"$D\" \"$D\"
        mount -o remount,ro,bind \"$D\"; mount --bind \"$way/shop.db\" \"$F\"; umount \"$way\"; rmdir \"$way\"
        exec \"$0\" \"$@\"";
    well(child(&mounted(folder_only), "read-only folder", &other.path));
    well(child(&mounted(folder_only), "read-only folder, rollback journal", &rollback.path));
}

#[test]
fn one_bad_event_among_many_waiters_is_refused_alone() {
    let file = file();
    let writer = GroupWriter::open(&file.path, Durability::Normal).unwrap();
    // Held back until all are queued, so that they share one transaction.
    let app = open(&file.path);
    app.execute_batch("BEGIN IMMEDIATE").unwrap();
    let queued: Vec<_> = (0..100)
        .map(|n| match n {
            37 => writer.submit(NewEvent::new("", "p")),
            61 => writer.submit(NewEvent::new("t", "p").version(1)),
            _ => writer.submit(NewEvent::new("t", "p").id(format!("id-{n}"))),
        })
        .collect();
    app.execute_batch("COMMIT").unwrap();
    for (n, pending) in queued.into_iter().enumerate() {
        match (n, pending.wait()) {
            (37, answer) => assert_eq!(answer, Err(EnqueueError::BadTopic)),
            (61, answer) => assert_eq!(answer, Err(EnqueueError::BadVersion)),
            (n, answer) => {
                let Enqueued::Written { seq, id, .. } = answer.unwrap() else { panic!("{n}: a duplicate") };
                let found: String =
                    app.query_row("SELECT id FROM litepost_outbox WHERE seq = ?1", [seq.0], |row| row.get(0)).unwrap();
                assert_eq!((found, id), (format!("id-{n}"), format!("id-{n}")));
            }
        }
    }
    assert_eq!(count(&file.path), 98);
}

/// A migrated database in one file, its log many pages long.
fn closed_file() -> crate::support::File {
    let file = file();
    fill(&file.path, 2_000);
    open(&file.path).query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    file
}

#[test]
fn damaged_files_are_told_and_not_made_worse() {
    let damaged = closed_file();
    let whole = std::fs::read(&damaged.path).unwrap();
    let told = |bytes: &[u8]| {
        std::fs::write(&damaged.path, bytes).unwrap();
        let error = read_all(&damaged.path).unwrap_err().to_string();
        assert_eq!(std::fs::read(&damaged.path).unwrap(), bytes, "a look changed the file");
        error.replace(&damaged.path.display().to_string(), "FILE")
    };
    let mut page = whole.clone();
    page[whole.len() / 2..][..8_192].fill(0xa5);
    assert_eq!(told(&page), "reading the log: the database is damaged (SQLite code 11)");
    assert_eq!(
        told(&whole[..(whole.len() / 2) & !4_095]),
        "opening the database: the database is damaged (SQLite code 11)"
    );
    assert_eq!(told(&whole[..50]), "opening the database: the database is damaged (SQLite code 11)");
    assert_eq!(
        told(&[&b"SQLite format 4\0"[..], &whole[16..]].concat()),
        "FILE is not a SQLite database, or it is encrypted"
    );
    assert_eq!(told(b""), "the database has no litepost tables");

    // What a producer is told whose log is damaged at its root.
    std::fs::write(&damaged.path, &whole).unwrap();
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = 'litepost_outbox'";
    let root: i64 = open(&damaged.path).query_row(sql, [], |row| row.get(0)).unwrap();
    let mut page = whole.clone();
    page[usize::try_from(root - 1).unwrap() * 4_096..][..4_096].fill(0xa5);
    std::fs::write(&damaged.path, &page).unwrap();
    let mut app = Connection::open(&damaged.path).unwrap();
    let tx = app.transaction().unwrap();
    let error = litepost::enqueue(&tx, &NewEvent::new("t", "p")).unwrap_err();
    assert_eq!(error.to_string(), "the database is damaged (SQLite code 11); the event was not written");
}

fn read_all(path: &Path) -> Result<usize, StoreError> {
    let mut log = litepost::log::LogReader::open(path)?;
    Ok(log.read_after(litepost_core::Seq::ZERO, usize::MAX, usize::MAX)?.events().len())
}

#[test]
fn text_that_is_no_utf8_is_delivered_as_a_defect_and_stops_nothing() {
    let file = file();
    open(&file.path)
        .execute_batch(
            "INSERT INTO litepost_outbox (topic, payload) VALUES ('before', 'p');
             INSERT INTO litepost_outbox (topic, key, type, source, payload) VALUES
               (CAST(x'74ff' AS TEXT), CAST(x'6bff' AS TEXT), CAST(x'ff' AS TEXT), CAST(x'ff' AS TEXT), CAST(x'7aff' AS TEXT));
             INSERT INTO litepost_outbox (topic, payload) VALUES ('behind', '');",
        )
        .unwrap();
    let mut log = litepost::log::LogReader::open(&file.path).unwrap();
    let chunk = log.read_after(litepost_core::Seq::ZERO, 10, usize::MAX).unwrap();
    let [before, odd, behind] = chunk.events() else { panic!("{}", chunk.events().len()) };
    assert_eq!((before.defect.as_deref(), behind.defect.as_deref()), (None, None));
    assert_eq!(behind.payload.as_str(), Some(""));
    assert_eq!(
        odd.defect.as_deref(),
        Some("topic is no valid UTF-8; key is no valid UTF-8; type is no valid UTF-8; source is no valid UTF-8")
    );
    assert_eq!(odd.payload.bytes()[..], *b"z\xff", "the payload is bytes, whatever they are");
}

const DAY: i64 = 86_400_000;

#[test]
fn a_clock_that_jumps_reorders_nothing_and_writes_no_duplicate() {
    let file = file();
    let app = open(&file.path);
    let written = |dedup: Option<&str>, at: i64| {
        let sql = "INSERT INTO litepost_outbox (topic, payload, dedup_key, created_at) VALUES ('t', 'p', ?1, ?2)";
        app.execute(sql, rusqlite::params![dedup, at]).unwrap()
    };
    let now = 1_800_000_000_000;
    for at in [now, now - 400 * DAY, now + 400 * DAY, 0, -1, i64::MAX, i64::MIN] {
        assert_eq!(written(None, at), 1);
    }
    assert_eq!(written(Some("d"), now), 1);
    assert_eq!(written(Some("d"), now - 400 * DAY), 0, "set back: what was written later is still known");
    assert_eq!(written(Some("d"), now + DAY - 1), 0);
    assert_eq!(written(Some("d"), now + 2 * DAY), 1, "set ahead beyond the window: a new event, as documented");
    let mut log = litepost::log::LogReader::open(&file.path).unwrap();
    let chunk = log.read_after(litepost_core::Seq::ZERO, 100, usize::MAX).unwrap();
    assert_eq!(chunk.events().iter().map(|event| event.seq.0).collect::<Vec<_>>(), (1..10).collect::<Vec<_>>());
    assert!(chunk.events().iter().all(|event| event.defect.is_none()));
    let mut store = litepost::lanes::LaneStore::open(&file.path).unwrap();
    store.register("shop.audit", 1, litepost::lanes::Start::Earliest).unwrap();
    for at in [now, now - 400 * DAY, i64::MIN, i64::MAX] {
        let status = litepost::status::read(&file.path, litepost_core::Millis(at)).unwrap();
        let age = status.destinations[0].oldest_age_ms;
        assert!(age.is_some_and(|age| age >= 0), "{at}: {age:?}");
    }
}
