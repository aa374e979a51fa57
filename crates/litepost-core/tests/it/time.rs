//! Everything that waits for a time: outages, retries, schedules, expiry. In simulated time.

use std::collections::{BTreeMap, BTreeSet};

use litepost_core::pipeline::{Action, BlockedLine, BlockedState, DeadLetter, LaneState, Settlement};
use litepost_core::{
    Applied, Chunk, DeadReason, Event, EventRef, Line, LineKind, Millis, Now, Outcome, Pipeline, PipelineConfig,
    Rejection, RetryPolicy, Seq, Unavailable, UnavailableKind,
};

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;

/// A log, a pipeline over it, and what was settled; the clock is ours.
struct Bench {
    log: Vec<Event>,
    pipeline: Pipeline,
    config: PipelineConfig,
    now: Now,
    state: LaneState,
    dead: BTreeMap<i64, DeadReason>,
    /// What their letters say, if anything.
    said: BTreeMap<i64, String>,
    /// How often the destination was asked what it remembers.
    asked: u32,
    delivered: i64,
    /// Every attempt: when, and of which event.
    attempts: Vec<(i64, i64)>,
    /// The log as far as it was asked for and had nothing.
    reading: Option<Seq>,
    /// What the destination remembers.
    applied: Applied,
}

impl Bench {
    fn new(config: PipelineConfig, log: Vec<Event>) -> Self {
        let now = Now { wall: Millis(1_000_000), mono: Millis(0) };
        let pipeline = Pipeline::new(config.clone(), LaneState::default(), now);
        let state = LaneState::default();
        let dead = BTreeMap::new();
        let (attempts, applied) = (Vec::new(), Applied::default());
        let (said, asked) = (BTreeMap::new(), 0);
        Self { log, pipeline, config, now, state, dead, said, asked, delivered: 0, attempts, reading: None, applied }
    }

    fn write(&mut self, key: &str) {
        let seq = i64::try_from(self.log.len()).unwrap() + 1;
        let mut event = Event::new(Seq(seq), "id", "orders", "{}");
        event.key = Some(key.into());
        self.log.push(event);
    }

    /// The relay is killed and started again: only what was settled is left.
    fn restart(&mut self) {
        self.pipeline = Pipeline::new(self.config.clone(), self.state.clone(), self.now);
        self.reading = None;
    }

    fn index(seq: Seq) -> usize {
        usize::try_from(seq.0 - 1).unwrap()
    }

    fn settle(&mut self, settlement: Settlement) {
        self.state.acked = settlement.acked;
        self.state.acked_above = settlement.acked_above;
        self.state.blocked.extend(settlement.blocked);
        for line in settlement.released {
            self.state.blocked.remove(&line);
        }
        self.dead.extend(settlement.dead.iter().map(|letter| (letter.seq.0, letter.reason)));
        let said = |letter: &DeadLetter| Some((letter.seq.0, letter.error.clone()?));
        self.said.extend(settlement.dead.iter().filter_map(said));
        self.delivered += settlement.added.delivered;
        self.pipeline.settled(settlement.id.unwrap());
    }

    /// Runs until `until` (time since the beginning), with what the destination says at a time of an event.
    fn run(&mut self, until: i64, mut says: impl FnMut(i64, &Event) -> Outcome) {
        for _ in 0..1_000_000 {
            if let Some(after) = self.reading.filter(|after| Self::index(after.next()) < self.log.len()) {
                self.reading = None;
                self.pipeline.chunk(&Chunk::new(self.log[Self::index(after.next())..].to_vec()), self.now);
            }
            match self.pipeline.poll(self.now) {
                Action::Read { after } => self.reading = Some(after),
                Action::Fetch { seqs } => {
                    let one = |seq: &Seq| EventRef::new(&Chunk::new(vec![self.log[Self::index(*seq)].clone()]), 0);
                    self.pipeline.fetched(seqs.iter().filter_map(one).collect(), self.now);
                }
                Action::Deliver(delivery) => {
                    let at = self.now.mono.0;
                    self.attempts.extend(delivery.events.iter().map(|event| (at, event.seq.0)));
                    let mut stopped: Vec<Line> = Vec::new();
                    let mut outcomes = Vec::new();
                    for event in &delivery.events {
                        let line = Line::of(event, self.config.ordering);
                        let outcome = if stopped.contains(&line) { Outcome::Deferred } else { says(at, event) };
                        if outcome != Outcome::Delivered {
                            stopped.push(line);
                        }
                        outcomes.push(outcome);
                    }
                    self.pipeline.outcomes(delivery.id, outcomes, self.now, &mut || 0.5);
                }
                Action::Settle(settlement) => self.settle(settlement),
                Action::Wait { until: at } => {
                    let more = self.reading.is_some_and(|after| Self::index(after.next()) < self.log.len());
                    let next = at.map_or(until, |at| at.0.min(until));
                    if more {
                        continue;
                    }
                    if next >= until && at.is_none_or(|at| at.0 > until) {
                        self.advance(until - self.now.mono.0);
                        return;
                    }
                    self.advance(next - self.now.mono.0);
                }
                Action::Open => {
                    self.asked += 1;
                    self.pipeline.opened(Ok(Some(self.applied.clone())), self.now, &mut || 0.5);
                }
                Action::Finished(_) => panic!("not asked for"),
            }
        }
        panic!("no end in sight: {:?}", self.pipeline);
    }

