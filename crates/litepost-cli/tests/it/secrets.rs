//! No secret of a connection is ever printed: every command, the logs down to trace, the outbox file.

use litepost_testkit::servers::{MariaDb, Nats, Postgres, Redis};
use rusqlite::Connection;

use crate::support::Place;

/// No part of any message of ours or of a library.
pub(crate) const SECRET: &str = "zq7Xplanted9Wk";
/// `user:SECRET` and `:SECRET` as basic authentication writes them.
pub(crate) const ENCODED: [&str; 2] = ["dXNlcjp6cTdYcGxhbnRlZDlXa", "enE3WHBsYW50ZWQ5V2"];

/// Each type, with `${PASS}` wherever a secret may stand; destinations at `127.0.0.1:1` cannot be reached.
pub(crate) fn destinations(servers: &Servers) -> Vec<(&'static str, String)> {
    let (postgres, maria) = (servers.postgres.port(), servers.maria.port());
    let (redis, nats) = (servers.redis.port(), servers.nats.port());
    let sink = |connection: &str| format!("connection = {connection}\n");
    let db = |connection: &str| format!("tables = ['stock']\nconnection = {connection}\n");
    vec![
        ("stdout", sink("{}")),
        ("blackhole", sink("{}")),
        ("file", sink("{ path = 'missing/${PASS}.jsonl' }")),
        (
            "http",
            sink(
                "{ url = 'http://user:${PASS}@127.0.0.1:1/hooks/${PASS}?key=${PASS}', headers = { Authorization = 'Bearer ${PASS}' }, allow_private_addresses = true }",
            ),
        ),
        (
            "webhook",
            sink(&format!(
                "{{ url = 'http://127.0.0.1:1/${{PASS}}/?key=${{PASS}}', signing_secrets = ['whsec_${{PASS}}{}'], allow_private_addresses = true }}",
                "A".repeat(26)
            )),
        ),
        ("exec", sink("{ command = ['./fails'], env = { TOKEN = '${PASS}' }, options = { token = '${PASS}' } }")),
        ("sqlite", db("{ path = 'missing/${PASS}.db' }")),
        ("postgres", db(&format!("{{ url = 'postgres://user:${{PASS}}@127.0.0.1:{postgres}/postgres' }}"))),
        ("postgres", db("{ url = 'postgres://user:${PASS}@127.0.0.1:1/postgres' }")),
        ("mysql", db(&format!("{{ url = 'mysql://user:${{PASS}}@127.0.0.1:{maria}/test' }}"))),
        ("mysql", db("{ url = 'mysql://user:${PASS}@127.0.0.1:1/test' }")),
        ("libsql", db("{ url = 'http://127.0.0.1:1', auth_token = '${PASS}' }")),
        ("turso", db("{ url = 'http://127.0.0.1:1/?authToken=${PASS}' }")),
        (
            "nats",
            sink(&format!(
                "{{ url = 'nats://127.0.0.1:{nats}', stream = 's', user = 'user', password = '${{PASS}}' }}"
            )),
        ),
        ("nats", sink(&format!("{{ url = 'nats://user:${{PASS}}@127.0.0.1:{nats}', stream = 's' }}"))),
        ("nats", sink("{ url = 'nats://user:${PASS}@127.0.0.1:1', stream = 's' }")),
        ("nats", sink("{ url = 'nats://127.0.0.1:1', stream = 's', token = '${PASS}' }")),
        ("redis", sink(&format!("{{ url = 'redis://user:${{PASS}}@127.0.0.1:{redis}' }}"))),
        ("redis", sink("{ url = 'redis://127.0.0.1:1', password = '${PASS}' }")),
        ("kafka", sink("{ brokers = '127.0.0.1:1', user = 'user', password = '${PASS}' }")),
        ("rabbitmq", sink("{ url = 'amqp://user:${PASS}@127.0.0.1:1' }")),
        ("mqtt", sink("{ url = 'mqtt://127.0.0.1:1', user = 'user', password = '${PASS}' }")),
        (
            "sqs",
            sink(
                "{ queue_url = 'http://127.0.0.1:1/1/orders.fifo', endpoint = 'http://127.0.0.1:1', region = 'eu-west-1', access_key_id = 'one', secret_access_key = '${PASS}', session_token = '${PASS}' }",
            ),
        ),
        (
            "sns",
            sink(
                "{ topic_arn = 'arn:aws:sns:eu-west-1:1:orders.fifo', endpoint = 'http://127.0.0.1:1', access_key_id = 'one', secret_access_key = '${PASS}', session_token = '${PASS}' }",
            ),
        ),
        // (The bucket of the claim check is asked before the destination.)
        (
            "stdout",
            sink(
                "{ claim_check = { above_bytes = 1, s3 = { bucket = 'b', endpoint = 'http://127.0.0.1:1', region = 'eu-west-1', access_key_id = 'one', secret_access_key = '${PASS}', session_token = '${PASS}' } } }",
            ),
        ),
        ("python", format!("writer_class = 'absent:Writer'\n{}", db("{ token = '${PASS}' }"))),
    ]
}

