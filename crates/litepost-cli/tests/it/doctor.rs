//! `litepost doctor`: what it finds, beside files and processes that are really in that state.

use std::os::unix::fs::PermissionsExt as _;

use rusqlite::Connection;

use crate::support::Place;

fn shop() -> Place {
    let place = Place::new();
    place.good(&["migrate", "--create", "--database", "shop.db"]);
    Connection::open(place.path("shop.db")).unwrap().execute_batch("PRAGMA journal_mode = WAL").unwrap();
    place
}

/// Exit code, and the checks that are not fine as `check: found`.
fn found(place: &Place) -> (i32, Vec<String>) {
    let answer = place.litepost(&["doctor", "--database", "shop.db", "--json", "--watch", "200"]);
    let told: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:#?}"));
    let ill = told["checks"].as_array().unwrap().iter().filter(|check| check["level"] != "fine");
    let ill = ill.filter(|check| !matches!(check["check"].as_str(), Some("file system" | "free disk")));
    let lines = ill.map(|check| {
        assert!(!check["hint"].as_str().unwrap_or_default().is_empty(), "{check}");
        format!("{}: {}", check["check"].as_str().unwrap(), check["found"].as_str().unwrap())
    });
    (answer.code, lines.collect())
}

#[test]
fn a_sound_file_has_no_finding() {
    let place = shop();
    assert_eq!(found(&place).1, Vec::<String>::new());
    let told = place.litepost(&["doctor", "--database", "shop.db", "--watch", "100"]).stdout;
    for line in ["journal mode   wal", "file system", "schema         version", "clock"] {
        assert!(told.contains(line), "{told}");
    }
}

#[test]
fn every_weakness_is_found() {
    let place = shop();
    std::fs::set_permissions(place.path("shop.db"), std::fs::Permissions::from_mode(0o666)).unwrap();
    let connection = Connection::open(place.path("shop.db")).unwrap();
    connection.execute_batch("PRAGMA journal_mode = DELETE").unwrap();
    connection
        .execute(
            "INSERT INTO litepost_outbox (id, topic, type, payload, created_at) VALUES ('x', 'a', '', '{}', 4102444800000)",
            [],
        )
        .unwrap();
    drop(connection);
    let (code, ill) = found(&place);
    assert_eq!(code, 1);
    for part in ["permissions: mode 0666", "journal mode: delete", "clock: the newest event was written"] {
        assert!(ill.iter().any(|line| line.starts_with(part)), "{part} is not in {ill:?}");
    }
    std::fs::remove_file(place.path("shop.db")).unwrap();
    assert_eq!(found(&place), (1, vec!["file: is not there yet".to_owned()]));
    place.write("shop.db", "no database, only text that is long enough to be one".repeat(50));
    let (code, ill) = found(&place);
    assert!(code == 1 && ill.iter().any(|line| line.starts_with("database: ")), "{ill:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_reader_that_pins_the_wal_is_named() {
    let place = shop();
    let reader = Connection::open(place.path("shop.db")).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM litepost_outbox").unwrap();
    let me = format!("readers: process {} (", std::process::id());
    let (code, ill) = found(&place);
    assert!(code == 1 && ill.iter().any(|line| line.starts_with(&me)), "{ill:?}");
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(found(&place).1, Vec::<String>::new());
}

#[cfg(target_os = "linux")]
#[test]
fn a_second_sqlite_in_the_process_is_named() {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    let place = shop();
    // The same library under another name is another one to the process, as a module with a SQLite of its own is.
    let script = "import ctypes, shutil, sqlite3, sys\n\
        connection = sqlite3.connect('shop.db')\nconnection.execute('SELECT count(*) FROM litepost_outbox')\n\
        print('one', flush=True)\nsys.stdin.readline()\n\
        library = next(l.split()[-1] for l in open('/proc/self/maps') if 'libsqlite3' in l)\n\
        shutil.copy(library, 'second.so')\nsecond = ctypes.CDLL('./second.so')\n\
        print('two', flush=True)\nsys.stdin.readline()\n";
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", script]).current_dir(place.folder()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = python.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "one");
    assert_eq!(found(&place).1, Vec::<String>::new(), "one library is as it must be");
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "two");
    let (code, ill) = found(&place);
    let begins = format!("SQLite: process {} (python3) holds ", child.id());
    assert!(code == 1 && ill.len() == 1 && ill[0].starts_with(&begins) && ill[0].contains("second.so"), "{ill:?}");
    drop(child.stdin.take());
    child.wait().unwrap();
}

