//! One run: a relay, a producer at a rate, and what became of its events.
//!
//! Invariant: every event of the producer is looked for in the relay's file by its position; a second acknowledgement of
//! one counts for nothing.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use litepost::connection::{self, Access, Options};
use litepost::schema;
use litepost_testkit::measure::Samples;

use crate::destinations::Destination;
use crate::process::{PRODUCE, RECORD_BYTES, RELAY};

/// After the relay is ready: connections are made, caches are warm.
const SETTLE: Duration = Duration::from_millis(500);
/// How long is waited for acknowledgements behind the last commit.
const PATIENCE: Duration = Duration::from_secs(2);
/// What a sustained rate leaves unacknowledged, at most, as a time of writing; and where that is looked at.
const BEHIND_S: f64 = 0.1;
const END_NS: u64 = 500_000_000;
/// The kernel counts processor time in these.
const TICKS_PER_S: f64 = 100.0;

/// So many events a second for so long.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) rate: u32,
    pub(crate) time: Duration,
}

/// What was seen.
pub(crate) struct Seen {
    pub(crate) written: usize,
    pub(crate) acknowledged: usize,
    /// From commit to acknowledgement.
    pub(crate) waits: Samples,
    /// Up to the last acknowledgement there was.
    pub(crate) acknowledged_per_s: f64,
    pub(crate) sustained: bool,
    pub(crate) cpu_percent: f64,
    pub(crate) cpu_us_per_event: f64,
    /// The most, and what it was at the end of the writing.
    pub(crate) memory_mb: f64,
    pub(crate) resident_mb: f64,
}

impl Run {
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    pub(crate) fn measure(self, destination: &mut Destination) -> Seen {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let folder = folder.path();
        let mut outbox = Options::new(Access::ReadWrite).create(true).open(folder.join("shop.db")).unwrap();
        connection::enable_wal(&outbox).unwrap();
        schema::migrate(&mut outbox).unwrap();
        std::fs::write(folder.join("litepost.toml"), destination.fresh(folder)).unwrap();
        let relay = Process::start(folder);
        std::thread::sleep(SETTLE);
        let (cpu, began) = (relay.cpu_s(), Instant::now());
        let commits = self.produce(folder, destination.takes_statements());
        let (cpu, took) = (relay.cpu_s() - cpu, began.elapsed().as_secs_f64());
        let resident_mb = relay.memory_mb("VmRSS:");
        let written = commits.last().map_or(0, |(upto, _)| *upto);
        let file = folder.join("acknowledged");
        let patient = Instant::now();
        while records(&file) < written && patient.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        let memory_mb = relay.memory_mb("VmHWM:");
        drop(relay);
        let times = times(&file, written);
        let mut seen = self.judge(&commits, &times);
        (seen.cpu_percent, seen.memory_mb, seen.resident_mb) = (cpu / took * 100.0, memory_mb, resident_mb);
        let by_then = times.iter().flatten().filter(|at| **at <= commits.last().map_or(0, |(_, at)| *at)).count();
        seen.cpu_us_per_event = cpu * 1e6 / by_then.max(1) as f64;
        seen
    }

    /// The producer, to its end: how many events there were with each transaction, and the time before its COMMIT.
    fn produce(self, folder: &Path, statements: bool) -> Vec<(usize, u64)> {
        let output = Command::new(std::env::current_exe().unwrap())
            .arg(PRODUCE)
            .arg(folder.join("shop.db"))
            .args([self.rate.to_string(), self.time.as_millis().to_string(), statements.to_string()])
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let commits = text.lines().map(|line| {
            let (upto, at) = line.split_once(' ').unwrap();
            (upto.parse().unwrap(), at.parse().unwrap())
        });
        commits.collect()
    }

    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    fn judge(self, commits: &[(usize, u64)], times: &[Option<u64>]) -> Seen {
        let (mut waits, mut first) = (Samples::default(), 0);
        for (upto, committed) in commits {
            for at in times[first..*upto].iter().flatten() {
                waits.add_nanos(at.saturating_sub(*committed));
            }
            first = *upto;
        }
        let (begin, end) = (commits[0].1, commits[commits.len() - 1].1);
        let mut sorted: Vec<u64> = times.iter().flatten().copied().collect();
        sorted.sort_unstable();
        let last = sorted.last().copied().unwrap_or(end);
        let by = |at: u64| sorted.partition_point(|acknowledged| *acknowledged <= at);
        let late = commits.iter().filter(|(_, at)| *at + END_NS >= end);
        let mut behind: Vec<usize> = late.map(|(upto, at)| upto.saturating_sub(by(*at))).collect();
        behind.sort_unstable();
        let asked = f64::from(self.rate) * self.time.as_secs_f64();
        let kept_up = first as f64 >= asked * 0.98;
        let sustained = kept_up && behind[behind.len() / 2] as f64 <= f64::from(self.rate) * BEHIND_S;
        Seen {
            written: first,
            acknowledged: sorted.len(),
            waits,
            acknowledged_per_s: sorted.len() as f64 / (last.saturating_sub(begin).max(1) as f64 / 1e9),
            sustained,
            cpu_percent: 0.0,
            cpu_us_per_event: 0.0,
            memory_mb: 0.0,
            resident_mb: 0.0,
        }
    }
}

/// How many acknowledgements the relay's file holds.
fn records(file: &Path) -> usize {
    let bytes = std::fs::metadata(file).map_or(0, |found| found.len());
    usize::try_from(bytes).unwrap() / RECORD_BYTES
}

/// When each event was acknowledged first, by position.
fn times(file: &Path, written: usize) -> Vec<Option<u64>> {
    let mut times = vec![None; written];
    for record in std::fs::read(file).unwrap().chunks_exact(RECORD_BYTES) {
        let [seq, at] = [0, 8].map(|from| u64::from_le_bytes(record[from..from + 8].try_into().unwrap()));
        let time: &mut Option<u64> = &mut times[usize::try_from(seq - 1).unwrap()];
        *time = Some(time.map_or(at, |first| first.min(at)));
    }
    times
}

/// The relay's process.
struct Process(Child);

impl Process {
    fn start(folder: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(RELAY)
            .arg(folder.join("litepost.toml"))
            .arg(folder.join("acknowledged"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "the relay ended early");
        Self(child)
    }

    fn proc(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.0.id())).unwrap()
    }

    /// User and system time so far, of all its threads.
    fn cpu_s(&self) -> f64 {
        let stat = self.proc("stat");
        // Behind the program's name, which may hold spaces: the state is the third field, the times the 14th and 15th.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks: f64 = fields[11..13].iter().map(|field| field.parse::<f64>().unwrap()).sum();
        ticks / TICKS_PER_S
    }

    /// A line of its `/proc/PID/status`, in megabytes.
    fn memory_mb(&self, name: &str) -> f64 {
        let status = self.proc("status");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its standard input ends, and it stops in good order.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
