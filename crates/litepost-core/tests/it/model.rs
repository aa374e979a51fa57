//! A destination that only rejects, driven to the end, must leave what a few plain loops say it leaves.

use std::collections::{BTreeMap, BTreeSet};

use litepost_core::pipeline::{Action, LaneState, OnDead};
use litepost_core::{
    Chunk, Event, EventRef, Line, Millis, Now, Ordering, Outcome, Pipeline, PipelineConfig, Rejection, RetryPolicy, Seq,
};
use proptest::prelude::*;

/// Rejections before an event is taken, per event.
type Stubbornness = Vec<u32>;

#[derive(Debug, Default, PartialEq)]
struct Fate {
    delivered: BTreeMap<Line, Vec<i64>>,
    dead: BTreeSet<i64>,
    attempts: BTreeMap<i64, u32>,
}

/// What must happen, line by line: each event in its turn is delivered, or dies after `max_attempts` and, when the
/// line is held then, ends it.
fn naive(log: &[Event], stubborn: &Stubbornness, ordering: Ordering, max_attempts: u32, on_dead: OnDead) -> Fate {
    let mut lines: BTreeMap<Line, Vec<usize>> = BTreeMap::new();
    for (at, event) in log.iter().enumerate() {
        lines.entry(Line::of(event, ordering)).or_default().push(at);
    }
    let mut fate = Fate::default();
    for (line, events) in lines {
        for at in events {
            let seq = log[at].seq.0;
            if stubborn[at] < max_attempts {
                fate.attempts.insert(seq, stubborn[at] + 1);
                fate.delivered.entry(line.clone()).or_default().push(seq);
            } else {
                fate.attempts.insert(seq, max_attempts);
                fate.dead.insert(seq);
                if on_dead == OnDead::Hold {
                    break;
                }
            }
        }
    }
    fate
}

/// What does happen.
fn real(log: &[Event], stubborn: &Stubbornness, config: &PipelineConfig) -> Fate {
    let mut now = Now { wall: Millis(0), mono: Millis(0) };
    let mut pipeline = Pipeline::new(config.clone(), LaneState::default(), now);
    let mut left = stubborn.clone();
    let mut fate = Fate::default();
    let index = |seq: Seq| usize::try_from(seq.0 - 1).unwrap();
    for _ in 0..1_000_000 {
        match pipeline.poll(now) {
            Action::Read { after } if index(after.next()) < log.len() => {
                let from = index(after.next());
                pipeline.chunk(&Chunk::new(log[from..(from + 7).min(log.len())].to_vec()), now);
            }
            Action::Fetch { seqs } => {
                let one = |seq: &Seq| EventRef::new(&Chunk::new(vec![log[index(*seq)].clone()]), 0);
                pipeline.fetched(seqs.iter().filter_map(one).collect(), now);
            }
            Action::Deliver(delivery) => {
                let mut stopped = BTreeSet::new();
                let mut outcomes = Vec::new();
                for event in &delivery.events {
                    let line = Line::of(event, config.ordering);
                    if stopped.contains(&line) {
                        outcomes.push(Outcome::Deferred);
                        continue;
                    }
                    *fate.attempts.entry(event.seq.0).or_default() += 1;
                    if left[index(event.seq)] > 0 {
                        left[index(event.seq)] -= 1;
                        stopped.insert(line);
                        outcomes.push(Outcome::Rejected(Rejection::new("x", "no")));
                    } else {
                        fate.delivered.entry(line).or_default().push(event.seq.0);
                        outcomes.push(Outcome::Delivered);
                    }
                }
                pipeline.outcomes(delivery.id, outcomes, now, &mut || 0.5);
            }
            Action::Settle(settlement) => {
                fate.dead.extend(settlement.dead.iter().map(|letter| letter.seq.0));
                pipeline.settled(settlement.id.unwrap());
            }
            Action::Wait { until: Some(at) } => now.mono = at,
            Action::Wait { until: None } if index(pipeline.read_position().next()) == log.len() => return fate,
            _ => {}
        }
    }
    panic!("no end in sight: {pipeline:?}");
}

proptest! {
    #[test]
    fn a_destination_that_rejects_leaves_what_the_model_says(
        keys in prop::collection::vec(prop::option::of("[abc]"), 1..40),
        stubborn in prop::collection::vec(prop_oneof![4 => Just(0u32), 1 => 0u32..5], 40),
        ordering in prop::sample::select(vec![Ordering::Strict, Ordering::Key, Ordering::None]),
        max_attempts in 1u32..4,
        hold in any::<bool>(),
        batch_events in 1usize..10,
        concurrency in 1usize..4,
    ) {
        let log: Vec<Event> = keys.iter().zip(1..).map(|(key, seq)| {
            let mut event = Event::new(Seq(seq), "id", if seq % 3 == 0 { "x" } else { "y" }, "{}");
            event.key = key.as_deref().map(Into::into);
            event
        }).collect();
        let on_dead = if hold { OnDead::Hold } else { OnDead::Continue };
        let config = PipelineConfig {
            ordering, on_dead, batch_events, concurrency,
            retry: RetryPolicy { max_attempts: Some(max_attempts), ..RetryPolicy::default() },
            ..PipelineConfig::default()
        };
        let expected = naive(&log, &stubborn, ordering, max_attempts, on_dead);
        prop_assert_eq!(real(&log, &stubborn, &config), expected);
    }
}
