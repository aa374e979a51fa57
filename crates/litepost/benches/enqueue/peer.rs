//! A peer from PyPI, in a Python process of its own that does its share when it is told to; see `peers.py`.
//!
//! Invariant: the process ends with this value, whatever becomes of the bench.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use litepost_testkit::measure::Samples;

use crate::{PAYLOAD_BYTES, wal_len};

/// What each peer is called for people and in `peers.py`, and how many times `enqueue` its writes are asked to cost at
/// no backlog and at one.
pub(crate) const PEERS: [(&str, &str, [f64; 2]); 3] = [
    ("sqloutbox 0.6 _push", "sqloutbox", [8.0, 300.0]),
    ("honker 0.2.4 queue", "honker-queue", [5.0, 5.0]),
    ("honker 0.2.4 stream", "honker-stream", [5.0, 5.0]),
];

/// A running peer with its backlog.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    /// How many times `enqueue` its write is asked to cost.
    pub(crate) times: f64,
    pub(crate) samples: Samples,
    folder: PathBuf,
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts all of them and waits until their backlogs are written.
    pub(crate) fn all(folder: &Path, backlog: i64) -> Vec<Self> {
        let start = |(name, peer, times): (_, &str, [f64; 2])| {
            let times = times[usize::from(backlog > 0)];
            Self::start(name, peer, times, &folder.join(peer), backlog)
        };
        PEERS.into_iter().map(start).collect()
    }

    fn start(name: &'static str, peer: &str, times: f64, folder: &Path, backlog: i64) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let python = std::env::var_os("LITEPOST_BENCH_PYTHON")
            .expect("LITEPOST_BENCH_PYTHON names a Python with the peers; `cargo xtask bench enqueue` makes one");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/enqueue/peers.py");
        let mut child = Command::new(python)
            .arg(script)
            .arg(peer)
            .arg(folder)
            .args([backlog.to_string(), PAYLOAD_BYTES.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let (samples, folder) = (Samples::default(), folder.to_owned());
        let mut peer = Self { name, times, samples, folder, child, orders, answers };
        assert_eq!(peer.answer().trim(), "ready");
        peer
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        assert!(self.answers.read_line(&mut line).unwrap() > 0, "{} ended early", self.name);
        line
    }

    /// Has it push some events.
    pub(crate) fn push(&mut self, times: usize) {
        writeln!(self.orders, "{times}").unwrap();
        self.orders.flush().unwrap();
        let taken: Vec<u64> = serde_json::from_str(&self.answer()).unwrap();
        for nanos in taken {
            self.samples.add_nanos(nanos);
        }
    }

    /// What its WAL grows by per event: over a few events, before its own checkpoint comes.
    pub(crate) fn wal_bytes(&mut self) -> Option<u64> {
        const EVENTS: usize = 20;
        let database = self.folder.join("orders.db");
        let keep = rusqlite::Connection::open(&database).unwrap();
        keep.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        let counted = std::mem::take(&mut self.samples);
        self.push(1);
        let before = wal_len(&database);
        self.push(EVENTS);
        self.samples = counted;
        wal_len(&database).checked_sub(before).map(|grown| grown / u64::try_from(EVENTS).unwrap())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
