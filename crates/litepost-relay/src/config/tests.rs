//! What valid configurations mean: sqloutbox's own, the names fixed for litepost, defaults and inheritance. What broken
//! ones say is tested through the command line, with the whole message.

use std::path::Path;

use litepost_core::pipeline::OnDead;
use litepost_core::{Ordering, RetryPolicy};

use super::*;

fn load(text: &str) -> Config {
    try_load(text, &[]).unwrap_or_else(|error| panic!("{error}"))
}

fn try_load(text: &str, variables: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("litepost.toml");
    std::fs::write(&path, text).unwrap();
    Config::load_with(&path, Variables::of(variables.iter().copied()), Purpose::Deliver)
}

fn errors(text: &str) -> Vec<String> {
    match try_load(text, &[]) {
        Err(ConfigError::Invalid { problems, .. }) => problems.into_iter().map(|p| p.message).collect(),
        other => panic!("expected findings, got {other:?}"),
    }
}

const SHOP: &str = r#"
[app.shop]
database = "shop.db"

[app.shop.sink.audit]
type = "file"
topics = ["orders", "payments.*"]
[app.shop.sink.audit.connection]
path = "events.jsonl"

[app.shop.db.warehouse]
type = "sqlite"
tables = ["orders"]
[app.shop.db.warehouse.connection]
path = "warehouse.db"
"#;

#[test]
fn the_fixed_example_with_every_default() {
    let config = load(SHOP);
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let [audit, warehouse] = &config.apps[0].destinations[..] else { panic!() };
    assert_eq!((&*audit.name, audit.kind.name, audit.short.as_str()), ("shop.audit", "file", "audit"));
    assert!(audit.takes("orders") && audit.takes("payments.card") && !audit.takes("payment"));
    assert_eq!((&*warehouse.name, warehouse.kind.name), ("shop.warehouse", "sqlite"));
    assert!(warehouse.takes("orders") && !warehouse.takes("orders2"));
    let policy = Policy {
        ordering: Ordering::Key,
        lanes: 1,
        priority: Vec::new(),
        concurrency: 1,
        batch_size: 500,
        max_batch_bytes: 4 << 20,
        max_in_flight_bytes: 16 << 20,
        retry: RetryPolicy::default(),
        on_dead: OnDead::Continue,
        max_dead: None,
        start: Start::Earliest,
        lease_ms: 15_000,
        timeout_ms: 30_000,
        freshness_ms: None,
        pace: None,
        rate_limit: None,
    };
    assert_eq!(audit.policy, policy);
    let [file] = &config.files()[..] else { panic!() };
    assert_eq!(file.path, config.folder.join("shop.db"));
    assert_eq!(file.routes.len(), 2);
    assert_eq!(
        file.policy,
        FilePolicy {
            max_pending: None,
            durable_reads: true,
            retain_ms: Some(0),
            retain_rows: 0,
            retain_log_days: 30,
            cleanup_every: 500,
        }
    );
}

