//! Running other programs: every command is shown before it runs, and its exit status is never lost.
//!
//! Called by all other modules. Invariant: a program that cannot be started, or ends with something else than
//! success, is an error that names the whole command line.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::Finding;

/// The repository's root: the parent of this crate's folder.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Where build results go; `CARGO_TARGET_DIR` wins, as it does for cargo.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(PathBuf::from(dir)))
}

/// A command that runs in the repository's root.
///
/// What cargo has told this program about its own package is taken out of the environment: build scripts ask for it (ring's
/// does), so a cargo started here would build half of the workspace anew, and the next one at a terminal again.
pub fn command(program: impl AsRef<OsStr>, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|start| name.to_string_lossy().starts_with(start)) {
            command.env_remove(name);
        }
    }
    command
}

/// cargo, the one that runs this program.
pub fn cargo(args: &[&str]) -> Command {
    command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), args)
}

/// The command line as a person would type it.
pub fn shown(command: &Command) -> String {
    let quote = |word: &OsStr| {
        let word = word.to_string_lossy();
        if !word.is_empty() && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=:,+@".contains(c)) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    };
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let mut words = vec![quote(name)];
    words.extend(command.get_args().map(quote));
    words.join(" ")
}

/// Runs a command with its output on the terminal; anything but success is a [`Finding`].
pub fn run(command: &mut Command) -> Result<()> {
    let line = shown(command);
    println!("$ {line}");
    std::io::stdout().flush()?;
    let status = command.status().with_context(|| format!("cannot start `{line}`"))?;
    if status.success() { Ok(()) } else { Err(Finding(format!("`{line}` failed: {status}")).into()) }
}

/// Runs a command, shows its output as it comes, and returns it as well, with whether it succeeded.
///
/// Both streams go through one pipe, so that their lines keep their order.
pub fn tee(command: &mut Command) -> Result<(bool, String)> {
    let line = shown(command);
    println!("$ {line}");
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    if std::io::stdout().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let mut child = command.spawn().with_context(|| format!("cannot start `{line}`"))?;
    // The command holds copies of the pipe's writing end; the pipe ends when the last one is closed.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut reader = BufReader::new(reader);
    let mut seen = Vec::new();
    let mut text = Vec::new();
    while reader.read_until(b'\n', &mut text)? > 0 {
        std::io::stdout().write_all(&text)?;
        seen.append(&mut text);
    }
    let status = child.wait()?;
    Ok((status.success(), String::from_utf8_lossy(&seen).into_owned()))
}

/// Runs a command quietly and returns what it wrote to its standard output; a failure shows both streams.
pub fn read(command: &mut Command) -> Result<String> {
    let line = shown(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{line}`"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(Finding(format!("`{line}` failed: {}\n{text}{errors}", output.status)).into())
}

/// Whether a program of this name can be found, in the `PATH` or where Debian keeps servers.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|folder| folder.join(program).is_file())
}

/// The files of the repository, relative to the root: what git tracks, and what it would if asked to (new files that
/// are not ignored).
pub fn files() -> Result<Vec<String>> {
    let list = read(&mut command("git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))?;
    let names = list.split('\0').filter(|name| !name.is_empty());
    // A file that is deleted but not yet committed is still listed.
    Ok(names.filter(|name| root().join(name).is_file()).map(ToOwned::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_line() {
        let error = run(&mut command("sh", &["-c", "exit 3"])).unwrap_err();
        assert!(error.is::<Finding>());
        assert_eq!(error.to_string(), "`sh -c 'exit 3'` failed: exit status: 3");
        let error = run(&mut command("no-such-program-here", &[])).unwrap_err();
        assert_eq!(error.to_string(), "cannot start `no-such-program-here`");
    }

    #[test]
    fn the_outer_cargos_words_are_not_passed_on() {
        let names = read(&mut command("env", &[])).unwrap();
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some(), "cargo runs this test");
        assert!(!names.contains("CARGO_PKG_NAME") && !names.contains("CARGO_MANIFEST_DIR"), "{names}");
    }

    #[test]
    fn tee_returns_both_streams_in_their_order_and_the_truth() {
        let (fine, text) = tee(&mut command("sh", &["-c", "echo a; echo b >&2; echo c; exit 1"])).unwrap();
        assert_eq!((fine, text.as_str()), (false, "a\nb\nc\n"));
    }
}
