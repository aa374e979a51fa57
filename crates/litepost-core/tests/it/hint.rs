//! What a delivery says of the next one.

use litepost_core::pipeline::{Action, Delivery, LaneState};
use litepost_core::{Chunk, Event, Millis, Now, Outcome, Pipeline, PipelineConfig, Seq};

const NOW: Now = Now { wall: Millis(1), mono: Millis(1) };

/// The deliveries of ten statements, in batches of four.
fn deliveries(statements_only: bool, batch_bytes: usize) -> Vec<Delivery> {
    let config = PipelineConfig { batch_events: 4, batch_bytes, statements_only, ..PipelineConfig::default() };
    let mut pipeline = Pipeline::new(config, LaneState::default(), NOW);
    let event = |seq| Event { kind: "sql".into(), ..Event::new(Seq(seq), "", "stock", "{}") };
    let mut log = Some(Chunk::new((1..=10).map(event).collect()));
    let mut found: Vec<Delivery> = Vec::new();
    for _ in 0..100 {
        match pipeline.poll(NOW) {
            Action::Read { .. } => {
                if let Some(chunk) = log.take() {
                    pipeline.chunk(&chunk, NOW);
                }
            }
            Action::Open => pipeline.opened(Ok(None), NOW, &mut || 0.5),
            Action::Deliver(delivery) => found.push(delivery),
            Action::Settle(settlement) => pipeline.settled(settlement.id.unwrap()),
            _ => {
                let Some(last) = found.last() else { continue };
                if last.events.last().map(|event| event.seq) == Some(Seq(10)) {
                    break;
                }
                pipeline.outcomes(last.id, vec![Outcome::Delivered; last.events.len()], NOW, &mut || 0.5);
            }
        }
    }
    found
}

fn seqs(events: &[litepost_core::EventRef]) -> Vec<i64> {
    events.iter().map(|event| event.seq.0).collect()
}

#[test]
fn a_delivery_of_statements_names_the_next_one_within_the_limits_of_a_batch() {
    let found = deliveries(true, usize::MAX);
    let named: Vec<_> = found.iter().map(|delivery| seqs(&delivery.upcoming)).collect();
    assert_eq!(named, [vec![5, 6, 7, 8], vec![9, 10], vec![]]);
    for (delivery, next) in found.iter().zip(&found[1..]) {
        assert_eq!(seqs(&delivery.upcoming), seqs(&next.events));
    }
    // A batch is one event here, for its bytes; what is named is no larger than a batch.
    let found = deliveries(true, 1);
    assert_eq!(found.len(), 10);
    assert!(found.iter().all(|delivery| delivery.upcoming.is_empty()));
}

#[test]
fn a_delivery_to_others_names_none() {
    assert!(deliveries(false, usize::MAX).iter().all(|delivery| delivery.upcoming.is_empty()));
}
