//! `[admin]` of the configuration: the listener, its token and `/ready`, and what a flag changes about them.

use crate::daemon::{Daemon, log_of, until};
use crate::support::{Place, column};

const TOKEN: &str = "a token that is long enough";

fn shop(admin: &str) -> Place {
    let place = Place::new();
    place.good(&["migrate", "--database", "shop.db"]);
    write(&place, admin, "");
    place
}

fn write(place: &Place, admin: &str, keys: &str) {
    let text = format!(
        "[admin]\n{admin}\n[app.shop]\ndatabase = 'shop.db'\n{keys}\n[app.shop.sink.hook]\ntype = 'http'\n\
         connection = {{ url = 'http://127.0.0.1:1/', allow_private_addresses = true }}\n"
    );
    place.write("litepost.toml", text);
}

#[test]
fn the_file_says_where_to_listen_and_who_may_ask() {
    let place = shop("listen = '127.0.0.1:0'\ntoken = '${ADMIN}'");
    let with = Daemon::start(&place, &[], &[("ADMIN", TOKEN)], Some(TOKEN));
    assert!(with.get("/api/status").starts_with("HTTP/1.1 200"));
    assert!(with.get("/api/config").contains("token = \\\"***\\\""), "{}", with.get("/api/config"));
    drop(with);
    let without = Daemon::start(&place, &[], &[("ADMIN", TOKEN)], None);
    assert!(without.get("/api/status").starts_with("HTTP/1.1 401"));
    assert!(without.get("/live").starts_with("HTTP/1.1 200"));
    drop(without);
    // Who only looks at the outbox needs no token.
    place.good(&["status"]);
}

#[test]
fn a_flag_goes_before_the_file() {
    let place = shop("listen = '127.0.0.1:1'\ntoken = 'the one in the file, which is long'\nfreshness = '1h'");
    let file = place.write("token", TOKEN);
    let flags = ["--admin", "127.0.0.1:0", "--admin-token-file", file.to_str().unwrap(), "--freshness", "1ms"];
    let daemon = Daemon::start(&place, &flags, &[], Some(TOKEN));
    assert!(daemon.get("/ready").starts_with("HTTP/1.1 200"), "{}", daemon.get("/ready"));
    place.good(&["enqueue", "--database", "shop.db", "--topic", "t", "--payload", "x"]);
    until("the event is too old", || daemon.get("/ready").starts_with("HTTP/1.1 503"));
    drop(daemon);
    // The same event, and the file's own hour.
    let daemon = Daemon::start(&place, &flags[..4], &[], Some(TOKEN));
    assert!(daemon.get("/ready").starts_with("HTTP/1.1 200"), "{}", daemon.get("/ready"));
    drop(daemon);
    let environment = [("LITEPOST_ADMIN", "127.0.0.1:0"), ("LITEPOST_ADMIN_TOKEN", TOKEN)];
    let daemon = Daemon::start(&place, &[], &environment, Some(TOKEN));
    assert!(daemon.get("/api/status").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_destination_may_say_how_long_its_events_may_wait() {
    let admin = "listen = '127.0.0.1:0'\nfreshness = '1h'";
    let place = shop(admin);
    let daemon = Daemon::start(&place, &[], &[], None);
    place.good(&["enqueue", "--database", "shop.db", "--topic", "t", "--payload", "x"]);
    until("it has tried", || daemon.get("/api/status").contains("\"state\":\"open\""));
    assert!(daemon.get("/ready").starts_with("HTTP/1.1 200"));
    write(&place, admin, "freshness = '1ms'");
    place.good(&["reload"]);
    until("the event is too old for its destination", || daemon.get("/ready").starts_with("HTTP/1.1 503"));
}

#[test]
fn what_others_can_reach_needs_a_token_and_check_says_so() {
    let place = shop("listen = '0.0.0.0:0'");
    for arguments in [&["check"][..], &["run"]] {
        let stderr = place.bad(1, arguments);
        assert!(stderr.contains("admin.listen: 0.0.0.0:0 can be reached from other machines"), "{stderr}");
        assert!(stderr.contains("[litepost.toml:2:10]") && stderr.contains("hint: add token ="), "{stderr}");
    }
    let place = shop("token = 'a token that is long enough'");
    assert!(place.litepost(&["check"]).stderr.contains("[admin] has no listen"));
    let stderr = place.bad(1, &["run", "--admin-token-file", "x"]);
    assert!(stderr.contains("--admin-token-file has nothing to guard"), "{stderr}");
}

#[test]
fn a_reload_keeps_the_listener_and_says_so() {
    let place = shop("listen = '127.0.0.1:0'");
    let daemon = Daemon::start(&place, &[], &[], None);
    let token = "SELECT coalesce(max(token), 0) FROM litepost_cursor";
    until("the relay has its lane", || column(&place.path("shop.db"), token) == [1]);
    write(&place, "listen = '127.0.0.1:0'\ntoken = 'a token that is long enough'", "batch_size = 7");
    place.good(&["reload"]);
    assert!(log_of(&place).contains("[admin] has changed: the listener stays as it is"), "{}", log_of(&place));
    assert!(daemon.get("/api/status").starts_with("HTTP/1.1 200"));
    let warned = |place: &Place| log_of(place).matches("[admin] has changed").count();
    place.good(&["reload"]);
    assert_eq!(warned(&place), 1, "once is enough");
}

#[test]
fn a_value_that_a_variable_did_not_give_is_not_told_as_missing_too() {
    for (admin, named) in [
        ("listen = '0.0.0.0:0'\ntoken = '${LITEPOST_TEST_UNSET}'", "LITEPOST_TEST_UNSET"),
        ("listen = '${LITEPOST_TEST_UNSET}'", "LITEPOST_TEST_UNSET"),
    ] {
        let place = shop(admin);
        let answer = place.litepost(&["check"]);
        let said = answer.stdout + &answer.stderr;
        assert!(answer.code == 1 && said.contains(named), "{said}");
        assert!(!said.contains("there is no token") && !said.contains("has no listen"), "{said}");
    }
}

#[test]
fn after_a_reload_what_is_shown_is_the_new_configuration() {
    let place = shop("listen = '127.0.0.1:0'\nfreshness = '1ms'");
    let daemon = Daemon::start(&place, &[], &[], None);
    place.good(&["enqueue", "--database", "shop.db", "--topic", "t", "--payload", "x"]);
    until("the event is too old", || daemon.get("/ready").starts_with("HTTP/1.1 503"));
    place.good(&["migrate", "--create", "--database", "other.db"]);
    let other = "[admin]\nlisten = '127.0.0.1:0'\nfreshness = '1ms'\n[app.shop]\ndatabase = 'shop.db'\n\
                 [app.shop.sink.copy]\ntype = 'file'\nconnection.path = 'shop.jsonl'\n[app.other]\ndatabase = 'other.db'\n\
                 [app.other.sink.audit]\ntype = 'file'\nconnection.path = 'other.jsonl'\n";
    place.write("litepost.toml", other);
    place.good(&["reload"]);
    until("its text is shown", || daemon.get("/api/config").contains("app.other"));
    assert!(!daemon.get("/api/config").contains("sink.hook"));
    until("its destination is shown", || daemon.get("/api/status").contains("other.audit"));
    assert!(!daemon.get("/api/status").contains("shop.hook"), "{}", daemon.get("/api/status"));
    until("what is not delivered any more is nobody's trouble", || daemon.get("/ready").starts_with("HTTP/1.1 200"));
}
