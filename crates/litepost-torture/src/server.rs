//! A PostgreSQL of the run's own, from the machine's programs: it can be killed, frozen and started again.
//!
//! Called by the run. Invariants: it listens on loopback only and keeps what it has confirmed (PostgreSQL's own settings); it
//! does not outlive the process that started it, however that ends: a small shell holds the other end of a pipe.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::{TortureError, clock};

/// Starts `$@` behind the first argument (a folder), again for each line on stdin; stops it when stdin closes.
const GUARD: &str = r#"folder=$1; shift
trap : INT TERM HUP
start() { "$@" >>"$folder/server.log" 2>&1 </dev/null & server=$!; echo "$server" >"$folder/server.pid"; }
start "$@"
while read -r line; do
  wait "$server"
  start "$@"
done
kill -s CONT "$server" 2>/dev/null
kill -s QUIT "$server" 2>/dev/null
wait "$server"
rm -rf "$folder""#;
/// Between two looks at a process.
const TICK: Duration = Duration::from_millis(10);
/// A server that is killed is gone by then, and one that is started answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server.
#[derive(Debug)]
pub(crate) struct Server {
    guard: Child,
    folder: PathBuf,
    port: u16,
    /// Killed, and not started again: nobody's process has the number in its file.
    down: bool,
}

impl Server {
    /// Makes a cluster and starts it; it may not answer yet.
    pub(crate) fn start() -> Result<Self, TortureError> {
        let bin = programs().ok_or(TortureError::NoPostgres)?;
        // Not below the run's folder: PostgreSQL refuses to run as root, and the user it runs as must reach it.
        let folder = tempfile::Builder::new().prefix("litepost-torture-pg-").tempdir();
        let folder = folder.map_err(TortureError::io("a folder for PostgreSQL"))?.keep();
        let root = rustix::process::geteuid().is_root();
        if root {
            let folder = folder.display().to_string();
            run(&["chown".to_owned(), "postgres".to_owned(), folder])?;
        }
        let data = folder.join("data").display().to_string();
        let made = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale", "C", "--no-sync", "-D", &data];
        run(&command(root, &bin, "initdb", &made))?;
        let port = TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .map_err(TortureError::io("a port for PostgreSQL"))?
            .port();
        let number = port.to_string();
        let settings = ["-D", &data, "-p", &number, "-h", "127.0.0.1", "-c", "unix_socket_directories="];
        let guard = Command::new("/bin/sh")
            .args(["-c", GUARD, "sh"])
            .arg(&folder)
            .args(command(root, &bin, "postgres", &settings))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(TortureError::io("PostgreSQL cannot be started"))?;
        Ok(Self { guard, folder, port, down: false })
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Kills the server and all that it has started, at once, as when the machine crashes.
    pub(crate) fn kill(&mut self) {
        let all = self.tree();
        // What stands still does nothing between the first and the last kill.
        signal(&all, Signal::STOP);
        signal(&all, Signal::KILL);
        let began = clock::start();
        while all.iter().any(|&pid| parent_of(pid).is_some()) && began.elapsed() < PATIENCE {
            std::thread::sleep(TICK);
        }
        self.down = true;
    }

    /// Starts a server that was killed; it recovers, and answers later.
    pub(crate) fn start_again(&mut self) {
        // Told twice, the guard would wait for the end of a server that runs.
        if std::mem::take(&mut self.down)
            && let Some(guard) = &mut self.guard.stdin
        {
            // A guard that is gone has removed everything: the last check finds no server.
            let _ = guard.write_all(b"again\n");
        }
    }

    /// Connections stay, and nothing answers.
    pub(crate) fn freeze(&self) {
        signal(&self.tree(), Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        signal(&self.tree(), Signal::CONT);
    }

    /// The server's process and all below it.
    fn tree(&self) -> Vec<i32> {
        if self.down {
            return Vec::new();
        }
        let told = std::fs::read_to_string(self.folder.join("server.pid")).unwrap_or_default();
        let mut tree: Vec<i32> = told.trim().parse().ok().into_iter().collect();
        let all: Vec<(i32, i32)> = std::fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter_map(|pid| Some((pid, parent_of(pid)?)))
            .collect();
        let mut at = 0;
        while let Some(&parent) = tree.get(at) {
            tree.extend(all.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
            at += 1;
        }
        tree
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.thaw();
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

fn signal(pids: &[i32], signal: Signal) {
    for pid in pids.iter().copied().filter_map(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// The parent of a process that runs; one that has ended and was not waited for runs no more.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    (state != "Z").then(|| fields.next()?.parse().ok()).flatten()
}

/// The folder with `initdb` and `postgres`: one of PATH, or the newest of Debian's.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut debian: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|version| version.path().join("bin"))
        .collect();
    debian.sort();
    let all = std::env::split_paths(&path).chain(debian.into_iter().rev());
    all.into_iter().find(|bin| bin.join("initdb").exists() && bin.join("postgres").exists())
}

/// A program of PostgreSQL's; it refuses to be run by root.
fn command(root: bool, bin: &Path, program: &str, arguments: &[&str]) -> Vec<String> {
    let user: &[&str] = if root { &["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] } else { &[] };
    let mut command: Vec<String> = user.iter().map(|&part| part.to_owned()).collect();
    command.push(bin.join(program).display().to_string());
    command.extend(arguments.iter().map(|&argument| argument.to_owned()));
    command
}

fn run(command: &[String]) -> Result<(), TortureError> {
    let (program, arguments) = command.split_first().map_or(("", command), |(program, rest)| (program.as_str(), rest));
    let output = Command::new(program)
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .map_err(TortureError::io(format!("running {program}")))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(TortureError::Io { what: command.join(" "), error: std::io::Error::other(stderr) })
}
