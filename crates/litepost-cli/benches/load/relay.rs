//! A relay whose start is watched and whose memory is asked for.

#![allow(clippy::disallowed_methods, reason = "how long a start takes is what the command is asked for")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStdout, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::Place;

/// Nothing here takes longer, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// How long it took, from the start of the process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// Until the relay said that it is delivering (READY=1).
    pub(super) ready: Duration,
    /// Until the first event left it.
    pub(super) first_event: Duration,
}

/// Killed when it is dropped.
pub(super) struct Relay {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
    /// When it said what, by its socket.
    said: Option<JoinHandle<(Duration, String)>>,
    began: Instant,
}

impl Relay {
    pub(super) fn start(place: &Place) -> Self {
        let socket = place.path("notify");
        let _ = std::fs::remove_file(&socket);
        let notified = UnixDatagram::bind(&socket).unwrap();
        let mut run = place.command(&["run", "--config", "litepost.toml"]);
        run.env("NOTIFY_SOCKET", &socket).env("LOG_LEVEL", "warn");
        let log = std::fs::File::create(place.path("relay.log")).unwrap();
        let began = Instant::now();
        let mut child = run.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let stdout = child.stdout.take().map(BufReader::new);
        let said = std::thread::spawn(move || {
            let mut told = [0; 1_024];
            let length = notified.recv(&mut told).unwrap();
            (began.elapsed(), String::from_utf8_lossy(&told[..length]).into_owned())
        });
        Self { child, stdout, said: Some(said), began }
    }

    /// Waits for the first event, and kills the relay.
    pub(super) fn first_event(mut self) -> Start {
        let mut line = Vec::new();
        self.stdout.as_mut().unwrap().read_until(b'\n', &mut line).unwrap();
        let first_event = self.began.elapsed();
        assert!(line.starts_with(b"{"), "{}", String::from_utf8_lossy(&line));
        let (ready, said) = self.said.take().unwrap().join().unwrap();
        assert!(said.starts_with("READY=1"), "{said}");
        Start { ready, first_event }
    }

    /// Reads what it prints, to throw it away.
    pub(super) fn swallow(&mut self) {
        let mut stdout = self.stdout.take().unwrap();
        std::thread::spawn(move || {
            let mut piece = vec![0; 1 << 20];
            while matches!(stdout.read(&mut piece), Ok(1..)) {}
        });
    }

    /// Waits until it is so; how long that was from the start of the process.
    pub(super) fn until(&mut self, mut so: impl FnMut() -> bool) -> Duration {
        while !so() {
            assert!(self.child.try_wait().unwrap().is_none(), "the relay has ended");
            assert!(self.began.elapsed() < PATIENCE, "it never was");
            std::thread::sleep(Duration::from_millis(100));
        }
        self.began.elapsed()
    }

    /// The most memory that it has had at any time, bytes.
    pub(super) fn most_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    }

    /// SIGTERM; it must end well.
    pub(super) fn stop(mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
