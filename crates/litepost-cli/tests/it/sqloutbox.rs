//! The bridge on files that the real sqloutbox wrote, all versions of it: drained completely, compared row by row, and
//! under load while the daemons change places.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rusqlite::Connection;
use serde_json::Value;

use crate::support::Place;

const VERSIONS: [&str; 4] = ["0.3", "0.4", "0.5", "0.6"];

const CONFIG: &str = "[app.shop]\ndb_dir = 'data'\n\
    [app.shop.db.warehouse]\ntype = 'sqlite'\ntables = ['orders']\nconnection = { path = 'warehouse.db' }\n\
    [app.pair]\ndatabase = 'pair/shared.db'\nordering = 'strict'\n\
    [app.pair.db.warehouse]\ntype = 'sqlite'\ntables = ['left', 'right']\nconnection = { path = 'warehouse.db' }\n";

/// What sqloutbox's daemon reads, and the relay as well.
const OLD_CONFIG: &str = "[app.shop]\ndb_dir = 'data'\nflush_interval = 0.05\ntable_flush_threshold = 1\n\
    auto_schema = false\n[app.shop.db.warehouse]\nwriter_class = 'writer:SqliteWriter'\ninject_outbox_seq = false\n\
    tables = ['orders']\n[app.shop.db.warehouse.connection]\npath = 'warehouse.db'\n";

const TABLES: &str = "PRAGMA journal_mode = WAL; CREATE TABLE orders (n, t, r); CREATE TABLE left (n, t, r); \
    CREATE TABLE right (n, t, r);";

/// The interpreter with that sqloutbox; `cargo xtask setup` makes it.
pub(crate) fn python(version: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_litepost")).ancestors().nth(2).unwrap();
    let python = target.join(format!("venv-sqloutbox-{version}/bin/python"));
    assert!(python.exists(), "{} is missing; `cargo xtask setup` makes it", python.display());
    python
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/sqloutbox").join(name)
}

