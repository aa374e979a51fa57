//! A batch as lines side by side: each line in order, many lines at once, all ending when the destination is gone.
//!
//! Called by the sinks that wait for one answer per event. Invariant: behind an event of a line that failed, no later
//! one of that line is begun, and with a depth of 1 (the default everywhere) none was under way either.

use std::collections::HashMap;
use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::stream::{self, FuturesOrdered};
use futures_util::{StreamExt as _, future};
use litepost_core::{Line, LineKind, Ordering as LineOrdering, Outcome};
use tokio::sync::Semaphore;

use crate::sink::Batch;

/// How much is under way at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Width {
    /// Events that may wait for their answers at once. At least 1.
    pub(crate) window: usize,
    /// Those of one line among them. With more than 1, a destination that refuses one and takes the next breaks the
    /// line's order.
    pub(crate) depth: usize,
}

/// A batch under way.
struct Run<'a, F> {
    begin: &'a F,
    depth: usize,
    /// One for each event of the window. With a depth of 1 the number of lines under way is that bound already.
    places: Semaphore,
    /// The destination is gone.
    stop: AtomicBool,
    outcomes: Vec<OnceLock<Outcome>>,
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
    let run = Run {
        begin: &begin,
        depth: width.depth,
        places: Semaphore::new(width.window),
        stop: AtomicBool::new(false),
        outcomes: batch.events.iter().map(|_| OnceLock::new()).collect(),
    };
    let lines = lines(batch, ordering);
    let mut done = stream::iter(lines.into_iter().map(|line| run.one_line(line))).buffer_unordered(width.window);
    while done.next().await.is_some() {}
    drop(done);
    run.outcomes.into_iter().map(|outcome| outcome.into_inner().unwrap_or(Outcome::Deferred)).collect()
}

/// The batch by lines, oldest first, so that a long batch does not starve its beginning: the first of a line, and its others.
fn lines(batch: &Batch, ordering: LineOrdering) -> Vec<(usize, Vec<usize>)> {
    let mut lines: Vec<(usize, Vec<usize>)> = Vec::with_capacity(batch.events.len());
    let mut places: HashMap<(LineKind, &str), usize> = HashMap::with_capacity(batch.events.len());
    for (at, event) in batch.events.iter().enumerate() {
        let place = match Line::parts(event, ordering) {
            (LineKind::Event, _) => lines.len(),
            parts => *places.entry(parts).or_insert(lines.len()),
        };
        match lines.get_mut(place) {
            Some((_, others)) => others.push(at),
            None => lines.push((at, Vec::new())),
        }
    }
    lines
}

impl<B, A, F> Run<'_, F>
where
    B: Future<Output = Result<A, Outcome>>,
    A: Future<Output = Outcome>,
    F: Fn(usize) -> B,
{
    async fn one_line(&self, (first, others): (usize, Vec<usize>)) {
        if self.depth == 1 {
            self.one_by_one(first, others).await;
        } else {
            self.several(std::iter::once(first).chain(others)).await;
        }
    }

    async fn one_by_one(&self, first: usize, others: Vec<usize>) {
        let mut rest = others.into_iter();
        let mut next = Some(first);
        while let Some(at) = next
            && !self.stop.load(Ordering::Relaxed)
        {
            let outcome = match (self.begin)(at).await {
                Ok(answer) => answer.await,
                Err(outcome) => outcome,
            };
            next = if self.settle(at, outcome) { rest.next() } else { None };
        }
    }

    async fn several(&self, mut rest: impl Iterator<Item = usize>) {
        let mut waiting = FuturesOrdered::new();
        let mut failed = false;
        let mut next = rest.next();
        loop {
            while let Some(at) = next
                && !failed
                && waiting.len() < self.depth
            {
                let place = match self.places.try_acquire() {
                    Ok(place) => place,
                    // Its own answers give places back, which nobody would look at meanwhile.
                    Err(_) if !waiting.is_empty() => break,
                    Err(_) => match self.places.acquire().await {
                        Ok(place) => place,
                        Err(_) => return,
                    },
                };
                if self.stop.load(Ordering::Relaxed) {
                    break;
                }
                let answer = match (self.begin)(at).await {
                    Ok(answer) => future::Either::Left(answer),
                    Err(outcome) => {
                        failed = true;
                        future::Either::Right(future::ready(outcome))
                    }
                };
                waiting.push_back(async move {
                    let outcome = answer.await;
                    drop(place);
                    (at, outcome)
                });
                next = rest.next();
            }
            let Some((at, outcome)) = waiting.next().await else { return };
            failed |= !self.settle(at, outcome);
        }
    }

    /// Whether the line goes on.
    fn settle(&self, at: usize, outcome: Outcome) -> bool {
        let delivered = outcome == Outcome::Delivered;
        if matches!(outcome, Outcome::Unavailable(_)) {
            self.stop.store(true, Ordering::Relaxed);
        }
        // Each event is begun once.
        let _ = self.outcomes[at].set(outcome);
        delivered
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

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
        let width = Width { window: 8, depth: 1 };
        let refuse = |at| (at == 1).then(|| Outcome::Rejected(Rejection::new("x", "")));
        assert_eq!(run("abaabb", width, refuse).await.1, "DRDD--");
        let (begun, _) = run("aab", width, |_| None).await;
        assert!(begun.iter().position(|&at| at == 0) < begun.iter().position(|&at| at == 1));
    }

    #[tokio::test]
    async fn with_more_depth_a_line_is_begun_in_order_and_ends_at_the_failure() {
        let refuse = |at| (at == 1).then(|| Outcome::Rejected(Rejection::new("x", "")));
        let (begun, outcomes) = run("aaaaaa", Width { window: 8, depth: 3 }, refuse).await;
        assert_eq!(begun, [0, 1, 2, 3]);
        assert_eq!(outcomes, "DRDD--", "what was under way has its own answer; the relay sends it again in its turn");
    }

    /// The most events that waited for their answers at once, and whether all were delivered.
    async fn most(keys: &str, width: Width) -> (usize, bool) {
        let (now, most) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        let outcomes = side_by_side(&batch(keys), LineOrdering::Key, width, |_| async move {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            Ok(async move {
                for _ in 0..keys.len() {
                    tokio::task::yield_now().await;
                }
                now.fetch_sub(1, Ordering::Relaxed);
                Outcome::Delivered
            })
        })
        .await;
        (most.load(Ordering::Relaxed), outcomes.iter().all(|outcome| *outcome == Outcome::Delivered))
    }

    #[tokio::test]
    async fn the_window_is_filled_and_kept_to_whatever_the_lines() {
        for depth in [1, 2, 3, 6] {
            assert_eq!(most("abcdefghij", Width { window: 6, depth }).await, (6, true), "{depth}");
            assert_eq!(most("aaaaabbbbbcccccddddd", Width { window: 6, depth }).await, ((4 * depth).min(6), true));
            assert_eq!(most("aaaaaaaaaa", Width { window: 6, depth }).await, (depth, true));
            assert_eq!(most("ababababab", Width { window: 1, depth }).await, (1, true));
        }
    }

    #[tokio::test]
    async fn an_unavailable_destination_ends_everything() {
        let gone = |at| (at == 0).then(|| Outcome::Unavailable(Unavailable::new(UnavailableKind::Connect, "")));
        let (begun, outcomes) = run("abcdef", Width { window: 1, depth: 1 }, gone).await;
        assert_eq!((begun.as_slice(), outcomes.as_str()), (&[0][..], "U-----"));
    }
}
