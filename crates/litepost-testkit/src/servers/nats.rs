//! A NATS of the test's own, from the machine's binary.
//!
//! Called by tests that need a real NATS. Invariant: it listens on loopback only and keeps its data in its folder, so
//! that a restart finds it again. It takes messages of up to 2 MiB.

use std::process::{Command, Stdio};

use super::{Supervised, consumers, listens, new_folder, on_free_port, wait_until};

/// A running NATS; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct Nats {
    port: u16,
    server: Supervised,
}

controls!(Nats, "TERM");

impl Nats {
    /// The user that the server lets in.
    pub const USER: &str = "litepost";
    /// That user's password.
    pub const PASSWORD: &str = "pa55w0rd";

    /// Starts a new, empty server that lets [`Nats::USER`] in.
    ///
    /// # Panics
    /// When NATS is not installed or does not start: a test must not pass without its server.
    pub fn start() -> Self {
        Self::start_with(&format!("authorization {{ user: {:?}, password: {:?} }}", Self::USER, Self::PASSWORD))
    }

    /// Starts a new, empty server with these lines in its configuration (`authorization`, `tls`).
    ///
    /// # Panics
    /// As [`Nats::start`].
    pub fn start_with(lines: &str) -> Self {
        let found = Command::new(program()).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(found.is_ok(), "NATS is not installed: cargo xtask setup, or apt install nats-server");
        on_free_port(|port| Self::try_start(port, lines))
    }

    /// A URL of the server, with its user.
    pub fn url(&self) -> String {
        format!("nats://{}:{}@127.0.0.1:{}", Self::USER, Self::PASSWORD, self.port)
    }

    fn try_start(port: u16, lines: &str) -> Option<Self> {
        let folder = new_folder("litepost-nats-");
        let config = folder.join("nats.conf");
        let text = format!(
            "listen: 127.0.0.1:{port}\nmax_payload: 2097152\njetstream {{ store_dir: \"{}\" }}\n{lines}\n",
            folder.join("js").display(),
        );
        std::fs::write(&config, text).expect("the configuration is written");
        let command = [program(), "-c".into(), config.display().to_string()];
        let server = Supervised::start("TERM", &folder, &command);
        let started = Self { port, server };
        started.is_up().then_some(started)
    }

    fn is_up(&self) -> bool {
        wait_until(&self.server, || listens(self.port))
    }
}

/// The server's program: `LITEPOST_TEST_NATS_SERVER`, the one that `cargo xtask setup` has installed, or the one on the
/// path.
fn program() -> String {
    std::env::var("LITEPOST_TEST_NATS_SERVER")
        .ok()
        .or_else(|| Some(consumers("nats-server")?.display().to_string()))
        .unwrap_or_else(|| "nats-server".into())
}
