//! Configuration files that nobody would write, given to the real binary: an answer that says what is wrong, each time.

use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;

use crate::support::{Answer, Place};

const GOOD: &str = "[app.shop]\ndatabase = 'shop.db'\n[app.shop.sink.s]\ntype = 'stdout'\n";

/// What `check` says of these bytes, which it must refuse.
#[track_caller]
fn refused(bytes: impl AsRef<[u8]>) -> String {
    let place = Place::new();
    place.write("litepost.toml", bytes);
    let stderr = place.bad(1, &["check"]);
    assert!(!stderr.contains("panicked"), "{stderr}");
    stderr
}

#[track_caller]
fn accepted(bytes: impl AsRef<[u8]>) -> serde_json::Value {
    let place = Place::new();
    place.write("litepost.toml", bytes);
    serde_json::from_str(&place.good(&["check", "--json"])).unwrap()
}

#[test]
fn a_byte_order_mark_and_line_ends_of_windows_are_no_mistake() {
    for text in
        [format!("\u{feff}{GOOD}"), GOOD.replace('\n', "\r\n"), format!("\u{feff}{}", GOOD.replace('\n', "\r\n"))]
    {
        assert_eq!(accepted(text)["outboxes"][0]["database"], "shop.db");
    }
    // Places are counted as an editor counts them.
    let stderr = refused(format!("\u{feff}{}", GOOD.replace('\n', "\r\n").replace("'stdout'", "'stduot'")));
    assert!(stderr.contains("[litepost.toml:4:8]") && stderr.contains("did you mean \"stdout\"?"), "{stderr}");
}

#[test]
fn a_dotenv_with_a_mark_and_line_ends_of_windows_is_read() {
    let place = Place::new();
    place.write("litepost.toml", GOOD.replace("shop.db", "${DB}"));
    place.write(".env", "\u{feff}DB=win.db\r\nOTHER=x\r\n");
    let answer: serde_json::Value = serde_json::from_str(&place.good(&["check", "--json"])).unwrap();
    assert_eq!(answer["outboxes"][0]["database"], "win.db");
    std::fs::remove_file(place.path(".env")).unwrap();
    std::fs::create_dir(place.path(".env")).unwrap();
    let stderr = place.bad(1, &["check"]);
    assert!(stderr.contains(".env: cannot be read"), "{stderr}");
}

#[test]
fn values_beyond_every_measure_are_refused_with_their_limits() {
    for (line, says) in [
        ("batch_size = 99999999999999999999", "does not fit 64 bits"),
        ("batch_size = -1", "expected a whole number from 1 to 100000, found the number -1"),
        ("batch_size = 1e9", "expected a whole number"),
        ("batch_size = 0x7fffffffffffffff", "expected a whole number from 1 to 100000"),
        ("lease = -5", "expected a duration of at least 1s, found the number -5"),
        ("lease = '-5s'", "expected a duration"),
        ("lease = inf", "expected a duration"),
        ("lease = nan", "expected a duration"),
        ("lease = '99999999999999999999d'", "expected a duration"),
        ("lease = 9223372036854775807", "expected a duration"),
        ("lease = '101w1y'", "expected a duration"),
        ("max_batch_bytes = '99999999999GiB'", "expected a number of bytes"),
        ("max_batch_bytes = -1", "expected a number of bytes"),
        ("retry = { factor = 1e308 }", "expected a number from 1 to 100"),
        ("start = '2026-13-41T99:00:00Z'", "expected \"earliest\", \"now\" or a time"),
    ] {
        let stderr = refused(GOOD.replace("'shop.db'\n", &format!("'shop.db'\n{line}\n")));
        assert!(stderr.contains(says) && stderr.contains("[litepost.toml:3:"), "{line}: {stderr}");
    }
}

#[test]
fn nesting_and_repetition_without_end_have_one() {
    let deep = |open: &str, close: &str| format!("{GOOD}x = {}{}", open.repeat(20_000), close.repeat(20_000));
    for text in [
        deep("[", "]"),
        deep("{a=", "}"),
        format!("{GOOD}{}x = 1", "a.".repeat(50_000)),
        format!("[{}x]", "a.".repeat(50_000)),
        format!("{GOOD}{}", "[[app]]\n".repeat(20_000)),
        format!("{GOOD}{}", "\"".repeat(100_001)),
        "${".repeat(100_000),
    ] {
        let stderr = refused(&text);
        assert!(stderr.len() < 100_000, "{} bytes of answer for {}", stderr.len(), &text[..40]);
    }
}

