//! Splitting a destination into lanes anew, by number, order and priority topics, whatever its lanes have reached: what was
//! open stays open, in the one lane it belongs to now, and nothing else does.

use std::collections::{BTreeMap, BTreeSet};

use litepost::StoreError;
use litepost::lanes::{Acquire, LaneStore, LeaseClaim, Split, Start};
use litepost::operate::{Operator, Who};
use litepost_core::pipeline::{BlockedLine, BlockedState, Settlement};
use litepost_core::{Event, Line, LineKind, Millis, Ordering, Seq, TopicFilter};
use proptest::prelude::*;

use crate::support::{File, file, open};

const D: &str = "shop.audit";
const TOPICS: [&str; 3] = ["orders", "alarms", "bulk"];

fn splits() -> Vec<Split> {
    let priority = |lanes, topics: &[&str]| Split { lanes, priority: TopicFilter::parse(topics).unwrap(), ..1.into() };
    vec![
        1.into(),
        3.into(),
        priority(2, &["alarms"]),
        priority(4, &["alarms"]),
        priority(3, &["al*", "orders"]),
        priority(2, &["*"]),
        Split { ordering: Ordering::Strict, ..2.into() },
        Split { ordering: Ordering::None, ..priority(3, &["alarms"]) },
    ]
}

fn write(file: &File, events: &[(usize, Option<u8>, bool)]) -> Vec<Event> {
    let app = open(&file.path);
    let mut log = Vec::new();
    for (seq, (topic, key, later)) in (1..).zip(events) {
        let mut event = Event::new(Seq(seq), "", TOPICS[*topic], "{}");
        event.key = key.map(|key| format!("k{key}").into());
        event.deliver_after = later.then_some(Millis(9));
        app.execute(
            "INSERT INTO litepost_outbox (topic, key, deliver_after, payload) VALUES (?1, ?2, ?3, '{}')",
            (TOPICS[*topic], event.key.as_deref(), event.deliver_after.map(|at| at.0)),
        )
        .unwrap();
        log.push(event);
    }
    log
}

/// Drives every lane some way, as a relay would leave it: some of its events delivered, some open, some waiting.
struct Desk<'a> {
    file: &'a File,
    log: &'a [Event],
    /// What no lane may do again.
    done: BTreeSet<Seq>,
    dice: u64,
}

impl Desk<'_> {
    fn below(&mut self, n: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % n
    }

    fn go_on(&mut self, split: &Split) {
        let mut store = LaneStore::open(&self.file.path).unwrap();
        store.register(D, split.clone(), Start::Earliest).unwrap();
        let claim = LeaseClaim { owner: "test".into(), holder_json: "{}".into(), lease_ms: 1_000 };
        for lane in 0..split.lanes {
            let Acquire::Granted(lease) = store.acquire(D, lane, &claim, None).unwrap() else { panic!("not free") };
            let (state, _) = store.load(D, lane).unwrap();
            let mut settlement =
                Settlement { acked: state.acked, acked_above: state.acked_above.clone(), ..Settlement::default() };
            let mut lines: BTreeMap<Line, BlockedLine> = state.blocked.clone();
            // What is behind an open event of its line is open, too: order.
            let mut open: BTreeSet<Line> = BTreeSet::new();
            let top = self.below(self.log.len() as u64 + 1);
            for event in self.log.iter().take(usize::try_from(top).unwrap()) {
                if event.seq <= state.acked || state.acked_above.contains(event.seq) {
                    continue;
                }
                let line = Line::of(event, split.ordering);
                if split.lane_of(event) != lane {
                    settlement.added.unrouted += 1;
                } else if open.contains(&line) {
                    continue;
                } else if let Some(row) = lines.get_mut(&line) {
                    row.waiting += 1;
                    self.done.insert(event.seq);
                } else if event.deliver_after.is_some() || self.below(24) == 0 {
                    let state =
                        if event.deliver_after.is_some() { BlockedState::Scheduled } else { BlockedState::Held };
                    lines.insert(line, waits(event.seq, state));
                    self.done.insert(event.seq);
                } else if self.below(3) > 0 {
                    settlement.added.delivered += 1;
                    assert!(self.done.insert(event.seq), "{} is delivered twice", event.seq);
                } else {
                    open.insert(line);
                    continue;
                }
                settlement.acked_above.insert(event.seq);
            }
            settlement.acked = settlement.acked_above.advance(settlement.acked);
            settlement.blocked = lines.into_iter().collect();
            store.settle(&[(&lease, &settlement)], Millis(1)).unwrap();
            assert!(store.release(&lease).unwrap());
        }
    }

    /// What the file says is what has been done, in whatever lane it belongs to now.
    fn check(&self, split: &Split) {
        let store = LaneStore::open(&self.file.path).unwrap();
        for lane in 0..split.lanes {
            let (state, row) = store.load(D, lane).unwrap();
            assert_eq!(row.lane.count, split.lanes);
            for event in self.log.iter().filter(|event| split.lane_of(event) == lane) {
                let accounted = event.seq <= state.acked || state.acked_above.contains(event.seq);
                assert_eq!(accounted, self.done.contains(&event.seq), "event {} in lane {lane}", event.seq);
            }
            for (line, row) in &state.blocked {
                let first = &self.log[usize::try_from(row.first.0 - 1).unwrap()];
                assert_eq!(split.lane_of(first), lane, "{line} waits where nobody looks for it");
            }
        }
        let found = litepost::verify(&open(&self.file.path)).unwrap();
        assert!(found.is_healthy(), "{:?}", found.problems);
    }
}