/// The findings of doctor: what was checked, what was found, what to do.
fn findings(place: &Place, arguments: &[&str]) -> Vec<[String; 3]> {
    let answer = place.litepost(&[&["doctor", "--json", "--watch", "200"][..], arguments].concat());
    let told: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:#?}"));
    let ill = told["checks"].as_array().unwrap().iter().filter(|check| check["level"] != "fine");
    let text = |check: &serde_json::Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
    ill.map(|check| ["check", "found", "hint"].map(|key| text(check, key))).collect()
}

#[track_caller]
fn finds(place: &Place, arguments: &[&str], wanted: [&str; 3]) {
    let all = findings(place, arguments);
    assert!(all.iter().any(|found| *found == wanted), "{wanted:?} is not in {all:#?}");
}

const FILE: [&str; 2] = ["--database", "shop.db"];
const OWNERS: &str =
    "give the file, its -wal and its -shm to the user of the application and the relay, mode 0600 or 0660";

#[test]
fn each_finding_says_what_is_wrong_and_what_to_do() {
    let place = shop();
    let open = || Connection::open(place.path("shop.db")).unwrap();
    std::fs::set_permissions(place.path("shop.db"), std::fs::Permissions::from_mode(0o646)).unwrap();
    finds(&place, &FILE, ["permissions", "mode 0646: anybody may write events", OWNERS]);
    std::fs::set_permissions(place.path("shop.db"), std::fs::Permissions::from_mode(0o600)).unwrap();

    let reader = open();
    reader.execute_batch("BEGIN; SELECT count(*) FROM litepost_outbox").unwrap();
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let pinned = format!("process {} ({}) reads without a pause", std::process::id(), name.trim());
    finds(
        &place,
        &FILE,
        ["readers", &pinned, "while a read transaction is open the WAL only grows; end it, or make it short"],
    );
    drop(reader);

    open().execute_batch("PRAGMA journal_mode = DELETE").unwrap();
    finds(
        &place,
        &FILE,
        ["journal mode", "delete", "readers and writers block each other; set PRAGMA journal_mode = WAL"],
    );
    open().execute_batch("PRAGMA journal_mode = WAL").unwrap();

    // As long as one that no checkpoint has got through; there is nothing in it.
    std::fs::File::create(place.path("shop.db-wal")).unwrap().set_len(200 << 20).unwrap();
    let megabytes = std::fs::metadata(place.path("shop.db")).unwrap().len() >> 20;
    let starved = format!("200 MiB, the database {megabytes} MiB");
    let hint = "no checkpoint gets through: look for long read transactions, and run a relay";
    finds(&place, &FILE, ["WAL", &starved, hint]);
    std::fs::remove_file(place.path("shop.db-wal")).unwrap();
    assert_eq!(found(&place), (0, Vec::new()), "everything is put right");

    place.write(
        "litepost.toml",
        "[app.shop]\ndatabase = 'shop.db'\npriority = ['*']\n[app.shop.sink.a]\ntype = 'blackhole'\n",
    );
    let [(check, _, hint)] =
        &findings(&place, &[]).into_iter().map(<(String, String, String)>::from).collect::<Vec<_>>()[..]
    else {
        panic!("one weakness: {:#?}", findings(&place, &[]))
    };
    assert_eq!((check.as_str(), hint.as_str()), ("configuration", "`litepost check` shows where"));
    finds(
        &place,
        &[],
        ["configuration", "app.shop.priority: what every topic has is no priority", "`litepost check` shows where"],
    );

    let absent = ["file", "is not there yet", "`litepost migrate --create --database FILE` makes it"];
    finds(&place, &["--database", "none.db"], absent);
}

