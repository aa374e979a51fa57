//! `litepost status` and `litepost dead`: what they say of files in every state, and that looking changes nothing.

use crate::support::Place;

const CONFIG: &str = "[app.shop]\ndatabase = 'shop.db'\n\
    [app.shop.sink.audit]\ntype = 'file'\ntopics = ['orders', 'pay*']\nconnection = { path = '${NOT_SET}' }\n\
    [app.shop.db.warehouse]\ntype = 'sqlite'\ntables = ['copies']\nconnection = { path = 'w.db' }\n";

fn shop() -> Place {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    place.good(&["migrate", "--database", "shop.db"]);
    for topic in ["orders", "orders", "payments", "copies", "nobody's"] {
        place.good(&["enqueue", "--database", "shop.db", "--topic", topic, "--payload", "{}"]);
    }
    place
}

fn json(place: &Place, arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&place.good(arguments)).unwrap()
}

/// Puts a served destination, a blocked key and a dead letter into the file, as a relay would.
fn serve(place: &Place) {
    rusqlite::Connection::open(place.path("shop.db"))
        .unwrap()
        .execute_batch(
            "INSERT INTO litepost_cursor (destination, lane, lanes, start_after, acked, delivered, dead, updated_at, state, state_error)
               VALUES ('shop.audit', 0, 1, 0, 3, 1, 1, 0, 'open', 'connection refused'), ('shop.old', 0, 1, 0, 5, 5, 0, 0, 'closed', NULL);
             INSERT INTO litepost_blocked VALUES ('shop.audit', 0, 'topic', 'orders', 2, 1, 'backoff', 3, '23505', 'no', 0, 0);
             INSERT INTO litepost_dead (destination, lane, reason, attempts, error_code, error, dead_at, seq, id, topic, key, type, payload, created_at)
               VALUES ('shop.audit', 0, 'max_attempts', 10, '400', 'bad' || char(27) || '[31m', 1000, 1, 'the-id', 'orders', NULL, 'T', x'00ff', 500);",
        )
        .unwrap();
}

#[test]
fn before_any_relay_the_log_itself_is_counted() {
    let place = shop();
    let status = json(&place, &["status", "--config", "litepost.toml", "--json"]);
    let rows = status["destinations"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0]["app"].as_str(), rows[0]["name"].as_str()), (Some("shop"), Some("audit")));
    assert_eq!((rows[0]["pending"].as_i64(), rows[0]["state"].as_str()), (Some(3), Some("new")));
    assert_eq!((rows[1]["name"].as_str(), rows[1]["pending"].as_i64()), (Some("warehouse"), Some(1)));
    assert!(rows[0]["oldest_age_ms"].as_i64().unwrap() >= 0);
    for key in ["dead", "blocked_keys", "delivered", "scheduled"] {
        assert_eq!(rows[0][key], 0, "{key}");
    }
    let text = place.good(&["status"]);
    assert!(text.contains("shop.audit: no relay has served it yet; start one with `litepost run`"), "{text}");
}

#[test]
fn a_served_destination_a_blocked_key_and_one_that_nobody_configures() {
    let place = shop();
    serve(&place);
    let status = json(&place, &["status", "--json"]);
    let rows = status["destinations"].as_array().unwrap();
    let audit = &rows[0];
    assert_eq!((audit["state"].as_str(), audit["error"].as_str()), (Some("open"), Some("connection refused")));
    assert_eq!(
        (audit["pending"].as_i64(), audit["blocked_keys"].as_i64(), audit["dead"].as_i64()),
        (Some(3), Some(1), Some(1))
    );
    assert_eq!((audit["delivered"].as_i64(), audit["configured"].as_bool()), (Some(1), Some(true)));
    let old = rows.iter().find(|row| row["name"] == "old").unwrap();
    assert_eq!(old["configured"], false);
    let text = place.good(&["status"]);
    assert!(text.lines().take(4).all(|line| line.chars().count() <= 80), "{text}");
    assert!(
        text.contains("shop.audit: cannot be reached: connection refused; events wait and cost no attempt"),
        "{text}"
    );
    assert!(
        text.contains("shop.old: is not in the configuration, and keeps delivered events from being pruned"),
        "{text}"
    );
    let bare = json(&place, &["status", "--database", "shop.db", "--json"]);
    assert_eq!(bare["destinations"].as_array().unwrap().len(), 2);
}

#[test]
fn looking_changes_nothing_even_beside_a_writer() {
    let place = shop();
    serve(&place);
    let writer = rusqlite::Connection::open(place.path("shop.db")).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE; INSERT INTO litepost_outbox (topic, payload) VALUES ('t', 'x')").unwrap();
    let before = std::fs::read(place.path("shop.db")).unwrap();
    let wal = std::fs::read(place.path("shop.db-wal")).unwrap();
    for arguments in [
        vec!["status"],
        vec!["status", "--json"],
        vec!["status", "--database", "shop.db"],
        vec!["dead", "list"],
        vec!["dead", "show", "1"],
        vec!["tail"],
    ] {
        place.good(&arguments);
    }
    assert_eq!(std::fs::read(place.path("shop.db")).unwrap(), before);
    assert_eq!(std::fs::read(place.path("shop.db-wal")).unwrap(), wal);
    writer.execute_batch("COMMIT").unwrap();
}

