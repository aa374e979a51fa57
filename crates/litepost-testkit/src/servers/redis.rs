//! A Redis of the test's own, from the machine's binary.
//!
//! Called by tests that need a real Redis. Invariant: it listens on loopback only and keeps its data in its folder, so
//! that a restart finds it again. It asks for a password and takes values of up to 2 MiB.

use std::process::{Command, Stdio};

use super::{Supervised, listens, new_folder, on_free_port, wait_until};
use crate::tls::Certificate;

/// A running Redis; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct Redis {
    port: u16,
    server: Supervised,
}

controls!(Redis, "TERM");

impl Redis {
    /// The password that the server asks for.
    pub const PASSWORD: &str = "pa55w0rd";

    /// Starts a new, empty server.
    ///
    /// # Panics
    /// When Redis is not installed or does not start: a test must not pass without its server.
    pub fn start() -> Self {
        Self::start_with(|port| vec!["--port".into(), port.to_string()])
    }

    /// The same with TLS, and without any other port.
    ///
    /// # Panics
    /// As [`Redis::start`].
    pub fn start_tls(certificate: &Certificate) -> Self {
        let (cert, key) = (certificate.cert().display().to_string(), certificate.key().display().to_string());
        Self::start_with(|port| {
            let words = ["--port", "0", "--tls-auth-clients", "no", "--tls-cert-file", &cert, "--tls-key-file", &key];
            let port = ["--tls-port".to_owned(), port.to_string()];
            words.into_iter().map(str::to_owned).chain(port).collect()
        })
    }

    fn start_with(port: impl Fn(u16) -> Vec<String>) -> Self {
        let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(found.is_ok(), "Redis is not installed: apt install redis-server");
        on_free_port(|number| Self::try_start(number, port(number)))
    }

    /// A URL of the server, with its password.
    pub fn url(&self) -> String {
        format!("redis://:{}@127.0.0.1:{}", Self::PASSWORD, self.port)
    }

    fn try_start(port: u16, listen: Vec<String>) -> Option<Self> {
        let folder = new_folder("litepost-redis-");
        let dir = folder.display().to_string();
        let fixed = [
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--dir",
            &dir,
            "--appendonly",
            "yes",
            "--save",
            "",
            "--requirepass",
            Self::PASSWORD,
            "--proto-max-bulk-len",
            "2097152",
        ];
        let command: Vec<String> = fixed.into_iter().map(str::to_owned).chain(listen).collect();
        let server = Supervised::start("TERM", &folder, &command);
        let started = Self { port, server };
        started.is_up().then_some(started)
    }

    fn is_up(&self) -> bool {
        wait_until(&self.server, || listens(self.port))
    }
}
