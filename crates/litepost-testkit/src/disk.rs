//! A disk that loses power, or fails: records what SQLite writes and syncs, makes the files that a cut would have left, and
//! refuses a write or a sync.
//!
//! Called by the tests of power cuts and of failing disks, each in a process of its own. Installed as SQLite's default
//! VFS: a copy of the system's, whose files write down what they are asked for and hand it on. Invariant: an image holds of each file what stood
//! there at its last sync before the cut, and of what came later only what the caller lets survive.
//!
//! A file that was synced is taken to be in its directory as well. Nothing here sees writes through shared memory: the
//! -shm is no part of an image, as it is no part of what SQLite recovers from.
#![allow(unsafe_code, reason = "SQLite's VFS is a table of C functions; test code only, and only here")]
#![allow(clippy::missing_panics_doc, reason = "test code says no by panicking")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::ffi::{self, sqlite3_file, sqlite3_io_methods, sqlite3_vfs};

/// What was asked of the disk, in order; and what the test says in between.
#[derive(Clone, Debug)]
pub enum Op {
    /// The file was opened, made if need be; the system's VFS syncs its directory with its first sync.
    Open(PathBuf),
    /// Bytes at a place of a file.
    Write(PathBuf, u64, Vec<u8>),
    /// A new length.
    Truncate(PathBuf, u64),
    /// What was written to the file so far is safe.
    Sync(PathBuf),
    /// The file is gone; `true`: its directory was synced as well.
    Delete(PathBuf, bool),
    /// The test's own word.
    Mark(String),
}

/// The methods of the system's files, and ours in their place. Leaked: SQLite keeps pointers to them.
type Methods = (&'static sqlite3_io_methods, &'static sqlite3_io_methods);

/// What the system's VFS does where ours does something.
#[derive(Clone, Copy)]
struct System {
    open: Open,
    delete: Delete,
}

type Open = unsafe extern "C" fn(*mut sqlite3_vfs, *const c_char, *mut sqlite3_file, c_int, *mut c_int) -> c_int;
type Delete = unsafe extern "C" fn(*mut sqlite3_vfs, *const c_char, c_int) -> c_int;

/// What a disk can be asked for, and refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Writing bytes.
    Write,
    /// Making them safe.
    Sync,
}

/// Which of the calls fails.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Of what kind it is.
    pub call: Call,
    /// Its number, from 1, counted from when the fault was set.
    pub nth: u64,
    /// Every later one as well.
    pub from_then_on: bool,
}

#[derive(Default)]
struct Recorder {
    ops: Vec<Op>,
    fault: Option<Fault>,
    /// Calls of the fault's kind since it was set.
    calls: u64,
    /// The path of each open file, by its address.
    files: HashMap<usize, PathBuf>,
    methods: Vec<Methods>,
    system: Option<System>,
}

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

fn recorder() -> MutexGuard<'static, Option<Recorder>> {
    RECORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes it the default of every connection that this process opens from now on.
pub fn install() {
    let mut recorder = recorder();
    if recorder.is_some() {
        return;
    }
    // SAFETY: asks for the default VFS, which lives as long as the process; the copy is leaked, so it does as well.
    unsafe {
        let system = ffi::sqlite3_vfs_find(ptr::null()).as_ref().expect("SQLite has a default VFS");
        let mut ours: sqlite3_vfs = *system;
        ours.zName = c"litepost-disk".as_ptr();
        ours.pNext = ptr::null_mut();
        ours.xOpen = Some(open);
        ours.xDelete = Some(delete);
        let (open, delete) = system.xOpen.zip(system.xDelete).expect("the VFS opens and deletes");
        *recorder = Some(Recorder { system: Some(System { open, delete }), ..Recorder::default() });
        let code = ffi::sqlite3_vfs_register(Box::leak(Box::new(ours)), 1);
        assert_eq!(code, ffi::SQLITE_OK, "the VFS could not be registered");
    }
}

/// Notes the test's own word among the operations.
pub fn mark(word: impl Into<String>) {
    note(Op::Mark(word.into()));
}

/// Everything so far; the record begins anew.
pub fn take() -> Vec<Op> {
    recorder().as_mut().map(|r| std::mem::take(&mut r.ops)).unwrap_or_default()
}

