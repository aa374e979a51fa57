//! Carries a plan out and judges the end.
//!
//! Called by the command. Invariant: faults end before the judgement; what is judged is the state after a last drain by
//! a relay that nobody disturbs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde::Serialize;

use crate::check::{self, Disturbed, Journal, Permitted, Takes, Violation};
use crate::deeds::Undo;
use crate::files::Unadopted;
use crate::network::{Network, Troubles};
use crate::plan::{Plan, Reach};
use crate::producer::SOON_MS;
use crate::reap::Process;
use crate::stage::Stage;
use crate::{TortureError, clock};

/// Between two looks at the processes.
const TICK: Duration = Duration::from_millis(5);
/// A process that has ended is started again after this.
const AGAIN: Duration = Duration::from_millis(120);
/// Between two looks at who has the lanes of webhooks, milliseconds.
const HANDS_MS: u64 = 50;
/// A process that has ended is noticed by then, milliseconds.
const ENDED_MS: u64 = 1_000;
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
    pub postgres: Postgres,
}

/// Which PostgreSQL is delivered to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Postgres {
    /// None.
    None,
    /// A database that is there: its network is broken, and never the server.
    Theirs(String),
    /// A server of the run's own, which is killed and frozen as well.
    Own,
}

impl Postgres {
    /// What a run with it can break.
    pub fn reach(&self) -> Reach {
        let postgres = match self {
            Self::None => false,
            Self::Theirs(url) => crate::proxy::through(url, 0).is_some(),
            Self::Own => true,
        };
        Reach { webhook: true, postgres, server: *self == Self::Own }
    }
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
    /// Events that were committed and went with a file that an operator replaced by an older one.
    pub gone: usize,
    /// What each destination has.
    pub delivered: BTreeMap<&'static str, usize>,
    /// Webhooks that came again, each with a reason.
    pub repeated: usize,
    /// What the network did.
    pub network: Troubles,
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
    let began = clock::start();
    let network = Network::start(&setup.postgres, began)?;
    let postgres = network.database().zip(network.for_relays());
    let stage = Stage::set(&folder(setup)?, postgres, Some(network.webhook()))?;
    let mut run = Run::start(setup, plan, stage, Some(network), began)?;
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

/// A process of the run.
pub(crate) struct Role {
    pub(crate) process: Process,
    arguments: Vec<String>,
    log: String,
    ended_at: Option<Instant>,
    /// Armed at its next start.
    pub(crate) failpoint: Option<String>,
    /// Which of the disturbances is the failpoint that it was started with.
    armed: Option<usize>,
}

pub(crate) struct Run<'a> {
    pub(crate) setup: &'a Setup,
    plan: &'a Plan,
    pub(crate) stage: Stage,
    /// What is reached over a network; none in a soak.
    pub(crate) network: Option<Network>,
    began: Instant,
    /// Producers, then relays.
    pub(crate) roles: Vec<Role>,
    pub(crate) undo: Vec<(u64, Undo)>,
    /// What may make a relay send again what was confirmed.
    pub(crate) disturbed: Vec<Disturbed>,
    /// How far the wall clock is set, and was at the most, milliseconds.
    pub(crate) clock_ms: i64,
    pub(crate) furthest_ms: i64,
    /// There is a backup.
    pub(crate) kept: bool,
    /// The file in the outbox's place that nobody has adopted yet.
    pub(crate) unadopted: Option<Unadopted>,
    /// What operators have taken away, and let come again.
    pub(crate) permitted: Permitted,
    /// What was found on the way.
    pub(crate) found: Vec<Violation>,
    /// When the lanes of webhooks were last seen, and with which tokens.
    hands: (u64, Vec<i64>),
    pub(crate) faults: usize,
    restarts: usize,
    pub(crate) history: Vec<String>,
}

