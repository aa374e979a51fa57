//! The system calls of the relay, against those that its unit allows: no service manager runs in the tests, so the relay is
//! started by the unit's command line, looked at by strace, and judged by systemd's own lists.
//!
//! Called by `deb`. Invariant: a call that the unit would refuse is a failure, whether or not the relay would survive it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::Finding;
use crate::shell::{command, read};

/// The same command under strace: it keeps its process id, since the looking is done by another process.
pub fn watched(line: &Command, trace: &Path) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["--daemonize=grandchild", "--follow-forks", "--output"]).arg(trace);
    strace.arg(line.get_program()).args(line.get_args());
    if let Some(folder) = line.get_current_dir() {
        strace.current_dir(folder);
    }
    strace.env_clear().env("PATH", "/usr/bin:/bin");
    strace
}

/// Every call of the trace is one that the unit lets through.
pub fn judge(trace: &Path, unit: &str) -> Result<()> {
    let calls = calls(&std::fs::read_to_string(trace)?);
    let groups = groups(&read(&mut command("systemd-analyze", &["syscall-filter", "--no-pager"]))?);
    let allowed = allowed(unit, &groups).context("the unit has no SystemCallFilter")?;
    let refused: Vec<&String> = calls.difference(&allowed).collect();
    if calls.len() < 20 {
        return Err(Finding(format!("a relay that makes only these calls was not looked at: {calls:?}")).into());
    }
    if !refused.is_empty() {
        return Err(Finding(format!("the unit refuses what the relay calls: {refused:?}")).into());
    }
    println!("{} system calls of the relay, all of them allowed by the unit", calls.len());
    Ok(())
}

/// The names of the calls: `1234  openat(AT_FDCWD, …`.
fn calls(trace: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let call = line.split_once(char::is_whitespace)?.1.trim_start();
        let (name, _) = call.split_once('(')?;
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_').then(|| name.to_owned())
    };
    trace.lines().filter_map(name).collect()
}

/// systemd's groups: a line `@name`, below it what it has, indented; `#` says what it is for.
fn groups(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines() {
        let word = line.trim();
        if line.starts_with('@') {
            word.clone_into(&mut last);
        } else if line.starts_with(' ') && !word.is_empty() && !word.starts_with('#') {
            groups.entry(last.clone()).or_default().push(word.to_owned());
        }
    }
    groups
}

/// What the unit's lines let through, the calls of `@default` always.
fn allowed(unit: &str, groups: &BTreeMap<String, Vec<String>>) -> Option<BTreeSet<String>> {
    let mut lines = unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")).peekable();
    lines.peek()?;
    let mut allowed = expanded("@default", groups);
    for line in lines {
        let (words, taken) = match line.strip_prefix('~') {
            Some(words) => (words, true),
            None => (line, false),
        };
        for call in words.split_whitespace().flat_map(|word| expanded(word, groups)) {
            if taken {
                allowed.remove(&call)
            } else {
                allowed.insert(call)
            };
        }
    }
    Some(allowed)
}

fn expanded(word: &str, groups: &BTreeMap<String, Vec<String>>) -> BTreeSet<String> {
    match groups.get(word) {
        Some(inside) => inside.iter().flat_map(|word| expanded(word, groups)).collect(),
        None => BTreeSet::from([word.to_owned()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: &str =
        "@default\n    # Always\n    futex\n\n@io\n    # Files\n    read\n    @low\n\n@low\n    # \n    chown\n";

    #[test]
    fn what_is_taken_away_is_not_allowed() {
        let groups = groups(GROUPS);
        let of = |unit: &str| allowed(unit, &groups).map(|calls| calls.into_iter().collect::<Vec<_>>().join(" "));
        assert_eq!(of("User=x\n"), None);
        assert_eq!(of("SystemCallFilter=@io\n").as_deref(), Some("chown futex read"));
        assert_eq!(of("SystemCallFilter=@io\nSystemCallFilter=~@low\n").as_deref(), Some("futex read"));
    }

    #[test]
    fn a_trace_is_its_calls() {
        let trace = "12  read(3, \"(\", 1) = 1\n13  <... futex resumed>) = 0\n12  +++ exited with 0 +++\n12 write(1, \"\", 0) = 0\n";
        assert_eq!(calls(trace).into_iter().collect::<Vec<_>>(), ["read", "write"]);
    }
}
