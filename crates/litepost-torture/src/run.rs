//! Carries a plan out and judges the end.
//!
//! Called by the command. Invariant: faults end before the judgement; what is judged is the state after a last drain by
//! a relay that nobody disturbs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::process::Signal;
use serde::Serialize;

use crate::check::{Journal, Violation};
use crate::plan::{Deed, Plan};
use crate::reap::Process;
use crate::stage::Stage;
use crate::{TortureError, clock};

/// Between two looks at the processes.
const TICK: Duration = Duration::from_millis(5);
/// A process that has ended is started again after this.
const AGAIN: Duration = Duration::from_millis(120);
/// How far a full disk lets files grow, bytes.
const FULL_BYTES: u64 = 24 << 10;
/// Attempts of the last drain; each waits for leases by itself.
const DRAINS: u32 = 20;

/// Where and with what a run is made.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The binary `litepost`.
    pub program: PathBuf,
    /// The hidden command of the binary that calls [`crate::produce`].
    pub producer_command: &'static str,
    /// A folder; each run makes one of its own in it.
    pub folder: PathBuf,
    /// A PostgreSQL database to deliver to as well. Its table `litepost_torture` is made anew.
    pub postgres: Option<String>,
}

/// What came of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// Nothing is wrong.
    pub ok: bool,
    /// Events known to be committed.
    pub committed: usize,
    /// Events known to be rolled back.
    pub rolled_back: usize,
    /// Events whose producer was killed, or got an error, before it knew.
    pub open: usize,
    /// What each destination has.
    pub delivered: BTreeMap<&'static str, usize>,
    /// Faults carried out.
    pub faults: usize,
    /// Processes that had to be started again.
    pub restarts: usize,
    /// What is wrong; at most a hundred.
    pub violations: Vec<Violation>,
    /// What happened, with times in milliseconds.
    pub history: Vec<String>,
    /// Where everything still lies.
    pub folder: PathBuf,
}

/// Carries `plan` out in a folder of its own, which is left behind.
pub fn torture(setup: &Setup, plan: &Plan) -> Result<Verdict, TortureError> {
    let mut run = Run::start(setup, plan, Stage::set(&folder(setup)?, setup.postgres.as_deref())?)?;
    run.go(&mut |_, _| {})?;
    run.judge()
}

/// A folder for one run.
pub(crate) fn folder(setup: &Setup) -> Result<PathBuf, TortureError> {
    std::fs::create_dir_all(&setup.folder).map_err(TortureError::io("the folder"))?;
    let folder = tempfile::Builder::new().prefix("run-").tempdir_in(&setup.folder);
    Ok(folder.map_err(TortureError::io("a folder for the run"))?.keep())
}

/// How far every destination has come.
pub(crate) fn settled(outbox: &Path) -> rusqlite::Result<u64> {
    let outbox = Connection::open(outbox)?;
    outbox.busy_timeout(Duration::from_secs(2))?;
    outbox.query_row("SELECT coalesce(min(acked), 0) FROM litepost_cursor", [], |row| row.get(0)).map(i64::unsigned_abs)
}

impl Verdict {
    /// More that is wrong.
    pub(crate) fn add(&mut self, found: impl Iterator<Item = Violation>) {
        self.violations.extend(found);
        self.ok = self.violations.is_empty();
    }
}

struct Role {
    process: Process,
    arguments: Vec<String>,
    log: String,
    ended_at: Option<Instant>,
    /// Armed at its next start.
    failpoint: Option<String>,
}

/// What is undone later.
enum Undo {
    Wake(usize),
    Lift(usize),
    Unlock(Connection),
}

pub(crate) struct Run<'a> {
    setup: &'a Setup,
    plan: &'a Plan,
    pub(crate) stage: Stage,
    began: Instant,
    /// Producers, then relays.
    roles: Vec<Role>,
    undo: Vec<(u64, Undo)>,
    faults: usize,
    restarts: usize,
    history: Vec<String>,
}

impl<'a> Run<'a> {
    pub(crate) fn start(setup: &'a Setup, plan: &'a Plan, stage: Stage) -> Result<Self, TortureError> {
        let mut run = Self {
            setup,
            plan,
            stage,
            began: clock::start(),
            roles: Vec::new(),
            undo: Vec::new(),
            faults: 0,
            restarts: 0,
            history: Vec::new(),
        };
        for producer in 0..plan.producers {
            let text = |path: PathBuf| path.display().to_string();
            let arguments = vec![
                setup.producer_command.to_owned(),
                text(run.stage.outbox()),
                text(run.stage.journal(producer)),
                producer.to_string(),
                plan.seed.to_string(),
                serde_json::to_string(&plan.pace).unwrap_or_default(),
            ];
            run.add(arguments, format!("producer-{producer}.log"))?;
        }
        for relay in 0..plan.relays {
            let arguments = ["run", "--config", "litepost.toml"].map(str::to_owned).to_vec();
            run.add(arguments, format!("relay-{relay}.log"))?;
        }
        Ok(run)
    }

    fn add(&mut self, arguments: Vec<String>, log: String) -> Result<(), TortureError> {
        let process = Process::start(&self.setup.program, &arguments, &self.stage.folder, &log, None)?;
        self.roles.push(Role { process, arguments, log, ended_at: None, failpoint: None });
        Ok(())
    }

