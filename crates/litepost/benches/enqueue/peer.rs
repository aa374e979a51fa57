//! sqloutbox, in a Python process of its own that does its share when it is told to.
//!
//! Invariant: the process ends with this value, whatever becomes of the bench.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use litepost_testkit::measure::Samples;

use crate::{PAYLOAD_BYTES, wal_len};

/// A running peer with its backlog.
pub(crate) struct Peer {
    pub(crate) samples: Samples,
    folder: PathBuf,
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts it in `folder` and waits until its backlog is written.
    pub(crate) fn start(folder: &Path, backlog: i64) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let python = std::env::var_os("LITEPOST_BENCH_PYTHON").expect(
            "LITEPOST_BENCH_PYTHON names a Python that has sqloutbox 0.6; `cargo xtask bench enqueue` makes one",
        );
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/enqueue/sqloutbox_push.py");
        let mut child = Command::new(python)
            .arg(script)
            .arg(folder)
            .args([backlog.to_string(), PAYLOAD_BYTES.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut peer = Self { samples: Samples::default(), folder: folder.to_owned(), child, orders, answers };
        assert_eq!(peer.answer().trim(), "ready");
        peer
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        assert!(self.answers.read_line(&mut line).unwrap() > 0, "sqloutbox ended early");
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
