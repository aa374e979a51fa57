//! What the handlers know: the outbox files, and how to look into them.
//!
//! Invariant: a look runs on a thread that may block, on a read-only connection of its own, and holds no snapshot
//! longer than its answer takes.

use std::path::PathBuf;
use std::sync::Arc;

use axum::http::StatusCode;
use litepost::StoreError;
use litepost::connection::{self, Access};
use litepost::locate::Routing;
use litepost::status::{self, FileStatus};
use litepost_core::Millis;
use rusqlite::Connection;
use serde::Serialize;

use crate::auth::Token;
use crate::error::Refusal;
use crate::metrics::Recorder;
use crate::shown::Shown;

/// One outbox file.
#[derive(Clone, Debug)]
pub struct Source {
    /// The database.
    pub path: PathBuf,
    /// The destinations that this relay delivers to.
    pub destinations: Vec<Arc<str>>,
    /// What each of them takes.
    pub routing: Arc<[Routing]>,
    /// How long an event may wait for those destinations that say so themselves, milliseconds.
    pub freshness_ms: Arc<[(Arc<str>, i64)]>,
}

/// What the listener serves.
#[derive(Debug)]
pub struct Admin {
    /// The outbox files, and the configuration as text.
    pub shown: Shown,
    /// Asked for with every request when there is one.
    pub token: Option<Token>,
    /// `/ready` fails when a destination's oldest event has waited longer, milliseconds; some say a time of their own.
    pub freshness_ms: i64,
    /// The program's version.
    pub version: String,
    /// Where the relay's own counters are.
    pub recorder: Recorder,
}

/// The status of one file, or why there is none.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Looked {
    pub(crate) database: String,
    #[serde(flatten)]
    pub(crate) status: Option<FileStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Bytes of the -wal file.
    pub(crate) wal_bytes: u64,
    /// Bytes of the database file.
    pub(crate) database_bytes: u64,
    /// Bytes that are free on its file system.
    pub(crate) free_bytes: Option<u64>,
    #[serde(skip)]
    pub(crate) freshness_ms: Arc<[(Arc<str>, i64)]>,
}

impl Admin {
    /// Looks at every file. One that cannot be read stops no other.
    pub(crate) async fn look(&self) -> Vec<Looked> {
        look(&self.shown).await
    }

    /// Runs `work` on a read-only connection of the file at `index`.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        index: usize,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Refusal> {
        read(&self.shown, index, work).await
    }
}

/// As [`Admin::look`].
pub(crate) async fn look(shown: &Shown) -> Vec<Looked> {
    let sources = shown.sources();
    let now = wall();
    let look = move || sources.iter().map(|source| looked(source, now)).collect();
    tokio::task::spawn_blocking(look).await.unwrap_or_default()
}

/// As [`Admin::read`].
pub(crate) async fn read<T: Send + 'static>(
    shown: &Shown,
    index: usize,
    work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Refusal> {
    let sources = shown.sources();
    let Some(source) = sources.get(index) else {
        return Err(Refusal::not_found(format!("there is no outbox file {index}")));
    };
    let path = source.path.clone();
    let work = move || {
        let connection = connection::open(&path, Access::ReadOnly)?;
        litepost::schema::require_current(&connection)?;
        work(&connection)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(error) => Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string(), "report it")),
    }
}

fn looked(source: &Source, now: Millis) -> Looked {
    let mut wal = source.path.as_os_str().to_owned();
    wal.push("-wal");
    let bytes = |path: &std::path::Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let folder = source.path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let free = rustix::fs::statvfs(folder.unwrap_or_else(|| std::path::Path::new("."))).ok();
    // A file that is not delivered from any more is nobody's trouble.
    let read = (!source.destinations.is_empty()).then(|| status::read(&source.path, now));
    let (status, error) = match read.unwrap_or_else(|| Err(StoreError::Missing { path: source.path.clone() })) {
        Ok(mut status) => {
            status.destinations.retain(|found| source.destinations.iter().any(|ours| **ours == found.destination));
            (Some(status), None)
        }
        // A file that its first event will make is no trouble.
        Err(StoreError::Missing { .. }) => (None, None),
        Err(error) => (None, Some(error.to_string())),
    };
    Looked {
        database: source.path.display().to_string(),
        status,
        error,
        wal_bytes: bytes(std::path::Path::new(&wal)),
        database_bytes: bytes(&source.path),
        free_bytes: free.map(|free| free.f_bavail.saturating_mul(free.f_frsize)),
        freshness_ms: Arc::clone(&source.freshness_ms),
    }
}

/// The wall clock.
#[allow(clippy::disallowed_methods, reason = "the one place of this crate that reads the wall clock")]
pub(crate) fn wall() -> Millis {
    let past = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Millis(i64::try_from(past.as_millis()).unwrap_or(i64::MAX))
}
