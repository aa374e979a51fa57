//! sqloutbox's lock file: one daemon drains a folder.
//!
//! sqloutbox takes `flock(LOCK_EX)` on `.sqloutbox.lock` of its first app's folder. A litepost relay takes the shared lock:
//! that keeps sqloutbox's daemon out, is refused while one runs, and still lets a second relay stand by. The offline
//! import takes the exclusive one. Invariant: the file is never deleted and never written, since its inode is the lock.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::StoreError;

/// The lock's file name.
pub const LOCK_FILE: &str = ".sqloutbox.lock";

/// Held until it is dropped.
#[derive(Debug)]
pub struct DrainLock {
    file: File,
    path: PathBuf,
}

impl DrainLock {
    /// Keeps sqloutbox's daemon and the import out of `folder`; other litepost relays may come in.
    pub fn shared(folder: &Path) -> Result<Self, StoreError> {
        Self::take(folder, rustix::fs::FlockOperation::NonBlockingLockShared)
    }

    /// Keeps every daemon out of `folder`.
    pub fn exclusive(folder: &Path) -> Result<Self, StoreError> {
        Self::take(folder, rustix::fs::FlockOperation::NonBlockingLockExclusive)
    }

    /// Lets other litepost relays in, and still none of sqloutbox's daemons. Of several that ask at once one is given it.
    pub fn into_shared(self) -> Result<Self, StoreError> {
        match rustix::fs::flock(&self.file, rustix::fs::FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(self),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(held(self.path.clone(), &self.file)),
            Err(error) => {
                Err(StoreError::CannotOpen { path: self.path.clone(), reason: io::Error::from(error).to_string() })
            }
        }
    }

    fn take(folder: &Path, how: rustix::fs::FlockOperation) -> Result<Self, StoreError> {
        let path = folder.join(LOCK_FILE);
        let refused = |error: io::Error| StoreError::CannotOpen { path: path.clone(), reason: error.to_string() };
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(refused)?;
        match rustix::fs::flock(&file, how) {
            Ok(()) => Ok(Self { file, path }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(held(path, &file)),
            Err(error) => Err(refused(error.into())),
        }
    }
}

fn held(path: PathBuf, file: &File) -> StoreError {
    let holder = holder(file).unwrap_or_else(|| "a process that the system does not name".into());
    StoreError::DrainHeld { path, holder }
}

/// Which process holds the lock, as the kernel's list says: `process 4711 (python -m sqloutbox runservice)`.
fn holder(file: &File) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let inode = file.metadata().ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = pid_in(&locks, &inode)?;
    let command = std::fs::read(PathBuf::from("/proc").join(pid.to_string()).join("cmdline")).unwrap_or_default();
    let words: Vec<String> =
        command.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    // A command line may hold secrets further on; its first words say what it is.
    let shown = words.iter().take(4).map(String::as_str).collect::<Vec<_>>().join(" ");
    Some(if shown.trim().is_empty() { format!("process {pid}") } else { format!("process {pid} ({})", shown.trim()) })
}

/// The holder in a text like `1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF`. Device numbers differ between file systems
/// and the list, inodes do not.
fn pid_in(locks: &str, inode: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let held = fields.get(1) == Some(&"FLOCK") && fields.get(5)?.rsplit(':').next() == Some(inode);
        held.then(|| fields.get(4)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_share_it_and_an_import_is_alone() {
        let folder = tempfile::tempdir().unwrap();
        let first = DrainLock::shared(folder.path()).unwrap();
        let second = DrainLock::shared(folder.path()).unwrap();
        let refused = DrainLock::exclusive(folder.path()).unwrap_err();
        assert!(refused.to_string().contains(&format!("process {}", std::process::id())), "{refused}");
        drop((first, second));
        let alone = DrainLock::exclusive(folder.path()).unwrap();
        assert!(matches!(DrainLock::shared(folder.path()), Err(StoreError::DrainHeld { .. })));
        let one_of_many = alone.into_shared().unwrap();
        assert!(DrainLock::exclusive(folder.path()).is_err());
        drop((DrainLock::shared(folder.path()).unwrap(), one_of_many));
        assert!(folder.path().join(LOCK_FILE).exists());
    }

    #[test]
    fn the_holder_is_found_and_who_waits_is_not() {
        let text = "1: POSIX  ADVISORY  READ 1 08:01:99 0 EOF\n2: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 4712 08:01:131 0 EOF\n";
        assert_eq!(pid_in(text, "131"), Some(4711));
        assert_eq!(pid_in(text, "99"), None);
    }
}
