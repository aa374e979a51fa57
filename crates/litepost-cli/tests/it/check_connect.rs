//! `litepost check --connect`: the plan, against real files and servers, and that it changes nothing.

use litepost_testkit::servers::{Nats, Postgres};
use rusqlite::Connection;
use serde_json::Value;

use crate::support::Place;

fn plan(place: &Place, code: i32, more: &[&str]) -> Value {
    let arguments: Vec<&str> = ["check", "--connect", "--json"].into_iter().chain(more.iter().copied()).collect();
    let answer = place.litepost(&arguments);
    assert_eq!(answer.code, code, "{answer:#?}");
    serde_json::from_str(&answer.stdout).unwrap()
}

/// `kind: message` of every finding at a place.
fn at(answer: &Value, name: &str) -> Vec<String> {
    let places = answer["plan"].as_array().unwrap();
    let place = places.iter().find(|p| p["place"].as_str().unwrap().ends_with(name)).unwrap();
    let line = |f: &Value| format!("{}: {}", f["kind"].as_str().unwrap(), f["message"].as_str().unwrap());
    place["findings"].as_array().unwrap().iter().map(line).collect()
}

#[test]
fn what_a_relay_would_do_is_told_and_nothing_is_changed() {
    let place = Place::new();
    place.write(
        "litepost.toml",
        "[app.shop]\ndatabase = 'shop.db'\ndurable_reads = false\nmax_pending = 9\n\
         [app.shop.db.copy]\ntype = 'sqlite'\ntables = ['stock', 'gone']\nconnection = { path = 'copy.db' }\n\
         [app.shop.db.raw]\ntype = 'sqlite'\ntables = ['stock']\ndedupe = 'none'\nconnection = { path = 'copy.db' }\n\
         [app.shop.db.tight]\ntype = 'sqlite'\ntables = ['stock']\nauto_schema = false\nconnection = { path = 'copy.db' }\n\
         [app.shop.db.numbered]\ntype = 'sqlite'\ntables = ['stock']\ndedupe = 'outbox_seq'\nconnection = { path = 'copy.db' }\n\
         [app.shop.db.nowhere]\ntype = 'sqlite'\ntables = ['stock']\nconnection = { path = 'nowhere.db' }\n\
         [app.shop.sink.audit]\ntype = 'file'\nconnection = { path = 'events.jsonl', sync = false }\n\
         [app.shop.sink.hook]\ntype = 'http'\nconnection = { url = 'http://127.0.0.1:1/', allow_private_addresses = true }\n",
    );
    place.good(&["migrate", "--database", "shop.db"]);
    Connection::open(place.path("copy.db")).unwrap().execute_batch("CREATE TABLE stock (id INTEGER)").unwrap();
    let bytes = |name: &str| std::fs::read(place.path(name)).unwrap();
    let before = (bytes("shop.db"), bytes("copy.db"));
    let answer = plan(&place, 1, &[]);
    assert_eq!(
        at(&answer, "shop.copy"),
        [
            "creates: the ledger: litepost_ledger, litepost_ledger_event",
            "broken: the target has no table gone: statements for it wait until there is one",
        ]
    );
    assert_eq!(
        at(&answer, "shop.raw"),
        ["weaker: dedupe = \"none\": after a crash the last moments are executed again"]
    );
    assert!(at(&answer, "shop.tight")[0].starts_with("broken: the target has no ledger"), "{answer:#}");
    assert!(
        at(&answer, "shop.numbered")[1].starts_with("changes: the table stock: the columns outbox_seq"),
        "{answer:#}"
    );
    assert!(at(&answer, "shop.nowhere")[0].contains("nowhere.db does not exist"), "{answer:#}");
    assert!(at(&answer, "shop.hook")[0].starts_with("broken: http://127.0.0.1:1/"), "{answer:#}");
    let audit = at(&answer, "shop.audit");
    assert!(audit[0].starts_with("creates: the file ") && audit[1].starts_with("weaker: sync = false"), "{answer:#}");
    let source = at(&answer, "shop.db");
    assert!(source.contains(&"changes: max_pending from none to 9".to_owned()), "{source:?}");
    assert!(
        source.contains(&"creates: the cursor of shop.copy, which begins at the first event".to_owned()),
        "{source:?}"
    );
    assert!(source.iter().any(|line| line.starts_with("weaker: durable_reads = false")), "{source:?}");
    assert_eq!((bytes("shop.db"), bytes("copy.db")), before, "looking changes nothing");
    assert!(!place.path("events.jsonl").exists() && !place.path("nowhere.db").exists());
    let people = place.litepost(&["check", "--connect"]);
    assert!(people.stdout.contains("shop.copy (sqlite):\n  creates the ledger"), "{}", people.stdout);
}

