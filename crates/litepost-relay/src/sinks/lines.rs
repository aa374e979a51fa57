//! A batch as lines side by side: each line in order, many lines at once, all ending when the destination is gone.
//!
//! Called by the sinks that wait for one answer per event. Invariant: behind an event of a line that failed, no later
//! one of that line is begun, and with a depth of 1 (the default everywhere) none was under way either.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::stream::{self, FuturesOrdered};
use futures_util::{StreamExt as _, future};
use litepost_core::{Line, Ordering as LineOrdering, Outcome};

use crate::sink::Batch;

/// How much is under way at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Width {
    /// Lines side by side. At least 1.
    pub(crate) lines: usize,
    /// Events of one line that may wait for their answers together. With more than 1, a destination that refuses one and
    /// takes the next breaks the line's order.
    pub(crate) depth: usize,
}

/// Delivers: `begin(i)` hands event `i` of the batch over and answers a future of its outcome, or the outcome itself when
/// it got no further. Events of a line are begun in their order.
pub(crate) async fn side_by_side<B, A>(
    batch: &Batch,
    ordering: LineOrdering,
    width: Width,
    begin: impl Fn(usize) -> B,
) -> Vec<Outcome>
where
    B: Future<Output = Result<A, Outcome>>,
    A: Future<Output = Outcome>,
{
    let mut lines: BTreeMap<Line, Vec<usize>> = BTreeMap::new();
    for (at, event) in batch.events.iter().enumerate() {
        lines.entry(Line::of(event, ordering)).or_default().push(at);
    }
    // Oldest first, so that a long batch does not starve its beginning.
    let mut lines: Vec<Vec<usize>> = lines.into_values().collect();
    lines.sort_unstable();
    let stop = &AtomicBool::new(false);
    let begin = &begin;
    let mut outcomes = vec![Outcome::Deferred; batch.events.len()];
    let mut done = stream::iter(lines.into_iter().map(|line| one_line(line, width.depth, stop, begin)))
        .buffer_unordered(width.lines);
    while let Some(answers) = done.next().await {
        for (at, outcome) in answers {
            outcomes[at] = outcome;
        }
    }
    outcomes
}

async fn one_line<B, A>(
    line: Vec<usize>,
    depth: usize,
    stop: &AtomicBool,
    begin: &impl Fn(usize) -> B,
) -> Vec<(usize, Outcome)>
where
    B: Future<Output = Result<A, Outcome>>,
    A: Future<Output = Outcome>,
{
    let mut answers = Vec::with_capacity(line.len());
    let mut rest = line.into_iter();
    let mut waiting = FuturesOrdered::new();
    let mut failed = false;
    loop {
        while !failed && waiting.len() < depth && !stop.load(Ordering::Relaxed) {
            let Some(at) = rest.next() else { break };
            let answer = match begin(at).await {
                Ok(answer) => future::Either::Left(answer),
                Err(outcome) => {
                    failed = true;
                    future::Either::Right(future::ready(outcome))
                }
            };
            waiting.push_back(async move { (at, answer.await) });
        }
        let Some((at, outcome)) = waiting.next().await else { return answers };
        failed |= outcome != Outcome::Delivered;
        if matches!(outcome, Outcome::Unavailable(_)) {
            stop.store(true, Ordering::Relaxed);
        }
        answers.push((at, outcome));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use litepost_core::pipeline::DeliveryOrder;
    use litepost_core::{Chunk, Event, EventRef, Rejection, Seq, Unavailable, UnavailableKind};

    use super::*;

    /// Events 1.. whose keys are these letters.
    fn batch(keys: &str) -> Batch {
        let events = keys.chars().zip(1..).map(|(key, seq)| {
            let mut event = Event::new(Seq(seq), "", "t", "");
            event.key = Some(key.to_string().into());
            event
        });
        let chunk = Chunk::new(events.collect());
        let events = (0..keys.len()).filter_map(|at| EventRef::new(&chunk, at)).collect();
        Batch { order: DeliveryOrder::InOrder, events, upcoming: Vec::new() }
    }

    async fn run(keys: &str, width: Width, fail: impl Fn(usize) -> Option<Outcome>) -> (Vec<usize>, String) {
        let begun = Mutex::new(Vec::new());
        let outcomes = side_by_side(&batch(keys), LineOrdering::Key, width, |at| {
            begun.lock().unwrap().push(at);
            let outcome = fail(at).unwrap_or(Outcome::Delivered);
            async move {
                Ok(async move {
                    tokio::task::yield_now().await;
                    outcome
                })
            }
        })
        .await;
        let word = outcomes.iter().map(|outcome| match outcome {
            Outcome::Delivered => 'D',
            Outcome::Rejected(_) => 'R',
            Outcome::Unavailable(_) => 'U',
            Outcome::Deferred => '-',
        });
        (begun.into_inner().unwrap(), word.collect())
    }

    #[tokio::test]
    async fn a_failed_event_holds_back_its_line_only() {
        let width = Width { lines: 8, depth: 1 };
        let refuse = |at| (at == 1).then(|| Outcome::Rejected(Rejection::new("x", "")));
        assert_eq!(run("abaabb", width, refuse).await.1, "DRDD--");
        let (begun, _) = run("aab", width, |_| None).await;
        assert!(begun.iter().position(|&at| at == 0) < begun.iter().position(|&at| at == 1));
    }

    #[tokio::test]
    async fn with_more_depth_a_line_is_begun_in_order_and_ends_at_the_failure() {
        let refuse = |at| (at == 1).then(|| Outcome::Rejected(Rejection::new("x", "")));
        let (begun, outcomes) = run("aaaaaa", Width { lines: 8, depth: 3 }, refuse).await;
        assert_eq!(begun, [0, 1, 2, 3]);
        assert_eq!(outcomes, "DRDD--", "what was under way has its own answer; the relay sends it again in its turn");
    }

    #[tokio::test]
    async fn an_unavailable_destination_ends_everything() {
        let gone = |at| (at == 0).then(|| Outcome::Unavailable(Unavailable::new(UnavailableKind::Connect, "")));
        let (begun, outcomes) = run("abcdef", Width { lines: 1, depth: 1 }, gone).await;
        assert_eq!((begun.as_slice(), outcomes.as_str()), (&[0][..], "U-----"));
    }
}