impl<'a> Run<'a> {
    /// Starts everything. The network, if there is one, counts its times from `began` as well.
    pub(crate) fn start(
        setup: &'a Setup,
        plan: &'a Plan,
        stage: Stage,
        network: Option<Network>,
        began: Instant,
    ) -> Result<Self, TortureError> {
        let mut run = Self {
            setup,
            plan,
            stage,
            network,
            began,
            roles: Vec::new(),
            undo: Vec::new(),
            disturbed: Vec::new(),
            clock_ms: 0,
            furthest_ms: 0,
            kept: false,
            unadopted: None,
            permitted: Permitted::default(),
            found: Vec::new(),
            hands: (0, Vec::new()),
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
        self.roles.push(Role { process, arguments, log, ended_at: None, failpoint: None, armed: None });
        Ok(())
    }

    /// Until its time is over; `watch` sees every tick with its time.
    pub(crate) fn go(&mut self, watch: &mut dyn FnMut(&mut Self, u64)) -> Result<(), TortureError> {
        let mut next = 0;
        // Making a server takes a while; the plan begins when all is there.
        let late = self.now();
        loop {
            let now = self.now().saturating_sub(late);
            while let Some(fault) = self.plan.faults.get(next).filter(|fault| fault.at_ms <= now) {
                next += 1;
                self.carry_out(&fault.deed);
            }
            self.undo_until(self.now());
            if now >= self.plan.ms {
                break;
            }
            self.revive()?;
            self.look_at_hands();
            watch(self, now);
            std::thread::sleep(TICK);
        }
        self.undo_until(u64::MAX);
        let now = self.now();
        for role in &mut self.roles {
            let relay = role.log.starts_with("relay");
            if !role.process.stop(Duration::from_secs(if relay { 15 } else { 0 })) && relay {
                self.disturbed.push((now, u64::MAX));
            }
        }
        self.look_at_hands();
        Ok(())
    }

    /// A lane that changes hands may be sent again from where its cursor was last saved. (A relay that is too slow loses
    /// its lanes without any fault of the plan.)
    fn look_at_hands(&mut self) {
        let now = self.now();
        let (seen, tokens) = &self.hands;
        if self.network.is_none() || now < seen + HANDS_MS {
            return;
        }
        // A file that cannot be read in this moment is looked at again: the time in between counts.
        let Ok(found) = self.stage.tokens("torture.webhook") else { return };
        if found != *tokens {
            self.disturbed.push((*seen, now));
        }
        self.hands = (now, found);
    }

    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The process of the first relay, when it runs.
    pub(crate) fn first_relay(&mut self) -> Option<u32> {
        let at = self.relay(0);
        self.roles.get_mut(at).and_then(|role| role.process.id())
    }

    pub(crate) fn relay(&self, relay: usize) -> usize {
        self.plan.producers + relay
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
            if !role.log.starts_with("relay") {
                continue;
            }
            // It may have ended by itself. At a failpoint that it is armed with something fails later, until it ends.
            if let Some(armed) = role.armed.take().and_then(|at| self.disturbed.get_mut(at)) {
                armed.1 = now;
            }
            role.armed = failpoint.is_some().then_some(self.disturbed.len());
            let until = if failpoint.is_some() { u64::MAX } else { now };
            self.disturbed.push((now.saturating_sub(ENDED_MS), until));
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
                .env("LITEPOST_CLOCK", self.stage.clock())
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
        self.network.as_ref().map_or(Ok(()), Network::wait)?;
        // What has a time of its own is due by the clock that was furthest ahead.
        if (self.clock_ms, self.furthest_ms) == (0, 0) {
            std::thread::sleep(Duration::from_millis(SOON_MS));
        } else {
            self.set_clock(self.furthest_ms + i64::try_from(SOON_MS).unwrap_or(0));
        }
        // Refused while a relay did not give its lanes away; now nobody has any.
        self.adopt();
        self.undo.clear();
        let stuck = self.drain()?;
        self.roles.clear();
        let mut journals = BTreeMap::new();
        for producer in 0..self.plan.producers {
            journals.insert(producer as u64, Journal::read(&self.stage.journal(producer))?);
        }
        let counted = |count: fn(&Journal) -> usize| journals.values().map(count).sum::<usize>();
        let tried = counted(|journal| journal.tried.len());
        let (committed, rolled_back) =
            (counted(|journal| journal.committed.len()), counted(|journal| journal.undone.len()));
        let mut violations = std::mem::take(&mut self.found);
        if self.unadopted.is_some() {
            violations.push(Violation::Books { problem: "the file could not be adopted".to_owned() });
        }
        if self.network.is_some() {
            violations.extend(check::resolve(&mut journals, &self.stage.rows()?, &self.permitted.gone));
        }
        let mut deliveries = self.stage.deliveries()?;
        let receipts = self.network.as_ref().map(Network::receipts).unwrap_or_default();
        if self.network.is_some() {
            deliveries.push(("webhook", Takes::WhatIsGood, check::first(&receipts)));
        }
        violations.extend(self.stage.violations(&journals, &deliveries, &self.permitted)?);
        violations.extend(check::again("webhook", &receipts, &self.disturbed));
        violations.extend(stuck.map(|problem| Violation::Books { problem }));
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
            repeated: receipts.iter().filter(|receipt| !receipt.network).count() - check::first(&receipts).len(),
            gone: self.permitted.gone.len(),
            delivered: deliveries.into_iter().map(|(name, _, got)| (name, got.len())).collect(),
            network: self.network.as_ref().map(Network::troubles).unwrap_or_default(),
            faults: self.faults,
            restarts: self.restarts,
            violations,
            history: self.history,
            folder: self.stage.folder,
        })
    }
}
