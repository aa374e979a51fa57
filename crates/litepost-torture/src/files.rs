//! What operators do to the outbox file while everything runs: copies of it, and older states in its place.
//!
//! Called by the run's deeds. Invariants: what a restore takes away, and what it permits to come again, is written down before
//! anybody works on the restored file; between a file that was replaced and the operator's word nothing is delivered from it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use litepost_core::{Seq, SeqRanges};
use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use crate::TortureError;
use crate::check::{Name, Violation};
use crate::deeds::Undo;
use crate::run::Run;
use crate::stage::event_of;

/// The last backup.
const KEPT: &str = "kept.db";
/// The SQL targets of a run: what they know of a file they forget with its epoch.
const SQL: [&str; 2] = ["sqlite", "postgres"];
/// How long the operator's word may be refused, since a relay does not hand its lanes over.
const ADOPT_AGAIN_MS: u64 = 500;

/// A file in the place of another one, until somebody says how to go on with it.
#[derive(Debug)]
pub(crate) struct Unadopted {
    /// What the application had written when it was put there.
    rows: BTreeSet<Name>,
    /// It is another file, which every destination refuses; not the same one with an older content.
    another: bool,
}

impl Run<'_> {
    /// Copies the outbox while everybody works on it.
    pub(crate) fn back_up(&mut self, vacuum: bool) {
        let kept = self.stage.folder.join(KEPT);
        let done = if vacuum {
            let _ = std::fs::remove_file(&kept);
            let vacuum = || -> rusqlite::Result<()> {
                let outbox = Connection::open(self.stage.outbox())?;
                outbox.busy_timeout(Duration::from_secs(5))?;
                outbox.execute("VACUUM INTO ?1", [kept.display().to_string()]).map(|_| ())
            };
            vacuum().map_err(|error| error.to_string())
        } else {
            self.operate(&["backup", "--database", "outbox.db", KEPT, "--replace"])
        };
        self.kept = done.is_ok();
        self.tell(done);
    }

    /// Stops everybody, and goes back to the last backup as the pages say: `litepost restore`.
    pub(crate) fn restore(&mut self) {
        self.exchange("restore", |run| {
            run.kill_relays();
            run.operate(&["restore", KEPT, "--database", "outbox.db", "--replace", "--reason", "torture"])
        });
    }

    /// Writes the last backup over the outbox while relays work on it; somebody adopts it later.
    pub(crate) fn restore_in_place(&mut self, until: u64) {
        self.exchange("in place", |run| {
            let kept = run.stage.folder.join(KEPT);
            copy(&kept, &run.stage.outbox()).map_err(|error| error.to_string())
        });
        self.adopt_later(until, false);
    }

    /// Puts a copy of the outbox in its place while relays have the old one open; somebody adopts it later.
    pub(crate) fn replace_file(&mut self, until: u64) {
        let (outbox, part) = (self.stage.outbox(), self.stage.folder.join("part.db"));
        self.stop_producers();
        let copied = copy(&outbox, &part).map_err(|error| error.to_string());
        if copied.is_err() {
            self.tell(copied);
            return;
        }
        let kept = self.stage.folder.join(KEPT);
        let moved = std::fs::rename(&part, &kept).map_err(|error| error.to_string());
        self.exchange("another file", |_| {
            moved?;
            for end in ["-wal", "-shm"] {
                let _ = std::fs::remove_file(format!("{}{end}", outbox.display()));
            }
            std::fs::rename(&kept, &outbox).map_err(|error| error.to_string())
        });
        self.adopt_later(until, true);
    }

    /// Lets a relay deliver from a copy beside the outbox: it must not.
    pub(crate) fn run_clone(&mut self) {
        let clone = self.stage.folder.join("clone.db");
        let prepared = copy(&self.stage.outbox(), &clone).and_then(|()| marked(&clone)).map_err(|e| e.to_string());
        match prepared {
            Ok(true) => {}
            Ok(false) => return self.tell(Err("no relay has delivered from it yet".to_owned())),
            Err(error) => return self.tell(Err(error)),
        }
        let config = self.stage.config().replace("'outbox.db'", "'clone.db'");
        let written = std::fs::write(self.stage.folder.join("clone.toml"), config).map_err(|error| error.to_string());
        let said = written.and_then(|()| self.operate(&["run", "--config", "clone.toml", "--until-idle"]));
        match said {
            Err(why) if why.contains("is a copy of the outbox") => {}
            other => self.found.push(Violation::Books { problem: format!("a relay works on a clone: {other:?}") }),
        }
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", clone.display()));
        }
    }

    /// Says how to go on with a file that was replaced.
    pub(crate) fn adopt(&mut self) {
        let Some(unadopted) = self.unadopted.take() else { return };
        if let Err(error) = self.nothing_left(&unadopted) {
            self.history.push(format!("{} what it holds could not be seen: {error}", self.now()));
        }
        let before = self.now();
        if unadopted.another {
            // As the pages say: the relays of the other file are stopped first.
            self.kill_relays();
        }
        let mut words = vec!["adopt", "--database", "outbox.db", "--reason", "torture"];
        if !unadopted.another {
            words.push("--in-place");
        }
        let done = self.operate(&words);
        self.disturbed.push((before, self.now() + ADOPT_AGAIN_MS));
        if done.is_err() {
            self.unadopted = Some(unadopted);
            self.undo.push((self.now() + ADOPT_AGAIN_MS, Undo::Adopt));
        }
        self.tell(done);
    }

    /// Whether nothing was delivered that was written after the file was replaced.
    fn nothing_left(&mut self, unadopted: &Unadopted) -> Result<(), TortureError> {
        if !unadopted.another {
            return Ok(());
        }
        let rows = self.stage.rows()?;
        let receipts = self.network.as_ref().map(crate::network::Network::receipts).unwrap_or_default();
        let left =
            receipts.iter().find(|receipt| rows.contains(&receipt.event) && !unadopted.rows.contains(&receipt.event));
        self.found.extend(left.map(|receipt| Violation::Books {
            problem: format!("{:?} was delivered from a copy that nobody had adopted", receipt.event),
        }));
        Ok(())
    }

    fn adopt_later(&mut self, until: u64, another: bool) {
        match self.stage.rows() {
            Ok(rows) => self.unadopted = Some(Unadopted { rows, another }),
            Err(error) => self.history.push(format!("{} the rows could not be seen: {error}", self.now())),
        }
        self.undo.push((until, Undo::Adopt));
    }

    /// Does `deed`, which leaves what [`KEPT`] holds in the outbox, with nobody writing; and notes what that takes away, and
    /// what it lets come again.
    fn exchange(&mut self, what: &str, deed: impl FnOnce(&mut Self) -> Result<(), String>) {
        let before = self.now();
        self.stop_producers();
        if let Err(error) = self.exchanged(deed) {
            self.history.push(format!("{before} {what}: {error}"));
        }
        // Each backup once: an epoch that begins with it must not have been there before.
        self.kept = false;
        self.disturbed.push((before, self.now() + ADOPT_AGAIN_MS));
    }

    fn exchanged(&mut self, deed: impl FnOnce(&mut Self) -> Result<(), String>) -> Result<(), String> {
        let told = |error: TortureError| error.to_string();
        let kept = self.stage.folder.join(KEPT);
        let had = self.stage.rows().map_err(told)?;
        let mut waiting = Vec::new();
        for name in SQL {
            waiting.push((name, pending(&kept, &format!("torture.{name}")).map_err(told)?));
        }
        deed(self)?;
        let has = self.stage.rows().map_err(told)?;
        self.permitted.gone.extend(had.difference(&has));
        for (name, events) in waiting {
            let again = self.permitted.again.entry(name).or_default();
            for event in events {
                *again.entry(event).or_insert(0) += 1;
            }
        }
        Ok(())
    }

    fn kill_relays(&mut self) {
        let first = self.relay(0);
        for role in self.roles.iter_mut().skip(first) {
            role.process.kill();
        }
    }

    fn stop_producers(&mut self) {
        let first_relay = self.relay(0);
        for role in self.roles.iter_mut().take(first_relay) {
            role.process.kill();
        }
    }

    /// Runs a command of the binary to its end; what it said when it did not succeed.
    fn operate(&self, arguments: &[&str]) -> Result<(), String> {
        let output = Command::new(&self.setup.program)
            .args(arguments)
            .current_dir(&self.stage.folder)
            .env("LOG_LEVEL", "warn")
            .env_remove("RUST_LOG")
            .env_remove("LITEPOST_FAILPOINT")
            .env("LITEPOST_CLOCK", self.stage.clock())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        Err(format!("{}: {}", output.status, String::from_utf8_lossy(&said).trim()))
    }

    fn tell(&mut self, done: Result<(), String>) {
        if let Err(error) = done {
            self.history.push(format!("{} not done: {error}", self.now()));
        }
    }
}

