//! Wakes a reader when another process commits.
//!
//! Used by the reader threads. On Linux the first few of them watch for themselves; for the others one watch serves all
//! files, since a system has few watches (`fs.inotify.max_user_instances`). A watch is on the directory and never opens
//! the database, its -wal or its -shm (closing them would drop SQLite's locks). Invariant: a wake is only a hint; readers
//! look for themselves, and look again every [`SAFETY_POLL`] when no hint comes, so a file system without notifications
//! is slow, never stuck.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};

#[cfg(target_os = "linux")]
use super::bell::watching::Watching;
use super::bell::{Bell, Told};

/// How long a reader sleeps without a hint.
pub(super) const SAFETY_POLL: Duration = Duration::from_millis(500);

/// Readers that watch for themselves: a part of the 128 watches that a user has for everything.
const OWN_WATCHES: usize = 16;

type Hint = Box<dyn Fn() + Send>;

#[derive(Default)]
struct Routes {
    /// By directory, then by file name: the database, its -wal and its -journal.
    directories: HashMap<PathBuf, HashMap<OsString, Vec<Hint>>>,
}

/// The watches of one process.
pub(super) struct Wakes {
    routes: Arc<Mutex<Routes>>,
    /// The one for all; made when it is needed, and `None` inside where the system offers none.
    watcher: OnceLock<Mutex<Option<RecommendedWatcher>>>,
    /// One for each reader that watches for itself, as long as it lives.
    own: Mutex<Vec<Weak<()>>>,
}

impl Wakes {
    /// No watch yet.
    pub(super) fn new() -> Self {
        Self { routes: Arc::default(), watcher: OnceLock::new(), own: Mutex::default() }
    }

    /// The bell of a reader of the database at `path`, and what it has to keep as long.
    pub(super) fn bell(&self, path: &Path) -> (Bell, Arc<()>) {
        let alive = Arc::new(());
        if let Some(bell) = self.own_watch(path, &alive) {
            return (bell, alive);
        }
        let told = Arc::<Told>::default();
        let bell = Bell::Told(Arc::clone(&told));
        self.watch(path, move || told.written());
        (bell, alive)
    }

    #[cfg(target_os = "linux")]
    fn own_watch(&self, path: &Path, alive: &Arc<()>) -> Option<Bell> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|reader| reader.strong_count() > 0);
        if own.len() >= OWN_WATCHES {
            return None;
        }
        let (directory, names) = place(path)?;
        // The system may have no watch left: the one for all serves this reader, too.
        let watching = Watching::new(&directory, names.into()).ok()?;
        own.push(Arc::downgrade(alive));
        Some(Bell::Watching(watching))
    }

    #[cfg(not(target_os = "linux"))]
    fn own_watch(&self, _: &Path, _: &Arc<()>) -> Option<Bell> {
        None
    }

    /// Calls `hint` whenever the database at `path` may have been written to. `hint` must be quick.
    pub(super) fn watch(&self, path: &Path, hint: impl Fn() + Send + Clone + 'static) {
        let Some((directory, names)) = place(path) else { return };
        let known = {
            let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
            let known = routes.directories.contains_key(&directory);
            let files = routes.directories.entry(directory.clone()).or_default();
            for name in names {
                files.entry(name).or_default().push(Box::new(hint.clone()));
            }
            known
        };
        if known {
            return;
        }
        let watcher = self.watcher.get_or_init(|| Mutex::new(start(Arc::clone(&self.routes))));
        if let Some(watcher) = watcher.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
            && let Err(error) = watcher.watch(&directory, RecursiveMode::NonRecursive)
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

/// Starts the watch for all. Where the system offers none, the safety poll is all there is, and a warning says so.
fn start(routes: Arc<Mutex<Routes>>) -> Option<RecommendedWatcher> {
    let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
        if let Ok(event) = event {
            routes.lock().unwrap_or_else(PoisonError::into_inner).route(&event);
        }
    });
    watcher
        .inspect_err(|error| {
            tracing::warn!(%error, "no file-system notifications: commits are noticed every {SAFETY_POLL:?} only");
        })
        .ok()
}

/// Where SQLite writes for the database at `path`: the folder, and the names of the database, its -wal and its -journal.
fn place(path: &Path) -> Option<(PathBuf, [OsString; 3])> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // Symbolic links: SQLite writes beside the file they lead to.
    let real = std::fs::canonicalize(&absolute).unwrap_or(absolute);
    let name = real.file_name()?;
    Some((real.parent()?.to_owned(), ["", "-wal", "-journal"].map(|suffix| with_suffix(name, suffix))))
}

fn with_suffix(name: &OsStr, suffix: &str) -> OsString {
    let mut name = name.to_owned();
    name.push(suffix);
    name
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::bell::Heard;
    use super::*;

    #[test]
    fn a_write_beside_the_database_is_a_hint_and_one_elsewhere_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let (send, hints) = mpsc::channel();
        let wakes = Wakes::new();
        wakes.watch(&folder.path().join("shop.db"), move || {
            let _ = send.send(());
        });
        std::fs::write(folder.path().join("other.log"), "x").unwrap();
        assert!(hints.recv_timeout(Duration::from_millis(200)).is_err(), "another file is none of our business");
        std::fs::write(folder.path().join("shop.db-wal"), "x").unwrap();
        hints.recv_timeout(Duration::from_secs(10)).unwrap();
    }
    #[test]
    fn only_some_readers_watch_for_themselves_and_every_one_hears_of_a_write() {
        let folder = tempfile::tempdir().unwrap();
        let wakes = Wakes::new();
        let readers = OWN_WATCHES + 2;
        let mut bells: Vec<_> = (0..readers).map(|n| wakes.bell(&folder.path().join(format!("{n}.db")))).collect();
        let own = |bells: &[(Bell, Arc<()>)]| bells.iter().filter(|(bell, _)| !matches!(bell, Bell::Told(_))).count();
        if cfg!(target_os = "linux") {
            assert_eq!(own(&bells), OWN_WATCHES);
        }
        for (n, (bell, _)) in bells.iter_mut().enumerate() {
            std::fs::write(folder.path().join(format!("{n}.db-wal")), "x").unwrap();
            assert_eq!(bell.wait(Duration::from_secs(10)), Heard::Written, "{n}");
        }
        // A reader that has ended makes room for another.
        bells.remove(0);
        bells.push(wakes.bell(&folder.path().join("more.db")));
        if cfg!(target_os = "linux") {
            assert_eq!(own(&bells), OWN_WATCHES);
        }
    }
}
