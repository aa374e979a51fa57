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