    fn advance(&mut self, ms: i64) {
        self.now.mono = self.now.mono.plus(ms);
        self.now.wall = self.now.wall.plus(ms);
    }
}

fn down() -> Outcome {
    Outcome::Unavailable(Unavailable::new(UnavailableKind::Connect, "connection refused"))
}

#[test]
fn a_ten_hour_outage_dead_letters_nothing() {
    // As impatient as a configuration can be.
    let retry = RetryPolicy { max_attempts: Some(1), max_age_ms: Some(MINUTE), ..RetryPolicy::default() };
    let mut bench = Bench::new(PipelineConfig { retry, ..PipelineConfig::default() }, Vec::new());
    for minute in 0..600 {
        bench.write(&format!("k{}", minute % 7));
        bench.run((minute + 1) * MINUTE, |_, _| down());
        if minute % 100 == 50 {
            bench.restart();
        }
    }
    assert_eq!((bench.dead.len(), bench.delivered, bench.state.blocked.len()), (0, 0, 0));
    // Probes, not a storm: one every 22.5 seconds once the pause is at its cap.
    let probes = bench.attempts.iter().map(|(at, _)| at).collect::<BTreeSet<_>>().len();
    assert!(probes < 2_000, "{probes} probes in ten hours");
    bench.run(11 * HOUR, |_, _| Outcome::Delivered);
    assert_eq!((bench.dead.len(), bench.delivered, bench.state.acked), (0, 600, Seq(600)));
    let back = bench.attempts.iter().find(|(at, _)| *at >= 10 * HOUR).unwrap().0 - 10 * HOUR;
    assert!(back <= 30_000, "noticed {back} ms after the destination was back");
}

#[test]
fn retries_follow_their_clock_and_end_by_number_and_by_age() {
    let retry = RetryPolicy::sqloutbox(64, Some(5));
    let mut bench = Bench::new(PipelineConfig { retry, ..PipelineConfig::default() }, Vec::new());
    bench.write("k");
    bench.write("k");
    bench.run(48 * HOUR, |_, event| match event.seq {
        Seq(1) => Outcome::Rejected(Rejection::new("x", "no")),
        _ => Outcome::Delivered,
    });
    // Half of 2, 4, 8, 16 minutes, since chance is always one half here.
    let first: Vec<i64> = bench.attempts.iter().filter(|(_, seq)| *seq == 1).map(|(at, _)| at / MINUTE).collect();
    assert_eq!(first, [0, 1, 3, 7, 15]);
    assert_eq!(bench.dead, BTreeMap::from([(1, DeadReason::MaxAttempts)]));
    assert_eq!(bench.delivered, 1);

    let retry = RetryPolicy { max_attempts: None, max_age_ms: Some(3 * HOUR), ..RetryPolicy::default() };
    let mut bench = Bench::new(PipelineConfig { retry, ..PipelineConfig::default() }, Vec::new());
    bench.write("k");
    bench.run(48 * HOUR, |_, _| Outcome::Rejected(Rejection::new("x", "no")));
    assert_eq!(bench.dead, BTreeMap::from([(1, DeadReason::MaxAge)]));
    let last = bench.attempts.last().unwrap().0;
    assert!((3 * HOUR..3 * HOUR + 10 * MINUTE).contains(&last), "given up after {last} ms");
}

#[test]
fn a_pause_the_destination_asks_for_is_kept_and_survives_a_restart() {
    let mut bench = Bench::new(PipelineConfig::default(), Vec::new());
    bench.write("k");
    let asked = |at: i64| {
        let rejection = Rejection { retry_after_ms: Some(20 * MINUTE), ..Rejection::new("429", "slow down") };
        if at == 0 { Outcome::Rejected(rejection) } else { Outcome::Delivered }
    };
    bench.run(MINUTE, |at, _| asked(at));
    let row = bench.state.blocked.values().next().unwrap();
    assert_eq!((row.state, row.next_attempt), (BlockedState::Backoff, Millis(1_000_000 + 20 * MINUTE)));
    bench.restart();
    // Nothing is written meanwhile: the timer needs no commit to fire.
    bench.run(10 * MINUTE, |at, _| asked(at));
    assert_eq!(bench.attempts.len(), 1, "too early");
    bench.run(HOUR, |at, _| asked(at));
    assert_eq!((bench.delivered, bench.state.blocked.len()), (1, 0));
}

