//! `litepost schema --target`: the ledger's SQL per database, without a secret and without a connection.

use crate::support::Place;

const CONFIG: &str = "[app.shop]\ndatabase = 'shop.db'\n\
    [app.shop.sink.audit]\ntype = 'file'\ntopics = ['orders']\nconnection = { path = 'events.jsonl' }\n\
    [app.shop.db.lite]\ntype = 'sqlite'\ntables = ['copies']\nconnection = { path = 'warehouse.db' }\n\
    [app.shop.db.pg]\ntype = 'postgres'\ntables = ['copies']\nconnection = { url = '${NOT_SET}' }\n\
    [app.shop.db.maria]\ntype = 'mysql'\ntables = ['copies']\nconnection = { url = '${NOT_SET}' }\n";

fn place() -> Place {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    place
}

#[test]
fn each_database_gets_the_ledger_in_its_own_words() {
    let place = place();
    let sqlite = place.good(&["schema", "--target", "shop.lite"]);
    let db = rusqlite::Connection::open_in_memory().unwrap();
    db.execute_batch(&sqlite).unwrap();
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name IN ('litepost_ledger', 'litepost_ledger_event')";
    assert_eq!(db.query_row(tables, [], |row| row.get::<_, i64>(0)).unwrap(), 2);
    let drop = place.good(&["schema", "--target", "lite", "--drop"]);
    db.execute_batch(&drop).unwrap();
    assert_eq!(db.query_row(tables, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
    assert!(place.good(&["schema", "--target", "pg"]).contains("origin text NOT NULL"));
    assert!(place.good(&["schema", "--target", "maria", "--config", "litepost.toml"]).contains("ENGINE = InnoDB"));
    assert_eq!(place.good(&["schema", "--target", "maria", "--drop"]), drop);
}

#[test]
fn what_has_no_ledger_is_named() {
    let place = place();
    let answer = place.bad(1, &["schema", "--target", "audit"]);
    assert!(answer.contains("keeps no ledger") && answer.contains("shop.lite, shop.pg, shop.maria"), "{answer}");
    assert!(place.bad(1, &["schema", "--target", "nobody"]).contains("no destination"));
}
