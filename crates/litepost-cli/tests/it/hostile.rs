//! Files and folders that are not as they should be.

use std::os::unix::fs::PermissionsExt as _;

use crate::support::Place;

fn shop() -> Place {
    let place = Place::new();
    place.good(&["migrate", "--database", "shop.db"]);
    place
}

#[test]
fn a_damaged_database_is_told_and_not_made_worse() {
    let place = shop();
    for n in 0..50 {
        place.good(&["enqueue", "--database", "shop.db", "--topic", "t", "--payload", &"x".repeat(2_000 + n)]);
    }
    rusqlite::Connection::open(place.path("shop.db"))
        .unwrap()
        .execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
        .unwrap();
    let mut bytes = std::fs::read(place.path("shop.db")).unwrap();
    for byte in &mut bytes[60 * 1_024..100 * 1_024] {
        *byte = 0xa5;
    }
    std::fs::write(place.path("shop.db"), &bytes).unwrap();
    let stderr = place.bad(2, &["tail", "--database", "shop.db", "-n", "all"]);
    assert!(
        stderr.contains("the database is damaged (SQLite code 11)")
            && stderr.contains("hint: run `PRAGMA integrity_check`"),
        "{stderr}"
    );
}

#[test]
fn a_full_disk_is_told_and_nothing_is_half_written() {
    let place = shop();
    let connection = rusqlite::Connection::open(place.path("shop.db")).unwrap();
    // The limit of pages stands for the disk: it belongs to a connection, so the file itself must be at the limit.
    drop(connection);
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    // stdout on a full disk: the answer cannot be written, which is told.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = place.command(&["tail", "--database", "shop.db", "--json"]).stdout(full).output().unwrap();
    // An empty log has nothing to write.
    assert_eq!(output.status.code(), Some(0));
    place.good(&["enqueue", "--database", "shop.db", "--topic", "t", "--payload", "x"]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = place.command(&["tail", "--database", "shop.db", "--json"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "error: stdout cannot be written: No space left on device (os error 28)\n  hint: check where the output goes (is the disk full?)\n"
    );
}

#[test]
fn a_lock_that_is_held_for_long_is_told_and_nothing_is_dropped() {
    let place = shop();
    let holder = rusqlite::Connection::open(place.path("shop.db")).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    let stderr = place.bad(2, &["enqueue", "--database", "shop.db", "--topic", "t", "--payload", "x"]);
    assert_eq!(
        stderr,
        "error: shop.db: the database is locked by another connection; the event was not written\n  \
         hint: keep write transactions short, or raise busy_timeout; then retry the whole transaction\n"
    );
    holder.execute_batch("ROLLBACK").unwrap();
    place.good(&["enqueue", "--database", "shop.db", "--topic", "t", "--payload", "x"]);
}

#[test]
fn a_folder_that_cannot_be_written_is_told() {
    let place = shop();
    let folder = place.path("closed");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o555)).unwrap();
    // The superuser is not held by permissions; a path below a file is closed to everybody.
    let path = if rustix::process::geteuid().is_root() { "shop.db/x/new.db" } else { "closed/new.db" };
    let stderr = place.bad(1, &["migrate", "--database", path]);
    assert!(stderr.starts_with("error: ") && stderr.contains("\n  hint: check"), "{stderr}");
}

#[test]
fn a_configuration_that_is_no_configuration() {
    let place = Place::new();
    place.write("litepost.toml", [0xff, 0xfe, b'\n', 0]);
    assert_eq!(
        place.bad(1, &["check"]),
        "error: cannot read litepost.toml: line 1 is not UTF-8; is it a configuration?\n  \
         hint: check the path and the permissions, or name another file with --config\n"
    );
    std::fs::remove_file(place.path("litepost.toml")).unwrap();
    std::fs::create_dir(place.path("litepost.toml")).unwrap();
    assert!(place.bad(1, &["check"]).starts_with("error: cannot read litepost.toml: Is a directory"));
    place.write("bomb.toml", format!("a = {}{}", "[".repeat(100_000), "]".repeat(100_000)));
    assert_eq!(place.litepost(&["check", "--config", "bomb.toml"]).code, 1);
    place.write("keys.toml", format!("{} = 1", "a.".repeat(50_000) + "a"));
    assert_eq!(place.litepost(&["check", "--config", "keys.toml"]).code, 1);
}
