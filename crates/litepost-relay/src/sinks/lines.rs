//! A batch as lines side by side: each line in order, many lines at once, all ending when the destination is gone.
//!
//! Called by the sinks that wait for one answer per event. Invariant: behind an event of a line that failed, no later
//! one of that line is begun, and with a depth of 1 (the default everywhere) none was under way either.

use std::collections::{HashMap, VecDeque};
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

/// The same for a destination that answers in the order in which it is asked: the answer that was asked for first is waited
/// for first, which is cheaper than to watch over all that are under way. Where an answer is late, those behind it are seen late.
pub(crate) async fn in_turn<B, A>(
    batch: &Batch,
    ordering: LineOrdering,
    width: Width,
    begin: impl Fn(usize) -> B,
) -> Vec<Outcome>
where
    B: Future<Output = Result<A, Outcome>>,
    A: Future<Output = Outcome>,
{
    let mut lines: Vec<Turns> = lines(batch, ordering).into_iter().map(Turns::new).collect();
    let mut run =
        InTurn { outcomes: vec![Outcome::Deferred; batch.events.len()], stop: false, waiting: VecDeque::new() };
    // The first event of each line, then the second of each that has one, and so on: an event is begun long after the one
    // before it in its line, whose answer is there by then as a rule.
    let mut round: Vec<usize> = (0..lines.len()).collect();
    while !round.is_empty() {
        let mut next = Vec::new();
        for line in round {
            while run.waiting.len() >= width.window || lines[line].under_way >= width.depth {
                run.settle_first(&mut lines).await;
            }
            if run.stop {
                run.settle_all().await;
                return run.outcomes;
            }
            let turns = &mut lines[line];
            if turns.failed {
                continue;
            }
            let at = turns.next;
            turns.under_way += 1;
            let answer = match begin(at).await {
                Ok(answer) => future::Either::Left(answer),
                Err(outcome) => {
                    turns.failed = true;
                    future::Either::Right(future::ready(outcome))
                }
            };
            run.waiting.push_back((at, line, answer));
            if let Some(at) = turns.rest.next() {
                turns.next = at;
                next.push(line);
            }
        }
        round = next;
    }
    run.settle_all().await;
    run.outcomes
}

/// A line in [`in_turn`].
struct Turns {
    next: usize,
    rest: std::vec::IntoIter<usize>,
    under_way: usize,
    failed: bool,
}

impl Turns {
    fn new((first, others): (usize, Vec<usize>)) -> Self {
        Self { next: first, rest: others.into_iter(), under_way: 0, failed: false }
    }
}

struct InTurn<A> {
    outcomes: Vec<Outcome>,
    /// The destination is gone.
    stop: bool,
    /// Place, line and answer, in the order in which they were begun.
    waiting: VecDeque<(usize, usize, A)>,
}

impl<A: Future<Output = Outcome>> InTurn<A> {
    async fn settle_first(&mut self, lines: &mut [Turns]) {
        let Some((at, line, answer)) = self.waiting.pop_front() else { return };
        let outcome = answer.await;
        lines[line].under_way -= 1;
        lines[line].failed |= outcome != Outcome::Delivered;
        self.settle(at, outcome);
    }

    /// What is under way is waited for together: each may have a deadline that begins only now.
    async fn settle_all(&mut self) {
        let (places, answers): (Vec<usize>, Vec<A>) =
            std::mem::take(&mut self.waiting).into_iter().map(|(at, _, answer)| (at, answer)).unzip();
        for (at, outcome) in places.into_iter().zip(future::join_all(answers).await) {
            self.settle(at, outcome);
        }
    }

    fn settle(&mut self, at: usize, outcome: Outcome) {
        self.stop |= matches!(outcome, Outcome::Unavailable(_));
        self.outcomes[at] = outcome;
    }
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

