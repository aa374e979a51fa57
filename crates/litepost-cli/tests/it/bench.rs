//! `litepost bench`: it measures beside the database and leaves it as it was; a destination gets what was asked for.

use serde_json::Value;

use crate::support::{Place, column};

const CONFIG: &str = "\
[app.shop]
database = \"shop.db\"
[app.shop.sink.audit]
type = \"file\"
topics = [\"orders\"]
[app.shop.sink.audit.connection]
path = \"events.jsonl\"
";

fn shop() -> Place {
    let place = Place::new();
    place.good(&["migrate", "--create", "--database", "shop.db"]);
    place.good(&["enqueue", "--database", "shop.db", "--topic", "orders", "--payload", "{}"]);
    place.write("litepost.toml", CONFIG);
    place
}

#[test]
fn the_database_stays_as_it_was_and_nothing_lies_beside_it() {
    let place = shop();
    let before = std::fs::read(place.path("shop.db")).unwrap();
    let told: Value =
        serde_json::from_str(&place.good(&["bench", "--database", "shop.db", "--time", "20", "--json"])).unwrap();
    for figure in ["/bare/p50_us", "/normal/p50_us", "/full/p99_us", "/grouped_per_s", "/drain_per_s"] {
        assert!(told.pointer(figure).and_then(Value::as_f64).is_some_and(|seen| seen > 0.0), "{figure}: {told}");
    }
    assert_eq!(std::fs::read(place.path("shop.db")).unwrap(), before);
    let left = std::fs::read_dir(place.folder()).unwrap().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("bench")).collect();
    assert!(left.is_empty() && !place.path("events.jsonl").exists(), "{left:?}");
}

#[test]
fn a_destination_gets_its_events_from_an_outbox_of_the_bench() {
    let place = shop();
    let page = place.good(&[
        "bench",
        "--database",
        "shop.db",
        "--time",
        "20",
        "--sink",
        "shop.audit",
        "--topic",
        "bench",
        "--events",
        "300",
    ]);
    for line in ["event, FULL", "shop.audit: 300 events", "commit to acknowledged"] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    let lines = std::fs::read_to_string(place.path("events.jsonl")).unwrap();
    let topics: Vec<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["topic"].as_str().unwrap().to_owned())
        .collect();
    // The backlog, and the single events whose way is timed.
    assert!(topics.len() > 300 && topics.iter().all(|topic| topic == "bench"), "{}", topics.len());
    assert_eq!(column(&place.path("shop.db"), "SELECT count(*) FROM litepost_cursor"), [0], "no cursor was moved");
}

#[test]
fn what_it_cannot_measure_is_said() {
    let place = shop();
    let told = place.bad(1, &["bench", "--database", "shop.db", "--sink", "shop.nowhere", "--topic", "bench"]);
    assert!(
        told.contains("the configuration has no destination shop.nowhere") && told.contains("shop.audit"),
        "{told}"
    );
    let told = place.bad(1, &["bench", "--database", "shop.db", "--sink", "shop.audit"]);
    assert!(told.contains("--topic"), "{told}");
    let told = place.bad(1, &["bench", "--database", "none.db"]);
    assert!(told.contains("none.db"), "{told}");
}
