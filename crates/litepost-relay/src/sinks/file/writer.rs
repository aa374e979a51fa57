//! The file itself: opening, locking, cutting a torn line, appending whole lines, remembering what is in it.
//!
//! Called by the file sink under its lock. Invariant: between calls the file ends with a line break, and everything
//! in it has either been confirmed or is known here and will not be written again.

use std::collections::{HashSet, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use litepost::failpoint::{self, Point};
use litepost_core::{Unavailable, UnavailableKind};
use rustix::fs::{FlockOperation, flock};
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// How many of the newest ids are remembered. More than a pipeline's window (16 MiB of events of at least 192 bytes)
/// can hold, so everything that a crash can send again is among them.
const RECENT_IDS_MAX: usize = 131_072;

/// How much of the end of an existing file is read to learn its newest ids, in bytes: the window, twice over.
const TAIL_SCAN_BYTES: u64 = 32 << 20;

/// What every line begins with, by format. A torn end that begins otherwise is none of ours and is left alone.
const LINE_STARTS: [&[u8]; 2] = [b"{\"id\":\"", b"{\"specversion\":\""];

/// An open, locked file of event lines.
pub(super) struct EventFile {
    path: PathBuf,
    file: File,
    sync: bool,
    recent: Recent,
}

impl EventFile {
    /// The file that stands at `path` now: the open one, or a new one when there is none or it was renamed.
    pub(super) fn current<'a>(
        open: &'a mut Option<Self>,
        path: &Path,
        sync: bool,
    ) -> Result<&'a mut Self, Unavailable> {
        if open.as_ref().is_some_and(|file| !file.still_at(path)) {
            *open = None;
        }
        match open {
            Some(file) => Ok(file),
            None => Ok(open.insert(Self::open(path, sync)?)),
        }
    }

    fn open(path: &Path, sync: bool) -> Result<Self, Unavailable> {
        let fail = |e: &io::Error| unavailable(path, "cannot be opened", e);
        let fresh = match std::fs::metadata(path) {
            Ok(meta) if !meta.is_file() => {
                return Err(server(path, "is no regular file; use the stdout sink for pipes and terminals"));
            }
            Ok(_) => false,
            Err(e) if e.kind() == io::ErrorKind::NotFound => true,
            Err(e) => return Err(fail(&e)),
        };
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let mut file = options.open(path).map_err(|e| fail(&e))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| locked(path, &e.into()))?;
        cut_torn_line(&mut file, path)?;
        let recent = Recent::read(&mut file).map_err(|e| unavailable(path, "cannot be read", &e))?;
        if sync {
            // What a killed relay wrote may not be on disk yet, and what is found here counts as delivered.
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            file.sync_data()
                .and_then(|()| if fresh { File::open(parent)?.sync_all() } else { Ok(()) })
                .map_err(|e| unavailable(path, "cannot be synced", &e))?;
        }
        Ok(Self { path: path.to_owned(), file, sync, recent })
    }

    /// Whether `path` still names the open file (and not a renamed or deleted one).
    fn still_at(&self, path: &Path) -> bool {
        match (std::fs::metadata(path), self.file.metadata()) {
            (Ok(there), Ok(here)) => there.dev() == here.dev() && there.ino() == here.ino(),
            _ => false,
        }
    }

    /// The digest to remember `id` by, or `None` when the file holds it already.
    pub(super) fn unseen(&self, id: &str) -> Option<u128> {
        let digest = digest(id);
        (!self.recent.set.contains(&digest)).then_some(digest)
    }

    /// Appends whole lines with one write, syncs, and remembers their ids. On an error the file is as before.
    pub(super) fn append(&mut self, lines: &[u8], ids: &[u128]) -> Result<(), Unavailable> {
        if lines.is_empty() {
            return Ok(());
        }
        let end = self.file.metadata().map_err(|e| unavailable(&self.path, "cannot be measured", &e))?.len();
        let written = self.write(lines);
        if let Err(e) = written {
            // Half a batch, or one that may not be on disk (after a failed sync the page cache lies): take it back.
            let undone = self.file.set_len(end);
            return Err(match undone {
                Ok(()) => unavailable(&self.path, "cannot be written", &e),
                Err(again) => unavailable(&self.path, &format!("cannot be written ({e}), nor cut back"), &again),
            });
        }
        for id in ids {
            self.recent.push(*id);
        }
        Ok(())
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        pass(Point::FileBeforeWrite)?;
        self.file.write_all(lines)?;
        pass(Point::FileBeforeSync)?;
        if self.sync {
            self.file.sync_data()?;
        }
        pass(Point::FileAfterSync)
    }
}

/// Fails as a full disk does, when a test asks for it.
fn pass(point: Point) -> io::Result<()> {
    if failpoint::hit(point) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
}

/// Cuts what follows the last line break: the beginning of a line whose end a crash prevented.
fn cut_torn_line(file: &mut File, path: &Path) -> Result<(), Unavailable> {
    let (len, whole) = whole_lines(file).map_err(|e| unavailable(path, "cannot be read", &e))?;
    if whole == len {
        return Ok(());
    }
    let mut start = vec![0; usize::try_from(len - whole).unwrap_or(usize::MAX).min(16)];
    let read = file.seek(SeekFrom::Start(whole)).and_then(|_| file.read_exact(&mut start));
    read.map_err(|e| unavailable(path, "cannot be read", &e))?;
    if !LINE_STARTS.iter().any(|ours| ours.starts_with(&start) || start.starts_with(ours)) {
        return Err(server(
            path,
            "does not end with a line break, and its last line is no event; it was left as it is",
        ));
    }
    tracing::warn!(path = %path.display(), bytes = len - whole, "cut a torn line that a crash left at the end of the file");
    file.set_len(whole).and_then(|()| file.sync_data()).map_err(|e| unavailable(path, "cannot be repaired", &e))
}

