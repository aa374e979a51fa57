//! Real servers for tests: each is started on a free loopback port in a temporary folder.
//!
//! Called by integration tests only. Invariant: a server never outlives the process that started it,
//! however that process ends. A small shell supervises each server and holds the other end of a pipe;
//! when the pipe closes (drop, exit, panic, kill -9) it stops the server and removes the folder.
//! A missing server program is a panic, never a skipped test.

mod mariadb;
mod postgres;

pub use mariadb::MariaDb;
pub use postgres::Postgres;

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// How often a start is polled before it counts as failed (times `POLL_MS` milliseconds).
const POLLS_MAX: u32 = 1_200;
/// Milliseconds between two polls.
const POLL_MS: u64 = 50;
/// How many free ports are tried when another program takes the one that was picked.
const STARTS_MAX: u32 = 5;

/// Starts `$@` after the first two arguments (signal, folder), stops it when stdin closes.
const SUPERVISOR: &str = r#"signal=$1; folder=$2; shift 2
"$@" >"$folder/server.log" 2>&1 &
server=$!
cat >/dev/null
kill -s "$signal" "$server" 2>/dev/null
( sleep 10; kill -s KILL "$server" 2>/dev/null ) &
reaper=$!
wait "$server"
kill "$reaper" 2>/dev/null
rm -rf "$folder""#;

/// A supervised server process and its folder.
#[derive(Debug)]
pub(crate) struct Supervised {
    supervisor: Child,
    folder: PathBuf,
}

impl Supervised {
    /// Starts `command` under the supervisor. `signal` is what stops it.
    pub(crate) fn start(signal: &str, folder: &Path, command: &[String]) -> Self {
        let supervisor = Command::new("sh")
            .args(["-c", SUPERVISOR, "sh", signal])
            .arg(folder)
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("no shell to supervise {command:?}: {error}"));
        Self { supervisor, folder: folder.to_owned() }
    }

    /// What the server has written so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("server.log")).unwrap_or_default()
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        drop(self.supervisor.stdin.take());
        let _ = self.supervisor.wait();
    }
}

/// A loopback port that was free a moment ago.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a loopback port");
    listener.local_addr().expect("a local address").port()
}

/// A new temporary folder. The supervisor removes it.
pub(crate) fn new_folder(prefix: &str) -> PathBuf {
    tempfile::Builder::new().prefix(prefix).tempdir().expect("a temporary folder").keep()
}

/// Runs a program to its end and panics with what it said when it fails.
pub(crate) fn run(command: &[String]) -> Output {
    let (program, arguments) = command.split_first().expect("a program");
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    assert!(
        output.status.success(),
        "{command:?} failed: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Whether the tests run as root, which several servers refuse.
pub(crate) fn is_root() -> bool {
    let output = run(&["id".into(), "-u".into()]);
    String::from_utf8_lossy(&output.stdout).trim() == "0"
}

/// Waits until `ready` says so, or panics with the server's log.
pub(crate) fn wait_until(server: &Supervised, mut ready: impl FnMut() -> bool) -> bool {
    for _ in 0..POLLS_MAX {
        if ready() {
            return true;
        }
        if server.log().contains("Address already in use") {
            return false;
        }
        sleep(Duration::from_millis(POLL_MS));
    }
    panic!("the server did not come up: {}", server.log());
}

/// Whether something listens on the port.
pub(crate) fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Tries `start` on new ports until one is not taken by another program.
pub(crate) fn on_free_port<T>(mut start: impl FnMut(u16) -> Option<T>) -> T {
    for _ in 0..STARTS_MAX {
        if let Some(server) = start(free_port()) {
            return server;
        }
    }
    panic!("no free port in {STARTS_MAX} attempts");
}
