//! A Mosquitto (MQTT broker) of the test's own, from the machine's binary.
//!
//! Called by tests that need a real MQTT broker. Invariant: it listens on loopback only and keeps sessions and queued
//! messages in its folder when it is stopped in good order. Killed, it forgets what it has confirmed since: it has no
//! setting that would write before it confirms.

use std::path::Path;

use super::{Supervised, is_root, listens, new_folder, on_free_port, wait_until};

/// A running Mosquitto; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct Mosquitto {
    port: u16,
    server: Supervised,
}

controls!(Mosquitto, "TERM");

impl Mosquitto {
    /// Starts a new, empty server that lets everybody in.
    ///
    /// # Panics
    /// When Mosquitto is not installed or does not start: a test must not pass without its server.
    pub fn start() -> Self {
        Self::start_with("allow_anonymous true")
    }

    /// The same with lines of one's own in the configuration, after those of the listener; they say who may enter.
    ///
    /// # Panics
    /// As [`Mosquitto::start`].
    pub fn start_with(configuration: &str) -> Self {
        assert!(Path::new(&program()).is_file(), "Mosquitto is not installed: apt install mosquitto");
        on_free_port(|port| Self::try_start(port, configuration))
    }

    /// A URL of the server.
    pub fn url(&self) -> String {
        format!("mqtt://127.0.0.1:{}", self.port)
    }

    fn try_start(port: u16, configuration: &str) -> Option<Self> {
        let folder = new_folder("litepost-mosquitto-");
        // As root it would become another user, who may not write here.
        let user = if is_root() { "user root\n" } else { "" };
        let text = format!(
            "{user}per_listener_settings false\npersistence true\npersistence_location {}/\n\
             max_queued_messages 0\nmax_inflight_messages 1000\nlog_dest stderr\n\
             listener {port} 127.0.0.1\n{configuration}\n",
            folder.display()
        );
        let file = folder.join("mosquitto.conf");
        std::fs::write(&file, text).expect("a writable folder");
        let command = [program(), "-c".into(), file.display().to_string()];
        let server = Supervised::start("TERM", &folder, &command);
        let started = Self { port, server };
        started.is_up().then_some(started)
    }

    fn is_up(&self) -> bool {
        wait_until(&self.server, || listens(self.port))
    }
}

/// The server's program: `LITEPOST_TEST_MOSQUITTO`, or the package's.
fn program() -> String {
    std::env::var("LITEPOST_TEST_MOSQUITTO").unwrap_or_else(|_| "/usr/sbin/mosquitto".into())
}