/// Files of that version with everything that can be in them; returns what the script says of them.
pub(crate) fn written(place: &Place, version: &str) -> Value {
    std::fs::create_dir(place.path("data")).unwrap();
    place.write("litepost.toml", CONFIG);
    for name in ["warehouse.db", "expected.db"] {
        Connection::open(place.path(name)).unwrap().execute_batch(TABLES).unwrap();
    }
    let mut write = Command::new(python(version));
    write.arg(script("write.py")).arg(place.path("data")).arg(place.path("expected.db"));
    let output = write.output().unwrap();
    assert!(!output.stdout.is_empty(), "{version}: {}", String::from_utf8_lossy(&output.stderr));
    assert!(place.path("data/orders.db-wal").metadata().unwrap().len() > 0, "the -wal was left behind");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every row of a table, with its types, in the order in which it came.
fn rows(path: &Path, table: &str) -> Vec<String> {
    let db = Connection::open(path).unwrap();
    let sql = format!("SELECT quote(n) || ' ' || quote(t) || ' ' || quote(r) FROM {table} ORDER BY rowid");
    let mut statement = db.prepare(&sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

pub(crate) fn number(path: &Path, sql: &str) -> i64 {
    Connection::open(path).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

pub(crate) fn compare(place: &Place, version: &str) {
    for table in ["orders", "left", "right"] {
        let (found, expected) = (rows(&place.path("warehouse.db"), table), rows(&place.path("expected.db"), table));
        assert!(expected.len() >= 40, "{version} {table}: {} rows", expected.len());
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "{version} {table}, row {at}");
        }
        assert_eq!(found.len(), expected.len(), "{version} {table}");
    }
    for file in ["data/orders.db", "pair/shared.db"] {
        assert_eq!(number(&place.path(file), "SELECT count(*) FROM outbox_queue"), 0, "{version} {file}");
    }
}

#[test]
fn files_of_every_version_are_drained_completely_row_by_row() {
    for version in VERSIONS {
        let place = Place::new();
        let told = written(&place, version);
        let answer = place.litepost(&["run", "--config", "litepost.toml", "--until-idle"]);
        assert_eq!(answer.code, 0, "{version}: {answer:#?}");
        compare(&place, version);
        let orders = place.path("data/orders.db");
        // The receipts are there, those of the leftovers included; delivered rows were not delivered again.
        let receipts = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 27) SELECT count(*) FROM n \
                        JOIN litepost_receipt_imported ON i BETWEEN first_seq AND last_seq";
        assert_eq!(number(&orders, receipts), 27, "{version}");
        let dead = number(
            &orders,
            "SELECT count(*) FROM litepost_dead WHERE destination = 'shop.warehouse' AND reason = 'skipped' \
             AND error = 'no such table: nowhere' AND attempts = 1",
        );
        assert_eq!(dead, told["dead"].as_i64().unwrap(), "{version}");
        let nan = "SELECT count(*) FROM litepost_dead WHERE payload LIKE '%nan%' AND reason = 'permanent'";
        assert_eq!(number(&orders, nan), 1, "{version}");
        assert_eq!(number(&orders, "SELECT count(*) FROM litepost_dead"), dead + 1, "{version}");
        let checked = litepost::verify(&Connection::open(&orders).unwrap()).unwrap();
        assert_eq!(checked.problems, [], "{version}");
        let mark = "SELECT CAST(value AS INTEGER) FROM litepost_meta WHERE name = 'sqloutbox_hwm:orders'";
        assert_eq!(number(&orders, mark), 5_041, "{version}");
        let created = "SELECT count(*) FROM litepost_outbox WHERE abs(created_at / 1000 - unixepoch()) > 3600";
        assert_eq!(number(&orders, created), 0, "{version}");
    }
}

#[test]
fn an_import_that_is_killed_again_and_again_loses_and_doubles_nothing() {
    for version in ["0.3", "0.6"] {
        let place = Place::new();
        let told = written(&place, version);
        let before = rows_of_queue(&place);
        let dry = place.litepost(&["import", "--from", "data", "--dry-run", "--json"]);
        let dry: Value = serde_json::from_str(&dry.stdout).unwrap();
        assert_eq!(dry["files"][0]["before"][0]["pending"], before);
        assert_eq!(dry["files"][0]["before"][0]["leftovers"], told["leftovers"]);
        // The batch behind the jump of the numbers: told, and no obstacle.
        let findings = dry["files"][0]["before"][0]["findings"].as_array().unwrap();
        assert_eq!(findings.len(), 39, "{dry}");
        assert!(findings.iter().all(|finding| finding["kind"] == "mislinked"), "{dry}");
        assert_eq!(rows_of_queue(&place), before, "a dry run changes nothing");
        assert_eq!(
            number(&place.path("data/orders.db"), "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'litepost%'"),
            0
        );
        let import = ["import", "--from", "data", "--config", "litepost.toml"];
        for wait_ms in [5, 10, 15, 20, 25] {
            let mut child = place.command(&import).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(wait_ms));
            let _ = child.kill();
            child.wait().unwrap();
        }
        let last = place.good(&[&import[..], &["--json"]].concat());
        let last: Value = serde_json::from_str(&last).unwrap();
        assert_eq!(last["files"][0]["left"], Value::Array(Vec::new()), "{last}");
        assert_eq!(number(&place.path("data/orders.db"), "SELECT count(*) FROM litepost_outbox"), before);
        place.good(&["run", "--config", "litepost.toml", "--until-idle"]);
        compare(&place, version);
    }
}

fn rows_of_queue(place: &Place) -> i64 {
    number(&place.path("data/orders.db"), "SELECT count(*) FROM outbox_queue WHERE synced = 0")
}

/// sqloutbox's daemon.
fn daemon(place: &Place) -> Child {
    Command::new(python("0.6"))
        .args(["-m", "sqloutbox", "runservice", "--config", "outbox.toml"])
        .current_dir(place.folder())
        .env("PYTHONPATH", script(""))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} did not happen within 60 s");
}

fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

