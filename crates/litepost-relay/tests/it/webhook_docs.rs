//! The receivers of docs/webhooks.md, run as they stand there: they take what is signed, once, and nothing else.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use litepost::NewEvent;
use litepost_relay::relay::Drained;
use litepost_testkit::conformance::Desk;
use litepost_testkit::proxy::Proxy;
use rusqlite::Connection;

const PAGE: &str = include_str!("../../../../docs/webhooks.md");
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const EVENTS: usize = 20;

/// The one block of this language on the page.
fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0
}

/// A receiver, ended with the test.
struct Receiver {
    process: Child,
    port: u16,
}

impl Receiver {
    fn start(program: &Path, flag: &str, code: &str, result: &Path) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut command = Command::new(program);
        command.args([flag, code]).env("WEBHOOK_SECRET", SECRET).env("PORT", port.to_string());
        command.env("DATABASE", result).env("ORDERS", result).stdin(Stdio::null());
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let receiver = Self { process, port };
        for _ in 0..600 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return receiver;
            }
            sleep(Duration::from_millis(50));
        }
        panic!("the receiver does not listen");
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn connection(port: u16, secrets: &str) -> String {
    format!(
        "{{ url = \"http://127.0.0.1:{port}/\", allow_private_addresses = true, parallel = 1, signing_secrets = {secrets} }}"
    )
}

/// Delivers to the receiver: unsigned first, then signed, and again because no answer arrives. What it then holds is
/// every order once.
fn exchange(receiver: &Receiver, desk: &mut Desk) {
    let proxy = Proxy::start(receiver.port);
    for n in 0..EVENTS {
        let (key, body) = (format!("k{n}"), format!("{{\"total\": {}}}", n * 100));
        desk.write(NewEvent::new("orders", body.as_str()), Some(&key), body.as_bytes());
    }
    desk.configure("webhook", "timeout = \"2s\"", &connection(proxy.port(), "[]"));
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
    assert!(error.contains("401") && desk.delivered() == 0, "{error}");
    let other = "[\"whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD\"]";
    desk.configure("webhook", "timeout = \"2s\"", &connection(proxy.port(), other));
    assert!(matches!(desk.drain().lanes[0].drained, Drained::Unavailable { .. }), "another's secret");

    desk.configure("webhook", "timeout = \"2s\"", &connection(proxy.port(), &format!("[\"{SECRET}\"]")));
    proxy.swallow_replies(true);
    let before = proxy.sent();
    let relay = desk.start();
    desk.until("the first has left", |_| proxy.sent() > before + 400);
    sleep(Duration::from_millis(300));
    proxy.cut();
    proxy.swallow_replies(false);
    desk.until_settled();
    relay.stop();
    assert_eq!(desk.dead(), 0);
}

fn expected() -> Vec<String> {
    let mut all: Vec<String> = (0..EVENTS).map(|n| format!("k{n} {}", n * 100)).collect();
    all.sort();
    all
}

#[test]
fn the_receiver_in_python() {
    let mut desk = Desk::new("blackhole", "", "{}");
    let result = desk.path("orders.db");
    let receiver = Receiver::start(&python(), "-c", block("python"), &result);
    exchange(&receiver, &mut desk);
    let database = Connection::open(result).unwrap();
    let mut statement = database.prepare("SELECT id || ' ' || total FROM orders").unwrap();
    let mut orders: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    orders.sort();
    assert_eq!(orders, expected());
}

#[test]
fn the_receiver_in_node() {
    let mut desk = Desk::new("blackhole", "", "{}");
    let result = desk.path("orders.txt");
    let receiver = Receiver::start(Path::new("node"), "-e", block("javascript"), &result);
    exchange(&receiver, &mut desk);
    let text = std::fs::read_to_string(result).unwrap();
    let mut orders: Vec<String> = text.lines().map(str::to_owned).collect();
    orders.sort();
    assert_eq!(orders, expected());
}

fn python() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.ancestors()
        .map(|folder| folder.join("venv-consumers/bin/python"))
        .find(|path| path.exists())
        .expect("the consumers' Python environment is not there: run `cargo xtask setup`")
}
