//! Whether the process that holds a lease is gone for good, so that a restarted relay need not wait a lease time after
//! a kill -9.
//!
//! Asked by the relay before it begins to watch a pulse. Invariant: "gone" is only said of a process on this very
//! machine, this boot and this PID namespace, that the kernel says is not there; in any doubt the answer is no, and the
//! lease time decides. Were it wrong all the same, the fencing token would still hold.

use serde::{Deserialize, Serialize};

/// Where a process runs, as precisely as the kernel tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderInfo {
    /// Host name, for people.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// The kernel's id of this boot.
    pub boot: Option<String>,
    /// The PID namespace the process id belongs to.
    pub pid_ns: Option<String>,
    /// When the process started, in the kernel's ticks since boot: tells a process from a later one with its id.
    pub start: Option<u64>,
    /// Which litepost it runs; `None` when it does not say.
    #[serde(default)]
    pub version: Option<String>,
}

impl HolderInfo {
    /// This process.
    #[must_use]
    pub fn current() -> Self {
        let pid = std::process::id();
        Self {
            host: read("/proc/sys/kernel/hostname").unwrap_or_default(),
            pid,
            boot: read("/proc/sys/kernel/random/boot_id"),
            pid_ns: pid_namespace(),
            start: match process(pid) {
                Process::Runs { start } => Some(start),
                Process::Gone | Process::Unknown => None,
            },
            version: Some(env!("CARGO_PKG_VERSION").into()),
        }
    }

    /// What the text in `litepost_cursor.holder` says; `None` when it is another's.
    #[must_use]
    pub fn of(holder_json: &str) -> Option<Self> {
        serde_json::from_str(holder_json).ok()
    }

    /// Whether that very process runs on this machine, in this PID namespace. False when in doubt.
    #[must_use]
    pub fn runs_here(&self) -> bool {
        let here = |theirs: &Option<String>, ours: Option<String>| theirs.is_some() && *theirs == ours;
        here(&self.boot, read("/proc/sys/kernel/random/boot_id"))
            && here(&self.pid_ns, pid_namespace())
            && matches!((process(self.pid), self.start), (Process::Runs { start }, Some(theirs)) if start == theirs)
    }

    /// The text that goes into `litepost_cursor.holder`.
    #[must_use]
    pub fn to_json(&self) -> String {
        // A struct of strings and numbers always serialises.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Whether the process that `holder_json` describes is known to be gone. False when in doubt, and always false where
/// the kernel is not Linux.
#[must_use]
pub fn holder_is_gone(holder_json: &str) -> bool {
    let Ok(holder) = serde_json::from_str::<HolderInfo>(holder_json) else {
        return false;
    };
    let here = |theirs: &Option<String>, ours: Option<String>| theirs.is_some() && *theirs == ours;
    if !here(&holder.boot, read("/proc/sys/kernel/random/boot_id")) || !here(&holder.pid_ns, pid_namespace()) {
        return false;
    }
    match (process(holder.pid), holder.start) {
        (Process::Gone, _) => true,
        (Process::Runs { start }, Some(theirs)) => start != theirs,
        (Process::Runs { .. }, None) | (Process::Unknown, _) => false,
    }
}

enum Process {
    Runs { start: u64 },
    Gone,
    Unknown,
}

#[cfg(target_os = "linux")]
fn process(pid: u32) -> Process {
    // Signal 0 and not the absence of /proc/PID: with hidepid other users' processes are not in /proc.
    let exists =
        i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).map(rustix::process::test_kill_process);
    match exists {
        Some(Err(rustix::io::Errno::SRCH)) => return Process::Gone,
        Some(_) => {}
        None => return Process::Unknown,
    }
    let Some(stat) = read(&format!("/proc/{pid}/stat")) else {
        return Process::Unknown;
    };
    // "PID (name) state …": the name may hold blanks and brackets, so count from its end. Field 22 is the start time.
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    match (fields.next(), fields.nth(18).and_then(|start| start.parse().ok())) {
        // A zombie holds nothing any more; it waits for its parent to notice.
        (Some("Z" | "X"), _) => Process::Gone,
        (Some(_), Some(start)) => Process::Runs { start },
        _ => Process::Unknown,
    }
}

#[cfg(not(target_os = "linux"))]
fn process(_pid: u32) -> Process {
    Process::Unknown
}

fn pid_namespace() -> Option<String> {
    std::fs::read_link("/proc/self/ns/pid").ok()?.to_str().map(str::to_owned)
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn this_process_is_not_gone() {
        assert!(!holder_is_gone(&HolderInfo::current().to_json()));
        assert_eq!(HolderInfo::current().runs_here(), cfg!(target_os = "linux"));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_killed_process_is_gone_even_before_its_parent_notices() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let mut holder = HolderInfo::current();
        holder.pid = child.id();
        let Process::Runs { start } = process(child.id()) else { panic!("the child does not run") };
        holder.start = Some(start);
        assert!(!holder_is_gone(&holder.to_json()));
        child.kill().unwrap();
        while !matches!(process(child.id()), Process::Gone) {
            std::thread::yield_now();
        }
        assert!(holder_is_gone(&holder.to_json()), "a zombie counts as gone");
        child.wait().unwrap();
        assert!(holder_is_gone(&holder.to_json()));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn another_process_with_the_same_id_is_not_mistaken_for_the_holder() {
        let mut holder = HolderInfo::current();
        holder.start = holder.start.map(|start| start - 1);
        assert!(holder_is_gone(&holder.to_json()) && !holder.runs_here());
    }

    #[test]
    fn in_doubt_nobody_is_gone() {
        let mut elsewhere = HolderInfo::current();
        elsewhere.pid = 1 << 30;
        let gone_here = elsewhere.clone();
        assert_eq!(holder_is_gone(&gone_here.to_json()), cfg!(target_os = "linux"));
        elsewhere.boot = Some("another boot".into());
        assert!(!holder_is_gone(&elsewhere.to_json()));
        let mut container = gone_here.clone();
        container.pid_ns = Some("pid:[1]".into());
        assert!(!holder_is_gone(&container.to_json()));
        let mut silent = gone_here;
        silent.boot = None;
        assert!(!holder_is_gone(&silent.to_json()));
        assert!(!holder_is_gone("") && !holder_is_gone("{}") && !holder_is_gone("null"));
    }
}
