//! Tables whose database drops, changes or hides a marker on its way in: a claim that was answered `Duplicate` there would
//! lose its message.

use litepost_inbox::{Claim, Dialect, Inbox, InboxError, InboxOptions};
use litepost_testkit::servers::{MariaDb, Postgres};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, OptsBuilder, TxOpts};
use rusqlite::Connection;
use tokio_postgres::{Client, NoTls};

use crate::{id, scope};

const PROTECTED: InboxOptions = InboxOptions { protect_duplicates: true, results: false, digests: false };

fn refused<T: std::fmt::Debug>(made: &str, words: &str, found: Result<T, InboxError>) {
    match found {
        Err(error @ InboxError::Table { .. }) if error.to_string().contains(words) => {}
        found => panic!("{made}: {found:?}"),
    }
}

const FUNCTION: &str =
    "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; CREATE ROLE tenant";
const PARTED: &str =
    "DROP TABLE inbox; CREATE TABLE inbox (scope text, message_id text, processed_at timestamptz DEFAULT now(),
    PRIMARY KEY (scope, message_id)) PARTITION BY HASH (scope);
    CREATE TABLE part PARTITION OF inbox FOR VALUES WITH (MODULUS 1, REMAINDER 0);";
/// Another tenant's marker of the same key, which a policy is to hide.
const TENANTS: &str = "ALTER TABLE inbox ADD tenant text DEFAULT 'ours';
    INSERT INTO inbox VALUES ('orders.ship.v1', 'theirs', now(), 'theirs');
    ALTER TABLE inbox ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON inbox USING";

async fn postgres() -> (Postgres, Client) {
    let server = tokio::task::spawn_blocking(Postgres::start).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(FUNCTION).await.unwrap();
    (server, client)
}

/// Makes the table, alters it, and takes the role that claims.
async fn make(client: &Client, made: &str) {
    let schema = Inbox::new("inbox").unwrap().schema(Dialect::Postgres);
    let again = "RESET ROLE; DROP TABLE IF EXISTS behind CASCADE; DROP TABLE IF EXISTS inbox;";
    client.batch_execute(&format!("{again} {schema} GRANT ALL ON inbox TO tenant; {made}")).await.unwrap();
}

#[tokio::test]
async fn postgres_refuses_what_drops_or_hides_a_marker() {
    let (_server, mut client) = postgres().await;
    let own = format!("{TENANTS} (tenant = 'ours'); SET ROLE tenant");
    let part = format!("{PARTED} CREATE TRIGGER t BEFORE INSERT ON part FOR EACH ROW EXECUTE FUNCTION skip()");
    for (made, words) in [
        ("CREATE TRIGGER t BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION skip()", "its trigger t can drop"),
        ("CREATE TRIGGER t BEFORE UPDATE OR INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION skip()", "its trigger t"),
        (
            "ALTER TABLE inbox RENAME TO behind; CREATE VIEW inbox AS SELECT * FROM behind;
             CREATE TRIGGER t BEFORE INSERT ON behind FOR EACH ROW EXECUTE FUNCTION skip()",
            "its trigger t",
        ),
        ("CREATE RULE r AS ON INSERT TO inbox DO INSTEAD NOTHING", "its rule r can drop"),
        ("CREATE RULE r AS ON INSERT TO inbox WHERE NEW.scope <> '' DO INSTEAD NOTHING", "its rule r can drop"),
        (&part, "its trigger t"),
        (&own, "its policy own hides markers"),
    ] {
        make(&client, made).await;
        for options in [InboxOptions::default(), PROTECTED] {
            let inbox = Inbox::with_options("inbox", options).unwrap();
            refused(made, words, inbox.check(&mut client).await);
            refused(made, words, inbox.prepare(&client).await.map(drop));
            let tx = client.transaction().await.unwrap();
            refused(made, words, inbox.claim(&tx, &scope(), &id("theirs")).await);
        }
    }
}

#[tokio::test]
async fn postgres_takes_what_leaves_every_marker_alone() {
    let (_server, mut client) = postgres().await;
    for made in [
        "CREATE TRIGGER t AFTER INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION skip()",
        "CREATE TRIGGER t BEFORE INSERT ON inbox FOR EACH STATEMENT EXECUTE FUNCTION skip()",
        "CREATE TRIGGER t BEFORE UPDATE OR DELETE ON inbox FOR EACH ROW EXECUTE FUNCTION skip()",
        "CREATE TRIGGER t BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION skip(); ALTER TABLE inbox DISABLE TRIGGER t",
        PARTED,
        &format!("{TENANTS} (tenant = 'ours')"),
        &format!("{TENANTS} (scope LIKE 'orders%'); SET ROLE tenant"),
        &format!("{TENANTS} (true) WITH CHECK (tenant = 'ours'); SET ROLE tenant"),
    ] {
        make(&client, made).await;
        let inbox = Inbox::new("inbox").unwrap();
        inbox.check(&mut client).await.unwrap_or_else(|error| panic!("{made}: {error}"));
        let tx = client.transaction().await.unwrap();
        for expected in [Claim::First, Claim::Duplicate] {
            assert_eq!(inbox.claim(&tx, &scope(), &id("a")).await.unwrap(), expected, "{made}");
        }
    }
}

