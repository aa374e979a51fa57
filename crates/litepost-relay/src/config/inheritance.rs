//! The rule of inheritance, key by key and level by level: whatever levels a key is given at, the nearest holds.
//!
//! A key that is new has to be added here, with two values; the tests fail without it.

use litepost_core::RetryPolicy;

use super::interpolate::Resolver;
use super::keys::{Delivery, RetryKeys, Scope};
use super::{Config, Purpose, Variables, connection, reader, spec};

/// Each key with two values that mean different things.
const DELIVERY: [(&str, &str, &str); 29] = [
    ("ordering", "'strict'", "'none'"),
    ("lanes", "2", "3"),
    ("priority", "['one']", "['two', 'x.*']"),
    ("concurrency", "2", "3"),
    ("batch_size", "2", "3"),
    ("max_batch_bytes", "'1KiB'", "'2KiB'"),
    ("max_in_flight_bytes", "'20MiB'", "'30MiB'"),
    ("rate_limit", "2", "3"),
    ("max_attempts", "2", "'never'"),
    ("backoff_cap_minutes", "7", "9"),
    ("on_dead", "'hold'", "'continue'"),
    ("max_dead", "2", "'never'"),
    ("start", "'now'", "'earliest'"),
    ("lease", "'7s'", "'9s'"),
    ("timeout", "'7s'", "'9s'"),
    ("freshness", "'7s'", "'9s'"),
    ("flush_interval", "7", "9"),
    ("table_flush_threshold", "7", "9"),
    ("table_max_wait", "7", "9"),
    ("max_pending", "7", "'never'"),
    ("durable_reads", "false", "true"),
    ("retain", "'7d'", "'never'"),
    ("retain_rows", "7", "9"),
    ("retain_log_days", "7", "9"),
    ("cleanup_every", "7", "9"),
    ("dedupe", "'none'", "'ledger'"),
    ("auto_schema", "false", "true"),
    ("inject_outbox_seq", "['one']", "false"),
    ("retry", "{ first = '1s' }", "{ first = '2s' }"),
];

/// Likewise for the keys of `retry`.
const RETRY: [(&str, &str, &str); 5] = [
    ("first", "'7s'", "'9s'"),
    ("factor", "3", "5.5"),
    ("cap", "'2h'", "'3h'"),
    ("max_attempts", "2", "'never'"),
    ("max_age", "'2d'", "'never'"),
];

/// An app with one table, and the lines given at app, target and table level.
fn text(outbox: &str, kind: &str, [app, target, table]: [&str; 3]) -> String {
    let table = if table.is_empty() { String::new() } else { format!(", {table}") };
    format!(
        "[app.a]\n{outbox}\n{app}\n[app.a.db.t]\n{kind}\n{target}\ntables = [{{ name = 'one'{table} }}]\n\
         connection = {{ path = 'x.db' }}\n"
    )
}

/// What holds for the table, as the relay is told.
fn policies(text: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("litepost.toml");
    std::fs::write(&path, text).unwrap();
    let config = Config::load_with(&path, Variables::of([("A", "b")]), Purpose::Deliver)
        .unwrap_or_else(|error| panic!("{error}\n{text}"));
    let [file] = &config.files()[..] else { panic!("{text}") };
    format!("{:?} {:?}", file.policy, file.routes[0].1)
}

/// What the destination is told of the table's statements.
fn options(text: &str) -> String {
    let mut problems = Vec::new();
    let mut variables = Variables::of([("A", "b")]);
    let folder = std::path::Path::new(".");
    let mut resolver = Resolver { variables: &mut variables, folder, skip_connections: false, masks: Vec::new() };
    let root = reader::parse(text, &mut resolver, &mut problems);
    let specs = spec::read(&root, &mut problems);
    assert!(problems.is_empty(), "{problems:?}\n{text}");
    let target = &specs[0].targets[0];
    connection::table_options(&specs[0], target, "one", &target.tables[0].level.delivery).to_string()
}

/// Every set of levels that a key may be given at: the nearest of them has `near`, all others `far`.
fn every_set_of_levels(near: &str, far: &str, table: bool, check: impl Fn([&str; 3])) {
    for set in 1..if table { 8 } else { 4 } {
        let mut lines = [""; 3];
        let mut line = near;
        for level in (0..3).rev().filter(|level| set >> level & 1 == 1) {
            lines[level] = line;
            line = far;
        }
        check(lines);
    }
}

