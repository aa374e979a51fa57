//! Who reads a database without a pause, and so keeps its WAL from being reset.
//!
//! SQLite's readers hold a lock on one of the bytes 123 to 127 of the -shm file (<https://sqlite.org/walformat.html>, 2.3.1).
//! Linux tells a process's locks on a file it has open in `/proc/PID/fdinfo/FD`, whole at every look, to whoever may look
//! into the process; of the others it tells in `/proc/locks`, where a busy machine's list can lack a line at some look and
//! where inodes are those below an overlay.
//!
//! Asked by `litepost doctor` and by `/metrics`. Invariants: only a process seen at every look counts, and never this one;
//! the -shm is not opened, since closing it would drop the locks that SQLite holds on it for this process.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Looks while watching.
const LOOKS: u32 = 20;
/// The bytes of the readers' locks.
const READ_LOCKS: std::ops::RangeInclusive<u64> = 123..=127;

/// A process that reads.
#[derive(Clone, Debug)]
pub struct Reader {
    /// Its number.
    pub pid: u32,
    /// Its command, when it may be known.
    pub name: String,
}

/// The readers that were there at every look within `watch`.
#[must_use]
pub fn long(files: &[PathBuf], watch: Duration) -> Vec<(PathBuf, Reader)> {
    let shms: Vec<(usize, Metadata)> = files
        .iter()
        .enumerate()
        .filter_map(|(at, path)| {
            let mut shm = path.as_os_str().to_owned();
            shm.push("-shm");
            Some((at, std::fs::metadata(shm).ok()?))
        })
        .collect();
    let (mut always, closed) = first_look(&shms);
    for _ in 1..LOOKS {
        if always.is_empty() {
            return Vec::new();
        }
        std::thread::sleep(watch / LOOKS);
        let listed = listed(&shms);
        always.retain(|&(at, pid)| {
            if closed.contains(&pid) { listed.contains(&(at, pid)) } else { reads(pid, &shms).contains(&at) }
        });
    }
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
    always.into_iter().map(|(at, pid)| (files[at].clone(), Reader { pid, name: name(pid) })).collect()
}

/// Who reads which file now, and the processes that may not be looked into.
fn first_look(shms: &[(usize, Metadata)]) -> (BTreeSet<(usize, u32)>, BTreeSet<u32>) {
    let (mut found, mut closed) = (BTreeSet::new(), BTreeSet::new());
    let Ok(processes) = std::fs::read_dir("/proc") else { return (found, closed) };
    for pid in processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        if pid == std::process::id() {
            continue;
        }
        if std::fs::read_dir(format!("/proc/{pid}/fd")).is_err() {
            closed.insert(pid);
        }
        found.extend(reads(pid, shms).into_iter().map(|at| (at, pid)));
    }
    found.extend(listed(shms).into_iter().filter(|(_, pid)| closed.contains(pid)));
    (found, closed)
}

/// The files of which a process holds a reader's lock, as far as it may be looked into.
fn reads(pid: u32, shms: &[(usize, Metadata)]) -> BTreeSet<usize> {
    let process = Path::new("/proc").join(pid.to_string());
    let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let of = |fd: std::fs::DirEntry| {
        let opened = std::fs::metadata(fd.path()).ok()?;
        let (at, _) = shms.iter().find(|(_, shm)| (shm.dev(), shm.ino()) == (opened.dev(), opened.ino()))?;
        let told = std::fs::read_to_string(process.join("fdinfo").join(fd.file_name())).ok()?;
        told.lines().filter_map(|line| line.strip_prefix("lock:")).find_map(reader).map(|_| *at)
    };
    open.filter_map(of).collect()
}

/// Who reads which file by the system's list of locks.
fn listed(shms: &[(usize, Metadata)]) -> BTreeSet<(usize, u32)> {
    let text = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let file = |inode| shms.iter().find(|(_, shm)| shm.ino() == inode).map(|(at, _)| *at);
    text.lines().filter_map(reader).filter_map(|(inode, pid)| Some((file(inode)?, pid))).collect()
}

/// Inode and process of a reader's lock: `1: POSIX  ADVISORY  READ 5546 fe:00:10896646 124 124`.
fn reader(line: &str) -> Option<(u64, u32)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "POSIX" | "OFDLCK", _, "READ", pid, place, first, last] = words.as_slice() else { return None };
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let reads = READ_LOCKS.contains(&first) && READ_LOCKS.contains(&last);
    reads.then_some((place.rsplit(':').next()?.parse().ok()?, pid.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_readers_locks_count() {
        assert_eq!(reader("1: POSIX  ADVISORY  READ 5546 fe:00:10896646 124 124"), Some((10_896_646, 5_546)));
        for other in [
            "1: POSIX  ADVISORY  READ 5546 fe:00:10896646 128 128",
            "1: POSIX  ADVISORY  WRITE 5546 fe:00:10896646 124 124",
            "3: FLOCK  ADVISORY  WRITE 4452 fe:00:7504277 0 EOF",
            "1: -> POSIX  ADVISORY  READ 5546 fe:00:10896646 124 124",
            "",
        ] {
            assert_eq!(reader(other), None, "{other}");
        }
    }
}
