//! Compares what the producers know with what the destinations have.
//!
//! Called at the end of a run. Invariant: pure functions of journals and deliveries; an event whose producer was killed
//! before it knew may be there once or not at all, every other one is there exactly once or must not be.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;

use crate::TortureError;
use crate::producer::{KEYS, is_poison};

/// An event: its producer and its number.
pub(crate) type Name = (u64, u64);

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Violation {
    /// Committed, and not delivered.
    Lost {
        /// The destination.
        destination: String,
        /// Producer and number.
        event: (u64, u64),
    },
    /// Delivered more than once.
    Doubled {
        /// The destination.
        destination: String,
        /// Producer and number.
        event: (u64, u64),
    },
    /// Delivered after a later one of its key.
    OutOfOrder {
        /// The destination.
        destination: String,
        /// Producer and number.
        event: (u64, u64),
        /// The later one.
        after: u64,
    },
    /// Delivered although it was rolled back.
    NotCommitted {
        /// The destination.
        destination: String,
        /// Producer and number.
        event: (u64, u64),
    },
    /// More memory, descriptors or bytes on disk than there is reason for.
    Grew {
        /// What.
        what: String,
        /// What it was before.
        before: u64,
        /// What it came to.
        after: u64,
        /// What it may be.
        most: u64,
    },
    /// litepost's own books do not balance, or something else is not as it must be.
    Books {
        /// What.
        problem: String,
    },
}

/// What one producer knows.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    pub(crate) tried: BTreeSet<u64>,
    pub(crate) committed: BTreeSet<u64>,
    pub(crate) undone: BTreeSet<u64>,
}

impl Journal {
    /// Reads a journal; a line that a kill has cut tells nothing.
    pub(crate) fn read(path: &Path) -> Result<Self, TortureError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(TortureError::io(format!("the journal {}", path.display()))(error)),
        }
    }

    fn parse(text: &str) -> Self {
        let mut journal = Self::default();
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let Some((word, n)) = line.split_once(' ').and_then(|(word, n)| Some((word, n.parse().ok()?))) else {
                continue;
            };
            match word {
                "try" => journal.tried.insert(n),
                "ok" => journal.committed.insert(n),
                "no" => journal.undone.insert(n),
                _ => false,
            };
        }
        journal
    }

    pub(crate) fn last(&self) -> u64 {
        self.tried.last().copied().unwrap_or(0)
    }
}

/// Whether a destination takes every event, or refuses the poisoned ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Everything,
    WhatIsGood,
}

/// Checks one destination: `got` in the order in which it has them, `dead` as litepost kept them.
pub(crate) fn destination(
    name: &str,
    takes: Takes,
    journals: &BTreeMap<u64, Journal>,
    got: &[Name],
    dead: &BTreeSet<Name>,
) -> Vec<Violation> {
    let destination = || name.to_owned();
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut last: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for &event in got {
        let (producer, n) = event;
        if !seen.insert(event) {
            found.push(Violation::Doubled { destination: destination(), event });
            continue;
        }
        let before = last.insert((producer, n % KEYS), n).unwrap_or(0);
        if before > n {
            found.push(Violation::OutOfOrder { destination: destination(), event, after: before });
        }
        if journals.get(&producer).is_none_or(|journal| !journal.tried.contains(&n) || journal.undone.contains(&n)) {
            found.push(Violation::NotCommitted { destination: destination(), event });
        }
    }
    for (&producer, journal) in journals {
        for &n in &journal.committed {
            let event = (producer, n);
            let there = if takes == Takes::WhatIsGood && is_poison(n) { dead } else { &seen };
            if !there.contains(&event) {
                found.push(Violation::Lost { destination: destination(), event });
            }
        }
    }
    found.extend(dead.intersection(&seen).map(|&event| Violation::Doubled { destination: destination(), event }));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(got: &[u64], dead: &[u64]) -> Vec<Violation> {
        let text = "try 1\nok 1\ntry 9\nok 9\ntry 17\nno 17\n\ntry 25\ntry 97\nok 97\ntr";
        let journals = BTreeMap::from([(3, Journal::parse(text))]);
        let name = |&n: &u64| (3, n);
        let dead = dead.iter().map(name).collect();
        destination("d", Takes::WhatIsGood, &journals, &got.iter().map(name).collect::<Vec<_>>(), &dead)
    }

    fn kinds(found: &[Violation]) -> Vec<String> {
        found.iter().map(|v| serde_json::to_value(v).unwrap()["kind"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn what_is_promised_passes_and_everything_else_is_named() {
        assert_eq!(check(&[1, 9], &[97]), []);
        assert_eq!(check(&[1, 9, 25], &[97]), [], "open when the producer died: there or not");
        assert_eq!(kinds(&check(&[1], &[97])), ["lost"]);
        assert_eq!(kinds(&check(&[1, 9], &[])), ["lost"], "a dead letter that is not there");
        assert_eq!(kinds(&check(&[1, 9, 9], &[97])), ["doubled"]);
        assert_eq!(kinds(&check(&[9, 1], &[97])), ["out_of_order"]);
        assert_eq!(kinds(&check(&[1, 9, 17], &[97])), ["not_committed"]);
        assert_eq!(kinds(&check(&[1, 9, 33], &[97])), ["not_committed"], "never tried");
        assert_eq!(kinds(&check(&[1, 9, 97], &[97])), ["doubled"], "delivered and dead");
    }
}
