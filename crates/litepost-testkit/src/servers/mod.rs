//! Real servers for tests: each is started on a free loopback port in a temporary folder.
//!
//! Called by integration tests only. Invariant: a server never outlives the process that started it,
//! however that process ends. A small shell supervises each server and holds the other end of a pipe;
//! when the pipe closes (drop, exit, panic, kill -9) it stops the server and removes the folder.
//! A missing server program is a panic, never a skipped test.

/// What every server can be asked to do: the tests' words for its port and its process. The type has the fields `port` and
/// `server` and a method `is_up`; the second argument is the signal that stops it in good order.
macro_rules! controls {
    ($server:ident, $stop:literal) => {
        impl $server {
            /// The port on 127.0.0.1.
            pub fn port(&self) -> u16 {
                self.port
            }

            /// Kills the server and everything it has started, as a crash would.
            pub fn kill(&self) {
                self.server.end("KILL");
            }

            /// Stops the server in good order.
            pub fn stop(&self) {
                self.server.end($stop);
            }

            /// Starts the server again on the same port, with what it has kept, and waits until it answers.
            ///
            /// # Panics
            /// When it does not come up.
            pub fn start_again(&mut self) {
                self.server.again();
                assert!(self.is_up(), "the port was taken meanwhile: {}", self.server.log());
            }

            /// Freezes the server: connections stay open and nothing answers.
            pub fn pause(&self) {
                self.server.signal("STOP");
            }

            /// Lets a frozen server go on.
            pub fn resume(&self) {
                self.server.signal("CONT");
            }
        }
    };
}

mod kafka;
mod mariadb;
mod mosquitto;
mod moto;
mod nats;
mod postgres;
mod rabbitmq;
mod redis;
mod rotel;
mod turso;
mod webhooks;

pub use kafka::Kafka;
pub use mariadb::MariaDb;
pub use mosquitto::Mosquitto;
pub use moto::Moto;
pub use nats::Nats;
pub use postgres::Postgres;
pub use rabbitmq::RabbitMq;
pub use redis::Redis;
pub use rotel::Rotel;
pub use turso::Turso;
pub use webhooks::Webhooks;

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

/// Starts `$@` after the first two arguments (signal, folder), again for each line on stdin, and stops it for good when
/// stdin closes.
const SUPERVISOR: &str = r#"signal=$1; folder=$2; shift 2
start() { "$@" >>"$folder/server.log" 2>&1 </dev/null & server=$!; echo "$server" >"$folder/server.pid"; }
start "$@"
while read -r line; do
  wait "$server"
  start "$@"
done
kill -s CONT "$server" 2>/dev/null
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

    /// Sends a signal to the server and everything that it has started.
    pub(crate) fn signal(&self, signal: &str) {
        let pids = self.tree();
        let mut command = Command::new("kill");
        command.args(["-s", signal]).args(&pids).stderr(Stdio::null());
        let _ = command.status();
    }

    /// Asks the server to stop with `signal` (its process only) or kills the whole tree, and waits until it is gone.
    pub(crate) fn end(&self, signal: &str) {
        if signal == "KILL" {
            self.signal("CONT");
            self.signal(signal);
        } else if let Some(pid) = self.pid() {
            let _ = Command::new("kill").args(["-s", signal, &pid]).stderr(Stdio::null()).status();
        }
        for _ in 0..POLLS_MAX {
            if !self.is_running() {
                return;
            }
            sleep(Duration::from_millis(POLL_MS));
        }
        panic!("the server did not stop: {}", self.log());
    }

    /// Starts the server again, which must have ended.
    pub(crate) fn again(&mut self) {
        use std::io::Write as _;
        let before = self.pid();
        let stdin = self.supervisor.stdin.as_mut().expect("a supervisor's stdin");
        writeln!(stdin, "start").expect("a supervisor that reads");
        for _ in 0..POLLS_MAX {
            if self.pid() != before {
                return;
            }
            sleep(Duration::from_millis(POLL_MS));
        }
        panic!("the server was not started again: {}", self.log());
    }

    fn pid(&self) -> Option<String> {
        let pid = std::fs::read_to_string(self.folder.join("server.pid")).ok()?.trim().to_owned();
        (!pid.is_empty()).then_some(pid)
    }

    fn is_running(&self) -> bool {
        // A zombie has ended; its supervisor collects it at the next start.
        self.pid().and_then(|pid| parent_and_state(&pid)).is_some_and(|(_, state)| state != 'Z')
    }

    /// The server's process and its descendants (a PostgreSQL backend is in a process group of its own).
    fn tree(&self) -> Vec<String> {
        let mut pids: Vec<String> = self.pid().into_iter().collect();
        let all: Vec<(String, String)> = std::fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let pid = entry.file_name().to_string_lossy().into_owned();
                parent_and_state(&pid).map(|(parent, _)| (pid, parent))
            })
            .collect();
        let mut at = 0;
        while let Some(parent) = pids.get(at).cloned() {
            pids.extend(all.iter().filter(|(_, p)| *p == parent).map(|(pid, _)| pid.clone()));
            at += 1;
        }
        pids
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

/// The parent of a process and its state's letter, from `/proc`.
fn parent_and_state(pid: &str) -> Option<(String, char)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.to_owned(), state))
}

/// A program of the Python environment that `cargo xtask setup` makes for consumers and servers
/// (`target/venv-consumers`), found from the test's own program.
pub(crate) fn consumers(program: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    own.ancestors().map(|folder| folder.join("venv-consumers/bin").join(program)).find(|path| path.exists())
}

/// The Python of that environment.
///
/// # Panics
/// When it is not there.
pub fn python() -> PathBuf {
    consumers("python").expect("the consumers' Python environment is not there: run `cargo xtask setup`")
}

/// A file that a package of that environment has brought.
///
/// # Panics
/// When it is not there.
pub(crate) fn package(file: &str) -> PathBuf {
    let python = python();
    let lib = python.ancestors().nth(2).expect("an environment's folder").join("lib");
    std::fs::read_dir(&lib)
        .into_iter()
        .flatten()
        .flatten()
        .map(|version| version.path().join("site-packages").join(file))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("no {file} below {}: run `cargo xtask setup`", lib.display()))
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

/// Whether the server on the port sends anything back within a second.
pub(crate) fn answers(port: u16, greeting: &[u8]) -> bool {
    use std::io::{Read as _, Write as _};
    let ask = || -> std::io::Result<usize> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(greeting)?;
        stream.read(&mut [0; 64])
    };
    ask().is_ok_and(|length| length > 0)
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
