//! `litepost verify` and `litepost prune`: what they say, and what they leave alone.

use rusqlite::Connection;

use crate::support::Place;

const CONFIG: &str = "[app.shop]\ndatabase = 'shop.db'\nretain = 'never'\n\
    [app.shop.sink.audit]\ntype = 'file'\ntopics = ['orders']\nconnection = { path = 'events.jsonl' }\n\
    [app.shop.db.copy]\ntype = 'sqlite'\ntables = ['stock']\nconnection = { path = 'copy.db' }\n";

fn delivered(events: usize) -> Place {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    Connection::open(place.path("copy.db")).unwrap().execute_batch("CREATE TABLE stock (n INTEGER)").unwrap();
    place.good(&["migrate"]);
    let lines: Vec<String> =
        (0..events).map(|n| format!("{{\"topic\":\"orders\",\"payload\":{{\"n\":{n}}}}}")).collect();
    place.write("events.in", lines.join("\n") + "\n");
    place.good(&["enqueue", "--database", "shop.db", "--jsonl", "events.in"]);
    place.good(&["run", "--until-idle"]);
    place
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_healthy_file_is_good_and_untouched() {
    let place = delivered(3);
    let before = std::fs::read(place.path("shop.db")).unwrap();
    let told = place.good(&["verify"]);
    assert_eq!(told, "shop.db: good: 3 events (1 to 3), 2 lanes, 2 receipts\n");
    assert_eq!(place.good(&["verify", "--remote"]), told);
    let found = json(&place.good(&["verify", "--database", "shop.db", "--json"]));
    assert_eq!((found["ok"].as_bool(), found["databases"][0]["events"].as_i64()), (Some(true), Some(3)));
    assert_eq!(std::fs::read(place.path("shop.db")).unwrap(), before);
}

#[test]
fn every_finding_has_a_next_step_and_the_exit_code_is_1() {
    let place = delivered(3);
    let app = Connection::open(place.path("shop.db")).unwrap();
    app.execute_batch("DROP TRIGGER litepost_outbox_update; UPDATE litepost_outbox SET payload = '{}' WHERE seq = 2")
        .unwrap();
    let answer = place.litepost(&["verify"]);
    assert_eq!((answer.code, answer.stderr.as_str()), (1, ""));
    let lines: Vec<&str> = answer.stdout.lines().collect();
    assert_eq!(lines[0], "shop.db: 3 findings");
    assert_eq!(lines[1], "- litepost_outbox_update is missing from the schema");
    assert!(lines[2].starts_with("  hint: nothing protects the log"), "{answer:#?}");
    assert_eq!(lines[3], "- shop.audit lane 0: events 1 to 3 are not what they were when they were delivered");
    let answer = place.litepost(&["verify", "--json"]);
    let found = json(&answer.stdout);
    assert_eq!((answer.code, found["databases"][0]["problems"][0]["kind"].as_str()), (1, Some("schema_missing")));
    assert_eq!(found["databases"][0]["hints"].as_array().unwrap().len(), 3);
    drop(app);
    std::fs::write(place.path("shop.db"), &std::fs::read(place.path("shop.db")).unwrap()[..8192]).unwrap();
    let _ = std::fs::remove_file(place.path("shop.db-wal"));
    let answer = place.litepost(&["verify"]);
    assert_eq!(answer.code, 1, "{answer:#?}");
    assert!(answer.stdout.contains("- SQLite reports damage: "), "{answer:#?}");
}

#[test]
fn a_destination_that_knows_more_than_the_file_is_a_finding() {
    let place = delivered(1);
    Connection::open(place.path("copy.db")).unwrap().execute_batch("UPDATE litepost_ledger SET seq = 9").unwrap();
    assert_eq!(place.litepost(&["verify"]).code, 0, "the ledger is asked only with --remote");
    let answer = place.litepost(&["verify", "--remote"]);
    assert_eq!(answer.code, 1);
    assert!(
        answer.stdout.contains(
            "- shop.copy lane 0: the destination has applied event 9, but the log ends at 1: was the file restored?\n  \
             hint: bring the right file back; or go on with this one: `litepost adopt` "
        ),
        "{answer:#?}"
    );
}

#[test]
fn pruning_now_leaves_the_newest_and_gives_the_room_back() {
    let place = delivered(3_000);
    assert_eq!(place.good(&["prune"]), "shop.db: 0 events pruned\n", "retain keeps them");
    let whole = std::fs::metadata(place.path("shop.db")).unwrap().len();
    let done = json(&place.good(&["prune", "--now", "--vacuum", "--json"]));
    let done = &done["databases"][0];
    assert_eq!((done["pruned"].as_i64(), done["can_shrink"].as_bool()), (Some(2_999), Some(true)));
    let left = std::fs::metadata(place.path("shop.db")).unwrap().len();
    assert!(left * 3 < whole, "{whole} bytes before, {left} after");
    assert!(place.good(&["verify"]).starts_with("shop.db: good: 1 events (3000 to 3000)"));
    let status = json(&place.good(&["status", "--json"]));
    let outbox = &status["destinations"][0]["outboxes"][0];
    assert_eq!((outbox["log_rows"].as_i64(), outbox["file_bytes"].as_i64()), (Some(1), i64::try_from(left).ok()));
}

#[test]
fn a_file_that_cannot_shrink_in_steps_says_so() {
    let place = Place::new();
    Connection::open(place.path("app.db"))
        .unwrap()
        .execute_batch("PRAGMA journal_mode = wal; CREATE TABLE t (x)")
        .unwrap();
    place.good(&["migrate", "--database", "app.db"]);
    let app = Connection::open(place.path("app.db")).unwrap();
    app.execute_batch("CREATE TABLE u AS SELECT randomblob(100000) AS x; DROP TABLE u").unwrap();
    drop(app);
    let told = place.good(&["prune", "--database", "app.db", "--now", "--vacuum"]);
    assert!(told.contains("are free in the file, which cannot shrink in steps"), "{told}");
}

#[test]
fn a_copy_is_told_and_goes_on_as_the_operator_says() {
    let place = delivered(2);
    assert!(place.bad(1, &["adopt", "--dry-run"]).contains("not a copy of it"), "the file itself needs no adoption");
    std::fs::copy(place.path("shop.db"), place.path("backup.db")).unwrap();
    place.good(&["enqueue", "--topic", "orders", "--payload", "{}"]);
    place.good(&["run", "--until-idle"]);
    std::fs::remove_file(place.path("shop.db")).unwrap();
    std::fs::copy(place.path("backup.db"), place.path("shop.db")).unwrap();
    let told = place.good(&["verify"]);
    assert!(told.starts_with("shop.db: a copy (a backup?)") && told.contains("shop.db: good: 2 events"), "{told}");
    let stderr = place.bad(1, &["run", "--until-idle"]);
    assert!(stderr.contains("is a copy of the outbox that was delivered from"), "{stderr}");
    assert_eq!(
        place.good(&["adopt", "--dry-run", "--actor", "ann"]),
        "shop.db: would become a new incarnation, epoch 2\n"
    );
    assert_eq!(place.bad(1, &["run", "--until-idle"]), stderr);
    place.good(&["enqueue", "--topic", "orders", "--payload", "{}"]);
    let done = json(&place.good(&["fast-forward", "--actor", "ann", "--reason", "drill", "--json"]));
    assert_eq!((done["epoch"].as_i64(), done["lanes"][0]["to"].as_i64()), (Some(2), Some(3)));
    place.good(&["run", "--until-idle"]);
    assert_eq!(place.good(&["verify"]).lines().count(), 1);
    let app = Connection::open(place.path("shop.db")).unwrap();
    let audited: String = app
        .query_row("SELECT actor || ' ' || action || ' ' || reason FROM litepost_audit", [], |row| row.get(0))
        .unwrap();
    assert_eq!(audited, "ann fast-forward drill");
}

#[test]
fn where_tells_an_events_life() {
    let place = delivered(3);
    let app = Connection::open(place.path("shop.db")).unwrap();
    let id: String = app.query_row("SELECT id FROM litepost_outbox WHERE seq = 2", [], |row| row.get(0)).unwrap();
    let told = place.good(&["where", &id]);
    assert!(told.starts_with(&format!("shop.db: {id} is event 2\n  topic    orders\n  written  2")), "{told}");
    assert!(told.contains("shop.audit: delivered; receipt of events 1 to 3, written between "), "{told}");
    assert!(told.contains("shop.copy: not for this destination"), "{told}");
    let found = json(&place.good(&["where", &id, "--database", "shop.db", "--json"]));
    let event = &found["events"][0];
    assert_eq!((event["seq"].as_i64(), event["found"].as_str()), (Some(2), Some("by_time")));
    assert_eq!(event["destinations"][0]["state"], "delivered");
    app.execute("INSERT INTO litepost_outbox (id, topic, payload) VALUES ('order-1', 'orders', '{}')", []).unwrap();
    let told = place.good(&["where", "order-1"]);
    assert!(
        told.contains("found by reading 4 events") && told.contains("shop.audit: pending, 0 events before it"),
        "{told}"
    );
    assert_eq!(
        place.bad(1, &["where", "nothing"]),
        "shop.db: 4 of 4 events read\nerror: no outbox here has an event nothing\n  hint: check the id; `litepost tail` shows the \
         events in the log\n"
    );
    place.good(&["run", "--until-idle"]);
    place.good(&["prune", "--now"]);
    let answer = place.litepost(&["where", &id]);
    assert_eq!(answer.code, 1);
    assert!(answer.stdout.contains("is not in the log. Its id tells a time before the oldest event"), "{answer:#?}");
}

#[test]
fn migrate_makes_the_view_when_asked() {
    let place = delivered(2);
    place.good(&["migrate", "--views"]);
    let app = Connection::open(place.path("shop.db")).unwrap();
    let count: i64 =
        app.query_row("SELECT count(*) FROM OutboxEvents WHERE Status = 'published'", [], |row| row.get(0)).unwrap();
    assert_eq!(count, 2);
}
