//! A Redis of the test's own, from the machine's binary.
//!
//! Called by tests that need a real Redis. Invariant: it listens on loopback only and keeps its data in its folder, so
//! that a restart finds it again.

use std::process::{Command, Stdio};

use super::{Supervised, listens, new_folder, on_free_port, wait_until};

/// A running Redis; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct Redis {
    port: u16,
    server: Supervised,
}

impl Redis {
    /// Starts a new, empty server.
    ///
    /// # Panics
    /// When Redis is not installed or does not start: a test must not pass without its server.
    pub fn start() -> Self {
        let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(found.is_ok(), "Redis is not installed: apt install redis-server");
        on_free_port(Self::try_start)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A URL of the server.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Kills the server and everything it has started, as a crash would.
    pub fn kill(&self) {
        self.server.end("KILL");
    }

    /// Stops the server in good order.
    pub fn stop(&self) {
        self.server.end("TERM");
    }

    /// Starts the server again on the same port and data, and waits until it answers.
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

    fn try_start(port: u16) -> Option<Self> {
        let folder = new_folder("litepost-redis-");
        let (number, dir) = (port.to_string(), folder.display().to_string());
        let command = [
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--port",
            &number,
            "--dir",
            &dir,
            "--appendonly",
            "yes",
            "--save",
            "",
        ];
        let server = Supervised::start("TERM", &folder, &command.map(String::from));
        let started = Self { port, server };
        started.is_up().then_some(started)
    }

    fn is_up(&self) -> bool {
        wait_until(&self.server, || listens(self.port))
    }
}