fn the_nearest_holds(outbox: &str, kind: &str, table: bool, [near, far]: [String; 2], told: fn(&str) -> String) {
    let alone = told(&text(outbox, kind, [&near, "", ""]));
    let other = told(&text(outbox, kind, [&far, "", ""]));
    assert_ne!(alone, other, "{near} and {far} mean the same");
    every_set_of_levels(&near, &far, table, |levels| {
        let text = text(outbox, kind, levels);
        assert_eq!(told(&text), alone, "{text}");
    });
}

/// A class of the user's has no watermark, so that `concurrency` may be anything.
const CLASS: &str = "writer_class = 'a:B'";

#[test]
fn every_key_at_every_level() {
    let known: Vec<&str> = Delivery::KEYS.iter().map(|key| key.name).chain(["retry"]).collect();
    let listed: Vec<&str> = DELIVERY.iter().map(|(key, ..)| *key).collect();
    assert_eq!(listed, known, "each key, in the order of keys.rs, needs two values above");
    for (key, near, far) in DELIVERY {
        let scope = Delivery::KEYS.iter().find(|known| known.name == key).map_or(Scope::Delivery, |key| key.scope);
        let lines = || [format!("{key} = {near}"), format!("{key} = {far}")];
        match scope {
            Scope::Statements => {
                for outbox in ["db_dir = 'data'", "database = 'a.db'"] {
                    the_nearest_holds(outbox, "type = 'sqlite'", true, lines(), options);
                }
            }
            Scope::File => the_nearest_holds("db_dir = 'data'", CLASS, true, lines(), policies),
            _ => {
                the_nearest_holds("db_dir = 'data'", CLASS, true, lines(), policies);
                // All tables of a target share its cursor there.
                the_nearest_holds("database = 'a.db'", CLASS, false, lines(), policies);
            }
        }
    }
}

#[test]
fn every_key_of_retry_by_itself_at_every_level() {
    let known: Vec<&str> = RetryKeys::KEYS.iter().map(|key| key.name).collect();
    assert_eq!(RETRY.map(|(key, ..)| key).to_vec(), known, "each key, in the order of keys.rs, needs two values above");
    for (key, near, far) in RETRY {
        let lines = || [format!("retry = {{ {key} = {near} }}"), format!("retry = {{ {key} = {far} }}")];
        the_nearest_holds("db_dir = 'data'", CLASS, true, lines(), policies);
        the_nearest_holds("database = 'a.db'", CLASS, false, lines(), policies);
    }
}

fn retry(levels: [&str; 3]) -> RetryPolicy {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("litepost.toml");
    std::fs::write(&path, text("db_dir = 'data'", CLASS, levels)).unwrap();
    let config = Config::load_with(&path, Variables::of([("A", "b")]), Purpose::Deliver).unwrap();
    config.files()[0].routes[0].1.retry
}

#[test]
fn two_spellings_of_one_setting_are_one_key() {
    let short_near = retry(["retry = { max_attempts = 5 }", "", "max_attempts = 3"]);
    let long_near = retry(["max_attempts = 5", "", "retry = { max_attempts = 3 }"]);
    assert_eq!((short_near.max_attempts, long_near.max_attempts), (Some(3), Some(3)));
    // The preset sets three keys of `retry`; a nearer level replaces those it names and no other.
    let preset_far = retry(["backoff_cap_minutes = 8", "retry = { first = '1s' }", ""]);
    assert_eq!((preset_far.first_ms, preset_far.cap_ms), (1_000, 480_000));
    let preset_near = retry(["retry = { first = '1s', max_age = '2d' }", "backoff_cap_minutes = 8", ""]);
    assert_eq!((preset_near.first_ms, preset_near.cap_ms), (120_000, 480_000));
    assert_eq!(preset_near.max_age_ms, Some(172_800_000));
}

#[test]
fn the_nearest_level_that_says_how_to_deduplicate_holds() {
    let told = |levels| options(&text("db_dir = 'data'", "type = 'sqlite'", levels));
    assert_eq!(told(["dedupe = 'none'", "", "inject_outbox_seq = true"]), "dedupe = \"outbox_seq\"\n");
    assert_eq!(told(["inject_outbox_seq = true", "dedupe = 'none'", ""]), "dedupe = \"none\"\n");
    assert_eq!(told(["inject_outbox_seq = ['other']", "", ""]), "dedupe = \"ledger\"\n");
}
