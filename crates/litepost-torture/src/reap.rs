//! Processes of the real binary that do not outlive the run.
//!
//! Called by the run. Invariant: a process that was frozen is woken before it is told anything else, and every one is
//! dead and waited for when its `Process` is dropped.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use crate::{TortureError, clock};

/// Starts the program with SIGXFSZ ignored, so that a write beyond the limit fails instead of killing.
const START: &str = "trap '' XFSZ; exec \"$0\" \"$@\"";

pub(crate) struct Process {
    child: Child,
}

impl Process {
    pub(crate) fn start(
        program: &Path,
        arguments: &[String],
        folder: &Path,
        log: &str,
        failpoint: Option<&str>,
    ) -> Result<Self, TortureError> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(folder.join(log))
            .map_err(TortureError::io("the log of a process"))?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", START]).arg(program).args(arguments).current_dir(folder).env("LOG_LEVEL", "warn");
        command.env_remove("RUST_LOG").env_remove("LITEPOST_FAILPOINT");
        command.env("LITEPOST_CLOCK", folder.join("clock"));
        if let Some(arm) = failpoint {
            command.env("LITEPOST_FAILPOINT", arm);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        Ok(Self { child: child.map_err(TortureError::io("a process cannot be started"))? })
    }

    /// Whether it runs; how it ended when it does not.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        // One that has ended in this moment gets none, and its number is ours until it is waited for.
        if self.ended().is_none()
            && let Some(pid) = self.pid()
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// Bounds the size of files that it may write; `None` lifts the bound.
    pub(crate) fn limit_files(&mut self, bytes: Option<u64>) {
        if self.ended().is_none()
            && let Some(pid) = self.pid()
        {
            let _ = prlimit(Some(pid), Resource::Fsize, Rlimit { current: bytes, maximum: None });
        }
    }

    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }

    /// SIGTERM, and SIGKILL when it does not end in time; whether it ended by itself.
    pub(crate) fn stop(&mut self, patience: Duration) -> bool {
        self.signal(Signal::CONT);
        self.signal(Signal::TERM);
        let began = clock::start();
        while self.ended().is_none() && began.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(10));
        }
        let ended = self.ended().is_some();
        self.kill();
        ended
    }

    /// Its number, while it runs.
    pub(crate) fn id(&mut self) -> Option<u32> {
        self.ended().is_none().then(|| self.child.id())
    }

    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
