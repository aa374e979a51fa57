//! No secret of a configuration is shown by the dashboard, its API, its streams, or the log of a relay at trace while
//! all of that is asked for.

use std::fmt::Write as _;

use litepost_testkit::servers::{MariaDb, Nats, Postgres, Redis};

use crate::daemon::{Daemon, log_of, until};
use crate::secrets::{ENCODED, SECRET, Servers, destinations, names_a_path};
use crate::support::Place;

/// Every page and every answer; the file is the first, the event and the dead letter as well.
const PATHS: [&str; 26] = [
    "/",
    "/events",
    "/events?topic=stock&text=zq7",
    "/events/0/1",
    "/dead",
    "/dead/0/1",
    "/audit",
    "/leases",
    "/config",
    "/metrics",
    "/ready",
    "/live",
    "/assets/app.js",
    "/assets/style.css",
    "/api/openapi.json",
    "/api/status",
    "/api/config",
    "/api/audit",
    "/api/dead",
    "/api/dead/0/1",
    "/api/events",
    "/api/events/0/1",
    "/api/timeline/0/1",
    "/api/progress",
    "/api/stream",
    "/nowhere",
];

fn leaks(text: &str) -> Option<&str> {
    text.lines().find(|line| [SECRET, ENCODED[0], ENCODED[1]].iter().any(|secret| line.contains(secret)))
}

#[test]
fn a_planted_secret_is_shown_by_no_page_no_stream_and_no_log_of_a_relay() {
    let servers =
        Servers { postgres: Postgres::start(), maria: MariaDb::start(), redis: Redis::start(), nats: Nats::start() };
    let place = Place::new();
    place.good(&["migrate", "--database", "shop.db"]);
    let mut text =
        String::from("[admin]\nlisten = '127.0.0.1:0'\ntoken = '${PASS}${PASS}'\n[app.shop]\ndatabase = 'shop.db'\n");
    let all = destinations(&servers);
    // What writes to stdout or sleeps has no secret; the program of `exec` ends at once, and says why.
    for (n, (kind, keys)) in all.iter().filter(|(kind, _)| !names_a_path(kind) && *kind != "stdout").enumerate() {
        let family = if keys.contains("tables") { "db" } else { "sink" };
        let kind = if *kind == "python" { String::new() } else { format!("type = '{kind}'\n") };
        write!(text, "[app.shop.{family}.d{n}]\ntimeout = '3s'\n{kind}{keys}").unwrap();
    }
    place.write("litepost.toml", &text);
    let fails = place.write("fails", "#!/bin/sh\necho \"failing with $TOKEN\" | tr -d '\\n' >/dev/null\nexit 3\n");
    std::fs::set_permissions(fails, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let payload = r#"{"sql":"INSERT INTO stock VALUES (?)","args":[1]}"#;
    place.good(&["enqueue", "--database", "shop.db", "--topic", "stock", "--type", "sql", "--payload", payload]);
    let token = format!("{SECRET}{SECRET}");
    let variables = [("PASS", SECRET), ("RUST_LOG", "trace")];
    let daemon = Daemon::start(&place, &[], &variables, Some(&token));
    let names: Vec<String> = (0..all.len()).map(|n| format!("shop.d{n}")).collect();
    until("destinations are in trouble", || daemon.get("/api/status").matches("\"error\":\"").count() > 5);
    let pages = names.iter().map(|name| format!("/destinations/0/{name}"));
    for path in PATHS.iter().map(|path| (*path).to_owned()).chain(pages) {
        let answer = daemon.get(&path);
        assert!(answer.starts_with("HTTP/1.1 "), "{path}: {answer}");
        assert!(!answer.starts_with("HTTP/1.1 401"), "{path}: {answer}");
        assert_eq!(leaks(&answer), None, "{path}");
    }
    let log = log_of(&place);
    assert!(log.contains("\"level\":\"TRACE\""), "the log is at trace");
    assert_eq!(leaks(&log), None);
}