#[test]
fn other_versions_on_the_file_are_named() {
    let place = shop();
    let sql = |text: &str| Connection::open(place.path("shop.db")).unwrap().execute_batch(text).unwrap();
    let own = env!("CARGO_PKG_VERSION");

    // Tables that a newer program has made, the Python client for example, and of the same schema.
    sql("UPDATE litepost_schema SET applied_by = 'litepost python 9.1.0'");
    let made = format!("litepost python 9.1.0 has made or migrated the tables, this is {own}");
    let hint =
        "the schema is the same, and older programs do not know what newer ones changed beside it: update this one";
    finds(&place, &FILE, ["versions", &made, hint]);
    sql("UPDATE litepost_schema SET applied_by = 'litepost python 0.0.1'");
    assert_eq!(found(&place).1, Vec::<String>::new(), "an older one is what migrating is for");

    // A relay that delivers, and that was not started again after an update.
    place.write("litepost.toml", "[app.shop]\ndatabase = 'shop.db'\n[app.shop.sink.a]\ntype = 'blackhole'\n");
    let relay = crate::daemon::Daemon::start(&place, &["--admin", "127.0.0.1:0"], &[], None);
    let holds = "SELECT count(*) FROM litepost_cursor WHERE owner IS NOT NULL";
    crate::daemon::until("it has its lane", || crate::support::column(&place.path("shop.db"), holds) == [1]);
    assert_eq!(found(&place).1, Vec::<String>::new(), "the same version is what it must be");
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let process = format!("process {} on {}", relay.child.id(), host.trim());
    let hint = "one version at a time: restart the relay with the program that is installed now";
    sql("UPDATE litepost_cursor SET holder = json_set(holder, '$.version', '0.0.1')");
    let old = format!("a relay of litepost 0.0.1 ({process}) delivers from it, this is {own}");
    finds(&place, &FILE, ["versions", &old, hint]);
    sql("UPDATE litepost_cursor SET holder = json_remove(holder, '$.version')");
    let silent = format!("a relay that does not tell its version ({process}) delivers from it, this is {own}");
    finds(&place, &FILE, ["versions", &silent, hint]);
    drop(relay);
    assert_eq!(found(&place).1, Vec::<String>::new(), "one that is gone delivers nothing");
}

#[test]
fn a_schema_that_is_not_this_programs_is_named() {
    let place = shop();
    let sql = |text: &str| Connection::open(place.path("shop.db")).unwrap().execute_batch(text).unwrap();
    sql("INSERT INTO litepost_schema VALUES (7, 0, 'litepost 9.0.0')");
    let newer = "use the litepost that wrote it, or a newer one; there is no way back";
    finds(&place, &FILE, ["schema", "the litepost tables have schema version 7, this program knows up to 1", newer]);
    // The Python client says the same of it, and leaves it alone.
    let python = "import sqlite3, sys\nimport litepost\n\
        try:\n    litepost.migrate(sqlite3.connect(sys.argv[1]))\n\
        except litepost.SchemaNewer as error:\n    print(error)\n";
    let client = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python/src");
    let mut command = std::process::Command::new("python3");
    command.args(["-c", python]).arg(place.path("shop.db")).env("PYTHONPATH", client);
    let answer = crate::support::Answer::of(command.output().unwrap());
    assert!(answer.stdout.contains("version 7") && answer.stdout.contains('1'), "{answer:#?}");

    sql("DROP TABLE litepost_skip; DELETE FROM litepost_schema WHERE version = 7");
    let hint = "restore it from `litepost schema`, or restore a backup";
    let damaged = findings(&place, &FILE);
    assert!(
        damaged.iter().any(|[check, found, told]| check == "schema" && found.contains("litepost_skip") && told == hint)
    );

    Connection::open(place.path("other.db"))
        .unwrap()
        .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (x)")
        .unwrap();
    let none = ["schema", "the database has no litepost tables", "run `litepost migrate --database FILE`"];
    finds(&place, &["--database", "other.db"], none);
}

#[cfg(target_os = "linux")]
#[test]
fn a_small_disk_that_forgets_is_told() {
    // A mount that only this child sees.
    let place = Place::new();
    let script = "mount -t tmpfs -o size=4m tmpfs . && cd . && cd \"$PWD\" && \"$0\" migrate --create --database shop.db >&2; \
        \"$0\" doctor --database shop.db --json --watch 100 || true";
    let mut child = std::process::Command::new("unshare");
    child.args(["--map-root-user", "--mount", "sh", "-ec", script, env!("CARGO_BIN_EXE_litepost")]);
    let answer = crate::support::Answer::of(child.current_dir(place.folder()).output().unwrap());
    let told: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:#?}"));
    let of = |name: &str| {
        let check = told["checks"].as_array().unwrap().iter().find(|check| check["check"] == name);
        let check = check.unwrap_or_else(|| panic!("{name}: {told:#}"));
        ["level", "found", "hint"].map(|key| check[key].as_str().unwrap_or_default().to_owned())
    };
    let [level, found, hint] = of("file system");
    assert!(level == "warning" && found.starts_with("tmpfs at "), "{found}");
    assert_eq!(hint, "events are gone with a restart or with the container; use a disk or a volume");
    let [level, found, hint] = of("free disk");
    assert!(level == "warning" && matches!(found.as_str(), "2 MiB" | "3 MiB"), "{found}");
    assert_eq!(hint, "free some space: on a full disk nothing can be enqueued");
}
