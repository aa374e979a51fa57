//! Does what a plan asks for, and undoes it when its time is over.
//!
//! Called by the run. Invariant: everything that a deed changes for a time is undone before the run is judged, and what may
//! make a relay send again what was confirmed is written down.

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use rustix::process::Signal;

use crate::network::Broken;
use crate::plan::{Deed, LEASE_MS};
use crate::run::Run;

/// How far a full disk lets files grow, bytes.
const FULL_BYTES: u64 = 24 << 10;
/// How long after a disturbance a relay that lives on may still send what another has sent meanwhile, milliseconds: by then
/// it has found that its lease is gone.
const AFTERMATH_MS: u64 = LEASE_MS;

/// What is undone later.
pub(crate) enum Undo {
    Wake(usize),
    Lift(usize),
    Unlock(Connection),
    Mend(Broken),
    Adopt,
}

impl Run<'_> {
    pub(crate) fn carry_out(&mut self, deed: &Deed) {
        let now = self.now();
        self.history.push(format!("{now} {}", serde_json::to_string(deed).unwrap_or_default()));
        self.faults += 1;
        match deed {
            Deed::KillProducer { producer } => self.kill(*producer),
            Deed::KillRelay { relay } => self.kill(self.relay(*relay)),
            Deed::FreezeProducer { producer, ms } => self.freeze(*producer, now + ms),
            Deed::FreezeRelay { relay, ms } => self.freeze(self.relay(*relay), now + ms),
            Deed::FullDisk { relay, ms } => self.fill(self.relay(*relay), now + ms, 0),
            Deed::FullDiskProducer { producer, ms } => {
                // The journal stands outside what is tested.
                let journal = std::fs::metadata(self.stage.journal(*producer)).map_or(0, |meta| meta.len());
                self.fill(*producer, now + ms, journal);
            }
            Deed::LockOutbox { ms } => {
                self.disturb(now + ms);
                self.lock(&self.stage.outbox(), now + ms);
            }
            Deed::LockTarget { ms } => self.lock(&self.stage.target(), now + ms),
            Deed::CutLink { .. }
            | Deed::LoseReplies { .. }
            | Deed::DelayReplies { .. }
            | Deed::DoubleRequests { .. }
            | Deed::RefuseRequests { .. }
            | Deed::KillServer { .. }
            | Deed::FreezeServer { .. } => self.break_network(deed),
            Deed::Backup { .. }
            | Deed::Restore
            | Deed::RestoreInPlace { .. }
            | Deed::ReplaceFile { .. }
            | Deed::RunClone => self.work_on_file(deed),
            Deed::SetClock { by_ms } => self.set_clock(self.clock_ms.saturating_add(*by_ms)),
            Deed::Failpoint { relay, arm } => {
                let at = self.relay(*relay);
                if let Some(role) = self.roles.get_mut(at) {
                    role.failpoint = Some(arm.clone());
                }
                self.kill(at);
            }
        }
    }

    /// From now until then, and a little longer, what was confirmed may come again.
    fn disturb(&mut self, until: u64) {
        self.disturbed.push((self.now(), until + AFTERMATH_MS));
    }

    /// Sets the wall clock of all that runs and will run; a relay that waits for a time looks again.
    pub(crate) fn set_clock(&mut self, ms: i64) {
        self.clock_ms = ms;
        self.furthest_ms = self.furthest_ms.max(ms);
        // Half a number must not be read.
        let (new, file) = (self.stage.folder.join("clock.new"), self.stage.clock());
        let set = std::fs::write(&new, ms.to_string()).and_then(|()| std::fs::rename(&new, &file));
        if !cfg!(feature = "failpoints") {
            self.history.push(format!("{} not done: this build has no clock that can be set", self.now()));
        } else if let Err(error) = set {
            self.history.push(format!("{} not done: {error}", self.now()));
        }
    }

    fn work_on_file(&mut self, deed: &Deed) {
        if self.network.is_none() {
            return;
        }
        // Operators do not work on a file that somebody else has locked.
        self.undo_until(u64::MAX);
        let until = self.now();
        if self.unadopted.is_some() {
            self.history.push(format!("{until} not done: the file is not adopted yet"));
            return;
        }
        match deed {
            Deed::Backup { vacuum } => self.back_up(*vacuum),
            Deed::RunClone => self.run_clone(),
            Deed::ReplaceFile { ms } => self.replace_file(until + ms),
            _ if !self.kept => self.history.push(format!("{until} not done: there is no backup")),
            Deed::RestoreInPlace { ms } => self.restore_in_place(until + ms),
            _ => self.restore(),
        }
    }

    fn break_network(&mut self, deed: &Deed) {
        let now = self.now();
        let done = self.network.as_mut().ok_or("this run has no network").and_then(|network| network.break_it(deed));
        match done {
            Ok((ms, broken)) => self.undo.push((now + ms, Undo::Mend(broken))),
            Err(why) => self.history.push(format!("{now} not done: {why}")),
        }
    }

    fn kill(&mut self, at: usize) {
        let before = self.now();
        if let Some(role) = self.roles.get_mut(at) {
            role.process.kill();
        }
        // What the dead had sent arrives late without anybody who would take the answer.
        if at >= self.relay(0) {
            self.disturbed.push((before, self.now()));
        }
    }

    fn freeze(&mut self, at: usize, until: u64) {
        if at >= self.relay(0) {
            self.disturb(until);
        }
        if let Some(role) = self.roles.get_mut(at) {
            role.process.signal(Signal::STOP);
            self.undo.push((until, Undo::Wake(at)));
        }
    }

    fn fill(&mut self, at: usize, until: u64, spare: u64) {
        if at >= self.relay(0) {
            self.disturb(until);
        }
        if let Some(role) = self.roles.get_mut(at) {
            role.process.limit_files(Some(FULL_BYTES + spare));
            self.undo.push((until, Undo::Lift(at)));
        }
    }

    /// Takes the write lock, if it is to be had at once.
    fn lock(&mut self, path: &Path, until: u64) {
        let take = || -> rusqlite::Result<Connection> {
            let connection = Connection::open(path)?;
            connection.busy_timeout(Duration::from_millis(200))?;
            // Held until the connection is closed.
            connection.execute_batch("BEGIN IMMEDIATE")?;
            Ok(connection)
        };
        match take() {
            Ok(connection) => self.undo.push((until, Undo::Unlock(connection))),
            Err(error) => self.history.push(format!("{} the lock was not to be had: {error}", self.now())),
        }
    }

    pub(crate) fn undo_until(&mut self, now: u64) {
        let (due, later) = std::mem::take(&mut self.undo).into_iter().partition(|(at, _)| *at <= now);
        self.undo = later;
        for (_, undo) in due {
            match undo {
                Undo::Wake(at) => {
                    if let Some(role) = self.roles.get_mut(at) {
                        role.process.signal(Signal::CONT);
                    }
                }
                Undo::Lift(at) => {
                    if let Some(role) = self.roles.get_mut(at) {
                        role.process.limit_files(None);
                    }
                }
                Undo::Unlock(connection) => drop(connection),
                Undo::Adopt => self.adopt(),
                Undo::Mend(broken) => {
                    if let Some(network) = &mut self.network {
                        network.mend(broken);
                    }
                }
            }
        }
    }
}