/// From now on this fails; `None`: nothing does.
///
/// # Panics
/// When it is not installed.
pub fn fail(fault: Option<Fault>) {
    let mut recorder = recorder();
    let recorder = recorder.as_mut().expect("the disk is installed");
    (recorder.fault, recorder.calls) = (fault, 0);
}

/// How many calls of its kind came since the fault was set.
pub fn calls() -> u64 {
    recorder().as_ref().map_or(0, |recorder| recorder.calls)
}

/// Whether this call fails.
fn fails(call: Call) -> bool {
    let mut recorder = recorder();
    let Some(recorder) = recorder.as_mut() else { return false };
    let Some(fault) = recorder.fault.filter(|fault| fault.call == call) else { return false };
    recorder.calls += 1;
    recorder.calls == fault.nth || (fault.from_then_on && recorder.calls > fault.nth)
}

fn note(op: Op) {
    if let Some(recorder) = recorder().as_mut() {
        recorder.ops.push(op);
    }
}

/// Writes into `folder` the files that a power cut after `ops` leaves. `survives` is asked for each write that was not
/// synced.
pub fn image(ops: &[Op], folder: &Path, mut survives: impl FnMut() -> bool) {
    let mut safe: BTreeMap<&Path, Vec<u8>> = BTreeMap::new();
    let mut pending: BTreeMap<&Path, Vec<&Op>> = BTreeMap::new();
    let mut new = BTreeSet::new();
    for op in ops {
        match op {
            Op::Write(path, ..) | Op::Truncate(path, _) | Op::Delete(path, false) => {
                pending.entry(path).or_default().push(op);
            }
            Op::Open(path) => drop(new.insert(path.as_path())),
            Op::Sync(path) => {
                if new.remove(path.as_path()) {
                    forget_deleted(&mut safe, &mut pending);
                }
                for op in pending.remove(path.as_path()).unwrap_or_default() {
                    apply(&mut safe, op);
                }
                safe.entry(path).or_default();
            }
            Op::Delete(path, true) => {
                pending.remove(path.as_path());
                safe.remove(path.as_path());
            }
            Op::Mark(_) => {}
        }
    }
    for op in pending.into_values().flatten().filter(|_| survives()) {
        apply(&mut safe, op);
    }
    for (path, bytes) in safe {
        std::fs::write(folder.join(path.file_name().expect("a file has a name")), bytes).expect("the image is written");
    }
}

/// The directory was synced: what was deleted stays deleted.
fn forget_deleted<'a>(safe: &mut BTreeMap<&'a Path, Vec<u8>>, pending: &mut BTreeMap<&'a Path, Vec<&'a Op>>) {
    for (path, ops) in pending {
        if let Some(at) = ops.iter().rposition(|op| matches!(op, Op::Delete(..))) {
            ops.drain(..=at);
            safe.remove(path);
        }
    }
}

fn apply<'a>(files: &mut BTreeMap<&'a Path, Vec<u8>>, op: &'a Op) {
    let index = |n: u64| usize::try_from(n).expect("files of the test are small");
    match op {
        Op::Write(path, at, bytes) => {
            let file = files.entry(path).or_default();
            let end = index(*at) + bytes.len();
            file.resize(file.len().max(end), 0);
            file[index(*at)..end].copy_from_slice(bytes);
        }
        Op::Truncate(path, len) => files.entry(path).or_default().resize(index(*len), 0),
        Op::Delete(path, _) => drop(files.remove(path.as_path())),
        Op::Open(_) | Op::Sync(_) | Op::Mark(_) => {}
    }
}

/// SAFETY: called by SQLite with its own arguments; `file` has room for the system's file object, which is opened in it,
/// and whose first field then is the table of its methods.
unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let mut recorder = recorder();
    let Some(recorder) = recorder.as_mut() else { return ffi::SQLITE_ERROR };
    let Some(System { open: system, .. }) = recorder.system else { return ffi::SQLITE_ERROR };
    unsafe {
        let code = system(vfs, name, file, flags, out);
        if code == ffi::SQLITE_OK
            && !name.is_null()
            && let Some(theirs) = (*file).pMethods.as_ref()
        {
            let path = PathBuf::from(CStr::from_ptr(name).to_string_lossy().into_owned());
            if flags & (ffi::SQLITE_OPEN_WAL | ffi::SQLITE_OPEN_MAIN_JOURNAL) != 0 {
                recorder.ops.push(Op::Open(path.clone()));
            }
            recorder.files.insert(file as usize, path);
            (*file).pMethods = ptr::from_ref(recorder.ours(theirs));
        }
        code
    }
}