/// As large as a file may be, and made so that each entry would be compared with every other.
#[test]
fn a_file_with_very_many_of_everything_is_answered() {
    let apps = |mut text: String, each: &dyn Fn(usize) -> String| {
        for n in 0.. {
            let one = each(n);
            // A few bytes for what closes it.
            if text.len() + one.len() > (1 << 20) - 16 {
                return text;
            }
            text.push_str(&one);
        }
        text
    };
    let many = apps(String::new(), &|n| format!("[app.a{n}]\ndatabase='{n}'\n[app.a{n}.sink.s]\ntype='stdout'\n"));
    assert!(accepted(&many)["destinations"].as_array().unwrap().len() > 10_000);
    let same = apps(String::new(), &|n| format!("[app.a{n}]\ndatabase='x'\n[app.a{n}.sink.s]\ntype='stdout'\n"));
    let stderr = refused(&same);
    assert!(stderr.contains("keep their events in the same place"), "{stderr:.400}");
    let left_out = stderr.lines().find(|line| line.contains("more findings are left out"));
    assert!(left_out.is_some() && stderr.matches("error: ").count() < 300, "{stderr:.400}");
    let head = "[app.a]\ndb_dir='d'\n[app.a.db.t]\ntype='sqlite'\nconnection={path='x'}\ntables=[".to_owned();
    let tables = apps(head, &|n| format!("'{n}',")) + "]";
    assert_eq!(accepted(&tables[..])["destinations"].as_array().unwrap().len(), 1);
    let topics = apps(format!("{GOOD}topics=["), &|n| format!("'{n}',")) + "]";
    accepted(&topics);
    let unknown = apps(GOOD.to_owned(), &|n| format!("batch_size{n}=1\n"));
    assert!(refused(&unknown).contains("unknown key \"batch_size0\""));
    let nowhere = apps(String::new(), &|n| format!("[app.a{n}]\n"));
    assert!(refused(&nowhere).contains("does not say where its events are"));
    let mut variables = GOOD.to_owned();
    variables.push_str("topics=[");
    let place = Place::new();
    place.write("litepost.toml", apps(variables, &|n| format!("'${{V}}{n}',")) + "]\nbad = 1");
    let answer = Answer::of(place.command(&["check"]).env("V", "hunter2").output().unwrap());
    assert_eq!(answer.code, 1);
    assert!(answer.stderr.contains("unknown key \"bad\"") && !answer.stderr.contains("hunter2"));
}

#[test]
fn what_is_no_file_to_read_is_told() {
    let place = Place::new();
    symlink("b.toml", place.path("a.toml")).unwrap();
    symlink("a.toml", place.path("b.toml")).unwrap();
    std::fs::create_dir(place.path("folder.toml")).unwrap();
    place.write("large.toml", vec![b'#'; 10 << 20]);
    place.write("invalid.toml", b"[app.shop]\ndatabase = 'sh\xffop.db'\n");
    for (name, says) in [
        ("a.toml", "Too many levels of symbolic links"),
        ("folder.toml", "Is a directory"),
        ("absent.toml", "No such file or directory"),
        ("large.toml", "it is larger than 1 MiB; is it a configuration?"),
        ("/dev/zero", "it is larger than 1 MiB; is it a configuration?"),
        ("invalid.toml", "line 2 is not UTF-8; is it a configuration?"),
        ("a.toml/x", "Too many levels of symbolic links"),
        ("large.toml/x", "Not a directory"),
    ] {
        let stderr = place.bad(1, &["check", "--config", name]);
        assert!(stderr.starts_with(&format!("error: cannot read {name}: ")) && stderr.contains(says), "{stderr}");
        assert!(stderr.contains("\n  hint: "), "{stderr}");
    }
}

#[test]
fn a_file_that_may_not_be_read_is_told() {
    let place = Place::new();
    let path = place.write("litepost.toml", GOOD);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = place.command(&["check"]);
    if rustix::process::geteuid().is_root() {
        // The superuser may read everything: somebody else asks.
        std::fs::set_permissions(place.folder(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = place.path("program");
        std::fs::copy(env!("CARGO_BIN_EXE_litepost"), &program).unwrap();
        command = std::process::Command::new(program);
        command.arg("check").current_dir(place.folder()).env_clear().uid(65_534).gid(65_534);
    }
    let answer = Answer::of(command.output().unwrap());
    assert_eq!(answer.code, 1, "{answer:#?}");
    assert!(answer.stderr.starts_with("error: cannot read litepost.toml: Permission denied"), "{answer:#?}");
}

#[test]
fn a_pipe_is_read_like_a_file() {
    let place = Place::new();
    let mut shell = std::process::Command::new("sh");
    let script = "printf '%s' \"$TEXT\" | \"$LITEPOST\" check --json --config /dev/stdin";
    shell.args(["-c", script]).env("TEXT", GOOD).env("LITEPOST", env!("CARGO_BIN_EXE_litepost"));
    let answer = Answer::of(shell.current_dir(place.folder()).output().unwrap());
    assert_eq!(answer.code, 0, "{answer:#?}");
}

#[test]
fn two_of_one_name_are_one_finding_each() {
    for (text, name) in [
        (format!("{GOOD}[app.shop.sink.s]\ntype = 'file'\n"), "\"s\""),
        (GOOD.replace("'shop.db'\n", "'shop.db'\ndatabase = 'other.db'\n"), "\"database\""),
        (format!("{GOOD}[app.shop]\n"), "\"shop\""),
    ] {
        let stderr = refused(&text);
        assert!(stderr.contains(&format!("duplicate key {name}")), "{stderr}");
        assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
    }
}

#[test]
fn no_control_character_of_a_file_reaches_the_terminal() {
    let mut text = GOOD.to_owned();
    write!(text, "\"bad\\u001b[31m\\u202e\" = 1\n# \u{1b}[2J\n").unwrap();
    let stderr = refused(text);
    assert!(!stderr.contains('\u{1b}'), "{stderr:?}");
}