fn waits(first: Seq, state: BlockedState) -> BlockedLine {
    BlockedLine {
        first,
        waiting: 1,
        state,
        attempts: 0,
        error_code: None,
        error: None,
        blocked_at: Millis(1),
        next_attempt: Millis(1),
    }
}

fn change(file: &File, to: &Split) -> Result<(), StoreError> {
    let who = Who { actor: "test".into(), reason: None };
    Operator::open(&file.path, who).unwrap().change_lanes(D, to.clone()).map(drop)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_open_stays_open_whatever_the_lanes_are_split_by(
        events in prop::collection::vec((0..3_usize, prop::option::of(0..6_u8), prop::bool::weighted(0.1)), 1..40),
        steps in prop::collection::vec(0..8_usize, 2..7),
        dice in any::<u64>(),
    ) {
        let file = file();
        let log = write(&file, &events);
        let mut desk = Desk { file: &file, log: &log, done: BTreeSet::new(), dice };
        let mut split = splits()[steps[0]].clone();
        desk.go_on(&split);
        for step in &steps[1..] {
            let to = splits()[*step].clone();
            match change(&file, &to) {
                Ok(()) => split = to,
                Err(StoreError::Refused { .. }) => {
                    prop_assert!(split.ordering != to.ordering || split.priority != to.priority, "refused for nothing");
                    let waits: i64 = open(&file.path)
                        .query_row("SELECT count(*) FROM litepost_blocked WHERE state = 'held'", [], |row| row.get(0))
                        .unwrap();
                    prop_assert!(waits > 0, "refused although no line waits");
                }
                Err(error) => prop_assert!(false, "{error}"),
            }
            desk.check(&split);
            desk.go_on(&split);
            desk.check(&split);
        }
    }
}

#[test]
fn a_key_that_waits_in_two_lanes_is_never_thrown_together() {
    let file = file();
    // One key, a topic with priority and one without.
    let log = write(&file, &[(0, Some(1), false), (1, Some(1), false)]);
    let two = Split { lanes: 2, priority: TopicFilter::parse(["alarms"]).unwrap(), ..1.into() };
    let mut store = LaneStore::open(&file.path).unwrap();
    store.register(D, two.clone(), Start::Earliest).unwrap();
    let claim = LeaseClaim { owner: "test".into(), holder_json: "{}".into(), lease_ms: 1_000 };
    let line = Line { kind: LineKind::Key, name: "k1".into() };
    for event in &log {
        let Acquire::Granted(lease) = store.acquire(D, two.lane_of(event), &claim, None).unwrap() else { panic!() };
        let mut settlement = Settlement { acked: Seq(2), ..Settlement::default() };
        settlement.added.unrouted = 1;
        settlement.blocked = vec![(line.clone(), waits(event.seq, BlockedState::Held))];
        store.settle(&[(&lease, &settlement)], Millis(1)).unwrap();
        assert!(store.release(&lease).unwrap());
    }
    let lines = || -> Vec<(u32, i64)> {
        let app = open(&file.path);
        let mut rows = app.prepare("SELECT lane, first_seq FROM litepost_blocked ORDER BY first_seq").unwrap();
        rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    for lanes in [5, 2, 3, 9, 2] {
        let to = Split { lanes, ..two.clone() };
        change(&file, &to).unwrap();
        assert_eq!(lines(), [(to.lane_of(&log[0]), 1), (lanes - 1, 2)]);
    }
    let refused = change(&file, &1.into()).unwrap_err().to_string();
    assert!(refused.contains("wait behind a failed or paused one"), "{refused}");
    let mut relay = LaneStore::open(&file.path).unwrap();
    let other = Split { priority: TopicFilter::parse(["bulk"]).unwrap(), ..two };
    let told = relay.register(D, other, Start::Earliest).unwrap_err().to_string();
    assert_eq!(told, "destination shop.audit has other priority topics in this file than in the configuration");
}