/// The blocks of sqloutbox 0.5's README, `writer_class` aside.
#[test]
fn sqloutbox_files_load_as_they_are() {
    let multi = r#"
[app.pulseview]
db_dir = "data/pulseview"          # outbox .db files for this app
batch_size = 500                   # per-app tuning (all optional)
flush_interval = 1.0
auto_schema = true

[app.pulseview.db.analytics]
type = "sqlite"
inject_outbox_seq = true           # default for all tables below
tables = [
    "loan_rejections",
    "market_snapshots",
]
[app.pulseview.db.analytics.connection]
path = "${PULSEVIEW_TURSO_URL}"

[app.autopulse]
db_dir = "data/autopulse"

[app.autopulse.db.main]
type = "sqlite"
inject_outbox_seq = false
tables = ["wallet_transactions", "loan_placements"]
[app.autopulse.db.main.connection]
path = "${TURSO_URL}"
"#;
    let config = try_load(multi, &[("PULSEVIEW_TURSO_URL", "a.db"), ("TURSO_URL", "b.db")]).unwrap();
    let files: Vec<String> =
        config.files().iter().map(|f| f.path.strip_prefix(&config.folder).unwrap().display().to_string()).collect();
    assert_eq!(
        files,
        [
            "data/pulseview/loan_rejections.db",
            "data/pulseview/market_snapshots.db",
            "data/autopulse/wallet_transactions.db",
            "data/autopulse/loan_placements.db",
        ]
    );
    let names: Vec<&str> = config.apps.iter().flat_map(|a| a.destinations.iter().map(|d| &*d.name)).collect();
    assert_eq!(names, ["pulseview.analytics", "autopulse.main"]);
    let analytics = &config.apps[0].destinations[0];
    assert_eq!(analytics.policy.retry, RetryPolicy::sqloutbox(64, Some(10)));
    assert_eq!(analytics.policy.pace, Some(Pace { interval_ms: 1_000, threshold: 1, max_wait_ms: 0 }));
}

#[test]
fn sqloutbox_table_overrides() {
    let config = load(
        r#"
[app.myapp]
db_dir = "data"
batch_size = 500
flush_interval = 1.0
table_flush_threshold = 15
table_max_wait = 6.0
auto_schema = true
cleanup_every = 500
retain_log_days = 30
[app.myapp.db.mixed]
type = "sqlite"
inject_outbox_seq = true
retain_log_days = 30
tables = [
    "events",
    "metrics",
    { name = "raw_log", inject_outbox_seq = false },
    { name = "api_calls", retain_log_days = 7 },
]
connection = { path = "x.db" }
"#,
    );
    let warnings: Vec<&str> = config.warnings.iter().map(|w| w.message.as_str()).collect();
    assert_eq!(warnings, [""; 0],);
    let days: Vec<i64> = config.files().iter().map(|f| f.policy.retain_log_days).collect();
    assert_eq!(days, [30, 30, 30, 7]);
    let pace = config.apps[0].destinations[0].policy.pace;
    assert_eq!(pace, Some(Pace { interval_ms: 1_000, threshold: 15, max_wait_ms: 6_000 }));
}

#[test]
fn the_nearest_wins_key_by_key() {
    let config = load(
        r#"
[app.a]
db_dir = "data"
batch_size = 1
max_attempts = 3
max_batch_bytes = "1KiB"
retry = { first = "1s", cap = "1h", max_age = "2d" }
[app.a.db.t]
type = "sqlite"
batch_size = 2
retry = { cap = "30m" }
on_dead = "hold"
tables = ["one", { name = "two", batch_size = 3, max_attempts = "never", retry = { first = "2s" }, max_pending = 9 }]
connection = { path = "x.db" }
"#,
    );
    let files = config.files();
    let policy = |at: usize| &files[at].routes[0].1;
    assert_eq!((policy(0).batch_size, policy(1).batch_size), (2, 3));
    assert_eq!((policy(0).max_batch_bytes, policy(1).max_batch_bytes), (1_024, 1_024));
    assert_eq!((policy(0).on_dead, policy(1).on_dead), (OnDead::Hold, OnDead::Hold));
    let retry = |first_ms, max_attempts| RetryPolicy {
        first_ms,
        factor: 2.0,
        cap_ms: 1_800_000,
        max_attempts,
        max_age_ms: Some(172_800_000),
    };
    assert_eq!(policy(0).retry, retry(1_000, Some(3)));
    assert_eq!(policy(1).retry, retry(2_000, None));
    assert_eq!((files[0].policy.max_pending, files[1].policy.max_pending), (None, Some(9)));
}

