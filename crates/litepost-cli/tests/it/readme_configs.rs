//! The configurations of sqloutbox's own README, taken from the installed package, through the binary as they are.

use std::path::PathBuf;

use litepost_relay::config::json_schema;
use serde_json::Value;

use crate::sqloutbox::python;
use crate::support::{Answer, Place};

/// The TOML blocks of the README of that version; the package carries it whole.
fn blocks(version: &str) -> Vec<String> {
    let lib = python(version).ancestors().nth(2).unwrap().join("lib");
    let packages = std::fs::read_dir(&lib).unwrap().map(|entry| entry.unwrap().path().join("site-packages"));
    let metadata: Vec<PathBuf> = packages
        .flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()))
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("sqloutbox-"))
        .map(|folder| folder.join("METADATA"))
        .collect();
    let readme = std::fs::read_to_string(&metadata[0]).unwrap();
    readme.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

fn run(place: &Place, arguments: &[&str]) -> Answer {
    let mut command = place.command(arguments);
    for name in ["PRIMARY_DB", "PULSEVIEW_TURSO", "TURSO", "DB"] {
        command.env(format!("{name}_URL"), "https://db.example").env(format!("{name}_TOKEN"), "secret");
    }
    Answer::of(command.env("TURSO_AUTH_TOKEN", "secret").output().unwrap())
}

/// A destination's name and what it takes.
type Takes = (String, Vec<String>);

/// `check` of a block as `outbox.toml`; what it says of destinations.
fn checked(block: &str) -> (Place, Vec<Takes>, Vec<String>) {
    let place = Place::new();
    place.write("outbox.toml", block);
    let answer = run(&place, &["check", "--json"]);
    assert_eq!(answer.code, 0, "{block}\n{answer:#?}");
    let told: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(told["config"], "outbox.toml");
    let words = |list: &Value| list.as_array().unwrap().iter().map(|w| w.as_str().unwrap().to_owned()).collect();
    let rows = told["destinations"].as_array().unwrap();
    let destinations =
        rows.iter().map(|row| (row["name"].as_str().unwrap().to_owned(), words(&row["takes"]))).collect();
    let problems = told["problems"].as_array().unwrap();
    (place, destinations, problems.iter().map(|p| p["message"].as_str().unwrap().to_owned()).collect())
}

#[test]
fn every_configuration_of_the_readme_is_taken_as_it_is() {
    for version in ["0.5", "0.6"] {
        let blocks = blocks(version);
        let [one, many, tables, connection] = &blocks[..] else { panic!("{version}: {blocks:#?}") };
        let (place, destinations, problems) = checked(one);
        assert_eq!(destinations, [("myapp.primary".to_owned(), vec!["orders".to_owned(), "payments".to_owned()])]);
        assert_eq!(problems, [""; 0]);
        // Its commands find the file by themselves, too.
        for arguments in [&["status"][..], &["preflight"], &["migrate"], &["status"]] {
            let answer = run(&place, arguments);
            assert!(answer.code < 2, "{version} {arguments:?}: {answer:#?}");
        }
        let (_, destinations, problems) = checked(many);
        let names: Vec<&str> = destinations.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["pulseview.analytics", "autopulse.main"]);
        assert_eq!(
            problems,
            ["app.pulseview.db.analytics.inject_outbox_seq: a writer_class gets its statements unchanged"]
        );
        // The last two are pieces: an app of their own stands above them.
        let app = "[app.myapp]\ndb_dir = \"data/myapp\"\n";
        let (_, destinations, _) = checked(&format!("{app}{tables}"));
        assert_eq!(destinations[0].1, ["events", "metrics", "raw_log", "api_calls"]);
        let (_, destinations, problems) = checked(&format!("{app}{connection}"));
        assert_eq!(destinations.len(), 1);
        assert_eq!(problems, ["nobody writes to app.myapp.db.primary: its tables are empty"]);
    }
}

#[test]
fn every_configuration_of_the_readme_fits_the_schema() {
    let validator = jsonschema::validator_for(&json_schema()).unwrap();
    for block in blocks("0.5").iter().take(2) {
        let document: Value = toml::from_str(block).unwrap();
        let faults: Vec<String> =
            validator.iter_errors(&document).map(|e| format!("{}: {e}", e.instance_path)).collect();
        assert!(faults.is_empty(), "{block}: {faults:#?}");
    }
}

#[test]
fn a_variable_that_the_readme_names_and_nobody_sets_stops_the_start() {
    let place = Place::new();
    place.write("outbox.toml", &blocks("0.5")[0]);
    let stderr = place.bad(1, &["run"]);
    assert!(
        stderr.contains("app.myapp.db.primary.connection.db_url: the variable PRIMARY_DB_URL is not set"),
        "{stderr}"
    );
    assert!(stderr.contains("[outbox.toml:14:11]"), "{stderr}");
    // With sqloutbox too, a look at its files needs no secret.
    assert!(place.litepost(&["status"]).code < 2);
}
