//! A MariaDB of the test's own, from the machine's binaries.
//!
//! Called by tests that need a real MySQL-like server. Invariant: it listens on loopback only, reads no
//! configuration file of the machine and keeps its temporary tables in its own folder: a server that starts removes
//! every `#sql*` file of its `tmpdir`, so that with a shared one it takes away the tables that others are working with.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Supervised, is_root, listens, new_folder, on_free_port, run, wait_until};
use crate::tls::Certificate;

/// The database that a new server has for tests.
const DATABASE: &str = "litepost";

/// A running MariaDB; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct MariaDb {
    port: u16,
    socket: PathBuf,
    server: Supervised,
}

controls!(MariaDb, "TERM");

impl MariaDb {
    /// Starts a new server with one empty database.
    ///
    /// # Panics
    /// When MariaDB is not installed or does not start: a test must not pass without its server.
    pub fn start() -> Self {
        on_free_port(|port| Self::try_start(port, None))
    }

    /// Starts a server that speaks TLS with this certificate.
    ///
    /// # Panics
    /// As [`MariaDb::start`].
    pub fn start_tls(certificate: &Certificate) -> Self {
        on_free_port(|port| Self::try_start(port, Some(certificate)))
    }

    /// A URL of the empty database as a user who may do everything.
    pub fn url(&self) -> String {
        format!("mysql://litepost:litepost@127.0.0.1:{}/{DATABASE}", self.port)
    }

    /// Runs SQL as root; true when it succeeded.
    pub fn root(&self, sql: &str) -> bool {
        client(&self.socket, sql)
    }

    /// Runs SQL as root in the empty database and returns its rows: values parted by tabs, rows by line ends.
    ///
    /// # Panics
    /// When a statement fails.
    pub fn sql(&self, sql: &str) -> String {
        let socket = format!("--socket={}", self.socket.display());
        let mut command: Vec<String> =
            ["mariadb", "--no-defaults", "-u", "root", "-N", "-B", "-D", DATABASE].map(String::from).into();
        command.extend(["--default-character-set=utf8mb4".into(), socket, "-e".into(), sql.into()]);
        String::from_utf8_lossy(&run(&command).stdout).trim_end().to_owned()
    }

    /// Takes away the folder of the server's temporary files, without which `information_schema` cannot be read.
    ///
    /// # Panics
    /// When it is not there.
    pub fn lose_temporary_folder(&self) {
        std::fs::rename(self.temporary(), self.temporary().with_extension("lost")).expect("the temporary folder");
    }

    /// Gives the folder back.
    ///
    /// # Panics
    /// When it was not taken away.
    pub fn find_temporary_folder(&self) {
        std::fs::rename(self.temporary().with_extension("lost"), self.temporary()).expect("the folder taken away");
    }

    fn temporary(&self) -> PathBuf {
        self.socket.with_file_name("tmp")
    }

    fn try_start(port: u16, certificate: Option<&Certificate>) -> Option<Self> {
        let folder = new_folder("litepost-mariadb-");
        let root = is_root();
        let temporary = folder.join("tmp");
        std::fs::create_dir(&temporary).expect("a folder for temporary tables");
        if root {
            run(&["chown".into(), "-R".into(), "mysql".into(), folder.display().to_string()]);
        }
        let [data, temporary] =
            [("datadir", folder.join("data")), ("tmpdir", temporary)].map(|(o, f)| format!("--{o}={}", f.display()));
        run(&as_server(
            root,
            "mariadb-install-db",
            &["--no-defaults", &data, &temporary, "--auth-root-authentication-method=normal", "--skip-test-db"],
        ));
        let socket = folder.join("mysqld.sock");
        let mut arguments = server_arguments(&data, &temporary, &socket, port).to_vec();
        if let Some(certificate) = certificate {
            let [cert, key] = certificate.copy_for(&folder, "mysql");
            arguments.extend([
                format!("--ssl-cert={cert}"),
                format!("--ssl-key={key}"),
                "--require-secure-transport=on".into(),
            ]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let server = Supervised::start("TERM", &folder, &as_server(root, "mariadbd", &arguments));
        let started = Self { port, socket, server };
        if !started.is_up() {
            return None;
        }
        let grants = format!(
            "CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4;
             CREATE USER 'litepost'@'127.0.0.1' IDENTIFIED BY 'litepost';
             GRANT ALL ON *.* TO 'litepost'@'127.0.0.1' WITH GRANT OPTION;"
        );
        assert!(client(&started.socket, &grants), "MariaDB refused its first statements: {}", started.server.log());
        Some(started)
    }

    fn is_up(&self) -> bool {
        wait_until(&self.server, || listens(self.port) && client(&self.socket, "SELECT 1"))
    }
}

/// The server's command line without its program.
fn server_arguments(data: &str, temporary: &str, socket: &Path, port: u16) -> [String; 8] {
    [
        "--no-defaults".to_owned(),
        data.to_owned(),
        temporary.to_owned(),
        format!("--socket={}", socket.display()),
        format!("--port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--skip-name-resolve".to_owned(),
        "--max-connections=300".to_owned(),
    ]
}

/// Runs SQL as root over the socket; true when it succeeded.
fn client(socket: &Path, sql: &str) -> bool {
    Command::new("mariadb")
        .args(["--no-defaults", "-u", "root", "-e", sql])
        .arg(format!("--socket={}", socket.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The command line that runs a server program, as the user `mysql` when the test is root.
fn as_server(root: bool, program: &str, arguments: &[&str]) -> Vec<String> {
    let mut command: Vec<String> = Vec::new();
    if root {
        command.extend(["setpriv", "--reuid=mysql", "--regid=mysql", "--clear-groups"].map(String::from));
    }
    command.push(program.to_owned());
    command.extend(arguments.iter().map(|argument| (*argument).to_owned()));
    command
}
