//! sqloutbox's command line as nobody should write it, and on files that are not as they should be: the same arguments to both
//! programs, and the same exit code; where not, why.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use rusqlite::Connection;

use crate::sqloutbox_surface::{old, written};
use crate::support::Place;

/// A command line, and the exit code of both.
const SAME: &[(&str, i32)] = &[
    ("", 0),
    ("--help", 0),
    ("verify --help", 0),
    ("skip -h", 0),
    // What cannot be understood.
    ("verify --nonsense", 2),
    ("verify extra", 2),
    ("status extra", 2),
    ("runservice extra", 2),
    ("runservice --config", 2),
    ("init a b", 2),
    ("preflight --nonsense", 2),
    ("migrate extra", 2),
    ("dead-letter", 2),
    ("dead-letter frobnicate", 2),
    ("dead-letter list extra", 2),
    ("skip -n a -s x", 2),
    ("skip -n orders -s 1.5 -c outbox.toml", 2),
    // What is understood, and wrong.
    ("skip -c outbox.toml -n orders", 1),
    ("skip -c outbox.toml -s 1", 1),
    ("skip -c outbox.toml -n orders -s -1", 1),
    ("skip -c outbox.toml -n orders -s 99999999999999999999", 1),
    ("skip -c nowhere.toml -n orders -s 1", 1),
    ("dead-letter show -c outbox.toml -n payments -s -5", 1),
    ("dead-letter list -c nowhere.toml", 1),
    ("status -c nowhere.toml", 1),
    ("verify -c nowhere.toml", 1),
    // The configuration goes before the folder.
    ("verify -c outbox.toml -d data", 0),
    ("verify -c outbox.toml -d nowhere", 0),
    ("verify --config outbox.toml --db-dir nowhere", 0),
    ("verify --db-dir data --config nowhere.toml", 1),
    ("status -c outbox.toml -d nowhere", 0),
    ("preflight --config outbox.toml --db-dir nowhere", 0),
    ("migrate --config outbox.toml --db-dir nowhere", 0),
    // Flags as argparse takes them: cut short, glued, the last one counts.
    ("verify --conf outbox.toml", 0),
    ("verify --db data", 0),
    ("status --db data", 0),
    ("skip --conf outbox.toml --name orders --se 99", 1),
    ("verify -c nowhere.toml -c outbox.toml", 0),
    ("verify --config=outbox.toml", 0),
    ("verify -coutbox.toml", 0),
    // Files that cannot be read.
    ("verify -d garbage", 1),
    ("verify -d mixed", 1),
    ("status -d garbage", 1),
    ("status -d mixed", 1),
    ("preflight --db-dir garbage", 2),
    ("preflight --db-dir mixed", 2),
    ("preflight --db-dir newer", 2),
    ("migrate --db-dir garbage", 1),
    ("migrate --db-dir mixed", 1),
    ("init outbox.toml", 1),
    ("init data/orders.db/x", 1),
];

/// Why an exit code differs: a command line, sqloutbox's code, ours. The guide names each.
const DIFFERENT: &[(&str, i32, i32)] = &[
    // A database that is nobody's outbox is passed by; sqloutbox's migrate writes its tables into it.
    ("verify -d foreign", 1, 0),
    ("verify -d empty-file", 1, 0),
    ("status -d foreign", 1, 0),
    ("preflight --db-dir foreign", 1, 0),
    // A file of sqloutbox is taken over as it is, whatever its version.
    ("preflight --db-dir older", 1, 0),
    // What does not deliver needs no flag for the configuration in the working folder.
    ("verify", 1, 0),
    ("status", 1, 0),
    ("preflight", 2, 0),
    ("dead-letter list", 1, 0),
    // -c and -d wherever there is --config and --db-dir.
    ("preflight -c outbox.toml", 2, 0),
    ("preflight -d data", 2, 0),
    // Nothing is delivered, so no secret is needed.
    ("verify --config secret.toml", 1, 0),
    ("status --config secret.toml", 1, 0),
    ("preflight --config secret.toml", 2, 0),
    // A clock that was set back has lost no event.
    ("verify -d clock", 1, 0),
    // It is delivered: replayed, it would be delivered twice.
    ("skip -c synced.toml -n orders -s 1", 0, 1),
    // A word that is no command of either.
    ("nonsense", 2, 1),
];

