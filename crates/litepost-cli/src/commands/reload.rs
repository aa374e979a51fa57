//! `litepost reload`: has the running relay read its configuration again.
//!
//! Invariant: the file is checked before any process is told; the relay's own answer, which it writes into the audit
//! trail, decides the exit code.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use litepost::connection::{self, Access};
use litepost::lanes::HolderInfo;
use litepost::operate::{AuditEntry, audit_trail};
use litepost_core::Millis;
use litepost_relay::config::Purpose;
use serde::Serialize;

use super::run::RELOAD;
use crate::failure::Failure;
use crate::{clock, output, places, report};

const EXAMPLES: &str = "\
Examples:
  litepost reload                        check litepost.toml here, then have its relay carry it out
  litepost reload --config /etc/litepost.toml --pid 4711

The relay is found by the lanes it holds in the outbox files. A relay on this machine that holds none (a standby) is not
found: name it with --pid. Destinations whose settings stay the same go on untouched; a file with a mistake changes
nothing, and the exit code is 1.";

/// Deeds of the audit trail that are looked at: a reload is among the newest.
const DEEDS: u32 = 200;
/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Have the relay read its configuration again.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Reload {
    /// The configuration; litepost.toml or outbox.toml in the working folder unless given
    #[arg(long, short = 'c', value_name = "FILE")]
    config: Option<PathBuf>,
    /// The relay's process; found by the lanes it holds unless given
    #[arg(long)]
    pid: Option<u32>,
    /// How long the relay may take
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    pid: u32,
    #[serde(flatten)]
    detail: serde_json::Value,
}

/// Checks the file, tells the relay, waits for its answer.
pub(crate) fn run(command: &Reload) -> Result<(), Failure> {
    let config = places::config(command.config.as_deref(), Purpose::Deliver)?;
    report::findings(&config.source, &config.warnings);
    let mut files: Vec<PathBuf> =
        config.files().into_iter().map(|file| file.path).filter(|path| path.exists()).collect();
    files.dedup();
    let pids = match command.pid {
        Some(pid) => BTreeSet::from([is_relay(pid)?]),
        None => holders(&files)?,
    };
    let before: BTreeMap<&Path, i64> = files.iter().map(|file| (file.as_path(), newest(file))).collect();
    for &pid in &pids {
        signal(pid)?;
    }
    let deadline =
        clock::wall_ms().saturating_add(i64::try_from(command.timeout).unwrap_or(i64::MAX).saturating_mul(1_000));
    let mut answers = BTreeMap::new();
    while answers.len() < pids.len() {
        for (file, &seen) in &before {
            for deed in deeds(file).into_iter().filter(|deed| deed.audit_id > seen && deed.action == RELOAD) {
                let pid = deed.detail["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_default();
                if pids.contains(&pid) {
                    answers.entry(pid).or_insert(deed.detail);
                }
            }
        }
        if answers.len() < pids.len() && clock::wall_ms() > deadline {
            let missing: Vec<String> =
                pids.iter().filter(|pid| !answers.contains_key(pid)).map(u32::to_string).collect();
            return Err(Failure::user(
                format!("process {} has not confirmed within {} s", missing.join(", "), command.timeout),
                "see its log; it goes on by itself",
            ));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let answers: Vec<Answer> = answers.into_iter().map(|(pid, detail)| Answer { pid, detail }).collect();
    tell(&answers, command.json)
}

fn tell(answers: &[Answer], json: bool) -> Result<(), Failure> {
    if json {
        output::json(&answers)?;
    }
    let mut all = true;
    for Answer { pid, detail } in answers {
        let names = |key: &str| -> Vec<&str> {
            detail[key].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str).collect()
        };
        if let Some(error) = detail["error"].as_str() {
            all = false;
            report::error(
                &format!("relay {pid} has changed nothing: {}", output::harmless(error)),
                "put it right and run `litepost reload` again",
            );
        } else if !json {
            let mut out = output::Out::new();
            out.line(format_args!("relay {pid} carries out {}", detail["config"].as_str().unwrap_or_default()))?;
            for key in ["started", "stopped", "restarted", "kept"] {
                if !names(key).is_empty() {
                    out.line(format_args!("  {key}: {}", names(key).join(", ")))?;
                }
            }
            if detail["settled"] == false {
                out.line("  not everything has stopped or started yet; it goes on by itself")?;
            }
            out.flush()?;
        }
    }
    if all { Ok(()) } else { Err(Failure::Finding) }
}

/// The relays on this machine that hold a lane.
fn holders(files: &[PathBuf]) -> Result<BTreeSet<u32>, Failure> {
    let mut pids = BTreeSet::new();
    for file in files {
        let Ok(status) = litepost::status::read(file, Millis(clock::wall_ms())) else { continue };
        let lanes = status.destinations.iter().flat_map(|destination| &destination.lanes);
        let holders = lanes.filter(|lane| lane.owner.is_some()).filter_map(|lane| lane.holder.as_deref());
        pids.extend(holders.filter_map(HolderInfo::of).filter(HolderInfo::runs_here).map(|holder| holder.pid));
    }
    if pids.is_empty() {
        return Err(Failure::user(
            "no relay on this machine holds a lane of these outbox files",
            "start one with `litepost run`; a relay that stands by is named with --pid",
        ));
    }
    Ok(pids)
}

fn deeds(file: &Path) -> Vec<AuditEntry> {
    // A file that is locked or being made is looked at again.
    connection::open(file, Access::ReadOnly).and_then(|found| audit_trail(&found, None, DEEDS)).unwrap_or_default()
}

fn newest(file: &Path) -> i64 {
    deeds(file).last().map_or(0, |deed| deed.audit_id)
}

/// SIGHUP ends a process that does not know it: only a litepost is told.
fn is_relay(pid: u32) -> Result<u32, Failure> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if cfg!(target_os = "linux") && name.trim() != "litepost" {
        return Err(Failure::user(format!("process {pid} is no litepost"), "see `pgrep -a litepost`"));
    }
    Ok(pid)
}

#[cfg(unix)]
fn signal(pid: u32) -> Result<(), Failure> {
    use rustix::process::{Pid, Signal, kill_process};
    let id = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let told = id.map_or(Err(rustix::io::Errno::SRCH), |id| kill_process(id, Signal::HUP));
    told.map_err(|error| {
        Failure::user(format!("process {pid} cannot be told: {error}"), "run this as the relay's user, on its machine")
    })
}

#[cfg(not(unix))]
fn signal(pid: u32) -> Result<(), Failure> {
    Err(Failure::user(format!("process {pid} cannot be told: there is no SIGHUP here"), "restart the relay"))
}
