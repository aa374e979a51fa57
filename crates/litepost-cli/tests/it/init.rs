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
            assert!(std::fs::read_to_string(place.path("compose.yaml")).unwrap().contains("litepost.toml"));
        }
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
