//! `litepost inbox` on the three databases: the DDL it prints, the claim with and without a command, status, cleaning.

use std::process::Command;

use litepost_testkit::servers::{MariaDb, Postgres};
use serde_json::Value;

use crate::support::Place;

const SCOPE: &str = "mail.v1";

/// A SQLite database with the table that `inbox schema` prints.
fn sqlite(place: &Place) -> String {
    let ddl = place.good(&["inbox", "schema", "--dialect", "sqlite"]);
    rusqlite::Connection::open(place.path("c.db")).unwrap().execute_batch(&ddl).unwrap();
    "sqlite:c.db".to_owned()
}

fn claim(place: &Place, url: &str, id: &str, command: &[&str]) -> (i32, String) {
    let mut arguments = vec!["inbox", "claim", "--url", url, "--scope", SCOPE, "--id", id];
    if !command.is_empty() {
        arguments.push("--");
        arguments.extend(command);
    }
    let answer = place.litepost(&arguments);
    (answer.code, answer.stdout)
}

fn markers(place: &Place, url: &str) -> i64 {
    let status: Value = serde_json::from_str(&place.good(&["inbox", "status", "--url", url, "--json"])).unwrap();
    status["markers"].as_i64().unwrap()
}

/// What every database must answer.
fn whole_life(place: &Place, url: &str) {
    assert_eq!(claim(place, url, "1", &[]), (0, "first\n".to_owned()));
    assert_eq!(claim(place, url, "1", &[]), (1, "duplicate\n".to_owned()));
    // A command that fails takes its claim with it; one that ends well is not run again.
    assert_eq!(claim(place, url, "2", &["sh", "-c", "echo try >> ran; exit 7"]).0, 1);
    assert_eq!(claim(place, url, "2", &["sh", "-c", "echo well >> ran"]), (0, String::new()));
    assert_eq!(claim(place, url, "2", &["sh", "-c", "echo again >> ran"]), (0, "duplicate\n".to_owned()));
    assert_eq!(std::fs::read_to_string(place.path("ran")).unwrap(), "try\nwell\n");
    assert_eq!(markers(place, url), 2);
    let clean = ["inbox", "clean", "--url", url, "--retention", "0s", "--redelivery", "0s", "--json"];
    let plan: Value = serde_json::from_str(&place.good(&[&clean[..], &["--dry-run"]].concat())).unwrap();
    assert_eq!(plan["would_delete"], 2);
    assert_eq!(markers(place, url), 2, "a dry run deletes nothing");
    let forget = ["inbox", "forget", "--url", url, "--scope", SCOPE];
    assert_eq!(place.good(&[&forget[..], &["--id", "1"]].concat()), "1 forgotten\n");
    assert_eq!(claim(place, url, "1", &[]), (0, "first\n".to_owned()));
    let result: Value = serde_json::from_str(&place.good(&clean)).unwrap();
    assert_eq!(result["deleted"], 2);
    assert_eq!(markers(place, url), 0);
    assert_eq!(place.good(&[&forget[..], &["--all"]].concat()), "0 forgotten\n");
}

#[test]
fn sqlite_from_claim_to_cleaning() {
    let place = Place::new();
    let url = sqlite(&place);
    whole_life(&place, &url);
}

#[test]
fn postgres_from_claim_to_cleaning() {
    let (place, server) = (Place::new(), Postgres::start());
    let ddl = place.good(&["inbox", "schema", "--dialect", "postgres"]);
    let done =
        Command::new("psql").args([server.url().as_str(), "-v", "ON_ERROR_STOP=1", "-c", &ddl]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    whole_life(&place, &server.url());
}

#[test]
fn mysql_from_claim_to_cleaning() {
    let (place, server) = (Place::new(), MariaDb::start());
    let ddl = place.good(&["inbox", "schema", "--dialect", "mysql"]);
    assert!(server.root(&format!("USE litepost; {ddl}")));
    whole_life(&place, &server.url());
}

#[test]
fn what_is_wrong_is_told_and_no_password_with_it() {
    let place = Place::new();
    let url = sqlite(&place);
    let clean = ["inbox", "clean", "--url", &url, "--redelivery", "14d", "--retention"];
    let stderr = place.bad(1, &[&clean[..], &["1d"]].concat());
    assert!(stderr.contains("is below the redelivery horizon"), "{stderr}");
    assert!(place.bad(1, &[&clean[..], &["1x"]].concat()).contains("30d, 12h"));
    for url in
        ["oracle://app:hunter2@db/x", "postgres://app:hunter2@127.0.0.1:1/x", "mysql://app:hunter2@127.0.0.1:1/x"]
    {
        let answer = place.litepost(&["inbox", "status", "--url", url]);
        assert_ne!(answer.code, 0);
        assert!(!answer.stderr.contains("hunter2") && answer.stderr.contains("hint:"), "{}", answer.stderr);
    }
    assert!(place.bad(1, &["inbox", "status", "--url", "sqlite:none.db"]).contains("there is no such file"));
    let missing = place.litepost(&["inbox", "status", "--url", &url, "--table", "other"]);
    assert!(missing.code == 2 && missing.stderr.contains("no such table"), "{missing:?}");
    assert!(
        place.bad(1, &["inbox", "claim", "--url", &url, "--scope", "", "--id", "1"]).contains("the scope is empty")
    );
}
