//! Which beginning of a batch to try next when a whole one fails at its commit and no statement is named.
//!
//! Called by the engine and by the sqlite sink. A deferred constraint speaks at the commit only, and a beginning that
//! fails may be healed by what follows it (a child, then its parent). Invariant: the first event is called at fault only
//! when no beginning up to [`GROWN_MAX`] events commits, and none of the halves.

/// Longest beginning that is looked for behind an event that does not commit alone.
const GROWN_MAX: usize = 32;

/// The lengths that have failed.
#[derive(Debug, Default)]
pub(crate) struct Beginnings {
    failed: Vec<usize>,
}

impl Beginnings {
    /// The beginning of `len` events did not commit: the next one to try, or `None` when the first event is at fault.
    /// First halves, so that what precedes the fault commits soon; then, from a single event, one more each time.
    pub(crate) fn after(&mut self, len: usize) -> Option<usize> {
        self.failed.push(len);
        let whole = self.failed.first().copied().unwrap_or(len);
        if len > 1 && self.failed.iter().all(|&failed| failed >= len) {
            return Some(len / 2);
        }
        let longest = GROWN_MAX.min(whole.saturating_sub(1));
        (2..=longest).find(|candidate| !self.failed.contains(candidate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which beginning of `len` events is found to commit, and after how many events were tried.
    fn found(len: usize, commits: impl Fn(usize) -> bool) -> (usize, usize) {
        let (mut search, mut next, mut tried) = (Beginnings::default(), len, 0);
        loop {
            tried += next;
            if commits(next) {
                return (next, tried);
            }
            match search.after(next) {
                Some(other) => next = other,
                None => return (0, tried),
            }
        }
    }

    #[test]
    fn what_precedes_the_fault_commits_and_the_fault_is_found() {
        assert_eq!(found(500, |n| n <= 300), (250, 750));
        assert_eq!(found(500, |n| n == 0).0, 0);
        assert_eq!(found(1, |n| n == 0), (0, 1));
        // A child, its parent, and something that is wrong: the two commit together.
        assert_eq!(found(3, |n| n == 2).0, 2);
        assert_eq!(found(500, |n| n == 19).0, 19);
        // All of it is bounded: no batch is tried as often as it has events.
        assert!(found(500, |n| n == 0).1 < 2 * 500 + GROWN_MAX * GROWN_MAX);
    }
}