fn folders(place: &Place) {
    let text = "this is no database at all, however long one may look at it: it has no header and no pages";
    place.write("garbage/x.db", text);
    place.write("mixed/aa.db", text);
    place.write("empty-file/z.db", "");
    for folder in ["mixed", "newer", "older", "foreign", "clock", "synced"] {
        std::fs::create_dir_all(place.path(folder)).unwrap();
    }
    let copy = |folder: &str, version: i64, change: &str| {
        let path = place.path(folder).join("orders.db");
        Connection::open(place.path("data/orders.db"))
            .unwrap()
            .execute("VACUUM INTO ?1", [path.to_str().unwrap()])
            .unwrap();
        let db = Connection::open(path).unwrap();
        db.pragma_update(None, "user_version", version).unwrap();
        db.execute_batch(change).unwrap();
    };
    copy("mixed", 5, "");
    copy("newer", 9, "");
    copy("older", 4, "");
    copy("clock", 5, "UPDATE outbox_queue SET created_at = '2000-01-01T00:00:00+00:00' WHERE seq = 3");
    copy("synced", 5, "UPDATE outbox_queue SET synced = 1 WHERE seq = 1");
    let config = std::fs::read_to_string(place.path("outbox.toml")).unwrap();
    place.write("synced.toml", config.replace("'data'", "'synced'"));
    place.write("secret.toml", config.replace("'warehouse.db'", "'${NOWHERE_TO_BE_FOUND}'"));
    let foreign = Connection::open(place.path("foreign/books.db")).unwrap();
    foreign.execute_batch("CREATE TABLE books (title)").unwrap();
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').filter(|word| !word.is_empty()).collect()
}

#[test]
fn whatever_is_asked_the_exit_code_is_sqloutboxs() {
    let (theirs, ours) = (written(), written());
    folders(&theirs);
    folders(&ours);
    for (line, code) in SAME {
        let answer = old(&theirs, "-m", &words(line));
        assert_eq!(answer.code, *code, "sqloutbox {line}: {answer:#?}");
        let answer = ours.litepost(&words(line));
        assert_eq!(answer.code, *code, "litepost {line}: {answer:#?}");
    }
    for (line, code, other) in DIFFERENT {
        let answer = old(&theirs, "-m", &words(line));
        assert_eq!(answer.code, *code, "sqloutbox {line}: {answer:#?}");
        let answer = ours.litepost(&words(line));
        assert_eq!(answer.code, *other, "litepost {line}: {answer:#?}");
    }
    // What is ignored is told, and a file that cannot be read is named beside the others.
    let answer = ours.litepost(&["status", "-c", "outbox.toml", "-d", "nowhere"]);
    assert!(answer.stderr.contains("nowhere is not looked at, since --config is given"), "{answer:#?}");
    let answer = ours.litepost(&["verify", "-d", "mixed"]);
    assert!(answer.stderr.contains("aa.db") && answer.stdout.contains("orders.db"), "{answer:#?}");
    // Of a file of one's own both are refused: nobody can know which one is meant.
    let refused = ours.bad(1, &["verify", "-c", "outbox.toml", "--database", "data/orders.db"]);
    assert!(refused.contains("two places"), "{refused}");
    // A migration goes on behind a file that it cannot use, and leaves foreign ones alone.
    let answer = ours.litepost(&["migrate", "--db-dir", "mixed"]);
    assert!(answer.stdout.contains("mixed/orders.db"), "{answer:#?}");
    ours.good(&["migrate", "--db-dir", "foreign"]);
    let tables = "SELECT count(*) FROM sqlite_schema";
    let count = |place: &Place| -> i64 {
        Connection::open(place.path("foreign/books.db")).unwrap().query_row(tables, [], |row| row.get(0)).unwrap()
    };
    assert_eq!(old(&theirs, "-m", &["migrate", "--db-dir", "foreign"]).code, 0);
    assert_eq!((count(&theirs) > 1, count(&ours)), (true, 1));
}

