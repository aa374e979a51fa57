//! `litepost migrate`, `litepost schema`: what they make, what they leave alone.

use crate::support::Place;

#[test]
fn a_new_file_is_made_and_a_second_run_changes_nothing() {
    let place = Place::new();
    assert_eq!(
        place.good(&["migrate", "--database", "shop.db"]),
        "shop.db: made, schema version 1, journal mode wal\n"
    );
    let before = std::fs::read(place.path("shop.db")).unwrap();
    assert_eq!(
        place.good(&["migrate", "--database", "shop.db"]),
        "shop.db: was ready, schema version 1, journal mode wal\n"
    );
    assert_eq!(std::fs::read(place.path("shop.db")).unwrap(), before);
    assert_eq!(
        place.good(&["migrate", "--database", "shop.db", "--json"]),
        "{\"databases\":[{\"created\":false,\"database\":\"shop.db\",\"from\":1,\"journal_mode\":\"wal\",\"max_pending\":null,\"to\":1}]}\n"
    );
}

#[test]
fn an_existing_database_keeps_everything_the_application_has_set() {
    let place = Place::new();
    let connection = rusqlite::Connection::open(place.path("app.db")).unwrap();
    connection
        .execute_batch(
            "PRAGMA page_size = 8192; PRAGMA user_version = 42; PRAGMA application_id = 7; CREATE TABLE orders (id)",
        )
        .unwrap();
    assert_eq!(
        place.good(&["migrate", "--database", "app.db"]),
        "app.db: ready, schema version 1, journal mode delete\n"
    );
    let pragma =
        |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0)).unwrap();
    assert_eq!(pragma("page_size"), 8192.into());
    assert_eq!(pragma("user_version"), 42.into());
    assert_eq!(pragma("application_id"), 7.into());
    assert_eq!(pragma("journal_mode"), "delete".to_owned().into());
}

#[test]
fn max_pending_is_enforced_in_the_producers_own_insert() {
    let place = Place::new();
    let out = place.good(&["migrate", "--database", "shop.db", "--max-pending", "2"]);
    assert_eq!(out, "shop.db: made, schema version 1, journal mode wal, max_pending 2\n");
    let event = ["enqueue", "--database", "shop.db", "--topic", "t", "--payload", "x"];
    place.good(&event);
    place.good(&event);
    assert_eq!(
        place.bad(1, &event),
        "error: shop.db: the outbox is full: max_pending is 2, and at least that many events wait for delivery\n  \
         hint: slow down or shed load; check `litepost status` for a destination that is down\n"
    );
    place.good(&["migrate", "--database", "shop.db", "--max-pending", "never"]);
    place.good(&event);
}

#[test]
fn a_configuration_migrates_every_file_it_names() {
    let place = Place::new();
    place.write(
        "litepost.toml",
        "[app.shop]\ndb_dir = 'data'\nmax_pending = 9\n[app.shop.db.w]\ntype = 'sqlite'\ntables = ['a', { name = 'b', max_pending = 5 }]\n\
         connection = { path = '${NOT_SET}' }\n",
    );
    assert_eq!(
        place.good(&["migrate"]),
        "data/a.db: made, schema version 1, journal mode wal, max_pending 9\n\
         data/b.db: made, schema version 1, journal mode wal, max_pending 5\n"
    );
}

#[test]
fn what_cannot_be_migrated_is_refused_and_left_as_it_is() {
    let place = Place::new();
    assert_eq!(
        place.bad(1, &["migrate", "--no-create", "--database", "none.db"]),
        "error: none.db does not exist\n  hint: check the path; `litepost migrate --create --database FILE` makes a new file\n"
    );
    assert!(!place.path("none.db").exists());

    place.write("text.db", "this is no database, and long enough to be told from an empty file\n".repeat(20));
    assert_eq!(
        place.bad(1, &["migrate", "--database", "text.db"]),
        "error: text.db is not a SQLite database, or it is encrypted\n  hint: check the path; encrypted databases are not supported\n"
    );

    std::fs::create_dir(place.path("folder.db")).unwrap();
    assert_eq!(
        place.bad(1, &["migrate", "--database", "folder.db"]),
        "error: folder.db holds no outbox file\n  hint: give the db_dir of an app, or a database file\n"
    );

    let connection = rusqlite::Connection::open(place.path("foreign.db")).unwrap();
    connection.execute_batch("CREATE TABLE litepost_outbox (something_else)").unwrap();
    assert_eq!(
        place.bad(1, &["migrate", "--database", "foreign.db"]),
        "error: foreign.db: the database has an object named litepost_outbox that litepost did not make\n  \
         hint: rename that object, or give litepost a database file of its own\n"
    );
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 1);
}

#[test]
fn the_printed_schema_is_what_migrate_makes() {
    let place = Place::new();
    place.good(&["migrate", "--database", "a.db"]);
    let sql = place.good(&["schema"]);
    let printed = rusqlite::Connection::open(place.path("b.db")).unwrap();
    printed.execute_batch(&sql).unwrap();
    let objects = |connection: &rusqlite::Connection| -> Vec<(String, Option<String>)> {
        let mut statement = connection.prepare("SELECT name, sql FROM sqlite_schema ORDER BY name").unwrap();
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().collect::<Result<_, _>>().unwrap()
    };
    assert_eq!(objects(&rusqlite::Connection::open(place.path("a.db")).unwrap()), objects(&printed));
    assert_eq!(
        place.good(&["migrate", "--database", "b.db"]),
        "b.db: was ready, schema version 1, journal mode delete\n"
    );
}