    /// Which events were begun, in which order, and what became of each. Both ways must agree on what becomes of them.
    async fn run(keys: &str, width: Width, fail: impl Fn(usize) -> Option<Outcome>) -> ([Vec<usize>; 2], String) {
        let begun = Mutex::new(Vec::new());
        let begin = |at| {
            begun.lock().unwrap().push(at);
            let outcome = fail(at).unwrap_or(Outcome::Delivered);
            async move {
                Ok(async move {
                    tokio::task::yield_now().await;
                    outcome
                })
            }
        };
        let word = |outcomes: Vec<Outcome>| -> String {
            let letter = |outcome| match outcome {
                Outcome::Delivered => 'D',
                Outcome::Rejected(_) => 'R',
                Outcome::Unavailable(_) => 'U',
                Outcome::Deferred => '-',
            };
            outcomes.into_iter().map(letter).collect()
        };
        let batch = batch(keys);
        let one = word(side_by_side(&batch, LineOrdering::Key, width, begin).await);
        let first = std::mem::take(&mut *begun.lock().unwrap());
        let other = word(in_turn(&batch, LineOrdering::Key, width, begin).await);
        assert_eq!(one, other, "{keys}");
        ([first, begun.into_inner().unwrap()], one)
    }

    #[tokio::test]
    async fn a_failed_event_holds_back_its_line_only() {
        let width = Width { window: 8, depth: 1 };
        let refuse = |at| (at == 1).then(|| Outcome::Rejected(Rejection::new("x", "")));
        assert_eq!(run("abaabb", width, refuse).await.1, "DRDD--");
        for begun in run("aab", width, |_| None).await.0 {
            assert!(begun.iter().position(|&at| at == 0) < begun.iter().position(|&at| at == 1));
        }
    }

    #[tokio::test]
    async fn with_more_depth_a_line_is_begun_in_order_and_ends_at_the_failure() {
        let refuse = |at| (at == 1).then(|| Outcome::Rejected(Rejection::new("x", "")));
        let (begun, outcomes) = run("aaaaaa", Width { window: 8, depth: 3 }, refuse).await;
        assert!(begun.iter().all(|begun| *begun == [0, 1, 2, 3]), "{begun:?}");
        assert_eq!(outcomes, "DRDD--", "what was under way has its own answer; the relay sends it again in its turn");
    }

    /// The most events that waited for their answers at once, the larger of both ways, and whether all were delivered.
    async fn most(keys: &str, width: Width) -> (usize, bool) {
        let (now, most) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        let begin = |_| async move {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            Ok(async move {
                for _ in 0..keys.len() {
                    tokio::task::yield_now().await;
                }
                now.fetch_sub(1, Ordering::Relaxed);
                Outcome::Delivered
            })
        };
        let batch = batch(keys);
        let one = side_by_side(&batch, LineOrdering::Key, width, begin).await;
        let first = most.swap(0, Ordering::Relaxed);
        let other = in_turn(&batch, LineOrdering::Key, width, begin).await;
        assert_eq!(first, most.load(Ordering::Relaxed), "{keys}");
        (first, one.iter().chain(&other).all(|outcome| *outcome == Outcome::Delivered))
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
        assert!(begun.iter().all(|begun| *begun == [0]) && outcomes == "U-----", "{begun:?} {outcomes}");
    }

    /// A deadline that begins when an answer is first looked at must not add up.
    #[tokio::test(start_paused = true)]
    async fn when_the_destination_is_gone_what_is_under_way_is_waited_for_together() {
        let began = tokio::time::Instant::now();
        let outcomes = in_turn(&batch("abcdefgh"), LineOrdering::Key, Width { window: 4, depth: 1 }, |_| async {
            Ok(async {
                tokio::time::sleep(std::time::Duration::from_secs(5)).await;
                Outcome::Unavailable(Unavailable::new(UnavailableKind::Timeout, ""))
            })
        })
        .await;
        let gone = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Unavailable(_))).count();
        assert_eq!((gone, began.elapsed().as_secs()), (4, 10));
    }
}