#[test]
fn a_scheduled_event_leaves_at_its_time_and_holds_nobody() {
    let mut bench = Bench::new(PipelineConfig::default(), Vec::new());
    for _ in 0..3 {
        bench.write("k");
    }
    bench.log[0].deliver_after = Some(Millis(1_000_000 + 5 * HOUR));
    bench.run(HOUR, |_, _| Outcome::Delivered);
    assert_eq!(bench.attempts.iter().map(|(_, seq)| *seq).collect::<Vec<_>>(), [2, 3]);
    bench.restart();
    bench.run(5 * HOUR - 1, |_, _| Outcome::Delivered);
    assert_eq!(bench.attempts.len(), 2, "not before its time");
    bench.run(6 * HOUR, |_, _| Outcome::Delivered);
    assert_eq!(bench.attempts.last(), Some(&(5 * HOUR, 1)));
    assert_eq!((bench.delivered, bench.state.blocked.len()), (3, 0));
}

#[test]
fn what_expires_before_it_could_leave_is_a_dead_letter_and_never_tried() {
    let mut bench = Bench::new(PipelineConfig::default(), Vec::new());
    for _ in 0..3 {
        bench.write("k");
    }
    bench.log[1].expires_at = Some(Millis(1_000_000 + HOUR));
    bench.run(2 * HOUR, |_, _| down());
    bench.run(3 * HOUR, |_, _| Outcome::Delivered);
    assert_eq!((bench.dead.clone(), bench.delivered), (BTreeMap::from([(2, DeadReason::Expired)]), 2));
    assert!(!bench.attempts.iter().any(|(at, seq)| *seq == 2 && *at > HOUR), "tried after its time");
    let mut early = Bench::new(PipelineConfig::default(), Vec::new());
    early.write("k");
    early.log[0].expires_at = Some(Millis(1_000_000 + HOUR));
    early.run(HOUR, |_, _| Outcome::Delivered);
    assert_eq!((early.dead.len(), early.delivered), (0, 1), "in time");
}

/// Applied out of order, then the relay died before it had settled it; meanwhile its time has passed. And the other way
/// round: a mark that is further on says nothing about an event that was not applied.
#[test]
fn what_a_ledger_knows_as_applied_is_delivered_and_nothing_else_is() {
    let config = PipelineConfig { watermark: true, ..PipelineConfig::default() };
    for (known, dead, delivered) in [(true, 0, 3), (false, 1, 2)] {
        let mut bench = Bench::new(config.clone(), Vec::new());
        for key in ["k", "l", "k"] {
            bench.write(key);
        }
        bench.log[0].expires_at = Some(Millis(1_000_000 + HOUR));
        let one_by_one = if known { BTreeSet::from([Seq(1)]) } else { BTreeSet::new() };
        bench.applied = Applied { in_order: Seq(2), one_by_one, former: Vec::new() };
        let waits = BlockedLine {
            first: Seq(1),
            waiting: 1,
            state: BlockedState::Releasing,
            attempts: 0,
            error_code: None,
            error: None,
            blocked_at: bench.now.wall,
            next_attempt: bench.now.wall,
        };
        let line = Line { kind: LineKind::Key, name: "k".into() };
        bench.state.acked = Seq(1);
        bench.state.blocked.insert(line, waits);
        bench.now.wall = Millis(1_000_000 + 2 * HOUR);
        bench.restart();
        bench.run(3 * HOUR, |_, _| Outcome::Delivered);
        assert_eq!((bench.dead.len(), bench.delivered), (dead, delivered), "known: {known}");
    }
    // In order, event 2 was not applied, although event 3 was (out of order).
    let mut bench = Bench::new(config, Vec::new());
    for key in ["k", "l", "m"] {
        bench.write(key);
    }
    bench.log[1].expires_at = Some(Millis(1_000_000 + HOUR));
    bench.applied = Applied { in_order: Seq(1), one_by_one: BTreeSet::from([Seq(3)]), former: Vec::new() };
    bench.now.wall = Millis(1_000_000 + 2 * HOUR);
    bench.restart();
    bench.run(3 * HOUR, |_, _| Outcome::Delivered);
    assert_eq!((bench.dead.clone(), bench.delivered), (BTreeMap::from([(2, DeadReason::Expired)]), 2));
}

