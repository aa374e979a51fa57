//! The quick starts of the README, run as a newcomer would run them.
//!
//! Called by `test`. Invariant: each is run from its file in examples/quickstart, the file that the README
//! includes, in an empty folder, and its event must come out at the end of a real relay.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::shell::{cargo, command, read, root, run as sh, target};

/// A quick start: its name, and what runs it.
type Start = (&'static str, fn() -> Command);

const STARTS: &[Start] = &[("Rust", rust), ("Python", python), ("SQL", sql)];

/// Runs them all; says what it did in the words of a test runner.
pub fn test() -> Result<(bool, String)> {
    let litepost = litepost()?;
    sh(&mut cargo(&["build", "--quiet", "--package", "quickstart"]))?;
    let mut failed = 0;
    for (name, start) in STARTS {
        match one(&litepost, *start) {
            Ok(event) => println!("quick start in {name} ... ok: {event}"),
            Err(error) => {
                println!("quick start in {name} ... FAILED: {error:#}");
                failed += 1;
            }
        }
    }
    let closing = format!("test result: {} passed; {failed} failed", STARTS.len() - failed);
    println!("{closing}");
    Ok((failed == 0, closing))
}

/// Builds the binary and returns where it is.
pub fn litepost() -> Result<PathBuf> {
    sh(&mut cargo(&["build", "--quiet", "--package", "litepost-cli", "--bin", "litepost"]))?;
    Ok(target().join("debug/litepost"))
}

/// Runs one quick start in a folder of its own, delivers, and returns the line that came out.
fn one(litepost: &Path, start: fn() -> Command) -> Result<String> {
    let folder = Folder::new()?;
    std::fs::copy(root().join("examples/quickstart/litepost.toml"), folder.0.join("litepost.toml"))?;
    let here = |args: &[&str]| {
        let mut command = command(litepost, args);
        command.current_dir(&folder.0);
        command
    };
    read(&mut here(&["migrate", "--database", "shop.db"]))?;
    read(start().current_dir(&folder.0))?;
    read(&mut here(&["run", "--config", "litepost.toml", "--until-idle"]))?;
    let lines = std::fs::read_to_string(folder.0.join("events.jsonl")).context("the relay wrote no events.jsonl")?;
    let [line] = lines.lines().collect::<Vec<_>>()[..] else { bail!("one event was expected, not:\n{lines}") };
    let event: Value = serde_json::from_str(line)?;
    let expected = [("topic", "orders"), ("key", "501"), ("type", "OrderCreated")];
    if let Some((name, value)) = expected.iter().find(|(name, value)| event[*name] != **value) {
        bail!("{name} should be {value:?} in {line}");
    }
    let total = match &event["payload"] {
        Value::String(text) => serde_json::from_str::<Value>(text)?["total"].clone(),
        payload => payload["total"].clone(),
    };
    if total != 4999 {
        bail!("the payload's total should be 4999 in {line}");
    }
    Ok(line.to_owned())
}

fn rust() -> Command {
    Command::new(target().join("debug/quickstart"))
}

fn python() -> Command {
    let mut command = Command::new("python3");
    command.arg(root().join("examples/quickstart/shop.py"));
    command
}

fn sql() -> Command {
    let mut command = Command::new("sqlite3");
    command
        .args(["-bail", "shop.db"])
        .arg(format!(".read '{}'", root().join("examples/quickstart/shop.sql").display()));
    command
}

/// An empty folder that disappears when it is dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn new() -> Result<Self> {
        let path = read(&mut command("mktemp", &["--directory", "--tmpdir", "litepost-quickstart-XXXXXX"]))?;
        Ok(Self(PathBuf::from(path.trim())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
