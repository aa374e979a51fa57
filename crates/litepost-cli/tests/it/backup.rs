//! `litepost backup` beside a writer, and `litepost restore`: what is delivered afterwards, and what is refused.

use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;

use crate::support::Place;

const CONFIG: &str = "[app.shop]\ndatabase = 'shop.db'\nretain = '1h'\n\
    [app.shop.sink.out]\ntype = 'file'\ntopics = ['orders']\nconnection = { path = 'out.jsonl' }\n";

fn shop() -> Place {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    place.good(&["migrate", "--database", "shop.db"]);
    place
}

fn enqueue(place: &Place, payload: &str) {
    place.good(&["enqueue", "--database", "shop.db", "--topic", "orders", "--payload", payload]);
}

fn number(place: &Place, file: &str, sql: &str) -> i64 {
    Connection::open(place.path(file)).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Each transaction writes a row of the application and its event: a copy that is no snapshot would tear them apart.
#[test]
fn a_backup_under_load_is_one_snapshot() {
    let place = shop();
    let mut writer = Connection::open(place.path("shop.db")).unwrap();
    writer
        .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE orders (n INTEGER PRIMARY KEY, filler BLOB)")
        .unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let tx = writer.transaction().unwrap();
                tx.execute("INSERT INTO orders (filler) VALUES (randomblob(3000))", []).unwrap();
                litepost::enqueue(&tx, &litepost::NewEvent::new("orders", "{}")).unwrap();
                tx.commit().unwrap();
            }
        });
        for round in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(100));
            place.good(&["backup", "--database", "shop.db", &format!("copy-{round}.db")]);
        }
        stop.store(true, Ordering::Relaxed);
    });
    for round in 0..5 {
        let copy = format!("copy-{round}.db");
        assert_eq!(
            number(&place, &copy, "SELECT count(*) FROM pragma_integrity_check WHERE integrity_check = 'ok'"),
            1
        );
        let torn = "SELECT (SELECT count(*) FROM orders) - (SELECT count(*) FROM litepost_outbox)";
        assert_eq!(number(&place, &copy, torn), 0, "{copy} is no snapshot");
    }
    let left = std::fs::read_dir(place.folder())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains(".part"));
    assert_eq!(left.count(), 0, "the copy's temporary files stayed");
}

#[test]
fn a_restored_file_is_a_new_incarnation_that_the_relay_delivers_from() {
    let place = shop();
    enqueue(&place, "\"before\"");
    place.good(&["run", "--until-idle"]);
    enqueue(&place, "\"pending\"");
    place.good(&["backup", "--database", "shop.db", "kept.db"]);
    place.good(&["run", "--until-idle"]);
    // The disk fails. The file comes back, and what was pending in it is delivered again, no more.
    for file in ["shop.db", "shop.db-wal", "shop.db-shm"] {
        let _ = std::fs::remove_file(place.path(file));
    }
    place.good(&["restore", "kept.db", "--database", "shop.db", "--reason", "disk failed", "--actor", "ada"]);
    let told: serde_json::Value = serde_json::from_str(&place.good(&["run", "--until-idle", "--json"])).unwrap();
    assert_eq!(told["lanes"][0]["delivered"], 1, "{told}");
    // The file destination knows its last line, so it does not write the event a second time.
    let out = std::fs::read_to_string(place.path("out.jsonl")).unwrap();
    let count = |what: &str| out.lines().filter(|line| line.contains(what)).count();
    assert_eq!((count("before"), count("pending")), (1, 1), "{out}");
    assert_eq!(number(&place, "shop.db", "SELECT CAST(value AS INTEGER) FROM litepost_meta WHERE name = 'epoch'"), 2);
    let audit = place.good(&["audit", "--database", "shop.db"]);
    assert!(audit.contains("ada") && audit.contains("disk failed"), "{audit}");
}

#[test]
fn nothing_is_replaced_unasked_or_under_somebody_and_no_epoch_comes_again() {
    let place = shop();
    enqueue(&place, "1");
    place.good(&["backup", "--database", "shop.db", "kept.db"]);
    let stderr = place.bad(1, &["backup", "--database", "shop.db", "kept.db"]);
    assert!(stderr.contains("is there already") && stderr.contains("--replace"), "{stderr}");
    let stderr = place.bad(1, &["restore", "kept.db", "--database", "shop.db"]);
    assert!(stderr.contains("is there already"), "{stderr}");
    let open = Connection::open(place.path("shop.db")).unwrap();
    open.execute_batch("PRAGMA journal_mode = WAL; SELECT count(*) FROM litepost_outbox").unwrap();
    let stderr = place.bad(1, &["restore", "kept.db", "--database", "shop.db", "--replace"]);
    assert!(stderr.contains("is open in another program"), "{stderr}");
    drop(open);
    let mut epochs = Vec::new();
    for _ in 0..3 {
        let told = place.good(&["restore", "kept.db", "--database", "shop.db", "--replace", "--json"]);
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        epochs.push(told["restored"]["epoch"].as_i64().unwrap());
    }
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "{epochs:?}");
    place.write("no.db", "this is no backup at all".repeat(100));
    place.bad(1, &["restore", "no.db", "--database", "new.db"]);
    assert!(!place.path("new.db").exists(), "a failed restore left a file");
}
