//! A PostgreSQL of the test's own, from the machine's binaries.
//!
//! Called by tests that need a real PostgreSQL. Invariant: it listens on loopback only, trusts everybody
//! there, and its durability settings are PostgreSQL's defaults, so that measurements mean something.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Supervised, is_root, listens, new_folder, on_free_port, run, wait_until};
use crate::tls::Certificate;

/// A running PostgreSQL; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct Postgres {
    port: u16,
    bin: PathBuf,
    server: Supervised,
}

controls!(Postgres, "INT");

impl Postgres {
    /// Starts a new, empty server with the given `name=value` settings.
    ///
    /// # Panics
    /// When PostgreSQL is not installed or does not start: a test must not pass without its server.
    pub fn start_with(settings: &[&str]) -> Self {
        let bin = binaries();
        on_free_port(|port| Self::try_start(&bin, port, settings, None))
    }

    /// Starts a server that speaks TLS with this certificate, and nothing else.
    ///
    /// # Panics
    /// As [`Postgres::start_with`].
    pub fn start_tls(certificate: &Certificate) -> Self {
        let bin = binaries();
        on_free_port(|port| Self::try_start(&bin, port, &[], Some(certificate)))
    }

    /// Starts a new, empty server with PostgreSQL's own settings.
    ///
    /// # Panics
    /// As [`Postgres::start_with`].
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A URL of the database `postgres` as the superuser.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// Runs SQL through psql and returns its unaligned output.
    ///
    /// # Panics
    /// When psql fails.
    pub fn psql(&self, sql: &str) -> String {
        let psql = self.bin.join("psql").display().to_string();
        let output = run(&[
            psql,
            "-XAtq".into(),
            "-v".into(),
            "ON_ERROR_STOP=1".into(),
            "-d".into(),
            self.url(),
            "-c".into(),
            sql.into(),
        ]);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn try_start(bin: &Path, port: u16, settings: &[&str], certificate: Option<&Certificate>) -> Option<Self> {
        let folder = new_folder("litepost-pg-");
        let data = folder.join("data").display().to_string();
        let root = is_root();
        if root {
            run(&["chown".into(), "postgres".into(), folder.display().to_string()]);
        }
        run(&as_server(
            root,
            bin,
            "initdb",
            &["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale", "C", "--no-sync", "-D", &data],
        ));
        let socket = folder.display().to_string();
        let number = port.to_string();
        let mut arguments = vec!["-D", &data, "-p", &number, "-k", &socket, "-h", "127.0.0.1"];
        for setting in settings {
            arguments.extend(["-c", setting]);
        }
        let tls = certificate.map(|certificate| {
            let [cert, key] = certificate.copy_for(&folder, "postgres");
            // Whoever comes without TLS is turned away.
            let hba = "local all all trust\nhostssl all all 127.0.0.1/32 trust\n";
            std::fs::write(folder.join("data/pg_hba.conf"), hba).expect("a file of rules");
            ["ssl=on".into(), format!("ssl_cert_file={cert}"), format!("ssl_key_file={key}")]
        });
        for setting in tls.iter().flatten() {
            arguments.extend(["-c", setting]);
        }
        let server = Supervised::start("QUIT", &folder, &as_server(root, bin, "postgres", &arguments));
        let started = Self { port, bin: bin.to_owned(), server };
        started.is_up().then_some(started)
    }

    fn is_up(&self) -> bool {
        let (ready, number) = (self.bin.join("pg_isready"), self.port.to_string());
        wait_until(&self.server, || {
            listens(self.port)
                && Command::new(&ready)
                    .args(["-q", "-h", "127.0.0.1", "-p", &number])
                    .stdout(Stdio::null())
                    .status()
                    .is_ok_and(|status| status.success())
        })
    }
}

/// The command line that runs a server program, as the user `postgres` when the test is root.
fn as_server(root: bool, bin: &Path, program: &str, arguments: &[&str]) -> Vec<String> {
    let mut command: Vec<String> = Vec::new();
    if root {
        command.extend(["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"].map(String::from));
    }
    command.push(bin.join(program).display().to_string());
    command.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    command
}

/// The folder with `initdb` and `postgres`: `LITEPOST_TEST_PG_BIN`, or the newest of Debian's folders.
fn binaries() -> PathBuf {
    if let Some(folder) = std::env::var_os("LITEPOST_TEST_PG_BIN") {
        return PathBuf::from(folder);
    }
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .collect();
    found.sort();
    found.pop().expect("PostgreSQL is not installed: apt install postgresql, or set LITEPOST_TEST_PG_BIN")
}