/// One snapshot of `from`, into a file that is there or not.
fn copy(from: &Path, to: &Path) -> rusqlite::Result<()> {
    let (source, mut target) = (Connection::open(from)?, Connection::open(to)?);
    let patience = Duration::from_secs(5);
    source.busy_timeout(patience)?;
    target.busy_timeout(patience)?;
    let backup = Backup::new(&source, &mut target)?;
    let mut tries = 0;
    loop {
        match backup.step(-1)? {
            StepResult::Done => return Ok(()),
            _ if tries > 500 => return Err(rusqlite::Error::InvalidQuery),
            // Somebody has the file in this moment.
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
        tries += 1;
    }
}

/// Whether a relay has marked the file as the one that it delivers from.
fn marked(file: &Path) -> rusqlite::Result<bool> {
    let sql = "SELECT count(*) FROM litepost_meta WHERE name = 'file_mark'";
    Connection::open(file)?.query_row(sql, [], |row| row.get::<_, i64>(0)).map(|count| count > 0)
}

/// What a destination has still to get of a file, as its cursors say. Of several lanes the one that is furthest behind counts.
fn pending(file: &Path, destination: &str) -> Result<BTreeSet<Name>, TortureError> {
    let outbox = Connection::open(file)?;
    let mut statement = outbox.prepare("SELECT acked, acked_above FROM litepost_cursor WHERE destination = ?1")?;
    let cursors = statement
        .query_map([destination], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?
        .map(|row| row.map(|(acked, above)| (Seq(acked), SeqRanges::parse(&above).unwrap_or_default())))
        .collect::<Result<Vec<_>, _>>()?;
    let mut statement = outbox.prepare("SELECT seq, payload FROM litepost_outbox")?;
    let events = statement.query_map([], |row| Ok((Seq(row.get(0)?), row.get::<_, String>(1)?)))?;
    let mut pending = BTreeSet::new();
    for event in events {
        let (seq, payload) = event?;
        let waits = |(acked, above): &(Seq, SeqRanges)| seq > *acked && !above.contains(seq);
        // Who is not registered has got nothing.
        if cursors.is_empty() || cursors.iter().any(waits) {
            pending.extend(event_of(&payload));
        }
    }
    // What is refused, or has a time of its own, and what is behind it in its line: the cursor has passed it.
    let mut statement = outbox.prepare(
        "SELECT o.payload FROM litepost_blocked b JOIN litepost_outbox o ON o.seq = b.first_seq \
         OR (o.seq > b.first_seq AND o.key = b.line) WHERE b.destination = ?1",
    )?;
    let blocked = statement.query_map([destination], |row| row.get::<_, String>(0))?;
    for payload in blocked {
        pending.extend(event_of(&payload?));
    }
    Ok(pending)
}