#[test]
fn a_foreign_database_is_refused_and_left_as_it_is() {
    let place = Place::new();
    rusqlite::Connection::open(place.path("app.db")).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let before = std::fs::read(place.path("app.db")).unwrap();
    let refused =
        "error: app.db: the database has no litepost tables\n  hint: run `litepost migrate --database FILE`\n";
    assert_eq!(place.bad(1, &["status", "--database", "app.db"]), refused);
    assert_eq!(place.bad(1, &["dead", "list", "--database", "app.db"]), refused);
    assert_eq!(std::fs::read(place.path("app.db")).unwrap(), before);
    assert_eq!(
        place.bad(1, &["status", "--database", "none.db"]),
        "error: none.db does not exist\n  hint: check the path; `litepost migrate --create --database FILE` makes a new file\n"
    );
    assert!(!place.path("none.db").exists());
}

#[test]
fn dead_letters_are_listed_and_shown_whole() {
    let place = shop();
    assert_eq!(place.good(&["dead", "list", "--database", "shop.db"]), "no dead letters\n");
    serve(&place);
    let text = place.good(&["dead", "list"]);
    assert!(text.contains("max_attempts") && text.contains("bad\\u{1b}[31m") && !text.contains('\u{1b}'), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let list = json(&place, &["dead", "list", "--json"]);
    assert_eq!((list["dead"][0]["dead_id"].as_i64(), list["dead"][0]["database"].as_str()), (Some(1), Some("shop.db")));
    assert_eq!(
        json(&place, &["dead", "list", "--json", "--destination", "shop.none"])["dead"].as_array().unwrap().len(),
        0
    );
    assert_eq!(json(&place, &["dead", "list", "--json", "--after", "1"])["dead"].as_array().unwrap().len(), 0);
    let one = json(&place, &["dead", "show", "1", "--json"]);
    assert_eq!(
        (one["id"].as_str(), one["payload_base64"].as_str(), one["reason"].as_str()),
        (Some("the-id"), Some("AP8="), Some("max_attempts"))
    );
    assert!(place.good(&["dead", "show", "1"]).contains("payload      (2 bytes) base64 AP8="));
    assert_eq!(
        place.bad(1, &["dead", "show", "9"]),
        "error: there is no dead letter 9\n  hint: `litepost dead list` shows what there is\n"
    );
}

#[test]
fn the_files_of_a_db_dir_make_one_row() {
    let place = Place::new();
    place.write(
        "litepost.toml",
        "[app.shop]\ndb_dir = 'data'\n[app.shop.db.w]\ntype = 'sqlite'\ntables = ['a', 'b', 'c']\nconnection = { path = 'w.db' }\n",
    );
    for topic in ["a", "b", "b"] {
        place.good(&["enqueue", "--topic", topic, "--payload", "{}"]);
    }
    let status = json(&place, &["status", "--json"]);
    let rows = status["destinations"].as_array().unwrap();
    assert_eq!(
        (rows.len(), rows[0]["pending"].as_i64(), rows[0]["outboxes"].as_array().unwrap().len()),
        (1, Some(3), 2)
    );
}

#[test]
fn more_dead_letters_than_max_dead_are_an_alarm_and_nothing_more() {
    let place = shop();
    serve(&place);
    let alarm = |limit: &str| {
        place.write("litepost.toml", CONFIG.replace("['orders', 'pay*']", &format!("['orders']\nmax_dead = {limit}")));
        let status = json(&place, &["status", "--json"]);
        let check = place.command(&["check", "--strict"]).env("NOT_SET", "a.jsonl").output().unwrap();
        let said = String::from_utf8(check.stderr).unwrap().contains("shop.audit has 2 dead letters in");
        assert_eq!(status["destinations"][0]["too_many_dead"], said, "{status:#}");
        said
    };
    let outbox = rusqlite::Connection::open(place.path("shop.db")).unwrap();
    outbox
        .execute_batch(
            "INSERT INTO litepost_dead (destination, lane, reason, attempts, error, dead_at, seq, id, topic, type, payload, created_at)
               VALUES ('shop.audit', 0, 'skipped', 0, 'no', 1000, 2, 'id2', 'orders', 'T', x'00', 500)",
        )
        .unwrap();
    assert!(alarm("1"));
    assert!(!alarm("2") && !alarm("'never'"));
    assert_eq!(outbox.query_row("SELECT count(*) FROM litepost_dead", [], |row| row.get(0)), Ok(2));
}