/// The rows of sqloutbox's own tables, but for the times at which something was done.
fn tables(path: &Path) -> Vec<String> {
    let db = Connection::open(path).unwrap();
    let mut all = Vec::new();
    for sql in [
        "SELECT 'queue ' || quote(seq) || quote(namespace) || quote(source) || quote(tag) || quote(payload) \
         || quote(synced) || quote(attempts) || quote(last_error) FROM outbox_queue ORDER BY seq",
        "SELECT 'dead ' || quote(seq) || quote(namespace) || quote(tag) || quote(payload) || quote(prev_seq) || quote(source) \
         || quote(attempts) || quote(last_error) || quote(last_error_class) || quote(reason) FROM outbox_dead_log ORDER BY seq",
        "SELECT 'hwm ' || quote(namespace) || quote(hwm) FROM outbox_hwm ORDER BY namespace",
        "SELECT 'sync ' || quote(seq) FROM outbox_sync_log ORDER BY seq",
    ] {
        let mut statement = db.prepare(sql).unwrap();
        all.extend(statement.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap));
    }
    all
}

#[test]
fn what_sqloutbox_still_holds_is_skipped_and_replayed_where_it_is() {
    let (theirs, ours) = (written(), written());
    let skip = |table: &'static str, seq: &'static str| ["skip", "-c", "outbox.toml", "-n", table, "-s", seq];
    let both = |line: &[&str]| {
        let (old, new) = (old(&theirs, "-m", line), ours.litepost(line));
        assert_eq!((old.code, &old.stdout), (new.code, &new.stdout), "{line:?}: {old:#?} {new:#?}");
        for table in ["data/orders.db", "data/payments.db"] {
            assert_eq!(tables(&theirs.path(table)), tables(&ours.path(table)), "{line:?} {table}");
        }
    };
    // Nothing is done when it is only asked.
    let dry = ours.good(&["skip", "-c", "outbox.toml", "-n", "orders", "-s", "1", "--dry-run"]);
    assert!(dry.starts_with("would skip"), "{dry}");
    let chain = "from pathlib import Path\nfrom sqloutbox import Outbox\n\
        box = Outbox(db_path=Path('data/orders.db'), namespace='orders')\nprint(box.verify_chain(box.fetch_unsynced())[0])";
    let chains = || [&theirs, &ours].map(|place| old(place, "-c", &[chain]).stdout.trim().to_owned());
    both(&skip("orders", "1"));
    assert_eq!(chains(), ["True", "True"]);
    // sqloutbox's own daemon finds the predecessor of the next row nowhere then, and stops for ever.
    both(&["dead-letter", "replay", "-c", "outbox.toml", "-n", "orders", "-s", "1"]);
    assert_eq!(chains(), ["False", "True"]);
    both(&["dead-letter", "replay", "-c", "outbox.toml", "-n", "payments", "-s", "5"]);
    for line in [skip("orders", "1"), skip("payments", "5")] {
        assert_eq!((old(&theirs, "-m", &line).code, ours.litepost(&line).code), (1, 1), "{line:?}");
    }
    // The same with a row in the middle.
    let middle = skip("orders", "3");
    for answer in [old(&theirs, "-m", &middle), ours.litepost(&middle)] {
        assert_eq!((answer.code, answer.stdout.as_str()), (0, "skipped namespace='orders' seq=3 → dead_log\n"));
    }
    assert_eq!(chains(), ["False", "True"]);
    // All of it is there when the relay comes: four of five wait, and the letters.
    ours.good(&["import", "--from", "data", "--config", "outbox.toml"]);
    let count = |sql: &str| -> i64 {
        Connection::open(ours.path("data/orders.db")).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
    };
    assert_eq!(count("SELECT count(*) FROM litepost_outbox"), 4);
    assert_eq!(count("SELECT count(*) FROM litepost_dead WHERE reason = 'skipped'"), 1);
    ours.good(&["verify", "-c", "outbox.toml"]);
}

