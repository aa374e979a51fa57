//! `litepost top` on a real terminal (a pty), and where there is none. How it looks is held by snapshots beside its code.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Answer, Place, column};

const CONFIG: &str = "[app.shop]\ndatabase = 'shop.db'\n\
    [app.shop.sink.audit]\ntype = 'file'\nconnection = { path = 'events.jsonl' }\n";
/// The terminal's other screen is entered, and left.
const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";
const GREEN: &str = "\u{1b}[38;5;2;";
const SHOW_CURSOR: &str = "\u{1b}[?25h";

/// A shop whose events are delivered, and that no relay serves any more.
fn shop() -> Place {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    place.good(&["migrate", "--database", "shop.db"]);
    place.good(&["enqueue", "--database", "shop.db", "--topic", "orders", "--payload", "{}"]);
    place.good(&["run", "--until-idle"]);
    place
}

/// Runs `litepost top` on a terminal; what was drawn, the exit code, and whether the terminal was left as it was.
fn drive(place: &Place, steps: &Value, arguments: &[&str]) -> (String, i64, bool) {
    drive_with(place, steps, arguments, None)
}

/// As [`drive`], with a part of the command that fails.
fn drive_with(place: &Place, steps: &Value, arguments: &[&str], fails: Option<&str>) -> (String, i64, bool) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/top/drive.py");
    let mut python = Command::new("python3");
    python.args([script, &steps.to_string(), env!("CARGO_BIN_EXE_litepost"), "top", "--every", "0.1"]).args(arguments);
    python.current_dir(place.folder()).env("TERM", "xterm").env_remove("NO_COLOR").stdin(Stdio::null());
    python.envs(fails.map(|name| ("LITEPOST_TOP_FAILS", name)));
    let answer = Answer::of(python.output().unwrap());
    assert_eq!(answer.code, 0, "{answer:#?}");
    let told: Value = serde_json::from_str(&answer.stdout).unwrap();
    let drawn = told["drawn"].as_str().unwrap().to_owned();
    (drawn, told["code"].as_i64().unwrap(), told["restored"].as_bool().unwrap())
}

#[test]
fn it_watches_pauses_and_resumes_only_after_a_yes_and_leaves_the_terminal_as_it_was() {
    let place = shop();
    let steps = json!([
        { "see": "shop.audit" },
        { "type": "p" }, { "see": "pause shop.audit?" },
        { "type": "n" }, { "see": "nothing was done" },
        { "type": "p" }, { "see": "pause shop.audit?" },
        { "type": "y" }, { "see": "paused shop.audit" },
        { "type": "r" }, { "see": "resume shop.audit?" },
        { "type": "y" }, { "see": "resumed shop.audit" },
        { "type": "?" }, { "see": "the destination above" },
        { "type": "x" }, { "type": "q" },
    ]);
    let (drawn, code, restored) = drive(&place, &steps, &["--actor", "ada"]);
    assert_eq!((code, restored), (0, true));
    assert!(drawn.starts_with(ENTER) || drawn.contains(ENTER));
    assert!(drawn.ends_with(LEAVE) || drawn.rfind(LEAVE) > drawn.rfind("shop.audit"), "{drawn:?}");
    assert!(drawn.contains(SHOW_CURSOR));
    assert!(drawn.contains(GREEN), "closed is green on a terminal with colours");
    let deeds =
        column(&place.path("shop.db"), "SELECT count(*) FROM litepost_audit WHERE actor = 'ada' GROUP BY action");
    assert_eq!(deeds, [1, 1], "one pause and one resume: the first was not confirmed");
}

#[test]
fn a_signal_gives_the_terminal_back() {
    let place = shop();
    for signal in [2, 15] {
        let (drawn, code, restored) =
            drive(&place, &json!([{ "see": "shop.audit" }, { "signal": signal }]), &["--no-color"]);
        assert_eq!((code, restored), (0, true), "signal {signal}: {drawn:?}");
        assert!(drawn.contains(LEAVE), "{drawn:?}");
        assert!(!drawn.contains(GREEN), "--no-color");
    }
}

#[cfg(feature = "failpoints")]
#[test]
fn a_panic_gives_the_terminal_back_and_then_tells_whichever_thread_it_was_in() {
    let place = shop();
    let pause = json!([{ "see": "shop.audit" }, { "type": "p" }, { "see": "pause shop.audit?" }, { "type": "y" }]);
    for (part, steps) in [("drawing", json!([])), ("looking", json!([{ "see": "shop.audit" }])), ("doing", pause)] {
        let (drawn, code, restored) = drive_with(&place, &steps, &[], Some(part));
        assert_eq!((code, restored), (2, true), "{part}: {drawn:?}");
        let (screen, told) = drawn.rsplit_once(LEAVE).unwrap_or_else(|| panic!("{part}: never left: {drawn:?}"));
        assert!(screen.contains(ENTER) && !screen.contains(LEAVE), "{part}: left once: {drawn:?}");
        assert!(told.contains(&format!("{part} fails, as the test wants it")), "{part}: {told:?}");
        assert!(told.contains("hint: this is a fault of litepost itself"), "{part}: {told:?}");
        assert!(!told.contains("shop.audit"), "{part} was drawn on over the message: {told:?}");
    }
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let place = shop();
    let told = place.bad(1, &["top"]);
    assert!(told.contains("top draws on a terminal") && told.contains("`litepost status`"), "{told}");
    // A mistake is told on the terminal that is there, before it is taken.
    place.write("litepost.toml", "[app.shop]\ndatabse = 'shop.db'\n");
    let (drawn, code, restored) = drive(&place, &json!([{ "see": "databse" }]), &[]);
    assert_eq!((code, restored), (1, true));
    assert!(!drawn.contains(ENTER), "{drawn:?}");
}