impl Recorder {
    fn ours(&mut self, theirs: &'static sqlite3_io_methods) -> &'static sqlite3_io_methods {
        if let Some((_, ours)) = self.methods.iter().find(|(known, _)| ptr::eq(*known, theirs)) {
            return ours;
        }
        let ours = sqlite3_io_methods {
            xClose: Some(close),
            xWrite: Some(write),
            xTruncate: Some(truncate),
            xSync: Some(sync),
            ..*theirs
        };
        let ours: &'static _ = Box::leak(Box::new(ours));
        self.methods.push((theirs, ours));
        ours
    }
}

/// The path of an open file, and the system's methods for it.
fn known(file: *mut sqlite3_file) -> Option<(PathBuf, &'static sqlite3_io_methods)> {
    // SAFETY: SQLite hands over a file that it has open.
    let methods = unsafe { (*file).pMethods };
    let recorder = recorder();
    let recorder = recorder.as_ref()?;
    let theirs = recorder.methods.iter().find(|(_, ours)| ptr::eq(*ours, methods)).map(|(theirs, _)| *theirs)?;
    Some((recorder.files.get(&(file as usize))?.clone(), theirs))
}

/// SAFETY: `bytes` points to `count` bytes, says SQLite.
unsafe extern "C" fn write(file: *mut sqlite3_file, bytes: *const c_void, count: c_int, at: i64) -> c_int {
    let Some((path, theirs)) = known(file) else { return ffi::SQLITE_IOERR };
    let Some(theirs) = theirs.xWrite else { return ffi::SQLITE_IOERR };
    if fails(Call::Write) {
        return ffi::SQLITE_IOERR_WRITE;
    }
    unsafe {
        let copy = std::slice::from_raw_parts(bytes.cast::<u8>(), usize::try_from(count).unwrap_or(0)).to_vec();
        // Noted before it can be seen by others, who might act on it.
        note(Op::Write(path, u64::try_from(at).unwrap_or(0), copy));
        theirs(file, bytes, count, at)
    }
}

/// SAFETY: an open file of SQLite.
unsafe extern "C" fn truncate(file: *mut sqlite3_file, len: i64) -> c_int {
    let Some((path, theirs)) = known(file) else { return ffi::SQLITE_IOERR };
    note(Op::Truncate(path, u64::try_from(len).unwrap_or(0)));
    theirs.xTruncate.map_or(ffi::SQLITE_IOERR, |theirs| unsafe { theirs(file, len) })
}

/// SAFETY: an open file of SQLite.
unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    let Some((path, theirs)) = known(file) else { return ffi::SQLITE_IOERR };
    if fails(Call::Sync) {
        return ffi::SQLITE_IOERR_FSYNC;
    }
    // What is written while the system syncs may be safe or not; counted is what came before.
    note(Op::Sync(path));
    theirs.xSync.map_or(ffi::SQLITE_IOERR, |theirs| unsafe { theirs(file, flags) })
}

/// SAFETY: an open file of SQLite, which is not used again.
unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    let Some((_, theirs)) = known(file) else { return ffi::SQLITE_IOERR };
    if let Some(recorder) = recorder().as_mut() {
        recorder.files.remove(&(file as usize));
    }
    theirs.xClose.map_or(ffi::SQLITE_IOERR, |theirs| unsafe { theirs(file) })
}

/// SAFETY: `name` is a path that ends with NUL, says SQLite.
unsafe extern "C" fn delete(vfs: *mut sqlite3_vfs, name: *const c_char, sync_directory: c_int) -> c_int {
    let system = recorder().as_ref().and_then(|recorder| recorder.system);
    let Some(System { delete: system, .. }) = system else { return ffi::SQLITE_ERROR };
    unsafe {
        let path = PathBuf::from(CStr::from_ptr(name).to_string_lossy().into_owned());
        let code = system(vfs, name, sync_directory);
        if code == ffi::SQLITE_OK {
            note(Op::Delete(path, sync_directory != 0));
        }
        code
    }
}