/// The row behind one that sqloutbox itself has skipped and replayed names a number that is nowhere; the row of that number stands
/// at the end. sqloutbox's own daemon stops there for ever.
#[test]
fn a_row_that_sqloutbox_has_replayed_itself_leaves_a_link_to_nowhere_and_no_loss() {
    for delivered in [false, true] {
        let place = written();
        let box_ = "from pathlib import Path\nfrom sqloutbox import Outbox\n\
            box = Outbox(db_path=Path('data/orders.db'), namespace='orders')\n";
        if delivered {
            let mark = format!("{box_}box.mark_synced([1])\nbox.delete_synced([1])");
            assert_eq!(old(&place, "-c", &[&mark]).code, 0);
        }
        let head = if delivered { "2" } else { "1" };
        for line in [&["skip"][..], &["dead-letter", "replay"]] {
            let line = [line, &["-c", "outbox.toml", "-n", "orders", "-s", head]].concat();
            let answer = old(&place, "-m", &line);
            assert_eq!(answer.code, 0, "{answer:#?}");
        }
        let chain = old(&place, "-c", &[&format!("{box_}print(box.verify_chain(box.fetch_unsynced()))")]);
        assert_eq!(chain.stdout.trim(), format!("(False, [{head}])"), "{chain:#?}");
        let count = |sql: &str| -> i64 {
            Connection::open(place.path("data/orders.db")).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
        };
        let moved = || count("SELECT count(*) FROM litepost_outbox");
        let import = ["import", "--from", "data/orders.db", "--config", "outbox.toml"];
        let first = place.litepost(&import);
        // Without an older receipt the number may be one that was delivered and forgotten: told, and no obstacle.
        if !delivered {
            assert!(first.code == 0 && first.stdout.contains("older than the sync log"), "{first:#?}");
            assert_eq!(moved(), 5);
            continue;
        }
        let told = "unless `sqloutbox dead-letter replay` has put it at the end under a new number";
        assert!(first.code == 1 && first.stdout.contains(told), "{first:#?}");
        assert_eq!(moved(), 0, "the namespace waits");
        place.litepost(&[&import[..], &["--accept-missing"]].concat());
        assert_eq!(moved(), 4);
        let last = "SELECT headers ->> '$.sqloutbox-seq' FROM litepost_outbox ORDER BY seq DESC LIMIT 1";
        assert_eq!(count(last), 6, "the replayed one, under its new number");
        place.good(&import);
    }
}

fn started(place: &Place, line: &[&str]) -> Child {
    place.command(line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn terminated(mut child: Child) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_second_runservice_ends_as_a_second_daemon_of_sqloutbox_does() {
    let place = written();
    let config = "[app.shop]\ndb_dir = 'data'\n[app.shop.db.warehouse]\ntype = 'sqlite'\ntables = ['orders']\n\
                  connection = { path = 'warehouse.db' }\n";
    place.write("litepost.toml", config);
    Connection::open(place.path("warehouse.db")).unwrap().execute_batch("CREATE TABLE orders (n)").unwrap();
    let line = ["runservice", "--config", "litepost.toml"];
    let first = started(&place, &line);
    let lock = || std::fs::read_to_string("/proc/locks").unwrap();
    for _ in 0..1_000 {
        if lock().lines().any(|held| held.contains("FLOCK") && held.contains(&format!(" {} ", first.id()))) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let refused = place.bad(1, &line);
    assert!(refused.contains(&format!("process {}", first.id())), "{refused}");
    let late = old(&place, "-m", &["runservice", "--config", "outbox.toml"]);
    assert_eq!(late.code, 1, "{late:#?}");
    // `run` is litepost's own word: it waits for the other's lanes.
    let mut standby = started(&place, &["run", "--config", "litepost.toml"]);
    std::thread::sleep(Duration::from_secs(1));
    assert!(standby.try_wait().unwrap().is_none());
    terminated(first);
    terminated(standby);
    // Of two that start at once one goes on.
    let two = [started(&place, &line), started(&place, &line)];
    std::thread::sleep(Duration::from_secs(2));
    let mut running: Vec<Child> =
        two.into_iter().filter_map(|mut one| one.try_wait().unwrap().is_none().then_some(one)).collect();
    assert_eq!(running.len(), 1);
    terminated(running.remove(0));
}