    /// Until its time is over; `watch` sees every tick with its time.
    pub(crate) fn go(&mut self, watch: &mut dyn FnMut(&mut Self, u64)) -> Result<(), TortureError> {
        let mut next = 0;
        loop {
            let now = self.now();
            while let Some(fault) = self.plan.faults.get(next).filter(|fault| fault.at_ms <= now) {
                next += 1;
                self.carry_out(&fault.deed);
            }
            self.undo_until(now);
            if now >= self.plan.ms {
                break;
            }
            self.revive()?;
            watch(self, now);
            std::thread::sleep(TICK);
        }
        self.undo_until(u64::MAX);
        for role in &mut self.roles {
            role.process.stop(Duration::from_secs(if role.log.starts_with("relay") { 15 } else { 0 }));
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The process of the first relay, when it runs.
    pub(crate) fn first_relay(&mut self) -> Option<u32> {
        let at = self.relay(0);
        self.roles.get_mut(at).and_then(|role| role.process.id())
    }

    fn relay(&self, relay: usize) -> usize {
        self.plan.producers + relay
    }

    fn carry_out(&mut self, deed: &Deed) {
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
            Deed::LockOutbox { ms } => self.lock(&self.stage.outbox(), now + ms),
            Deed::LockTarget { ms } => self.lock(&self.stage.target(), now + ms),
            Deed::Failpoint { relay, arm } => {
                let at = self.relay(*relay);
                if let Some(role) = self.roles.get_mut(at) {
                    role.failpoint = Some(arm.clone());
                }
                self.kill(at);
            }
        }
    }

    fn kill(&mut self, at: usize) {
        if let Some(role) = self.roles.get_mut(at) {
            role.process.kill();
        }
    }

    fn freeze(&mut self, at: usize, until: u64) {
        if let Some(role) = self.roles.get_mut(at) {
            role.process.signal(Signal::STOP);
            self.undo.push((until, Undo::Wake(at)));
        }
    }

    fn fill(&mut self, at: usize, until: u64, spare: u64) {
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

    fn undo_until(&mut self, now: u64) {
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
            }
        }
    }

    /// Starts again what has ended.
    fn revive(&mut self) -> Result<(), TortureError> {
        let now = self.now();
        for role in &mut self.roles {
            let Some(status) = role.process.ended() else { continue };
            let ended = *role.ended_at.get_or_insert_with(clock::start);
            if ended.elapsed() < AGAIN {
                continue;
            }
            self.history.push(format!("{now} {} had ended with {status}; started again", role.log));
            self.restarts += 1;
            let failpoint = role.failpoint.take();
            let folder = &self.stage.folder;
            role.process =
                Process::start(&self.setup.program, &role.arguments, folder, &role.log, failpoint.as_deref())?;
            role.ended_at = None;
        }
        Ok(())
    }

    /// Delivers what is left, undisturbed.
    fn drain(&self) -> Result<Option<String>, TortureError> {
        let arguments = ["run", "--config", "litepost.toml", "--until-idle"];
        let mut said = String::new();
        for _ in 0..DRAINS {
            let output = Command::new(&self.setup.program)
                .args(arguments)
                .current_dir(&self.stage.folder)
                .env("LOG_LEVEL", "warn")
                .env_remove("RUST_LOG")
                .env_remove("LITEPOST_FAILPOINT")
                .stdin(Stdio::null())
                .output()
                .map_err(TortureError::io("the last drain"))?;
            said = String::from_utf8_lossy(&output.stderr).into_owned();
            match output.status.code() {
                Some(0) => return Ok(None),
                Some(1) => std::thread::sleep(Duration::from_millis(250)),
                _ => {
                    let status = output.status;
                    return Err(TortureError::Command { arguments: arguments.join(" "), status, stderr: said });
                }
            }
        }
        Ok(Some(format!("never drained: {}", said.trim())))
    }

    pub(crate) fn judge(mut self) -> Result<Verdict, TortureError> {
        let stuck = self.drain()?;
        self.roles.clear();
        let mut journals = BTreeMap::new();
        for producer in 0..self.plan.producers {
            journals.insert(producer as u64, Journal::read(&self.stage.journal(producer))?);
        }
        let deliveries = self.stage.deliveries()?;
        let mut violations = self.stage.violations(&journals, &deliveries)?;
        violations.extend(stuck.map(|problem| Violation::Books { problem }));
        let sum = |count: fn(&Journal) -> usize| journals.values().map(count).sum::<usize>();
        let (tried, committed, rolled_back) =
            (sum(|j| j.tried.len()), sum(|j| j.committed.len()), sum(|j| j.undone.len()));
        if committed == 0 {
            violations.push(Violation::Books { problem: "the producers wrote nothing".to_owned() });
        }
        let ok = violations.is_empty();
        violations.truncate(100);
        Ok(Verdict {
            ok,
            committed,
            rolled_back,
            open: tried.saturating_sub(committed + rolled_back),
            delivered: deliveries.into_iter().map(|(name, _, got)| (name, got.len())).collect(),
            faults: self.faults,
            restarts: self.restarts,
            violations,
            history: self.history,
            folder: self.stage.folder,
        })
    }
}
