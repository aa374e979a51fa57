//! What the pipeline's decisions cost per event, without any I/O: `cargo bench -p litepost-core --bench pipeline`.
//!
//! Prints nanoseconds per event (the best of five passes over a million events) for the paths that matter: an
//! undisturbed lane, many topics with a filter, several slots, and a lane with a thousand blocked lines.

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use litepost_core::pipeline::{Action, BlockedLine, BlockedState, LaneState};
use litepost_core::{Chunk, Event, Line, LineKind, Millis, Now, Outcome, Pipeline, PipelineConfig, Seq, TopicFilter};

const EVENTS: i64 = 1_000_000;
const CHUNK: i64 = 4_000;

fn chunks(topics: usize) -> Vec<Arc<Chunk>> {
    let topics: Vec<Arc<str>> = (0..topics).map(|n| format!("topic-{n}").into()).collect();
    let event = |seq: i64| {
        let at = usize::try_from(seq).unwrap_or(0);
        let mut event = Event::new(Seq(seq), "01890000-0000-7000-8000-000000000000", "", "");
        event.topic = Arc::clone(&topics[at % topics.len()]);
        event.key = Some((seq % 10_000).to_string().into());
        event
    };
    let starts = (0..EVENTS / CHUNK).map(|n| n * CHUNK);
    starts.map(|start| Chunk::new((start + 1..=start + CHUNK).map(event).collect())).collect()
}

fn blocked(lines: i64) -> LaneState {
    let row = |n: i64| {
        let line = Line { kind: LineKind::Key, name: format!("blocked-{n}").into() };
        let row = BlockedLine {
            first: Seq(n + 1),
            waiting: 1,
            state: BlockedState::Held,
            attempts: 1,
            error_code: None,
            error: None,
            blocked_at: Millis(0),
            next_attempt: Millis(i64::MAX / 2),
        };
        (line, row)
    };
    LaneState { blocked: (0..lines).map(row).collect(), ..LaneState::default() }
}

fn pass(config: &PipelineConfig, state: &LaneState, chunks: &[Arc<Chunk>]) -> Duration {
    let now = Now { wall: Millis(1), mono: Millis(1) };
    let mut pipeline = Pipeline::new(config.clone(), state.clone(), now);
    let mut next = 0;
    let mut open = Vec::new();
    let start = Instant::now();
    loop {
        match pipeline.poll(now) {
            Action::Read { .. } if next < chunks.len() => {
                pipeline.chunk(&chunks[next], now);
                next += 1;
            }
            Action::Deliver(delivery) => open.push(delivery),
            Action::Settle(settlement) => {
                if let Some(id) = settlement.id {
                    pipeline.settled(id);
                }
            }
            Action::Wait { .. } if open.is_empty() => break,
            _ => {
                for delivery in open.drain(..) {
                    let outcomes = vec![Outcome::Delivered; delivery.events.len()];
                    pipeline.outcomes(delivery.id, outcomes, now, &mut || 0.5);
                }
            }
        }
    }
    let took = start.elapsed();
    assert_eq!(pipeline.totals().total(), EVENTS, "every event is accounted for");
    took
}

fn measure(name: &str, config: &PipelineConfig, state: &LaneState, chunks: &[Arc<Chunk>]) {
    let best = (0..5).map(|_| pass(config, state, chunks)).min().unwrap_or_default();
    let each = best.as_nanos() / u128::try_from(EVENTS).unwrap_or(1);
    println!("{name:<44} {each:>6} ns per event");
    println!("{}", serde_json::json!({ "pipeline": name, "ns_per_event": u64::try_from(each).unwrap_or(u64::MAX) }));
}

fn main() {
    let one = chunks(1);
    let many = chunks(100);
    let plain = PipelineConfig::default();
    let filter = TopicFilter::parse(["topic-1*", "topic-2"]).unwrap_or_default();
    measure("one topic, key order", &plain, &LaneState::default(), &one);
    let filtered = PipelineConfig { topics: filter, ..plain.clone() };
    measure("100 topics, two patterns", &filtered, &LaneState::default(), &many);
    let slots = PipelineConfig { concurrency: 8, ..plain.clone() };
    measure("eight slots", &slots, &LaneState::default(), &one);
    measure("a thousand blocked lines elsewhere", &plain, &blocked(1_000), &one);
}
