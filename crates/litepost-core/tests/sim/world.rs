//! One schedule: the outbox file, the relay's incarnations, what happens to them, and what must hold at the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use litepost_core::pipeline::{
    Action, BlockedState, Counters, DeadLetter, Decisions, Delivery, Finish, LaneState, Settlement,
};
use litepost_core::{
    Applied, Chunk, DeadReason, Event, EventRef, Line, Millis, Now, Outcome, Pipeline, PipelineConfig, Seq,
    UnavailableKind,
};

use crate::chance::Chance;
use crate::destination::{Destination, unavailable};
use crate::operator::Deed;
use crate::setup;

/// What schedules have reached: a simulator that never crashes while a line is released proves nothing about it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks(BTreeMap<&'static str, u64>);

const INTERESTING: &[&str] = &[
    "crash",
    "power cut",
    "power cut lost a settlement",
    "lease lost",
    "late effect",
    "reply lost after the effect",
    "rejected",
    "dead letter",
    "expired",
    "scheduled",
    "released",
    "restart with blocked lines",
    "outage",
    "fenced",
    "cut fetch",
    "held",
    "clock set",
    "settled above the cursor",
    "skipped",
    "paused",
    "handed over",
    "asked again",
];

impl Marks {
    fn hit(&mut self, mark: &'static str) {
        *self.0.entry(mark).or_default() += 1;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (mark, count) in &other.0 {
            *self.0.entry(mark).or_default() += count;
        }
    }

    pub(crate) fn missing(&self) -> Vec<&'static str> {
        INTERESTING.iter().copied().filter(|mark| !self.0.contains_key(mark)).collect()
    }
}

/// What the outbox file says about the lane.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Disk {
    pub(crate) lane: LaneState,
    pub(crate) counters: Counters,
    pub(crate) dead: Vec<DeadLetter>,
}

impl Disk {
    fn apply(&mut self, settlement: &Settlement) {
        self.lane.acked = settlement.acked;
        self.lane.acked_above = settlement.acked_above.clone();
        self.counters.delivered += settlement.added.delivered;
        self.counters.dead += settlement.added.dead;
        self.counters.expired += settlement.added.expired;
        self.counters.skipped += settlement.added.skipped;
        self.counters.unrouted += settlement.added.unrouted;
        self.dead.extend(settlement.dead.iter().cloned());
        for letter in settlement.dead.iter().filter(|letter| letter.reason == DeadReason::Skipped) {
            self.lane.decisions.skips.remove(&letter.seq);
        }
        for (line, row) in &settlement.blocked {
            self.lane.blocked.insert(line.clone(), row.clone());
        }
        for line in &settlement.released {
            self.lane.blocked.remove(line);
        }
    }
}

pub(crate) struct Relay {
    pipeline: Pipeline,
    token: i64,
    opening: bool,
    /// The destination has said what it remembers.
    opened: bool,
    reading: Option<Seq>,
    fetching: Option<Vec<Seq>>,
    pub(crate) deliveries: Vec<Delivery>,
    settling: Option<Settlement>,
    /// What the operator had decided when the lane was taken, and how far the destination was.
    pub(crate) decisions: Decisions,
    pub(crate) applied: Applied,
}

