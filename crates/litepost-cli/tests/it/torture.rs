//! `litepost torture` as people run it, for a bounded time, with every destination that it knows.
//!
//! `LITEPOST_TORTURE_SECONDS` sets how long each run is.

use litepost_testkit::servers::Postgres;
use serde_json::Value as Json;

use crate::support::{Answer, Place};

fn torture(place: &Place, more: &[&str]) -> (Answer, Json) {
    let arguments = [&["torture", "--json", "--folder", "run", "--shrink", "3"], more].concat();
    let answer = place.litepost(&arguments);
    let told = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:#?}"));
    (answer, told)
}

#[test]
fn nothing_is_lost_while_everything_is_killed_frozen_and_starved() {
    let seconds: f64 = std::env::var("LITEPOST_TORTURE_SECONDS").map_or(20.0, |text| text.parse().unwrap());
    let place = Place::new();
    let minutes = (seconds / 60.0).to_string();
    let (answer, told) = torture(&place, &["--minutes", &minutes, "--seed", "20261130", "--own-postgres"]);
    assert_eq!(answer.code, 0, "{told:#}");
    let count = |name: &str| told[name].as_u64().unwrap();
    println!("{} committed, {} faults, {} restarts", count("committed"), count("faults"), count("restarts"));
    assert!(count("committed") > 50 && count("faults") > 5 && count("restarts") > 3, "{told:#}");
    let network = |name: &str| told["network"][name].as_u64().unwrap();
    assert!(network("server_kills") > 0, "{told:#}");
    // Which of them meets an answer on its way depends on the moment.
    let met: u64 = ["commits_lost", "lost", "late", "doubled", "refused"].into_iter().map(network).sum();
    assert!(met > 0, "{told:#}");
    for destination in ["file", "sqlite", "postgres", "webhook"] {
        assert!(told["delivered"][destination].as_u64().unwrap() > 50, "{told:#}");
    }
}

#[test]
fn a_soak_loses_nothing_and_nothing_grows() {
    let seconds: f64 = std::env::var("LITEPOST_TORTURE_SECONDS").map_or(15.0, |text| text.parse().unwrap());
    let place = Place::new();
    let minutes = (seconds / 60.0).to_string();
    let (answer, told) = torture(&place, &["--soak", "--minutes", &minutes, "--seed", "20261130"]);
    assert_eq!(answer.code, 0, "{told:#}");
    let count = |name: &str| told[name].as_u64().unwrap();
    assert!(count("committed") > 50 && count("faults") > 2 && count("per_second") > 0, "{told:#}");
    let samples = told["samples"].as_array().unwrap();
    // The first may be of a process that has only just begun.
    let begun = samples.iter().skip(1).all(|sample| sample["memory"].as_u64().unwrap() > 1 << 20);
    assert!(samples.len() > 30 && begun, "{told:#}");
}

/// A server that is not torture's own is left alone, and the network before it is not.
#[test]
fn a_database_that_is_there_is_reached_through_the_network_that_is_broken() {
    let server = Postgres::start();
    let place = Place::new();
    let lose =
        r#"{"at_ms":500,"deed":"lose-replies","link":"postgres","ms":6500},{"at_ms":600,"deed":"kill-server","ms":1}"#;
    place.write("plan.json", format!(r#"{{"seed":1,"producers":2,"relays":1,"ms":8000,"faults":[{lose}]}}"#));
    let (answer, told) = torture(&place, &["--plan", "plan.json", "--postgres", &server.url()]);
    assert_eq!(answer.code, 0, "{told:#}");
    assert!(told["network"]["commits_lost"].as_u64().unwrap() > 0, "{told:#}");
    assert_eq!(told["network"]["server_kills"], 0, "{told:#}");
    assert!(told["history"].to_string().contains("no PostgreSQL of the run's own"), "{told:#}");
}

#[test]
fn a_plan_that_was_printed_can_be_run_again() {
    let place = Place::new();
    let (answer, told) = torture(&place, &["--minutes", "0.05", "--seed", "7"]);
    assert_eq!(answer.code, 0, "{told:#}");
    place.write("plan.json", told["plan"].to_string());
    let (_, again) = torture(&place, &["--plan", "plan.json"]);
    assert_eq!(again["plan"], told["plan"]);
    let stderr = place.bad(1, &["torture", "--plan", "nothing.json"]);
    assert!(stderr.contains("the plan nothing.json"), "{stderr}");
    assert_eq!(place.litepost(&["torture", "--minutes", "0"]).code, 1);
}