/// The file's length, and where its last whole line ends.
fn whole_lines(file: &mut File) -> io::Result<(u64, u64)> {
    const STEP: u64 = 64 << 10;
    let len = file.metadata()?.len();
    let mut end = len;
    let mut buffer = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(STEP);
        file.seek(SeekFrom::Start(start))?;
        buffer.clear();
        Read::by_ref(file).take(end - start).read_to_end(&mut buffer)?;
        if let Some(at) = buffer.iter().rposition(|&b| b == b'\n') {
            return Ok((len, start + at as u64 + 1));
        }
        end = start;
    }
    Ok((len, 0))
}

/// The newest ids of the file, oldest first out.
#[derive(Default)]
struct Recent {
    queue: VecDeque<u128>,
    set: HashSet<u128>,
}

impl Recent {
    fn push(&mut self, id: u128) {
        if self.set.insert(id) {
            self.queue.push_back(id);
        }
        if self.queue.len() > RECENT_IDS_MAX
            && let Some(oldest) = self.queue.pop_front()
        {
            self.set.remove(&oldest);
        }
    }

    /// Reads the ids of the last lines. A line that is no event (somebody's comment) has none.
    fn read(file: &mut File) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct Id<'a> {
            #[serde(borrow)]
            id: std::borrow::Cow<'a, str>,
        }
        let start = file.metadata()?.len().saturating_sub(TAIL_SCAN_BYTES);
        file.seek(SeekFrom::Start(start))?;
        let mut recent = Self::default();
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let mut line = Vec::new();
        if start > 0 {
            // Most likely the middle of a line.
            reader.read_until(b'\n', &mut line)?;
            line.clear();
        }
        while reader.read_until(b'\n', &mut line)? > 0 {
            if let Ok(Id { id }) = serde_json::from_slice(&line) {
                recent.push(digest(&id));
            }
            line.clear();
        }
        Ok(recent)
    }
}

/// 128 bits of SHA-256: two ids that share them will not be met, and a collision would lose an event.
fn digest(id: &str) -> u128 {
    let full = Sha256::digest(id.as_bytes());
    full.iter().take(16).fold(0, |sum, &byte| (sum << 8) | u128::from(byte))
}

fn locked(path: &Path, e: &io::Error) -> Unavailable {
    match e.kind() {
        io::ErrorKind::WouldBlock => Unavailable::new(
            UnavailableKind::Busy,
            format!("{} is locked: another relay or destination writes it; give each its own file", path.display()),
        ),
        _ => unavailable(path, "cannot be locked", e),
    }
}

fn server(path: &Path, problem: &str) -> Unavailable {
    Unavailable::new(UnavailableKind::Server, format!("{} {problem}", path.display()))
}

fn unavailable(path: &Path, problem: &str, e: &io::Error) -> Unavailable {
    let kind = match e.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => UnavailableKind::Denied,
        _ => UnavailableKind::Server,
    };
    Unavailable::new(kind, format!("{} {problem}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str) -> String {
        format!("{{\"id\":\"{id}\",\"payload\":\"x\"}}\n")
    }

    fn open(path: &Path) -> Result<EventFile, Unavailable> {
        EventFile::open(path, true)
    }

    #[test]
    fn a_torn_line_is_cut_wherever_the_crash_fell() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let whole = line("a") + &line("b");
        let torn = line("c");
        for cut in 0..torn.len() {
            std::fs::write(&path, whole.clone() + &torn[..cut]).unwrap();
            let mut file = open(&path).unwrap();
            assert!(file.unseen("a").is_none() && file.unseen("b").is_none());
            let id = file.unseen("c").expect("a torn line was never delivered");
            file.append(torn.as_bytes(), &[id]).unwrap();
            assert!(file.unseen("c").is_none());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), whole.clone() + &torn, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_event_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        std::fs::write(&path, "SQLite format 3\0").unwrap();
        let error = open(&path).err().unwrap();
        assert!(error.message.contains("its last line is no event; it was left as it is"), "{}", error.message);
        assert_eq!(std::fs::read(&path).unwrap(), b"SQLite format 3\0");
        let error = open(dir.path()).err().unwrap();
        assert!(error.message.contains("is no regular file"), "{}", error.message);
    }

    #[test]
    fn two_writers_shut_each_other_out_and_a_renamed_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut slot = None;
        EventFile::current(&mut slot, &path, true).unwrap().append(line("a").as_bytes(), &[digest("a")]).unwrap();
        let error = open(&path).err().unwrap();
        assert!(error.kind == UnavailableKind::Busy && error.message.contains("another relay"), "{error:?}");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::rename(&path, dir.path().join("events.1")).unwrap();
        EventFile::current(&mut slot, &path, true).unwrap().append(line("b").as_bytes(), &[digest("b")]).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), line("b"));
        assert_eq!(std::fs::read_to_string(dir.path().join("events.1")).unwrap(), line("a"));
    }

    #[test]
    fn a_full_disk_leaves_no_torn_line() {
        // RLIMIT_FSIZE would take the whole test process; /dev/full is no regular file. A file opened read-only
        // fails in the same place.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        std::fs::write(&path, line("a")).unwrap();
        let file = File::open(&path).unwrap();
        let mut broken = EventFile { path: path.clone(), file, sync: true, recent: Recent::default() };
        assert!(broken.append(line("b").as_bytes(), &[digest("b")]).is_err());
        assert!(broken.unseen("b").is_some(), "what was not written is not remembered");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), line("a"));
    }
}
