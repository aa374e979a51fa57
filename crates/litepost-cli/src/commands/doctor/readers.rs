//! Who reads a database without a pause, and so keeps its WAL from being reset.
//!
//! SQLite's readers hold a lock on one of the bytes 123 to 127 of the -shm file (<https://sqlite.org/walformat.html>, 2.3.1);
//! Linux lists locks with their processes in `/proc/locks`. Invariant: only a process seen at every look counts.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

/// Looks while watching.
const LOOKS: u32 = 20;
/// The bytes of the readers' locks.
const READ_LOCKS: std::ops::RangeInclusive<u64> = 123..=127;

/// A process that reads.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    pub(super) pid: u32,
    /// Its command, when it may be known.
    pub(super) name: String,
}

/// The readers that were there at every look within `watch`.
pub(super) fn long(files: &[PathBuf], watch: Duration) -> Vec<(PathBuf, Reader)> {
    let inodes: Vec<(u64, &PathBuf)> = files
        .iter()
        .filter_map(|path| {
            let mut shm = path.as_os_str().to_owned();
            shm.push("-shm");
            Some((std::fs::metadata(shm).ok()?.ino(), path))
        })
        .collect();
    let mut always: Option<BTreeSet<(u64, u32)>> = None;
    for _ in 0..LOOKS {
        let Ok(text) = std::fs::read_to_string("/proc/locks") else { return Vec::new() };
        let now: BTreeSet<(u64, u32)> = text
            .lines()
            .filter_map(reader)
            .filter(|(inode, _)| inodes.iter().any(|(known, _)| known == inode))
            .collect();
        always = Some(always.map_or_else(|| now.clone(), |before| before.intersection(&now).copied().collect()));
        if always.as_ref().is_some_and(BTreeSet::is_empty) {
            return Vec::new();
        }
        std::thread::sleep(watch / LOOKS);
    }
    let name = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned();
    let of = |inode: u64| inodes.iter().filter(move |(known, _)| *known == inode);
    always
        .into_iter()
        .flatten()
        .filter(|(_, pid)| *pid != std::process::id())
        .flat_map(|(inode, pid)| of(inode).map(move |(_, path)| ((*path).clone(), pid)).collect::<Vec<_>>())
        .map(|(path, pid)| (path, Reader { pid, name: name(pid) }))
        .collect()
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