#[test]
fn what_is_sound_is_no_finding_and_what_is_weaker_is_one_when_strict() {
    let place = Place::new();
    let config = |keys: &str| {
        let text = format!(
            "[app.shop]\ndatabase = 'shop.db'\n[app.shop.db.copy]\ntype = 'sqlite'\ntables = ['stock']\n{keys}\
             connection = {{ path = 'copy.db' }}\n"
        );
        place.write("litepost.toml", text);
    };
    config("");
    place.good(&["migrate", "--database", "shop.db"]);
    Connection::open(place.path("copy.db")).unwrap().execute_batch("CREATE TABLE stock (id INTEGER)").unwrap();
    plan(&place, 0, &["--strict"]);
    place.good(&["run", "--until-idle"]);
    let answer = plan(&place, 0, &["--strict"]);
    assert!(at(&answer, "shop.copy").is_empty() && at(&answer, "shop.db").is_empty(), "{answer:#}");
    config("dedupe = 'none'\n");
    plan(&place, 0, &[]);
    plan(&place, 1, &["--strict"]);
    Connection::open(place.path("copy.db"))
        .unwrap()
        .execute_batch("DROP TABLE litepost_ledger; CREATE TABLE litepost_ledger (origin TEXT)")
        .unwrap();
    config("");
    let answer = plan(&place, 1, &[]);
    assert!(
        at(&answer, "shop.copy")[0].starts_with("broken: the ledger in the target has another shape"),
        "{answer:#}"
    );
}

#[test]
fn servers_are_asked_and_left_as_they_were() {
    let (postgres, nats) = (Postgres::start(), Nats::start());
    let place = Place::new();
    let config = |create: bool| {
        let text = format!(
            "[app.shop]\ndatabase = 'shop.db'\n[app.shop.db.copy]\ntype = 'postgres'\ntables = ['Stock', 'gone']\n\
             connection = {{ url = '{}' }}\n[app.shop.sink.bus]\ntype = 'nats'\n\
             connection = {{ url = '{}', stream = 'shop', subject = 'shop.{{topic}}', create_stream = {create} }}\n",
            postgres.url(),
            nats.url()
        );
        place.write("litepost.toml", text);
    };
    config(true);
    place.good(&["migrate", "--database", "shop.db"]);
    postgres.psql("CREATE TABLE stock (id bigint)");
    let answer = plan(&place, 1, &[]);
    let copy = at(&answer, "shop.copy");
    assert_eq!(copy[0], "creates: the ledger: litepost_ledger, litepost_ledger_event", "{answer:#}");
    let gone = |line: &&String| line.starts_with("broken: the target has no table gone");
    assert_eq!(copy.iter().filter(|line| line.starts_with("broken")).count(), 1, "{copy:?}");
    assert!(copy.iter().any(|line| gone(&line)), "{copy:?}");
    assert_eq!(postgres.psql("SELECT count(*) FROM pg_class WHERE relname LIKE 'litepost%'").trim(), "0");
    assert_eq!(at(&answer, "shop.bus"), ["creates: the stream shop"]);
    config(false);
    assert_eq!(at(&plan(&place, 1, &[]), "shop.bus"), ["broken: there is no stream shop"]);
}
