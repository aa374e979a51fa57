//! `cargo xtask instructions`: what an event costs in processor instructions, against a budget.
//!
//! Called by people and by `ci`. Times depend on the machine and on who else uses it; instructions counted by valgrind
//! repeat, so a change that makes the path longer is seen before it lands. Invariant: a part without a budget fails the
//! run, and so does one above it; the budget is raised in the commit that needs it, never by itself.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::Finding;
use crate::shell::{cargo, command, read, root, run as sh, target};

/// Options of `cargo xtask instructions`.
#[derive(clap::Args)]
pub struct Args {
    /// Only one part
    part: Option<String>,
}

impl Args {
    /// Every part.
    pub fn all() -> Self {
        Self { part: None }
    }
}

/// What is counted; parts of the bench `instructions` of litepost-relay.
const PARTS: [&str; 4] = ["enqueue", "drain", "settle", "dialect"];
const BUDGETS: &str = "xtask/instructions.json";
/// A part runs for both; the difference is what the events between cost.
const EVENTS: (i64, i64) = (2_000, 6_000);

/// Counts every part and compares it with its budget.
pub fn run(args: &Args) -> Result<()> {
    let budgets: Value = serde_json::from_str(&std::fs::read_to_string(root().join(BUDGETS))?)?;
    let chosen: Vec<&str> =
        PARTS.into_iter().filter(|part| args.part.as_ref().is_none_or(|name| name == part)).collect();
    if chosen.is_empty() {
        bail!("there is no such part; there are: {}", PARTS.join(", "));
    }
    let bench = built()?;
    let folder = target().join("instructions");
    std::fs::create_dir_all(&folder)?;
    let mut found = Vec::new();
    println!("{:<10} {:>24} {:>10}", "part", "instructions per event", "budget");
    for part in chosen {
        let seen = per_event(&bench, part, &folder)?;
        let budget = budgets[part].as_i64().with_context(|| format!("{BUDGETS} has no budget for {part}"))?;
        println!("{part:<10} {seen:>24} {budget:>10}");
        found.extend(verdict(part, seen, budget, &folder));
    }
    if found.is_empty() { Ok(()) } else { Err(Finding(found.join("\n")).into()) }
}

/// What to say of a part that is above its budget.
fn verdict(part: &str, seen: i64, budget: i64, folder: &Path) -> Option<String> {
    (seen > budget).then(|| {
        format!(
            "{part}: {seen} instructions per event, its budget is {budget}.\n  where they go: callgrind_annotate {}\n  \
             when they are worth it: raise \"{part}\" in {BUDGETS} to a little above {seen}, in the commit that needs it, and \
             say there what they buy",
            out(folder, part).display()
        )
    })
}

/// The profile that callgrind leaves behind.
fn out(folder: &Path, part: &str) -> PathBuf {
    folder.join(format!("{part}.callgrind"))
}

fn per_event(bench: &Path, part: &str, folder: &Path) -> Result<i64> {
    let counts = [EVENTS.0, EVENTS.1].map(|events| count(bench, part, events, folder));
    let [few, many] = counts;
    Ok((many? - few?) / (EVENTS.1 - EVENTS.0))
}

/// The instructions of one run, on files made anew.
fn count(bench: &Path, part: &str, events: i64, folder: &Path) -> Result<i64> {
    let data = folder.join("data");
    if data.exists() {
        std::fs::remove_dir_all(&data)?;
    }
    std::fs::create_dir_all(&data)?;
    let (data, events, most) = (data.display().to_string(), events.to_string(), EVENTS.1.to_string());
    read(&mut command(bench, &["--prepare", &data, &most]))?;
    let profile = format!("--callgrind-out-file={}", out(folder, part).display());
    let mut valgrind = command("valgrind", &["--tool=callgrind", &profile]);
    let output =
        valgrind.arg(bench).args(["--part", part, &data, &events]).output().context("cannot start valgrind")?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("{part} failed under valgrind: {log}");
    }
    collected(&log).with_context(|| format!("valgrind counted nothing: {log}"))
}

/// The count in callgrind's closing lines: `==1== Collected : 123`.
fn collected(log: &str) -> Option<i64> {
    log.lines().find_map(|line| line.split_once("Collected :")).and_then(|(_, count)| count.trim().parse().ok())
}

/// Builds the bench; where cargo put it.
fn built() -> Result<PathBuf> {
    let scope = ["bench", "--workspace", "--all-features", "--bench", "instructions", "--no-run"];
    sh(&mut cargo(&scope))?;
    let text = read(cargo(&scope).arg("--message-format=json"))?;
    let messages = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_ours = |message: &Value| message["target"]["name"] == "instructions" && message["executable"].is_string();
    let found = messages.filter(is_ours).find_map(|message| message["executable"].as_str().map(PathBuf::from));
    found.context("cargo names no executable for the bench `instructions`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_above_its_budget_is_told_how_to_go_on() {
        assert_eq!(collected("==7== Events    : Ir\n==7== Collected : 26132\n==7==\n"), Some(26_132));
        assert_eq!(collected("nothing"), None);
        assert_eq!(verdict("drain", 100, 100, Path::new("t")), None);
        let told = verdict("drain", 101, 100, Path::new("t")).unwrap_or_default();
        assert!(
            told.contains("raise \"drain\" in xtask/instructions.json") && told.contains("t/drain.callgrind"),
            "{told}"
        );
    }
}