pub(crate) struct Servers {
    pub(crate) postgres: Postgres,
    pub(crate) maria: MariaDb,
    pub(crate) redis: Redis,
    pub(crate) nats: Nats,
}

/// What a path says is a name, and names are shown: there the planted text is no secret.
pub(crate) fn names_a_path(kind: &str) -> bool {
    matches!(kind, "file" | "sqlite")
}

fn place_with(kind: &str, keys: &str) -> Place {
    let place = Place::new();
    place.good(&["migrate", "--database", "shop.db"]);
    let statements = keys.contains("tables");
    let family = if statements { "db" } else { "sink" };
    let kind_line = if kind == "python" { String::new() } else { format!("type = '{kind}'\n") };
    place.write(
        "litepost.toml",
        format!("[app.shop]\ndatabase = 'shop.db'\n[app.shop.{family}.out]\ntimeout = '3s'\n{kind_line}{keys}"),
    );
    let fails = place.write("fails", "#!/bin/sh\nexit 3\n");
    std::fs::set_permissions(fails, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let payload = r#"{"sql":"INSERT INTO stock VALUES (?)","args":[1]}"#;
    place.good(&["enqueue", "--database", "shop.db", "--topic", "stock", "--type", "sql", "--payload", payload]);
    place
}

#[test]
fn a_planted_secret_is_printed_by_no_command_and_kept_in_no_file() {
    let servers =
        Servers { postgres: Postgres::start(), maria: MariaDb::start(), redis: Redis::start(), nats: Nats::start() };
    let place = Place::new();
    let known: serde_json::Value = serde_json::from_str(&place.good(&["sinks", "--json"])).unwrap();
    let known: Vec<&str> = known["sinks"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    let all = destinations(&servers);
    for name in &known {
        assert!(all.iter().any(|(kind, _)| kind == name), "{name} is a new type: plant a secret in it");
    }
    for (kind, keys) in all.iter().filter(|(kind, _)| known.contains(kind) && !names_a_path(kind)) {
        let place = place_with(kind, keys);
        for arguments in [
            &["check"][..],
            &["check", "--json"],
            &["check", "--connect"],
            &["check", "--connect", "--json"],
            &["run", "--until-idle", "--timeout", "2"],
            &["run", "--until-idle", "--timeout", "2", "--json"],
            &["status"],
            &["status", "--json"],
            &["dead", "list"],
            &["audit"],
            &["tail", "--json"],
        ] {
            let mut command = place.command(arguments);
            let output = command.env("PASS", SECRET).env("RUST_LOG", "trace").output().unwrap();
            let all = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
            for text in [SECRET, ENCODED[0], ENCODED[1]] {
                let line = all.lines().find(|line| line.contains(text)).unwrap_or_default();
                assert!(line.is_empty(), "{kind} {keys}, {arguments:?} prints {text}: {line}");
            }
            // A setting that is refused would prove nothing.
            let refused = all.contains("errors in litepost.toml") || all.contains("error in litepost.toml");
            assert!(!refused, "{kind} {arguments:?}: {all}");
        }
        Connection::open(place.path("shop.db")).unwrap().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        for file in std::fs::read_dir(place.folder()).unwrap() {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains(SECRET), "{kind}: a file holds it");
        }
    }
}

#[test]
fn a_setting_that_is_refused_does_not_show_the_secret_in_it() {
    for (kind, keys) in [
        ("postgres", "tables = ['stock']\nconnection = { url = 'postgres://user:${PASS}@h:notaport/db' }\n"),
        ("mysql", "tables = ['stock']\nconnection = { url = 'mysql://user:${PASS}@h:notaport/db' }\n"),
        ("libsql", "tables = ['stock']\nconnection = { url = 'http://${PASS}@h:notaport' }\n"),
        ("http", "connection = { url = 'http://user:${PASS}@h:notaport/' }\n"),
        ("redis", "connection = { url = 'redis://user:${PASS}@h:notaport' }\n"),
        ("nats", "connection = { url = 'nats://user:${PASS}@h:notaport', stream = 's' }\n"),
    ] {
        let place = place_with(kind, keys);
        let output = place.command(&["check"]).env("PASS", SECRET).env("RUST_LOG", "trace").output().unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert_eq!(output.status.code(), Some(1), "{kind}: {said}");
        assert!(!said.contains(SECRET), "{kind}: {said}");
    }
}

/// Each mistake stands on a line with a secret, or has the secret in it; the line is shown, the secret is not.
#[test]
fn a_mistake_beside_a_secret_that_stands_in_the_file_shows_the_place_alone() {
    for (kind, keys) in [
        ("postgres", "tables = ['stock']\nconnection = { url = 'postgres://user:SECRET@h:notaport/db' }\n"),
        ("http", "connection = { url = 'http://user:SECRET@h/', timeuot_ms = 5 }\n"),
        ("http", "connection = { url = 'http://h/', headers = { Authorization = 'Bearer SECRET' }, parallel = 0 }\n"),
        ("http", "connection = { url = 'http://h/', signing_secrets = 'whsec_SECRET' }\n"),
        ("http", "connection = { url = 'http://h/', timeout_ms = '1', headers = { 'a b' = 'SECRET' } }\n"),
        ("redis", "connection = { url = 'redis://h:1', password = 'SECRET', strem = 'x' }\n"),
        ("nats", "connection = { url = 'nats://h:1', stream = 's', token = 'SECRET\n"),
        ("nats", "connection = { url = 'nats://u:SECRET@h:1\n"),
        ("kafka", "connection = { brokers = 'h:1', settings = { 'linger.ms' = 'SECRET' } }\n"),
        ("rabbitmq", "connection = { url = 'amqp://u:SECRET@h:1:1' }\n"),
        ("mqtt", "connection = { url = 'mqtt://u:SECRET@h:1' }\n"),
        ("turso", "tables = ['stock']\nconnection = { url = 'http://h/?authToken=SECRET', nope = 1 }\n"),
        ("exec", "connection = { command = [], env = { TOKEN = 'SECRET' } }\n"),
        ("stdout", "[admin]\ntoken = 'SECRET'\n"),
        ("stdout", "[admin]\nlisten = 'nowhere'\ntoken = 'SECRETSECRET'\n"),
    ] {
        let place = place_with(kind, &keys.replace("SECRET", SECRET));
        for arguments in [&["check"][..], &["check", "--json"], &["run"]] {
            let output = place.command(arguments).env("RUST_LOG", "trace").output().unwrap();
            let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
            assert_eq!(output.status.code(), Some(1), "{kind} {keys}: {said}");
            assert!(!said.contains(SECRET), "{kind} {keys}, {arguments:?}: {said}");
        }
    }
}

/// A token belongs to the key that it was given with: that of the environment does not sign with the file's key.
#[test]
fn a_session_token_of_the_environment_does_not_stand_beside_a_key_of_the_file() {
    use std::io::Read as _;

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let (mut head, mut piece) = (Vec::new(), [0; 4_096]);
        while !head.windows(4).any(|four| four == b"\r\n\r\n") {
            let count = client.read(&mut piece).unwrap();
            assert!(count > 0, "it hangs up");
            head.extend_from_slice(&piece[..count]);
        }
        String::from_utf8_lossy(&head).to_lowercase()
    });
    let s3 = format!(
        "bucket = 'b', endpoint = 'http://127.0.0.1:{port}', region = 'eu-west-1', access_key_id = 'of-the-file', secret_access_key = 's'"
    );
    let keys = format!("connection = {{ claim_check = {{ above_bytes = 1, s3 = {{ {s3} }} }} }}\n");
    let place = place_with("stdout", &keys);
    let mut command = place.command(&["run", "--until-idle", "--timeout", "2"]);
    let _ = command.env("AWS_SESSION_TOKEN", SECRET).output().unwrap();
    let head = asked.join().unwrap();
    assert!(head.contains("credential=of-the-file/") && !head.contains("x-amz-security-token"), "{head}");
}