#[test]
fn sqloutbox_minutes_are_a_preset_at_any_level() {
    let text = |minutes: &str| {
        format!(
            "{SHOP}\n[app.b]\ndatabase = \"b.db\"\n{minutes}\n[app.b.sink.s]\ntype = \"file\"\nconnection = {{ path = \"x\" }}"
        )
    };
    let retry = |minutes: &str| load(&text(minutes)).apps[1].destinations[0].policy.retry;
    assert_eq!(retry(""), RetryPolicy::default());
    assert_eq!(retry("backoff_cap_minutes = 8"), RetryPolicy::sqloutbox(8, Some(10)));
    assert_eq!(retry("backoff_cap_minutes = 1").first_ms, 60_000);
}

#[test]
fn an_app_with_db_dir_finds_the_files_its_sinks_take() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    for name in ["orders.db", "payments_card.db", "other.db", "orders.db-wal", "notes.txt"] {
        std::fs::write(folder.path().join("data").join(name), "").unwrap();
    }
    let path = folder.path().join("litepost.toml");
    let text = "[app.a]\ndb_dir = \"data\"\n[app.a.sink.s]\ntype = \"file\"\ntopics = [\"payments_*\", \"refunds\"]\nconnection = { path = \"x\" }";
    std::fs::write(&path, text).unwrap();
    let config = Config::load_with(&path, Variables::of([("A", "b")]), Purpose::Deliver).unwrap();
    let tables: Vec<Option<String>> = config.files().into_iter().map(|f| f.table).collect();
    assert_eq!(tables, [Some("refunds".into()), Some("payments_card".into())]);
    let warnings: Vec<&str> = config.warnings.iter().map(|w| w.message.as_str()).collect();
    assert_eq!(
        warnings,
        [
            "the table \"orders\" has a file in data and is in no target",
            "the table \"other\" has a file in data and is in no target",
        ]
    );
}

#[test]
fn looking_needs_no_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("litepost.toml");
    std::fs::write(&path, SHOP.replace("events.jsonl", "${NOT_SET}")).unwrap();
    let none = || Variables::of([("A", "b")]);
    assert!(Config::load_with(&path, none(), Purpose::Deliver).is_err());
    let config = Config::load_with(&path, none(), Purpose::Look).unwrap();
    assert_eq!(config.files()[0].routes.len(), 2);
}

#[test]
fn a_variable_may_stand_for_a_number() {
    let text = SHOP.replace(
        "database = \"shop.db\"",
        "database = \"shop.db\"\nbatch_size = \"${SIZE}\"\nlease = \"${LEASE:-9s}\"",
    );
    let config = try_load(&text, &[("SIZE", "42")]).unwrap();
    let policy = &config.apps[0].destinations[0].policy;
    assert_eq!((policy.batch_size, policy.lease_ms), (42, 9_000));
    let error = try_load(&text, &[("SIZE", "hunter2")]).unwrap_err().to_string();
    assert!(error.contains("app.shop.batch_size") && !error.contains("hunter2"), "{error}");
}

#[test]
fn every_mistake_is_told_in_one_run() {
    let list = errors("[app.shop]\ndatabse = 'x'\nbatch_size = 0\nlease = true\n[app.shop.sink.a]\ntype = 'fil'\n");
    assert_eq!(list.len(), 4, "{list:#?}");
}

#[test]
fn code_and_file_mean_the_same() {
    let built = ConfigBuilder::new()
        .app(
            AppBuilder::new("shop")
                .database("shop.db")
                .sink(
                    TargetBuilder::new("audit", "file")
                        .topics(vec!["orders", "payments.*"])
                        .retry(RetryBuilder::new().first("1s").max_attempts(4))
                        .connection("path", "events.jsonl"),
                )
                .db(TargetBuilder::new("warehouse", "sqlite")
                    .table(TableBuilder::new("orders").inject_outbox_seq(false))
                    .batch_size(7)
                    .connection("path", "warehouse.db")),
        )
        .build("/srv")
        .unwrap();
    // In code there is no order of lines: databases come first.
    let [warehouse, audit] = &built.apps[0].destinations[..] else { panic!() };
    assert_eq!((audit.policy.retry.first_ms, audit.policy.retry.max_attempts), (1_000, Some(4)));
    assert_eq!((warehouse.policy.batch_size, warehouse.tables[0].name.as_str()), (7, "orders"));
    assert_eq!(built.files()[0].path, Path::new("/srv/shop.db"));

    let error = ConfigBuilder::new().app(AppBuilder::new("shop").database("x").batch_size(0)).build(".").unwrap_err();
    assert!(
        error.to_string().contains("app.shop.batch_size: expected a whole number from 1 to 100000, found the number 0"),
        "{error}"
    );
}

