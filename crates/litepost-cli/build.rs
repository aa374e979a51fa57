//! Tells the program which commit it was built from: `LITEPOST_COMMIT` where that is set, else what the repository around
//! this crate says. No git is started; a crate from a registry, or in somebody else's repository, says none.

#![allow(clippy::print_stdout, reason = "this is how a build script answers")]

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-env-changed=LITEPOST_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let given = std::env::var("LITEPOST_COMMIT").ok().filter(|text| !text.is_empty());
    let Some(commit) = given.or_else(of_repository) else { return };
    println!("cargo::rustc-env=LITEPOST_COMMIT={}", &commit[..commit.len().min(12)]);
}

/// The commit of the repository that has this crate in its `crates/`.
fn of_repository() -> Option<String> {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR")?);
    // A crate that was packed for a registry has this file, wherever it was unpacked.
    let ours = here.file_name()? == "litepost-cli" && here.parent()?.file_name()? == "crates";
    if !ours || here.join(".cargo_vcs_info.json").exists() {
        return None;
    }
    let (own, shared) = folders(&here.parent()?.parent()?.join(".git"))?;
    // Every commit and checkout adds a line to it.
    read(&own.join("logs/HEAD"));
    let head = read(&own.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ") else { return hash(&head) };
    if let Some(commit) = read(&shared.join(name)) {
        return hash(&commit);
    }
    // `git pack-refs` (and a fresh clone) puts them into one file.
    let packed = read(&shared.join("packed-refs"))?;
    packed.lines().find_map(|line| hash(line.strip_suffix(name)?.trim_end()))
}

/// The repository's own folder, and the one with the branches: another one in a worktree.
fn folders(git: &Path) -> Option<(PathBuf, PathBuf)> {
    if git.is_dir() {
        return Some((git.to_owned(), git.to_owned()));
    }
    let own = git.parent()?.join(read(git)?.strip_prefix("gitdir: ")?);
    let shared = own.join(read(&own.join("commondir"))?);
    Some((own, shared))
}

/// A file's text, without spaces around it. The program is built again when it changes.
fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text.trim().to_owned())
}

fn hash(text: &str) -> Option<String> {
    (text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| text.to_owned())
}
