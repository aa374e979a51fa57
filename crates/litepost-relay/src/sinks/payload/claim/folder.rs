//! The claim check's store on a file system: one file a payload, below a folder of the outbox file's own.
//!
//! Called by the claim check. Invariant: a file under its own name is whole and synced; what a crash has left unfinished has
//! another name, and goes when it is certain that nobody writes it any more.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use litepost_core::{Unavailable, UnavailableKind};

use super::error;
use crate::sink::SinkConfigError;

/// What an unfinished file's name ends with.
const UNFINISHED: &str = ".part";
/// An unfinished file that nobody has written to for so long is what a crash has left: a payload is written in one go.
const LEFT_AFTER: Duration = Duration::from_secs(3_600);
/// Files this process has begun to write.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// A folder for payloads.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Whether this process has looked for what crashes have left.
    swept: Arc<AtomicBool>,
}

impl Folder {
    /// Checks the path, and makes a URL of it when one is asked for.
    pub(super) fn new(path: &Path, url: bool) -> Result<(Self, String), SinkConfigError> {
        let path = std::path::absolute(path).map_err(|e| error("folder", &format!("is no path: {e}")))?;
        let url = match file_url(&path) {
            Some(found) => found,
            None if !url => String::new(),
            None => return Err(error("folder", "cannot be written as a file:// URL")),
        };
        Ok((Self { path, swept: Arc::default() }, url))
    }

    /// Puts a payload in its place.
    pub(super) async fn put(&self, origin: &str, name: &str, payload: Bytes) -> Result<(), Unavailable> {
        let (folder, swept) = (self.path.clone(), Arc::clone(&self.swept));
        let (origin, name) = (origin.to_owned(), name.to_owned());
        // Syncing blocks for as long as the disk takes.
        let written = tokio::task::spawn_blocking(move || write(&folder, &origin, &name, &payload, &swept)).await;
        written.map_err(io::Error::other).flatten().map_err(|e| {
            Unavailable::new(UnavailableKind::Server, format!("claim check: {}: {e}", self.path.display()))
        })
    }
}

/// Puts a file in its place, whole and durable. Its name holds its digest, so one that is there already is the same.
fn write(folder: &Path, origin: &str, name: &str, payload: &[u8], swept: &AtomicBool) -> io::Result<()> {
    let own = folder.join(origin);
    match fs::create_dir(&own) {
        Ok(()) => File::open(folder)?.sync_all()?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e),
    }
    let place = own.join(name);
    if fs::metadata(&place).is_ok_and(|there| there.len() == payload.len() as u64) {
        return Ok(());
    }
    // Two destinations or relays may write the same payload at once: each its own file, and the last rename wins with
    // the same bytes.
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let unfinished = own.join(format!("{name}.{}-{number}{UNFINISHED}", std::process::id()));
    let mut file = File::create(&unfinished)?;
    if let Err(error) = file.write_all(payload).and_then(|()| file.sync_all()) {
        // A full disk, say: what is half there must not keep it full.
        let _ = fs::remove_file(&unfinished);
        return Err(error);
    }
    if !swept.swap(true, Ordering::Relaxed) {
        sweep(&own, &unfinished);
    }
    fs::rename(&unfinished, &place)?;
    File::open(&own)?.sync_all()
}

/// Removes what crashes have left unfinished. Ages are counted from a file written just now: the folder's clock may be
/// another machine's. What cannot be removed stays; it is in nobody's way.
fn sweep(own: &Path, newest: &Path) {
    let modified = |path: &Path| fs::metadata(path).and_then(|found| found.modified());
    let (Ok(now), Ok(entries)) = (modified(newest), fs::read_dir(own)) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let unfinished = path.to_str().is_some_and(|path| path.ends_with(UNFINISHED));
        let old = || modified(&path).is_ok_and(|then| now.duration_since(then).is_ok_and(|age| age > LEFT_AFTER));
        if unfinished && old() {
            let _ = fs::remove_file(&path);
        }
    }
}

fn file_url(folder: &Path) -> Option<String> {
    Some(reqwest::Url::from_file_path(folder).ok()?.as_str().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_crash_left_unfinished_goes_and_what_is_being_written_stays() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("origin");
        fs::create_dir(&own).unwrap();
        let make = |name: &str, age: Duration| {
            let file = File::create(own.join(name)).unwrap();
            let now = file.metadata().unwrap().modified().unwrap();
            file.set_modified(now - age).unwrap();
        };
        make("1-aa.77-0.part", 2 * LEFT_AFTER);
        make("2-bb.77-1.part", LEFT_AFTER / 2);
        make("3-cc", 2 * LEFT_AFTER);
        let swept = AtomicBool::new(false);
        write(folder.path(), "origin", "4-dd", b"payload", &swept).unwrap();
        let mut names: Vec<_> = fs::read_dir(&own).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["2-bb.77-1.part", "3-cc", "4-dd"]);
        assert_eq!(fs::read(own.join("4-dd")).unwrap(), b"payload");
    }
}
