//! What a destination with a memory of its own has applied already: told once, when it is opened.
//!
//! Made by sinks with a ledger, asked by the pipeline. Invariant: an event is never called applied by the mark of a lane
//! that it did not belong to.

use std::collections::BTreeSet;

use crate::{Event, Seq, Split};

/// What a destination remembers of one lane, and of the lanes that were there before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Everything of the lane that left in order, up to here.
    pub in_order: Seq,
    /// Events that left out of order.
    pub one_by_one: BTreeSet<Seq>,
    /// How far the lanes were that the destination was split into before.
    pub former: Vec<FormerLanes>,
}

/// How far the lanes of a former split are in the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerLanes {
    split: Split,
    in_order: Vec<Seq>,
    newest: Seq,
}

impl FormerLanes {
    /// `in_order`: of each lane, everything that left in order was applied up to there.
    #[must_use]
    pub fn new(split: Split, in_order: Vec<Seq>) -> Self {
        let newest = in_order.iter().copied().max().unwrap_or_default();
        Self { split, in_order, newest }
    }

    /// Whether the lane that `event` belonged to was that far.
    #[must_use]
    pub fn covers(&self, event: &Event) -> bool {
        if event.seq > self.newest {
            return false;
        }
        usize::try_from(self.split.lane_of(event))
            .ok()
            .and_then(|lane| self.in_order.get(lane))
            .is_some_and(|&mark| event.seq <= mark)
    }
}

impl Applied {
    /// The highest position that is remembered at all.
    #[must_use]
    pub fn newest(&self) -> Seq {
        let one_by_one = self.one_by_one.last().copied().unwrap_or_default();
        self.former.iter().map(|lanes| lanes.newest).fold(self.in_order.max(one_by_one), Seq::max)
    }

    /// Whether an event that is in order was applied. One that waits in a blocked line may have been waiting when a mark
    /// passed it: see [`Applied::alone`].
    #[must_use]
    pub fn covers(&self, event: &Event) -> bool {
        event.seq <= self.in_order || self.alone(event.seq) || self.former.iter().any(|lanes| lanes.covers(event))
    }

    /// Whether the event at `seq` was applied out of order.
    #[must_use]
    pub fn alone(&self, seq: Seq) -> bool {
        self.one_by_one.contains(&seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_speaks_of_its_own_lane_only() {
        let mut event = Event::new(Seq(7), "id", "orders", "{}");
        event.key = Some("501".into());
        let own = usize::try_from(Split::from(3).lane_of(&event)).unwrap();
        let mut marks = vec![Seq(9); 3];
        marks[own] = Seq(6);
        let applied = |marks: &[Seq]| Applied {
            in_order: Seq(2),
            former: vec![FormerLanes::new(3.into(), marks.to_vec())],
            ..Applied::default()
        };
        assert!(!applied(&marks).covers(&event), "its own lane was not that far");
        assert_eq!(applied(&marks).newest(), Seq(9));
        marks[own] = Seq(7);
        assert!(applied(&marks).covers(&event));
        let one = Applied { one_by_one: [Seq(7)].into(), ..Applied::default() };
        assert!(one.covers(&event) && one.alone(Seq(7)) && !one.alone(Seq(6)));
        assert!(!applied(&[]).covers(&event));
        assert!(applied(&[Seq(7); 3]).covers(&event), "it is the newest of all");
    }
}
