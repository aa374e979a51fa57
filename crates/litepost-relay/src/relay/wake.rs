//! Wakes a reader when another process commits: one file-system watch for all outbox files of the process.
//!
//! Used by the reader threads. The watch is on the directory and never opens the database, its -wal or its -shm
//! (closing them would drop SQLite's locks). Invariant: a wake is only a hint; readers look for themselves, and look
//! again every [`SAFETY_POLL`] when no hint comes, so a file system without notifications is slow, never stuck.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

/// How long a reader sleeps without a hint.
pub(super) const SAFETY_POLL: Duration = Duration::from_millis(500);

type Hint = Box<dyn Fn() + Send>;

#[derive(Default)]
struct Routes {
    /// By directory, then by file name: the database, its -wal and its -journal.
    directories: HashMap<PathBuf, HashMap<OsString, Vec<Hint>>>,
}

/// The watch of one process.
pub(super) struct Wakes {
    routes: Arc<Mutex<Routes>>,
    watcher: Mutex<Option<RecommendedWatcher>>,
}

impl Wakes {
    /// Starts the watch. Where the system offers none, the safety poll is all there is, and a warning says so.
    pub(super) fn start() -> Self {
        let routes = Arc::new(Mutex::new(Routes::default()));
        let shared = Arc::clone(&routes);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if let Ok(event) = event {
                shared.lock().unwrap_or_else(PoisonError::into_inner).route(&event);
            }
        });
        let watcher = watcher
            .inspect_err(|error| {
                tracing::warn!(%error, "no file-system notifications: commits are noticed every {SAFETY_POLL:?} only");
            })
            .ok();
        Self { routes, watcher: Mutex::new(watcher) }
    }

    /// Calls `hint` whenever the database at `path` may have been written to. `hint` must be quick.
    pub(super) fn watch(&self, path: &Path, hint: impl Fn() + Send + Clone + 'static) {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        // Symbolic links: SQLite writes beside the file they lead to.
        let real = std::fs::canonicalize(&absolute).unwrap_or(absolute);
        let (Some(directory), Some(name)) = (real.parent(), real.file_name()) else { return };
        let known = {
            let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
            let known = routes.directories.contains_key(directory);
            let files = routes.directories.entry(directory.to_owned()).or_default();
            for suffix in ["", "-wal", "-journal"] {
                files.entry(with_suffix(name, suffix)).or_default().push(Box::new(hint.clone()));
            }
            known
        };
        if known {
            return;
        }
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watcher) = watcher.as_mut()
            && let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive)
        {
            tracing::warn!(directory = %directory.display(), %error, "cannot watch the directory: commits are noticed every {SAFETY_POLL:?} only");
        }
    }
}

impl Routes {
    fn route(&self, event: &Event) {
        // Reading the file ourselves must not wake us again.
        if matches!(event.kind, EventKind::Access(_)) {
            return;
        }
        for path in &event.paths {
            let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { continue };
            if let Some(hints) = self.directories.get(directory).and_then(|files| files.get(name)) {
                for hint in hints {
                    hint();
                }
            }
        }
    }
}

fn with_suffix(name: &OsStr, suffix: &str) -> OsString {
    let mut name = name.to_owned();
    name.push(suffix);
    name
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_write_beside_the_database_is_a_hint_and_one_elsewhere_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let (send, hints) = mpsc::channel();
        let wakes = Wakes::start();
        wakes.watch(&folder.path().join("shop.db"), move || {
            let _ = send.send(());
        });
        std::fs::write(folder.path().join("other.log"), "x").unwrap();
        assert!(hints.recv_timeout(Duration::from_millis(200)).is_err(), "another file is none of our business");
        std::fs::write(folder.path().join("shop.db-wal"), "x").unwrap();
        hints.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}
