//! `litepost init`: what it writes passes `check`.

use crate::support::Place;

#[test]
fn every_answer_passes_check() {
    for arguments in [
        vec![],
        vec!["--database", "my shop's.db", "--sink", "http", "--to", "https://example.com/a?b=\"c\""],
        vec!["--db-dir", "data", "--app", "shop", "--sink", "stdout", "--topic", "orders", "--topic", "pay*"],
        vec!["--systemd", "--compose"],
    ] {
        let place = Place::new();
        let mut all = vec!["init"];
        all.extend(&arguments);
        let out = place.good(&all);
        assert!(out.contains("wrote ./litepost.toml"), "{out}");
        place.good(&["check"]);
        place.good(&["migrate"]);
        assert_eq!(place.litepost(&["check", "--strict"]).code, 0, "{arguments:?}");
        if arguments.contains(&"--systemd") {
            let unit = std::fs::read_to_string(place.path("litepost.service")).unwrap();
            assert!(
                unit.contains("ProtectSystem=strict")
                    && unit.contains(&format!("WorkingDirectory={}", place.folder().display()))
            );
            // systemd's own opinion; the manual page need not be installed.
            let mut systemd = std::process::Command::new("systemd-analyze");
            systemd.args(["--man=no", "verify"]).arg(place.path("litepost.service"));
            let verified = systemd.output().unwrap();
            assert!(verified.status.success() && verified.stderr.is_empty(), "{verified:?}");
            is_a_compose_file(&std::fs::read_to_string(place.path("compose.yaml")).unwrap());
        }
    }
}

/// The schema of the compose specification, as docker-compose 1.29.2 ships it (Apache-2.0).
const COMPOSE: &str = include_str!("compose_spec.json");

#[track_caller]
fn is_a_compose_file(text: &str) {
    let file: serde_json::Value = serde_yaml_ng::from_str(text).unwrap();
    let mut schema: serde_json::Value = serde_json::from_str(COMPOSE).unwrap();
    // An address that nothing is fetched from; the draft is named below.
    schema.as_object_mut().unwrap().remove("$schema");
    let validator = jsonschema::options().with_draft(jsonschema::Draft::Draft201909).build(&schema).unwrap();
    let faults: Vec<String> = validator.iter_errors(&file).map(|e| format!("{}: {e}", e.instance_path)).collect();
    assert!(faults.is_empty(), "{text}: {faults:#?}");
    // The schema sees mistakes; otherwise it would prove nothing.
    let broken: serde_json::Value = serde_yaml_ng::from_str(&text.replace("restart:", "restrat:")).unwrap();
    assert!(!validator.is_valid(&broken));
    let service = &file["services"]["litepost"];
    assert_eq!(service["command"], serde_json::json!(["run", "--config", "/data/litepost.toml"]));
    assert_eq!(service["volumes"], serde_json::json!([".:/data"]));
    assert_eq!((&service["read_only"], &service["cap_drop"]), (&true.into(), &serde_json::json!(["ALL"])));
}

#[test]
fn a_compose_file_with_any_name_of_an_app_is_one() {
    for app in ["shop", "käse-1", "no", "a_b"] {
        let place = Place::new();
        place.good(&["init", "--app", app, "--compose"]);
        place.good(&["check"]);
        is_a_compose_file(&std::fs::read_to_string(place.path("compose.yaml")).unwrap());
    }
}

#[test]
fn nothing_is_overwritten_without_force() {
    let place = Place::new();
    place.write("litepost.toml", "mine");
    assert_eq!(
        place.bad(1, &["init", "--systemd"]),
        "error: ./litepost.toml exists already\n  hint: nothing was written; --force overwrites it\n"
    );
    assert_eq!(std::fs::read_to_string(place.path("litepost.toml")).unwrap(), "mine");
    assert!(!place.path("litepost.service").exists());
    place.good(&["init", "--force"]);
    assert!(std::fs::read_to_string(place.path("litepost.toml")).unwrap().contains("[app.app]"));
}
