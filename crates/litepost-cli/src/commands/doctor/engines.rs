//! Which processes have a database open through two SQLite libraries.
//!
//! A lock that a process holds on a file is gone when any part of the process closes that file, and each SQLite library
//! knows only of its own connections (<https://sqlite.org/howtocorrupt.html>, 2.2.1): two of them on one file undo each
//! other's locks. Invariant: reads only, and only of processes that have one of the files open; a library counts when it
//! holds an engine, not because of its name.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use litepost_web::readers::Reader;

/// Texts that stand in every engine, and hardly elsewhere together: the head of a database file, and the schema's table.
const MARKS: [&[u8]; 2] =
    [b"SQLite format 3\0", b"CREATE TABLE x(type text,name text,tbl_name text,rootpage int,sql text)"];

/// Processes that have a file open and hold more than one engine, with the files that bring them.
pub(super) fn several(files: &[PathBuf]) -> Vec<(PathBuf, Reader, Vec<PathBuf>)> {
    let known: Vec<(u64, u64)> =
        files.iter().map(|path| std::fs::metadata(path).map_or((0, 0), |found| (found.dev(), found.ino()))).collect();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut seen = BTreeMap::new();
    let mut found = Vec::new();
    for pid in processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()) {
        let process = Path::new("/proc").join(pid.to_string());
        let Some(at) = opened(&process, &known) else { continue };
        let engines: Vec<PathBuf> =
            mapped(&process).into_iter().filter(|path| engine(&process, path, &mut seen)).collect();
        if engines.len() > 1 {
            let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default().trim().to_owned();
            found.push((files[at].clone(), Reader { pid, name }, engines));
        }
    }
    found
}

/// The first of the files that the process has open.
fn opened(process: &Path, known: &[(u64, u64)]) -> Option<usize> {
    let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let which = |fd: std::fs::DirEntry| {
        let file = std::fs::metadata(fd.path()).ok()?;
        known.iter().position(|known| *known == (file.dev(), file.ino()))
    };
    open.filter_map(which).min()
}

/// The files whose code is in the process.
fn mapped(process: &Path) -> BTreeSet<PathBuf> {
    let maps = std::fs::read_to_string(process.join("maps")).unwrap_or_default();
    maps.lines().filter_map(code).map(PathBuf::from).collect()
}

/// The path of a line that maps code: `7f…-7f… r-xp 00001000 fe:00 123   /usr/lib/libsqlite3.so.0.8.6`.
fn code(line: &str) -> Option<&str> {
    let path = line.get(line.find('/')?..)?;
    line.split_whitespace().nth(1).filter(|rights| rights.contains('x')).map(|_| path)
}

/// Whether a library (or the program) holds an engine. It is read as the process sees it, in a container of its own too.
fn engine(process: &Path, path: &Path, seen: &mut BTreeMap<(u64, u64), bool>) -> bool {
    let path = process.join("root").join(path.strip_prefix("/").unwrap_or(path));
    let Ok(file) = std::fs::metadata(&path) else { return false };
    *seen.entry((file.dev(), file.ino())).or_insert_with(|| {
        let bytes = std::fs::read(&path).unwrap_or_default();
        MARKS.iter().all(|mark| memchr::memmem::find(&bytes, mark).is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_counts() {
        assert_eq!(code("7f-80 r-xp 00001000 fe:00 123      /usr/lib/a b.so"), Some("/usr/lib/a b.so"));
        assert_eq!(code("7f-80 r--p 00001000 fe:00 123      /usr/lib/a.so"), None);
        assert_eq!(code("7f-80 r-xp 00000000 00:00 0        [vdso]"), None);
    }

    #[test]
    fn this_program_holds_one() {
        let me = Path::new("/proc/self");
        let exe = std::fs::read_link("/proc/self/exe").unwrap();
        assert!(mapped(me).contains(&exe) && engine(me, &exe, &mut BTreeMap::new()));
    }
}
