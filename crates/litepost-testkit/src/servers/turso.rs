//! A real `tursodb --sync-server`, from npm: it speaks a part of Hrana.
//!
//! Called by tests of the libSQL destination. Invariant: as for every server here.

use std::path::{Path, PathBuf};

use super::{Supervised, listens, new_folder, on_free_port, wait_until};

/// A running tursodb; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct Turso {
    port: u16,
    server: Supervised,
}

impl Turso {
    /// Starts a server with an empty database.
    ///
    /// # Panics
    /// When tursodb is not installed or does not start.
    pub fn start() -> Self {
        let program = program();
        on_free_port(|port| {
            let folder = new_folder("litepost-turso-");
            let database = folder.join("srv.db").display().to_string();
            let address = format!("127.0.0.1:{port}");
            let command = [program.display().to_string(), database, "--sync-server".into(), address];
            let server = Supervised::start("TERM", &folder, &command);
            wait_until(&server, || listens(port)).then_some(Self { port, server })
        })
    }

    /// `http://127.0.0.1:…`
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Kills the server, as a crash would.
    pub fn kill(&self) {
        self.server.end("KILL");
    }

    /// Starts the server again on the same port and data.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn start_again(&mut self) {
        self.server.again();
        assert!(wait_until(&self.server, || listens(self.port)), "the port was taken: {}", self.server.log());
    }
}

fn program() -> PathBuf {
    let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node/node_modules/@tursodatabase");
    let found = std::fs::read_dir(&modules).into_iter().flatten().flatten();
    found.map(|entry| entry.path().join("tursodb")).find(|path| path.exists()).unwrap_or_else(|| {
        panic!(
            "tursodb is not installed: run `npm ci` in crates/litepost-testkit/tests/node (`cargo xtask setup` does)"
        )
    })
}