/// An answer that was lost, and an event that expires before it can be sent again.
#[test]
fn what_was_sent_and_has_expired_is_never_called_undelivered_without_a_doubt() {
    let lost = || Outcome::Unavailable(Unavailable::new(UnavailableKind::Timeout, "no answer"));
    let refused = || Outcome::Unavailable(Unavailable::new(UnavailableKind::Connect, "refused").unsent());
    let bench = |watermark: bool| {
        let mut bench = Bench::new(PipelineConfig { watermark, ..PipelineConfig::default() }, Vec::new());
        bench.write("k");
        bench.write("l");
        bench.log[0].expires_at = Some(Millis(1_000_000 + HOUR));
        bench
    };
    // Nobody can be asked: the letter says that it may have arrived.
    let mut broker = bench(false);
    broker.run(2 * HOUR, |_, _| lost());
    broker.run(3 * HOUR, |_, _| Outcome::Delivered);
    assert_eq!((broker.dead.clone(), broker.delivered), (BTreeMap::from([(1, DeadReason::Expired)]), 1));
    assert!(broker.said[&1].contains("may have been delivered"), "{:?}", broker.said);
    // What never left cannot have.
    let mut never = bench(false);
    never.run(2 * HOUR, |_, _| refused());
    never.run(3 * HOUR, |_, _| Outcome::Delivered);
    assert_eq!((never.dead.len(), never.said.len()), (1, 0), "{:?}", never.said);
    // A relay before this one may have sent it.
    let mut killed = bench(false);
    killed.state.doubt_until = Seq(1);
    killed.now.wall = Millis(1_000_000 + 2 * HOUR);
    killed.restart();
    killed.run(3 * HOUR, |_, _| Outcome::Delivered);
    assert!(killed.said[&1].contains("may have been delivered"), "{:?}", killed.said);
    // A ledger is asked, once, and believed.
    for applied in [0, 1] {
        let mut ledger = bench(true);
        ledger.run(HOUR / 2, |_, _| lost());
        ledger.applied.in_order = Seq(applied);
        ledger.run(2 * HOUR, |_, _| lost());
        ledger.run(3 * HOUR, |_, _| Outcome::Delivered);
        assert_eq!((ledger.dead.len(), ledger.delivered), if applied == 1 { (0, 2) } else { (1, 1) }, "{applied}");
        assert_eq!((ledger.asked, ledger.said.len()), (2, 0), "applied up to {applied}");
    }
}

/// The same when its line is blocked, and it leaves out of order.
#[test]
fn a_ledger_is_asked_about_an_expired_event_of_a_blocked_line() {
    for applied in [false, true] {
        let mut bench = Bench::new(PipelineConfig { watermark: true, ..PipelineConfig::default() }, Vec::new());
        bench.write("k");
        bench.log[0].expires_at = Some(Millis(1_000_000 + HOUR));
        let mut times = 0;
        bench.run(HOUR / 2, |_, _| {
            times += 1;
            match times {
                1 => Outcome::Rejected(Rejection::new("x", "no")),
                _ => Outcome::Unavailable(Unavailable::new(UnavailableKind::Timeout, "no answer")),
            }
        });
        assert!(times > 1, "it was tried again");
        if applied {
            bench.applied.one_by_one.insert(Seq(1));
        }
        bench.now.wall = Millis(1_000_000 + 2 * HOUR);
        bench.run(3 * HOUR, |_, _| Outcome::Delivered);
        assert_eq!((bench.dead.len(), bench.delivered), if applied { (0, 1) } else { (1, 0) }, "{applied}");
        assert!(bench.asked > 1 && bench.state.blocked.is_empty());
    }
}

#[test]
fn the_cursor_is_saved_when_it_is_quiet_and_five_times_a_second_while_it_is_not() {
    let mut bench = Bench::new(PipelineConfig::default(), Vec::new());
    let mut saved = Vec::new();
    for at in (0..=400).step_by(10) {
        bench.write("a");
        bench.run(at, |_, _| Outcome::Delivered);
        if saved.last() != Some(&bench.state.acked.0) {
            saved.push(bench.state.acked.0);
        }
    }
    assert_eq!(saved, [0, 21, 41], "200 milliseconds after the first event that it covers");
    bench.write("a");
    bench.run(424, |_, _| Outcome::Delivered);
    assert_eq!(bench.state.acked.0, 41);
    assert!(bench.pipeline.is_decided() && !bench.pipeline.is_idle(), "delivered, and not saved");
    bench.run(425, |_, _| Outcome::Delivered);
    assert_eq!(bench.state.acked.0, 42, "25 milliseconds after the last one");
    assert!(bench.pipeline.is_idle());
}