pub(crate) struct World {
    chance: Chance,
    pub(crate) config: PipelineConfig,
    pub(crate) log: Vec<Event>,
    written: usize,
    /// Committed states since the last sync: a power cut leaves any one of them.
    commits: Vec<Disk>,
    pub(crate) destination: Destination,
    pub(crate) relay: Relay,
    late: Vec<(Delivery, i64)>,
    /// What an operator does as soon as nobody delivers.
    deed: Option<Deed>,
    now: Now,
    pub(crate) faults: bool,
    marks: Marks,
    calm: bool,
    trace: bool,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut chance = Chance::new(seed);
        let with_ledger = chance.percent(50);
        let config = setup::config(&mut chance, with_ledger);
        let (log, poison) = setup::log(&mut chance);
        let now = Now { wall: Millis(1_000_000), mono: Millis(0) };
        let relay = Relay::start(&config, &LaneState::default(), 1, now);
        Self {
            faults: chance.percent(80),
            chance,
            config,
            log,
            written: 0,
            commits: vec![Disk::default()],
            destination: Destination::new(with_ledger, poison),
            relay,
            late: Vec::new(),
            deed: None,
            now,
            marks: Marks::default(),
            calm: false,
            trace: std::env::var_os("SIM_TRACE").is_some(),
        }
    }

    /// Runs to the end, then checks; the error says which promise was broken.
    pub(crate) fn run(mut self) -> Result<Marks, String> {
        let mut steps = 0;
        loop {
            steps += 1;
            if steps > 60_000 {
                return Err(format!("no end in sight: {:?}", self.relay.pipeline));
            }
            // After a while nothing new goes wrong, so that everything can come to its end.
            if steps > 400 && !self.calm {
                self.calm = true;
                self.destination.down = false;
                self.hand_over(Deed::ResumeAll);
            }
            if !self.calm && self.faults && self.chance.percent(3) {
                self.mishap();
            }
            self.write_some();
            if self.step()? && self.calm && self.done() {
                break;
            }
        }
        self.check()?;
        Ok(self.marks)
    }

    fn write_some(&mut self) {
        if self.written < self.log.len() && (self.calm || self.chance.percent(30)) {
            let more = usize::try_from(1 + self.chance.below(5)).unwrap_or(1);
            self.written = (self.written + more).min(self.log.len());
        }
    }

    fn done(&self) -> bool {
        let everything = i64::try_from(self.log.len()).unwrap_or(0);
        let idle = self.relay.pipeline.is_idle() && self.relay.pipeline.read_position().0 == everything;
        let held = |state: BlockedState| state == BlockedState::Held;
        idle && self.deed.is_none()
            && self.late.is_empty()
            && self.disk().lane.blocked.values().all(|row| held(row.state))
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.commits[self.commits.len() - 1]
    }

    fn mishap(&mut self) {
        match self.chance.below(8) {
            0 => {
                self.marks.hit("crash");
                self.restart();
            }
            1 => {
                self.marks.hit("power cut");
                let left = usize::try_from(self.chance.below(self.commits.len() as u64)).unwrap_or(0);
                if left + 1 < self.commits.len() {
                    self.marks.hit("power cut lost a settlement");
                }
                self.commits.truncate(left + 1);
                self.restart();
            }
            2 => {
                // Another relay takes over; deliveries in flight take effect whenever they like.
                self.marks.hit("lease lost");
                let token = self.relay.token;
                let late = std::mem::take(&mut self.relay.deliveries);
                self.late.extend(late.into_iter().map(|delivery| (delivery, token)));
                self.restart();
            }
            3 => {
                self.marks.hit("outage");
                self.destination.down = !self.destination.down;
            }
            4 => {
                self.marks.hit("clock set");
                let jump = i64::try_from(self.chance.below(200_000)).unwrap_or(0) - 100_000;
                self.now.wall = Millis(self.now.wall.0 + jump);
            }
            5 => self.commits.drain(..self.commits.len() - 1).for_each(drop),
            6 => {
                let deed = Deed::draw(&mut self.chance, &self.log);
                self.hand_over(deed);
            }
            _ => {
                // By force: what is in flight takes effect whenever it likes.
                let token = self.relay.token;
                let late = std::mem::take(&mut self.relay.deliveries);
                self.late.extend(late.into_iter().map(|delivery| (delivery, token)));
                self.deed = Some(Deed::draw(&mut self.chance, &self.log));
                self.restart();
            }
        }
    }

    /// The relay settles what is in flight; then the operator acts.
    fn hand_over(&mut self, deed: Deed) {
        self.marks.hit("handed over");
        self.deed = Some(deed);
        self.relay.pipeline.shutdown();
    }

    fn restart(&mut self) {
        // A relay makes what it has read of its own state durable before it acts on it.
        self.commits.drain(..self.commits.len() - 1);
        if let Some(deed) = self.deed.take() {
            deed.write(&mut self.commits[0].lane);
        }
        let lane = self.disk().lane.clone();
        if !lane.blocked.is_empty() {
            self.marks.hit("restart with blocked lines");
        }
        self.relay = Relay::start(&self.config, &lane, self.relay.token + 1, self.now);
    }

    /// One step; true when nothing happened.
    fn step(&mut self) -> Result<bool, String> {
        if !self.late.is_empty() && (self.calm || self.chance.percent(10)) {
            let (delivery, token) = self.late.remove(0);
            self.marks.hit("late effect");
            let ordering = self.config.ordering;
            let outcomes =
                self.destination.deliver(delivery.order, &delivery.events, token, ordering, &mut self.chance);
            if outcomes.iter().any(|o| matches!(o, Outcome::Unavailable(u) if u.kind == UnavailableKind::Fenced)) {
                self.marks.hit("fenced");
            }
        }
        let action = self.relay.pipeline.poll(self.now);
        if self.trace {
            println!("{:?} {action:?}", self.now);
        }
        match action {
            Action::Open => {
                if self.relay.opened {
                    self.marks.hit("asked again");
                }
                self.relay.opening = true;
            }
            Action::Read { after } => self.relay.reading = Some(after),
            Action::Fetch { seqs } => self.relay.fetching = Some(seqs),
            Action::Deliver(delivery) => {
                self.check_delivery(&delivery)?;
                self.relay.deliveries.push(delivery);
            }
            Action::Settle(settlement) => self.relay.settling = Some(settlement),
            Action::Finished(Finish::LeaseLost | Finish::Shutdown) => self.restart(),
            Action::Wait { until } => return Ok(self.answer_or_pass_time(until)),
        }
        // Now and then something is answered while the pipeline still has wishes.
        if self.chance.percent(40) {
            self.answer();
        }
        Ok(false)
    }

    fn answer_or_pass_time(&mut self, until: Option<Millis>) -> bool {
        if self.answer() {
            return false;
        }
        let pause = match until {
            Some(at) => at.since(self.now.mono).max(1),
            None => 1 + i64::try_from(self.chance.below(20)).unwrap_or(0),
        };
        let pause = if self.chance.percent(20) { (pause / 2).max(1) } else { pause };
        self.now.mono = self.now.mono.plus(pause);
        self.now.wall = self.now.wall.plus(pause);
        true
    }

    /// Answers one open wish, if there is one that can be answered.
    fn answer(&mut self) -> bool {
        let start = self.chance.below(5);
        (0..5).any(|turn| match (start + turn) % 5 {
            0 => self.answer_read(),
            1 => self.answer_fetch(),
            2 => self.answer_delivery(),
            3 => self.answer_open(),
            _ => self.answer_settlement(),
        })
    }

    fn chunk(&self, from: usize, to: usize) -> Arc<Chunk> {
        Chunk::new(self.log[from..to].to_vec())
    }

    fn answer_read(&mut self) -> bool {
        let Some(after) = self.relay.reading else {
            return false;
        };
        let from = usize::try_from(after.0).unwrap_or(0);
        if from >= self.written {
            return false;
        }
        let most = usize::try_from(1 + self.chance.below(12)).unwrap_or(1);
        let chunk = self.chunk(from, (from + most).min(self.written));
        self.relay.reading = None;
        self.relay.pipeline.chunk(&chunk, self.now);
        true
    }

    fn answer_open(&mut self) -> bool {
        if !std::mem::take(&mut self.relay.opening) {
            return false;
        }
        let lane = self.disk().lane.clone();
        let settled = |seq: i64| {
            let line = self.log.get(usize::try_from(seq - 1).unwrap_or(0)).map(|e| Line::of(e, self.config.ordering));
            seq <= lane.acked.0 && !line.is_some_and(|line| lane.blocked.contains_key(&line))
        };
        let applied = self.destination.open(self.relay.token, settled);
        self.relay.opened |= applied.is_ok();
        self.relay.applied = applied.clone().ok().flatten().unwrap_or_default();
        let chance = &mut self.chance;
        self.relay.pipeline.opened(applied, self.now, &mut || chance.unit());
        true
    }

    fn answer_fetch(&mut self) -> bool {
        let Some(seqs) = self.relay.fetching.take() else {
            return false;
        };
        let mut rows: Vec<EventRef> = seqs
            .iter()
            .filter_map(|seq| {
                let at = usize::try_from(seq.0 - 1).ok()?;
                EventRef::new(&self.chunk(at, at + 1), 0)
            })
            .collect();
        if rows.len() > 1 && self.chance.percent(20) {
            self.marks.hit("cut fetch");
            rows.truncate(usize::try_from(1 + self.chance.below(rows.len() as u64 - 1)).unwrap_or(1));
        }
        self.relay.pipeline.fetched(rows, self.now);
        true
    }

    fn answer_delivery(&mut self) -> bool {
        if self.relay.deliveries.is_empty() {
            return false;
        }
        let at = usize::try_from(self.chance.below(self.relay.deliveries.len() as u64)).unwrap_or(0);
        let delivery = self.relay.deliveries.swap_remove(at);
        let ordering = self.config.ordering;
        let token = self.relay.token;
        let mut outcomes =
            self.destination.deliver(delivery.order, &delivery.events, token, ordering, &mut self.chance);
        if outcomes.iter().any(|o| matches!(o, Outcome::Rejected(_))) {
            self.marks.hit("rejected");
        }
        if !self.calm && self.faults && self.chance.percent(5) {
            self.marks.hit("reply lost after the effect");
            outcomes = vec![unavailable(UnavailableKind::Timeout); delivery.events.len()];
        }
        if self.trace {
            println!("answer {:?} {:?}", delivery.events.iter().map(|e| e.seq.0).collect::<Vec<_>>(), outcomes);
        }
        let chance = &mut self.chance;
        self.relay.pipeline.outcomes(delivery.id, outcomes, self.now, &mut || chance.unit());
        true
    }

    fn answer_settlement(&mut self) -> bool {
        let Some(settlement) = self.relay.settling.take() else {
            return false;
        };
        let mut disk = self.disk().clone();
        disk.apply(&settlement);
        let by_topic: i64 = settlement.delivered.iter().map(|(_, count)| count).sum();
        assert_eq!(by_topic, settlement.added.delivered, "what is delivered by topic is what is delivered");
        // At every moment, not at the end alone: an operator may take the lane, and verify look, whenever they like.
        let waiting: i64 = disk.lane.blocked.values().map(|row| row.waiting).sum();
        let passed = disk.lane.acked.0 + disk.lane.acked_above.count();
        assert_eq!(disk.counters.total() + waiting, passed, "the books on disk balance: {:?}", disk.lane.blocked);
        self.note(&settlement);
        self.commits.push(disk);
        if settlement.durable {
            self.commits.drain(..self.commits.len() - 1);
        }
        if let Some(id) = settlement.id {
            self.relay.pipeline.settled(id);
        }
        true
    }

    fn note(&mut self, settlement: &Settlement) {
        for letter in &settlement.dead {
            self.marks.hit(match letter.reason {
                DeadReason::Expired => "expired",
                DeadReason::Skipped => "skipped",
                _ => "dead letter",
            });
        }
        for (_, row) in &settlement.blocked {
            match row.state {
                BlockedState::Scheduled => self.marks.hit("scheduled"),
                BlockedState::Held if row.error_code.as_deref() == Some(Decisions::PAUSED) => self.marks.hit("paused"),
                BlockedState::Held => self.marks.hit("held"),
                _ => {}
            }
        }
        if !settlement.released.is_empty() {
            self.marks.hit("released");
        }
        if !settlement.acked_above.is_empty() {
            self.marks.hit("settled above the cursor");
        }
    }
}

impl Relay {
    fn start(config: &PipelineConfig, lane: &LaneState, token: i64, now: Now) -> Self {
        Self {
            pipeline: Pipeline::new(config.clone(), lane.clone(), now),
            token,
            opening: false,
            opened: false,
            reading: None,
            fetching: None,
            deliveries: Vec::new(),
            settling: None,
            decisions: lane.decisions.clone(),
            applied: Applied::default(),
        }
    }
}
