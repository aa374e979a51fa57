//! A receiver of webhooks in another language: Flask, in a process of its own.
//!
//! Called by the conformance suite of the http sink. Invariant: what it has answered with 2xx is in its folder, whatever
//! ends it. (Tests that script answers use [`crate::http::HttpServer`].)

use super::{Supervised, answers, consumers, new_folder, on_free_port, wait_until};

const PROGRAM: &str = include_str!("webhooks.py");

/// A running receiver; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct Webhooks {
    port: u16,
    server: Supervised,
    folder: std::path::PathBuf,
}

controls!(Webhooks, "TERM");

impl Webhooks {
    /// Who may send.
    pub const USER: &str = "litepost";
    /// The password.
    pub const PASSWORD: &str = "s3cret-pa55";
    /// The largest body that is taken; a larger one is answered with 413.
    pub const BODY_MAX: usize = 2 << 20;

    /// Starts a new one, with the path `/ready`.
    ///
    /// # Panics
    /// When Flask is not installed or does not start: a test must not pass without its server.
    pub fn start() -> Self {
        let python = consumers("python").expect("Flask is not installed: run `cargo xtask setup`");
        let python = python.display().to_string();
        on_free_port(|port| {
            let folder = new_folder("litepost-webhooks-");
            let at = folder.display().to_string();
            let command = [&python, "-c", PROGRAM, &port.to_string(), &at, Self::USER, Self::PASSWORD];
            let mut command: Vec<String> = command.map(str::to_owned).into();
            command.push(Self::BODY_MAX.to_string());
            let started = Self { port, server: Supervised::start("TERM", &folder, &command), folder };
            started.is_up().then_some(started)
        })
    }

    /// Takes requests to one more path, whose name has no slash.
    ///
    /// # Panics
    /// When its folder is gone.
    pub fn add_path(&self, name: &str) {
        std::fs::write(self.folder.join(name), "").expect("the receiver's folder");
    }

    /// Where it keeps what it has taken.
    pub fn taken(&self) -> std::path::PathBuf {
        self.folder.join("taken.jsonl")
    }

    fn is_up(&self) -> bool {
        wait_until(&self.server, || answers(self.port, b"GET / HTTP/1.0\r\n\r\n"))
    }
}
