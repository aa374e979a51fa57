//! Relays in a process of their own: this program again, in another part.
//!
//! Invariant: a process that was started ends with the value that stands for it.

use std::future;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Relay;
use tokio_util::sync::CancellationToken;

const DRAIN: &str = "--part-drain";
const RUN: &str = "--part-run";

/// Plays the part this process was started for, if any. True when it was one.
pub(crate) fn played() -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let part = |name: &str| arguments.iter().position(|argument| argument == name).and_then(|at| arguments.get(at + 1));
    if let Some(config) = part(DRAIN) {
        relay(Path::new(config), true);
        println!("{}", resident_kb("VmHWM:"));
    } else if let Some(config) = part(RUN) {
        relay(Path::new(config), false);
    } else {
        return false;
    }
    true
}

fn relay(config: &Path, until_idle: bool) {
    let config = Config::load(config, Purpose::Deliver).unwrap().relay();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if until_idle {
        runtime.block_on(Relay::new(config).run_until_idle(future::pending()));
        return;
    }
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let relay = runtime.spawn(Relay::new(config).run(async move { stopped.cancelled().await }));
    // Until whoever started us lets go.
    let _ = std::io::stdin().read_exact(&mut [0]);
    stop.cancel();
    runtime.block_on(relay).unwrap();
}

/// A line of `/proc/self/status`, in kilobytes.
fn resident_kb(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn start(part: &str, config: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .arg(part)
        .arg(config)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Drains in another process; the most memory it had resident, in megabytes.
#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn drain(config: &Path) -> f64 {
    let mut child = start(DRAIN, config);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(child.wait().unwrap().success());
    line.trim().parse::<u64>().unwrap() as f64 / 1024.0
}

/// A relay that runs until this is dropped.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(config: &Path) -> Self {
        Self(start(RUN, config))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its standard input ends, and it stops in good order.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