/// A MariaDB with an inbox, a table of what triggers log, and a user with no privilege but those of a consumer.
async fn mariadb() -> (MariaDb, Conn, Opts) {
    let server = tokio::task::spawn_blocking(MariaDb::start).await.unwrap();
    let mut owner = Conn::from_url(server.url()).await.unwrap();
    let schema = Inbox::new("inbox").unwrap().schema(Dialect::MySql);
    for text in [
        schema.trim().trim_end_matches(';'),
        "CREATE TABLE logged (id int PRIMARY KEY)",
        "INSERT INTO logged VALUES (1)",
        "CREATE USER consumer@'127.0.0.1' IDENTIFIED BY 'consumer'",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON inbox TO consumer@'127.0.0.1'",
    ] {
        owner.query_drop(text).await.unwrap();
    }
    let consumer = OptsBuilder::from_opts(owner.opts().clone()).user(Some("consumer")).pass(Some("consumer"));
    (server, owner, consumer.into())
}

async fn claim(conn: &mut Conn, inbox: &Inbox, key: &str) -> Result<Claim, InboxError> {
    let mut tx = conn.start_transaction(TxOpts::new()).await.unwrap();
    let claim = inbox.claim(&mut tx, &scope(), &id(key)).await;
    tx.commit().await.unwrap();
    claim
}

/// Its words are those of the marker's own: `Duplicate entry '1' for key 'PRIMARY'`.
#[tokio::test]
async fn mariadb_a_duplicate_key_that_a_trigger_meets_is_not_the_markers() {
    let (_server, mut owner, consumer) = mariadb().await;
    let mut consumer = Conn::new(consumer).await.unwrap();
    let inbox = Inbox::new("inbox").unwrap();
    assert_eq!(claim(&mut consumer, &inbox, "before").await.unwrap(), Claim::First);
    for when in ["BEFORE", "AFTER"] {
        let trigger =
            format!("CREATE OR REPLACE TRIGGER t {when} INSERT ON inbox FOR EACH ROW INSERT INTO logged VALUES (1)");
        owner.query_drop(trigger).await.unwrap();
        for conn in [&mut owner, &mut consumer] {
            let error = claim(conn, &inbox, "a").await.unwrap_err();
            assert!(matches!(error, InboxError::Database { code: Some(1062), .. }), "{when}: {error}");
            assert!(!error.is_retryable(), "{error}");
            assert_eq!(claim(conn, &inbox, "before").await.unwrap(), Claim::Duplicate, "{when}");
        }
    }
}

#[tokio::test]
async fn mariadb_refuses_a_trigger_that_changes_a_marker() {
    let (_server, mut owner, consumer) = mariadb().await;
    let harmless = "CREATE TRIGGER u BEFORE UPDATE ON inbox FOR EACH ROW SET NEW.message_id = '1'";
    owner.query_drop(harmless).await.unwrap();
    Inbox::new("inbox").unwrap().check(&mut owner).await.unwrap();
    let trigger = "CREATE TRIGGER t BEFORE INSERT ON inbox FOR EACH ROW SET NEW.message_id = '1'";
    owner.query_drop(trigger).await.unwrap();
    let words = "its trigger t can drop or change";
    refused(trigger, words, Inbox::new("inbox").unwrap().check(&mut owner).await);
    let mut tx = owner.start_transaction(TxOpts::new()).await.unwrap();
    refused(trigger, words, Inbox::new("inbox").unwrap().claim(&mut tx, &scope(), &id("a")).await);
    tx.rollback().await.unwrap();
    // MariaDB shows it to the table's users, too.
    let mut consumer = Conn::new(consumer).await.unwrap();
    refused(trigger, words, claim(&mut consumer, &Inbox::new("inbox").unwrap(), "a").await);
}

#[test]
fn sqlite() {
    for (made, expected) in [
        ("CREATE TRIGGER {}.t BEFORE INSERT ON INBOX BEGIN SELECT RAISE(IGNORE); END", false),
        ("CREATE TRIGGER {}.t INSERT ON inbox BEGIN SELECT RAISE(IGNORE); END", false),
        ("CREATE TEMP TRIGGER t BEFORE INSERT ON {}.inbox BEGIN SELECT RAISE(IGNORE); END", false),
        ("CREATE TRIGGER {}.t /* AFTER INSERT ON */\nBEFORE\tINSERT ON inbox BEGIN SELECT RAISE(IGNORE); END", false),
        ("create trigger {}.t\n after   insert\non inbox begin select raise(ignore); end", true),
        ("CREATE TRIGGER {}.t BEFORE DELETE ON inbox BEGIN SELECT RAISE(IGNORE); END", true),
        ("CREATE TRIGGER {}.t BEFORE UPDATE OF scope ON inbox BEGIN SELECT RAISE(IGNORE); END", true),
        ("CREATE TRIGGER {}.t BEFORE INSERT ON others BEGIN SELECT RAISE(IGNORE); END", true),
    ] {
        for (place, table) in [("main", "inbox"), ("other", "other.inbox")] {
            let mut db = Connection::open_in_memory().unwrap();
            db.execute_batch("ATTACH ':memory:' AS other").unwrap();
            let fresh = || Inbox::new(table).unwrap();
            let others = format!("CREATE TABLE {place}.others (a);");
            let schema = fresh().schema(Dialect::Sqlite);
            db.execute_batch(&format!("{schema} {others} {}", made.replace("{}", place))).unwrap();
            let (checked, inbox) = (fresh().check_blocking(&mut db), fresh());
            let tx = db.transaction().unwrap();
            let claimed = inbox.claim(&tx, &scope(), &id("a"));
            if expected {
                checked.unwrap_or_else(|error| panic!("{made}: {error}"));
                assert_eq!(claimed.unwrap(), Claim::First, "{made}");
            } else {
                refused(made, "its trigger t can drop", checked);
                refused(made, "its trigger t can drop", claimed);
            }
        }
    }
}
