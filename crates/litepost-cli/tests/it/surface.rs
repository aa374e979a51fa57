//! The surface: help, version, exit codes, completions, the manual page, the list of destination types.

use crate::support::Place;

#[test]
fn help_has_examples_and_exit_codes_for_every_command() {
    let place = Place::new();
    let help = place.good(&["--help"]);
    assert!(help.contains("Exit codes:") && !help.contains("demo-app"), "{help}");
    for command in [
        "migrate",
        "enqueue",
        "run",
        "status",
        "tail",
        "dead",
        "dead-letter",
        "inbox",
        "pause",
        "resume",
        "drain",
        "skip",
        "rewind",
        "audit",
        "verify",
        "where",
        "prune",
        "adopt",
        "backup",
        "restore",
        "doctor",
        "bench",
        "fast-forward",
        "check",
        "decrypt",
        "init",
        "demo",
        "torture",
        "schema",
        "sinks",
        "top",
        "completions",
        "man",
    ] {
        assert!(help.contains(&format!("  {command}")), "{command} is not in {help}");
        let own = place.good(&[command, "--help"]);
        assert!(own.contains("Examples:"), "{own}");
        assert_eq!(own, place.good(&[command, "--help"]));
    }
}

#[test]
fn the_version_names_the_commit_and_sqlite() {
    let text = Place::new().good(&["--version"]);
    let rest = text.strip_prefix(concat!("litepost ", env!("CARGO_PKG_VERSION"), " (")).unwrap();
    let commit = rest.strip_suffix(&format!("SQLite {})\n", rusqlite::version())).unwrap();
    let mut git = std::process::Command::new("git");
    git.args(["rev-parse", "HEAD"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let head = git.output().ok().filter(|answer| answer.status.success());
    match head.filter(|_| option_env!("LITEPOST_COMMIT").is_none()) {
        Some(head) => assert_eq!(commit, format!("{}, ", &String::from_utf8(head.stdout).unwrap()[..12])),
        // Outside a repository there may be none.
        None => assert!(commit.is_empty() || commit.ends_with(", "), "{text}"),
    }
}

#[test]
fn a_command_line_that_cannot_be_understood_is_the_users_error() {
    let place = Place::new();
    let answer = place.litepost(&["frobnicate"]);
    assert_eq!((answer.code, answer.stdout.as_str()), (1, ""));
    assert!(answer.stderr.starts_with("error: unrecognized subcommand 'frobnicate'\n"), "{}", answer.stderr);
    let stderr = place.bad(1, &["enqueue", "--topik", "x"]);
    assert!(stderr.contains("a similar argument exists: '--topic'"), "{stderr}");
    let stderr = place.bad(1, &["tail", "--database", "a", "--config", "b"]);
    assert!(stderr.contains("cannot be used with"), "{stderr}");
    assert_eq!(place.good(&[]), place.good(&["--help"]));
}

#[test]
fn without_a_configuration_the_commands_say_where_they_looked() {
    let place = Place::new();
    // A deployment script knows a configuration that is not as it must be by the exit code 2.
    for (command, code) in [("check", 1), ("status", 1), ("tail", 1), ("run", 1), ("migrate", 2), ("preflight", 2)] {
        assert_eq!(
            place.bad(code, &[command]),
            "error: no litepost.toml and no outbox.toml in .\n  hint: make one with `litepost init`, or name the file with --config\n",
            "{command}"
        );
    }
    assert_eq!(
        place.bad(1, &["check", "--config", "none.toml"]),
        "error: cannot read none.toml: No such file or directory (os error 2)\n  \
         hint: check the path and the permissions, or name another file with --config\n"
    );
}

#[test]
fn litepost_toml_goes_before_outbox_toml() {
    let place = Place::new();
    let config = |app: &str| format!("[app.{app}]\ndatabase = '{app}.db'\n[app.{app}.sink.s]\ntype = 'stdout'\n");
    place.write("outbox.toml", config("old"));
    assert!(place.good(&["check"]).starts_with("outbox.toml: good"));
    place.write("litepost.toml", config("new"));
    assert!(place.good(&["check"]).starts_with("litepost.toml: good"));
}

#[test]
fn completions_and_manual_pages() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(place.good(&["completions", shell]).contains("litepost"), "{shell}");
    }
    assert!(place.good(&["man"]).contains(".TH litepost"));
    assert!(place.good(&["man", "enqueue"]).contains("\\-\\-jsonl"));
    assert_eq!(
        place.bad(1, &["man", "nothing"]),
        "error: there is no command \"nothing\"\n  hint: `litepost --help` lists the commands\n"
    );
}

#[test]
fn the_destination_types() {
    let place = Place::new();
    let list = place.good(&["sinks"]);
    assert!(list.lines().all(|line| line.chars().count() <= 80), "{list}");
    for kind in litepost_relay::sinks::registry() {
        assert!(list.contains(kind.name), "{list}");
        assert!(place.good(&["sinks", kind.name]).contains(kind.acknowledged));
        let json: serde_json::Value = serde_json::from_str(&place.good(&["sinks", kind.name, "--json"])).unwrap();
        assert_eq!(json["name"], kind.name);
        assert!(json["connection"].is_object());
    }
    let json: serde_json::Value = serde_json::from_str(&place.good(&["sinks", "--json"])).unwrap();
    assert_eq!(json["sinks"].as_array().unwrap().len(), litepost_relay::sinks::registry().len());
    let stderr = place.bad(1, &["sinks", "none"]);
    assert!(stderr.starts_with("error: there is no type \"none\"\n  hint: known types: "), "{stderr}");
}

#[test]
fn check_tells_what_it_found() {
    let place = Place::new();
    place.write(
        "litepost.toml",
        "[app.shop]\ndatabase = 'shop.db'\n[app.shop.sink.audit]\ntype = 'file'\ntopics = ['orders']\nconnection = { path = 'e.jsonl' }\n",
    );
    place.good(&["migrate"]);
    assert_eq!(
        place.good(&["check"]),
        "litepost.toml: good\n\n\
         APP   OUTBOX   STATE                    JOURNAL\n\
         shop  shop.db  ready, schema version 1  wal\n\n\
         DESTINATION  TYPE  TAKES   ORDER  LANES\n\
         shop.audit   file  orders  key    1\n"
    );
    let json: serde_json::Value = serde_json::from_str(&place.good(&["check", "--json"])).unwrap();
    assert_eq!(json["ok"], true);
    assert_eq!(json["destinations"][0]["name"], "shop.audit");
    assert!(!place.path("e.jsonl").exists(), "check made the destination's file");

    place.write("litepost.toml", "[app.shop]\ndatabse = 'shop.db'\n[app.shop.sink.s]\ntype = 'stdout'\n");
    let answer = place.litepost(&["check", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!((answer.code, answer.stderr.as_str(), json["ok"].as_bool()), (1, "", Some(false)));
    assert_eq!((json["problems"][0]["line"].as_i64(), json["problems"][0]["column"].as_i64()), (Some(2), Some(1)));
}

#[test]
fn a_warning_is_a_finding_when_asked_for() {
    let place = Place::new();
    place.write("litepost.toml", "[app.shop]\ndatabase = 'shop.db'\n[app.shop.sink.s]\ntype = 'stdout'\n");
    assert_eq!(place.litepost(&["check"]).code, 0);
    assert_eq!(place.litepost(&["check", "--strict"]).code, 1);
}