#[test]
fn a_missing_variable_names_file_line_key_and_variable() {
    let error = try_load(&SHOP.replace("events.jsonl", "${AUDIT_FILE}"), &[]).unwrap_err().to_string();
    assert!(
        error.contains(
            "litepost.toml:9:8: error: app.shop.sink.audit.connection.path: the variable AUDIT_FILE is not set"
        ),
        "{error}"
    );
}

#[test]
fn litepost_toml_goes_before_outbox_toml() {
    let folder = tempfile::tempdir().unwrap();
    assert!(
        Config::find(folder.path()).unwrap_err().to_string().starts_with("no litepost.toml and no outbox.toml in ")
    );
    std::fs::write(folder.path().join("outbox.toml"), "").unwrap();
    assert!(Config::find(folder.path()).unwrap().ends_with("outbox.toml"));
    std::fs::write(folder.path().join("litepost.toml"), "").unwrap();
    assert!(Config::find(folder.path()).unwrap().ends_with("litepost.toml"));
}

/// What a panic prints is made of `Debug`: of none of these does it hold a secret.
#[test]
fn no_debug_and_no_panic_shows_a_secret() {
    const SECRET: &str = "zq7Xplanted9Wk";
    let text = SHOP.replace(
        "type = \"file\"\ntopics = [\"orders\", \"payments.*\"]\n[app.shop.sink.audit.connection]\npath = \"events.jsonl\"",
        "type = \"http\"\n[app.shop.sink.audit.connection]\nallow_private_addresses = true\n\
         url = \"http://u:${PASS}@127.0.0.1/zq7Xplanted9Wk\"\nheaders = { a = \"zq7Xplanted9Wk\" }",
    ) + "\n[admin]\nlisten = \"127.0.0.1:1\"\ntoken = \"${PASS}zq7Xplanted9Wk\"\n";
    let good = try_load(&text, &[("PASS", SECRET)]).unwrap();
    let bad = try_load(&text.replace("a = ", "\"a b\" = "), &[("PASS", SECRET)]).unwrap_err();
    let target = TargetBuilder::new("audit", "http").connection("url", format!("http://u:{SECRET}@h"));
    let app = AppBuilder::new("shop").database("shop.db").sink(target.clone());
    let admin = AdminBuilder::new().listen("0.0.0.0:1").token(SECRET.repeat(2));
    let builder = ConfigBuilder::new().app(app.clone()).admin(admin.clone());
    let refused = ConfigBuilder::new().app(app.clone().sink(target.clone().connection("parallel", 0))).build(".");
    for shown in [
        format!("{good:?}"),
        format!("{bad:?} {bad}"),
        format!("{target:?} {app:?} {admin:?} {builder:?}"),
        format!("{:?}", refused.unwrap_err()),
        format!("{:?}", Variables::of([("PASS", SECRET)])),
    ] {
        assert!(!shown.contains(SECRET), "{shown}");
        assert!(!shown.is_empty());
    }
    let panic =
        std::panic::catch_unwind(|| try_load(&text.replace("a = ", "\"a b\" = "), &[("PASS", SECRET)]).unwrap());
    let message = panic.unwrap_err().downcast_ref::<String>().unwrap().clone();
    assert!(message.contains("Invalid") && !message.contains(SECRET), "{message}");
}
