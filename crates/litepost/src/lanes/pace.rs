//! How many events pruning takes at a time: as many as do not keep producers waiting.
//!
//! Called by [`super::LaneStore::prune_some`]. What a row costs depends on its pages: whether they are in memory, and
//! how large its payload is. So the number follows what the last transactions took.

use std::time::Duration;

/// Most rows in one transaction.
pub(super) const ROWS_MAX: u32 = 500;
const ROWS_MIN: u32 = 8;
/// The first transaction is small: nothing is known yet.
const ROWS_FIRST: u32 = 64;
/// A transaction that held the write lock longer than this is followed by a smaller one.
const HOLD: Duration = Duration::from_micros(1_500);

#[derive(Debug)]
pub(super) struct Pace {
    rows: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self { rows: ROWS_FIRST }
    }
}

impl Pace {
    /// How many rows the next transaction takes.
    pub(super) fn rows(&self) -> u32 {
        self.rows
    }

    /// The last one held the write lock so long.
    pub(super) fn held(&mut self, held: Duration) {
        if held > HOLD {
            self.rows = (self.rows / 2).max(ROWS_MIN);
        } else if held < HOLD / 3 {
            self.rows = (self.rows * 2).min(ROWS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pruning_takes_smaller_steps_where_they_take_long_and_larger_ones_again() {
        let (slow, fair, fast) = (Duration::from_millis(20), Duration::from_millis(1), Duration::from_micros(300));
        let mut pace = Pace::default();
        assert!(pace.rows() < ROWS_MAX, "the first step is careful");
        for _ in 0..20 {
            pace.held(slow);
        }
        assert_eq!(pace.rows(), ROWS_MIN);
        pace.held(fair);
        assert_eq!(pace.rows(), ROWS_MIN);
        for _ in 0..20 {
            pace.held(fast);
        }
        assert_eq!(pace.rows(), ROWS_MAX);
    }
}
