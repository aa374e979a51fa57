//! Logging: for people on a terminal, JSON elsewhere; `LOG_LEVEL`, and `RUST_LOG` before it.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::Place;

fn shop() -> Place {
    let place = Place::new();
    place.write(
        "litepost.toml",
        "[app.shop]\ndatabase = 'shop.db'\n[app.shop.sink.s]\ntype = 'file'\nconnection = { path = 'out.jsonl' }\n",
    );
    place.good(&["migrate", "--database", "shop.db"]);
    place
}

/// The lines that a run logs where no terminal is.
fn lines(place: &Place, variables: &[(&str, &str)]) -> Vec<Value> {
    let mut command = place.command(&["run", "--until-idle"]);
    let output = command.envs(variables.iter().copied()).stdout(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stderr).unwrap();
    // What a run tells people at its end is no log.
    text.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn levels(lines: &[Value]) -> Vec<&str> {
    let mut levels: Vec<&str> = lines.iter().map(|line| line["level"].as_str().unwrap()).collect();
    levels.sort_unstable();
    levels.dedup();
    levels
}

#[test]
fn json_where_no_terminal_is() {
    let place = shop();
    let all = lines(&place, &[]);
    assert_eq!(levels(&all), ["INFO"]);
    let line = all.iter().find(|line| line["message"] == "delivering").unwrap();
    assert_eq!(line["destination"], "shop.s");
    assert!(
        line["timestamp"].as_str().unwrap().ends_with('Z') && line["target"].as_str().unwrap().starts_with("litepost")
    );
}

#[test]
fn log_level_is_one_word_and_rust_log_goes_before_it() {
    let place = shop();
    assert_eq!(lines(&place, &[("LOG_LEVEL", "error")]), Vec::<Value>::new());
    assert_eq!(lines(&place, &[("LOG_LEVEL", "WARN")]), Vec::<Value>::new());
    assert!(levels(&lines(&place, &[("LOG_LEVEL", "trace")])).contains(&"TRACE"));
    assert_eq!(lines(&place, &[("LOG_LEVEL", "trace"), ("RUST_LOG", "off")]), Vec::<Value>::new());
    assert_eq!(levels(&lines(&place, &[("LOG_LEVEL", "error"), ("RUST_LOG", "litepost_relay=info")])), ["INFO"]);
    // Empty is as good as not set.
    assert_eq!(levels(&lines(&place, &[("LOG_LEVEL", ""), ("RUST_LOG", "")])), ["INFO"]);
}

#[test]
fn a_filter_that_is_none_is_told_and_the_relay_runs() {
    let all = lines(&shop(), &[("LOG_LEVEL", "loud[")]);
    let complaint = all.iter().find(|line| line["level"] == "WARN").unwrap();
    let message = complaint["message"].as_str().unwrap();
    assert!(message.starts_with("LOG_LEVEL is not understood (") && message.ends_with("logging at info"), "{message}");
    assert!(all.iter().any(|line| line["message"] == "delivering"));
}

/// util-linux's `script` gives the command a terminal of its own.
#[test]
fn people_on_a_terminal_get_lines_for_people() {
    let place = shop();
    let inner = format!("{} run --until-idle", env!("CARGO_BIN_EXE_litepost"));
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &inner, "/dev/null"]).current_dir(place.folder());
    let output =
        script.env_clear().env("PATH", "/usr/bin:/bin").env("TERM", "xterm").stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let line = text.lines().find(|line| line.contains("delivering")).unwrap_or_else(|| panic!("{text}"));
    assert!(!line.starts_with('{') && line.contains("\u{1b}[") && line.contains("shop.s"), "{line:?}");
}
