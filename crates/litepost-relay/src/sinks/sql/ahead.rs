//! Reads the statements of a batch: those of the next one while the one before is being applied.
//!
//! Used by every sink that executes statements. A payload is JSON, and reading a batch of them takes about as long as
//! a fast target takes to execute it; whoever waits for a commit can do that meanwhile. Invariant: what was read ahead
//! is used for the very event it was read from and nothing else, so a hint that was wrong costs time only.

use litepost_core::statement::STATEMENT_KIND;
use litepost_core::{Event, EventRef, Rejection, Statement};
use tokio::sync::oneshot;

use crate::sink::Batch;

type Read = Result<Statement, Rejection>;

/// The event's statement, or why it can never be one.
fn read(event: &Event) -> Read {
    let undecodable = |message: String| Rejection::never("undecodable", message);
    if let Some(defect) = &event.defect {
        return Err(undecodable(defect.to_string()));
    }
    if &*event.kind != STATEMENT_KIND {
        return Err(undecodable(format!(
            "a SQL destination takes statement events (type \"sql\"), and this event has the type {:?}",
            event.kind
        )));
    }
    let payload = event.payload.as_str().ok_or_else(|| undecodable("the payload is no UTF-8 text".into()))?;
    Statement::parse(payload).map_err(|e| undecodable(e.to_string()))
}

/// The statement of one event of a batch, read when it is first asked for, unless it was read ahead.
#[derive(Debug, Default)]
pub(crate) struct Parsed(Option<Read>);

impl Parsed {
    /// The statement of `event`: always the same event, for one `self`.
    pub(crate) fn of(&mut self, event: &Event) -> Result<&Statement, Rejection> {
        self.0.get_or_insert_with(|| read(event)).as_ref().map_err(Clone::clone)
    }

    /// The same, for good.
    pub(crate) fn take(&mut self, event: &Event) -> Read {
        self.0.take().unwrap_or_else(|| read(event))
    }
}

/// Statements that were read before they were asked for.
#[derive(Debug, Default)]
pub(crate) struct Known(Vec<(EventRef, Read)>);

impl Known {
    /// Reads one more.
    pub(crate) fn read(&mut self, event: EventRef) {
        let read = read(&event);
        self.0.push((event, read));
    }

    /// A place for the statement of each event, filled where it is known. Both are ascending as a rule; where they are
    /// not, what is not found is read again.
    pub(crate) fn assign(self, events: &[EventRef]) -> Vec<Parsed> {
        let mut known = self.0.into_iter().peekable();
        let mut found = |event: &EventRef| {
            while known.next_if(|(other, _)| other.seq < event.seq).is_some() {}
            Parsed(known.next_if(|(other, _)| other.is(event)).map(|(_, read)| read))
        };
        events.iter().map(&mut found).collect()
    }
}

/// Begins to read what comes after a batch, on a thread that may block; `None` when nothing is known to come.
pub(crate) fn read_on(batch: &Batch) -> Option<oneshot::Receiver<Known>> {
    if batch.upcoming.is_empty() {
        return None;
    }
    let (upcoming, (done, known)) = (batch.upcoming.clone(), oneshot::channel());
    tokio::task::spawn_blocking(move || {
        let mut known = Known::default();
        for event in upcoming {
            known.read(event);
        }
        // Nobody waits for it when the sink has gone.
        let _ = done.send(known);
    });
    Some(known)
}

/// What is being read ahead.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    reading: Option<oneshot::Receiver<Known>>,
}

impl Ahead {
    /// A place for the statement of each event of `batch`, filled with what was read ahead.
    pub(crate) async fn parsed(&mut self, batch: &Batch) -> Vec<Parsed> {
        let known = match self.reading.take() {
            // A panic in there is met again, and answered for, where the event itself is read.
            Some(reading) => reading.await.unwrap_or_default(),
            None => Known::default(),
        };
        known.assign(&batch.events)
    }

    /// Begins to read what comes after `batch`.
    pub(crate) fn read_on(&mut self, batch: &Batch) {
        self.reading = read_on(batch);
    }
}

#[cfg(test)]
mod tests {
    use litepost_core::pipeline::DeliveryOrder;
    use litepost_core::{Chunk, Seq};

    use super::*;

    /// Statement events at the positions 1 to 9; each says where it stands.
    fn log() -> Vec<EventRef> {
        let event = |seq: i64| {
            let payload = Statement::new(format!("say {seq}"), vec![]).to_payload();
            Event { kind: STATEMENT_KIND.into(), ..Event::new(Seq(seq), "", "stock", &payload) }
        };
        let chunk = Chunk::new((1..=9).map(event).collect());
        (0..9).filter_map(|at| EventRef::new(&chunk, at)).collect()
    }

    fn batch(log: &[EventRef], seqs: &[usize], upcoming: &[usize]) -> Batch {
        let events = |seqs: &[usize]| seqs.iter().map(|seq| log[seq - 1].clone()).collect();
        Batch { order: DeliveryOrder::InOrder, events: events(seqs), upcoming: events(upcoming) }
    }

    /// Which statements of `batch` had been read ahead; every one must be the event's own.
    async fn turn(ahead: &mut Ahead, batch: &Batch) -> Vec<i64> {
        let mut parsed = ahead.parsed(batch).await;
        ahead.read_on(batch);
        let known = parsed.iter().zip(&batch.events).filter(|(parsed, _)| parsed.0.is_some());
        let known = known.map(|(_, event)| event.seq.0).collect();
        for (event, parsed) in batch.events.iter().zip(&mut parsed) {
            let said = format!("say {}", event.seq);
            assert_eq!(parsed.of(event).unwrap().sql, said);
            assert_eq!(parsed.take(event).unwrap().sql, said);
            assert_eq!(parsed.take(event).unwrap().sql, said, "read again");
        }
        known
    }

    #[tokio::test]
    async fn what_was_read_ahead_is_used_for_its_own_event_and_a_wrong_hint_costs_nothing_else() {
        let (mut ahead, log, none) = (Ahead::default(), log(), [0_i64; 0]);
        assert_eq!(turn(&mut ahead, &batch(&log, &[1, 2], &[3, 4, 5])).await, none);
        assert_eq!(turn(&mut ahead, &batch(&log, &[3, 5, 6], &[7, 8])).await, [3, 5]);
        // Something else comes in between, out of order; then what had been announced.
        assert_eq!(turn(&mut ahead, &batch(&log, &[9, 2, 8], &[])).await, none);
        assert_eq!(turn(&mut ahead, &batch(&log, &[7, 8], &[])).await, none);
        // Others in the same places.
        assert_eq!(turn(&mut ahead, &batch(&log, &[1], &[2, 3])).await, none);
        assert_eq!(turn(&mut ahead, &batch(&self::log(), &[2, 3], &[])).await, none);
    }
}
