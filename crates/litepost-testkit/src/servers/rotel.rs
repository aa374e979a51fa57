//! A collector for OpenTelemetry (Rotel), from a package of PyPI.
//!
//! Called by tests that send to a real collector; the official one is in no package registry. Invariant: it listens on
//! loopback only, and hands everything on to where the test says.

use std::path::PathBuf;

use super::{Supervised, free_port, listens, new_folder, on_free_port, package, wait_until};

/// A running collector; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct Rotel {
    port: u16,
    server: Supervised,
}

controls!(Rotel, "TERM");

impl Rotel {
    /// Starts one that tells the spans it gets, and hands them and the metrics on to the collector at `next`.
    ///
    /// # Panics
    /// When it is not installed or does not start: a test must not pass without its server.
    pub fn start(next: &str) -> Self {
        on_free_port(|port| Self::try_start(port, next))
    }

    /// For `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// What it has told so far: the spans, as the official collector's debug exporter writes them.
    pub fn told(&self) -> String {
        self.server.log()
    }

    fn try_start(port: u16, next: &str) -> Option<Self> {
        let folder = new_folder("litepost-rotel-");
        let (http, grpc) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", free_port()));
        let program = program().display().to_string();
        let told = ["start", "--debug-log", "traces", "--debug-log-verbosity", "detailed", "--batch-timeout", "50ms"];
        let listens = ["--otlp-http-endpoint", http.as_str(), "--otlp-grpc-endpoint", grpc.as_str()];
        let hands_on = ["--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", next];
        let words = [program.as_str()].into_iter().chain(told).chain(listens).chain(hands_on);
        let command: Vec<String> = words.map(str::to_owned).collect();
        let server = Supervised::start("TERM", &folder, &command);
        let started = Self { port, server };
        started.is_up().then_some(started)
    }

    fn is_up(&self) -> bool {
        wait_until(&self.server, || listens(self.port))
    }
}

/// The collector's program: `LITEPOST_TEST_ROTEL`, or the one that `cargo xtask setup` has put into the target folder.
fn program() -> PathBuf {
    if let Some(named) = std::env::var_os("LITEPOST_TEST_ROTEL") {
        return named.into();
    }
    package("rotel/rotel-agent")
}