#[test]
fn the_daemons_change_places_under_load_and_nothing_is_lost_or_doubled() {
    const COUNT: i64 = 2_000;
    let place = Place::new();
    std::fs::create_dir(place.path("data")).unwrap();
    Connection::open(place.path("warehouse.db")).unwrap().execute_batch(TABLES).unwrap();
    let arrived = || number(&place.path("warehouse.db"), "SELECT count(*) FROM orders");
    place.write("outbox.toml", OLD_CONFIG);
    place.write("litepost.toml", CONFIG.split("[app.pair]").next().unwrap());

    let mut producer = Command::new(python("0.6"))
        .arg(script("producer.py"))
        .args([place.path("data").as_os_str(), COUNT.to_string().as_ref()])
        .spawn()
        .unwrap();
    let old = daemon(&place);
    wait_until("the old daemon's delivery", || arrived() > COUNT / 5);
    let import = ["import", "--from", "data", "--config", "litepost.toml"];
    for refused in [place.bad(1, &["run", "--config", "litepost.toml"]), place.bad(1, &import)] {
        assert!(refused.contains(&format!("process {}", old.id())), "{refused}");
    }
    terminate(&old);
    let output = old.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let relay = place.command(&["run", "--config", "litepost.toml"]).stderr(Stdio::piped()).spawn().unwrap();
    let handed_over = arrived();
    assert!(handed_over < COUNT, "the switch happened under load");
    wait_until("the new relay's delivery", || arrived() > handed_over + COUNT / 10);
    let late = daemon(&place).wait_with_output().unwrap();
    assert_eq!(late.status.code(), Some(1), "the old daemon may not run beside the relay");
    place.bad(1, &import);
    // A second relay stands by; it is not refused.
    let standby = place.command(&["run", "--config", "litepost.toml"]).stderr(Stdio::null()).spawn().unwrap();
    assert!(producer.wait().unwrap().success());
    wait_until("the last row", || arrived() >= COUNT);
    for child in [standby, relay] {
        terminate(&child);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let db = Connection::open(place.path("warehouse.db")).unwrap();
    let mut statement = db.prepare("SELECT n FROM orders ORDER BY rowid").unwrap();
    let found: Vec<i64> = statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(found, (1..=COUNT).collect::<Vec<_>>());
}

#[test]
fn the_way_back_is_open_and_nothing_is_lost_or_doubled_on_it() {
    let place = Place::new();
    std::fs::create_dir(place.path("data")).unwrap();
    Connection::open(place.path("warehouse.db")).unwrap().execute_batch(TABLES).unwrap();
    place.write("outbox.toml", OLD_CONFIG);
    let push = |program: &Path, from: i64| {
        let script = std::fs::read_to_string(program).unwrap().replace("range(1, ", &format!("range({from}, "));
        let mut push = Command::new(python("0.6"));
        push.args(["-c", &script, "data", &(from + 49).to_string()]).current_dir(place.folder());
        push.env("PYTHONPATH", package());
        assert!(push.status().unwrap().success());
    };
    let relay = || {
        let mut run = place.command(&["run", "--until-idle"]);
        let package = std::env::join_paths([package(), script("")]).unwrap();
        run.env("PYTHONPATH", package).env("LITEPOST_PYTHON", python("0.6"));
        let output = run.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    // There: an old producer's rows, then a new one's, both by the relay.
    push(&script("producer.py"), 1);
    relay();
    push(&new_producer(&place), 51);
    relay();
    // And back: sqloutbox's daemon goes on with its own files, its own numbers, its own check.
    push(&script("producer.py"), 101);
    let old = daemon(&place);
    let arrived = || number(&place.path("warehouse.db"), "SELECT count(*) FROM orders");
    wait_until("the old daemon's delivery", || arrived() >= 150);
    terminate(&old);
    let output = old.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let db = Connection::open(place.path("warehouse.db")).unwrap();
    let mut statement = db.prepare("SELECT n FROM orders ORDER BY rowid").unwrap();
    let found: Vec<i64> = statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(found, (1..=150).collect::<Vec<_>>());
    for check in ["verify", "preflight"] {
        let mut old = Command::new(python("0.6"));
        old.args(["-m", "sqloutbox", check, "--db-dir", "data"]).current_dir(place.folder());
        let output = old.output().unwrap();
        assert!(output.status.success(), "{check}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

/// The same producer with the one line changed that the guide says.
fn new_producer(place: &Place) -> PathBuf {
    let old = std::fs::read_to_string(script("producer.py")).unwrap();
    let new = old.replace("from sqloutbox import", "from litepost.compat import");
    assert_ne!(old, new);
    place.write("producer.py", new)
}

/// The folder of the Python package.
fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python/src")
}

#[test]
fn the_command_line_of_sqloutbox_works_on_its_files() {
    let place = Place::new();
    let told = written(&place, "0.6");
    place.write("outbox.toml", std::fs::read(place.path("litepost.toml")).unwrap());
    std::fs::remove_file(place.path("litepost.toml")).unwrap();
    let waiting = |arguments: &[&str]| {
        let status: Value = serde_json::from_str(&place.good(arguments)).unwrap();
        let rows = status["destinations"].as_array().unwrap().iter();
        rows.map(|row| row["pending"].as_i64().unwrap()).sum::<i64>()
    };
    let orders = rows_of_queue(&place);
    let all = orders + told["expected"]["left"].as_i64().unwrap() + told["expected"]["right"].as_i64().unwrap();
    assert_eq!(waiting(&["status", "--db-dir", "data", "--json"]), orders);
    assert_eq!(waiting(&["status", "-d", "data", "--json"]), orders);
    assert_eq!(waiting(&["status", "-c", "outbox.toml", "--json"]), all);
    assert!(place.good(&["preflight", "--db-dir", "data"]).contains("the relay takes it over"));
    assert_eq!(
        number(&place.path("data/orders.db"), "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'litepost%'"),
        0
    );
    place.good(&["migrate", "--db-dir", "data"]);
    assert!(place.good(&["preflight", "--config", "outbox.toml"]).contains("up to date"));
    place.good(&["runservice", "--config", "outbox.toml", "--until-idle"]);
    compare(&place, "0.6");
    assert_eq!(waiting(&["status", "--config", "outbox.toml", "--json"]), 0);
    assert!(place.good(&["dead-letter", "list", "--config", "outbox.toml"]).contains("manual_skip"));

    // A row that its destination cannot take holds the table, until it is skipped as sqloutbox's users do.
    let bad = "INSERT INTO outbox_queue (created_at, namespace, tag, payload) VALUES ('2026-01-01T00:00:00+00:00', 'orders', ?1, '[]')";
    for sql in ["INSERT INTO orders (absent) VALUES (1)", "INSERT INTO orders (n) VALUES (-1)"] {
        Connection::open(place.path("data/orders.db")).unwrap().execute(bad, [sql]).unwrap();
    }
    place.bad(1, &["runservice", "--config", "outbox.toml", "--until-idle"]);
    let last = number(&place.path("data/orders.db"), "SELECT seq FROM sqlite_sequence WHERE name = 'outbox_queue'");
    let stuck = (last - 1).to_string();
    place.good(&["skip", "--config", "outbox.toml", "--namespace", "orders", "--seq", &stuck]);
    place.good(&["runservice", "--config", "outbox.toml", "--until-idle"]);
    assert_eq!(number(&place.path("warehouse.db"), "SELECT count(*) FROM orders WHERE n = -1"), 1);
    place.bad(1, &["skip", "--config", "outbox.toml", "-n", "orders", "-s", "999999"]);

    let raise = "UPDATE litepost_schema SET version = version + 100";
    Connection::open(place.path("data/orders.db")).unwrap().execute(raise, []).unwrap();
    assert!(place.litepost(&["preflight", "--db-dir", "data"]).stdout.contains("newer litepost"));
    place.bad(2, &["preflight", "--db-dir", "data"]);
    place.bad(2, &["preflight", "--config", "absent.toml"]);
    place.bad(1, &["status", "--db-dir", "pair/nothing"]);
}

#[test]
fn a_lost_row_stops_its_namespace_until_it_is_accepted() {
    let place = Place::new();
    let told = written(&place, "0.6");
    let shared = place.path("pair/shared.db");
    let lost: i64 = number(&shared, "SELECT max(prev_seq) FROM outbox_queue WHERE namespace = 'left' AND seq < 30");
    Connection::open(&shared).unwrap().execute("DELETE FROM outbox_queue WHERE seq = ?1", [lost]).unwrap();
    let synced = "INSERT INTO outbox_sync_log (seq, namespace, synced_at) VALUES (-1, 'left', '2026-01-01')";
    Connection::open(&shared).unwrap().execute(synced, []).unwrap();
    let answer = place.litepost(&["import", "--from", "pair/shared.db", "--all-namespaces", "--json"]);
    assert_eq!(answer.code, 1, "{answer:#?}");
    let report: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(report["files"][0]["findings"][0]["prev_seq"], lost, "{report}");
    assert_eq!(report["files"][0]["findings"][0]["kind"], "missing");
    let moved = |topic: &str| number(&shared, &format!("SELECT count(*) FROM litepost_outbox WHERE topic = '{topic}'"));
    let all = |topic: &str| told["expected"][topic].as_i64().unwrap();
    assert!(moved("left") < 20, "what is behind the lost row waits");
    assert_eq!(moved("right"), all("right"), "the other namespace goes on");
    place.litepost(&["import", "--from", "pair/shared.db", "--all-namespaces", "--accept-missing"]);
    assert_eq!(moved("left"), all("left") - 1);
}

#[test]
fn a_predecessor_older_than_the_sync_log_is_told_and_stops_nothing() {
    let place = Place::new();
    let told = written(&place, "0.5");
    let shared = place.path("pair/shared.db");
    // As after an outage longer than retain_log_days: delivered, and its receipt pruned.
    let first = number(&shared, "SELECT min(seq) FROM outbox_queue WHERE namespace = 'left'");
    Connection::open(&shared).unwrap().execute("DELETE FROM outbox_queue WHERE seq = ?1", [first]).unwrap();
    let report = place.good(&["import", "--from", "pair", "--all-namespaces", "--json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    let kinds: Vec<&str> =
        report["files"][0]["findings"].as_array().unwrap().iter().map(|f| f["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["pruned"], "{report}");
    let moved = number(&shared, "SELECT count(*) FROM litepost_outbox WHERE topic = 'left'");
    assert_eq!(moved, told["expected"]["left"].as_i64().unwrap() - 1);
}
