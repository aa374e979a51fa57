//! Breaks a litepost installation on purpose, and checks from outside that nothing is lost.
//!
//! Called by `litepost torture`. Producers and relays are processes of the real binary; a [`Plan`] that follows from a
//! seed kills, freezes and starves them, and breaks the network and the servers behind them. Invariant: what was committed is known only from the producers' own journals
//! and what was delivered only from the destinations; litepost's tables are asked for nothing but dead letters and its
//! own books.
#![cfg(unix)]

mod check;
mod clock;
mod deeds;
mod files;
mod network;
mod plan;
mod producer;
mod proxy;
mod reap;
mod receiver;
mod run;
mod server;
mod shrink;
mod soak;
mod stage;

pub use check::Violation;
pub use network::Troubles;
pub use plan::{Deed, Fault, Link, Pace, Plan, Reach};
pub use producer::produce;
pub use run::{Postgres, Setup, Verdict, torture};
pub use shrink::shortest;
pub use soak::{Sample, Soaked, soak};

/// Why a run could not be carried out; not that it found something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TortureError {
    /// A file or a process.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's words.
        error: std::io::Error,
    },
    /// A database of the run.
    #[error("a database of the run: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// The PostgreSQL server that was named.
    #[error("PostgreSQL: {0}")]
    Postgres(#[from] tokio_postgres::Error),
    /// A PostgreSQL of the run's own was asked for.
    #[error("there are no programs of PostgreSQL (initdb, postgres) in PATH or below /usr/lib/postgresql")]
    NoPostgres,
    /// The outbox.
    #[error("the outbox: {0}")]
    Store(#[from] litepost::StoreError),
    /// The command that prepares or drains ended badly.
    #[error("litepost {arguments} ended with {status}: {stderr}")]
    Command {
        /// Its arguments.
        arguments: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it said.
        stderr: String,
    },
}

impl TortureError {
    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "check the URL, and that the database may be written to",
            Self::NoPostgres => "install PostgreSQL, or name a database with --postgres",
            Self::Io { .. } => "check the space and the limits of this account",
            _ => "keep the folder with --folder and look at its files",
        }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }
}
