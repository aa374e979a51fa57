//! Compares what the producers know with what the destinations have.
//!
//! Called at the end of a run. Invariant: pure functions of journals and deliveries; an event whose producer was killed
//! before it knew may be there once or not at all, every other one is there exactly once or must not be.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;

use crate::TortureError;
use crate::producer::{is_poison, key};

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
    /// Delivered again although it had been confirmed, and nothing had happened that could explain it.
    Repeated {
        /// The destination.
        destination: String,
        /// Producer and number.
        event: (u64, u64),
        /// When it came before, milliseconds.
        first_ms: u64,
        /// When it came again.
        again_ms: u64,
    },
    /// Delivered under an id that is not its own: its receiver cannot recognise it.
    OtherId {
        /// The destination.
        destination: String,
        /// Producer and number.
        event: (u64, u64),
        /// The id it came under.
        id: String,
        /// What had come before: the event's id, or the event of that id.
        before: String,
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

/// What operators have done to the file, as far as a check has to know.
#[derive(Debug, Default)]
pub(crate) struct Permitted {
    /// Committed, and gone with a file that was replaced by an older one.
    pub(crate) gone: BTreeSet<Name>,
    /// How often more a SQL target may get an event: it was pending in a file that was put in the place of the one from which
    /// it was delivered.
    pub(crate) again: BTreeMap<&'static str, BTreeMap<Name, usize>>,
}

/// Holds the journals against the application's own rows, which were written in the events' transactions: what is left open
/// is known afterwards, and what is gone with a file need not arrive.
pub(crate) fn resolve(
    journals: &mut BTreeMap<u64, Journal>,
    rows: &BTreeSet<Name>,
    gone: &BTreeSet<Name>,
) -> Vec<Violation> {
    let destination = || "the application's rows".to_owned();
    let mut found = Vec::new();
    for (&producer, journal) in journals.iter_mut() {
        for &n in &journal.tried {
            let event = (producer, n);
            match (rows.contains(&event), gone.contains(&event)) {
                (false, false) if journal.committed.contains(&n) => {
                    found.push(Violation::Lost { destination: destination(), event });
                }
                (true, _) | (_, true) if journal.undone.contains(&n) => {
                    found.push(Violation::NotCommitted { destination: destination(), event });
                }
                (true, _) => drop(journal.committed.insert(n)),
                (false, true) => drop(journal.committed.remove(&n)),
                (false, false) => drop(journal.undone.insert(n)),
            }
        }
    }
    let unknown = |event: &&Name| journals.get(&event.0).is_none_or(|journal| !journal.tried.contains(&event.1));
    found.extend(
        rows.iter().filter(unknown).map(|&event| Violation::NotCommitted { destination: destination(), event }),
    );
    found
}

/// Checks one destination: `got` in the order in which it has them, `dead` as litepost kept them.
pub(crate) fn destination(
    name: &str,
    takes: Takes,
    journals: &BTreeMap<u64, Journal>,
    got: &[Name],
    dead: &BTreeSet<Name>,
    permitted: &Permitted,
) -> Vec<Violation> {
    let destination = || name.to_owned();
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut more: BTreeMap<Name, usize> = permitted.again.get(name).cloned().unwrap_or_default();
    let mut last: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for &event in got {
        let (producer, n) = event;
        if !seen.insert(event) {
            match more.get_mut(&event).filter(|more| **more > 0) {
                Some(more) => *more -= 1,
                None => found.push(Violation::Doubled { destination: destination(), event }),
            }
            continue;
        }
        let before = last.insert((producer, key(n)), n).unwrap_or(0);
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

/// What a receiver got, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// When, milliseconds after the beginning.
    pub(crate) at_ms: u64,
    /// Which event.
    pub(crate) event: Name,
    /// The id it came under.
    pub(crate) id: String,
    /// The answer has arrived: the connection was used again. Otherwise nobody knows.
    pub(crate) sure: bool,
    /// The network has passed the request on twice; this is the second.
    pub(crate) network: bool,
}

/// What may make a relay send again what was confirmed: from when until when, milliseconds.
pub(crate) type Disturbed = (u64, u64);

/// Checks what is delivered at least once: each event under one id of its own, and again only where a lost answer or a
/// disturbance of the relays explains it. The other promises are [`destination`]'s, for what came [`first`].
pub(crate) fn again(name: &str, receipts: &[Receipt], disturbed: &[Disturbed]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut ids: BTreeMap<&str, Name> = BTreeMap::new();
    let mut last: BTreeMap<Name, &Receipt> = BTreeMap::new();
    for receipt in receipts {
        let (destination, event, id) = (name.to_owned(), receipt.event, receipt.id.clone());
        let of_id = *ids.entry(&receipt.id).or_insert(event);
        if of_id != event {
            let before = format!("{of_id:?}");
            found.push(Violation::OtherId { destination: destination.clone(), event, id: id.clone(), before });
        }
        if receipt.network {
            continue;
        }
        let Some(before) = last.insert(event, receipt) else { continue };
        if before.id != receipt.id {
            let before = before.id.clone();
            found.push(Violation::OtherId { destination: destination.clone(), event, id, before });
        }
        // A request that was given up may arrive behind the one that was sent after it.
        let asked_again = !before.sure || !receipt.sure;
        let happened = disturbed.iter().any(|&(from, until)| from <= receipt.at_ms && before.at_ms <= until);
        if !asked_again && !happened {
            found.push(Violation::Repeated { destination, event, first_ms: before.at_ms, again_ms: receipt.at_ms });
        }
    }
    found
}

/// Each event once, where it came first.
pub(crate) fn first(receipts: &[Receipt]) -> Vec<Name> {
    let mut seen = BTreeSet::new();
    receipts.iter().map(|receipt| receipt.event).filter(|&event| seen.insert(event)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(got: &[u64], dead: &[u64]) -> Vec<Violation> {
        let text = "try 1\nok 1\ntry 9\nok 9\ntry 17\nno 17\n\ntry 25\ntry 97\nok 97\ntr";
        let journals = BTreeMap::from([(3, Journal::parse(text))]);
        let name = |&n: &u64| (3, n);
        let dead = dead.iter().map(name).collect();
        let permitted =
            Permitted { again: BTreeMap::from([("d", BTreeMap::from([((3, 1), 1)]))]), ..Permitted::default() };
        destination("d", Takes::WhatIsGood, &journals, &got.iter().map(name).collect::<Vec<_>>(), &dead, &permitted)
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
        assert_eq!(check(&[1, 9, 1], &[97]), [], "it was pending in a file that was restored");
        assert_eq!(kinds(&check(&[1, 9, 1, 1], &[97])), ["doubled"], "once");
        assert_eq!(kinds(&check(&[9, 1], &[97])), ["out_of_order"]);
        assert_eq!(kinds(&check(&[1, 9, 17], &[97])), ["not_committed"]);
        assert_eq!(kinds(&check(&[1, 9, 33], &[97])), ["not_committed"], "never tried");
        assert_eq!(kinds(&check(&[1, 9, 97], &[97])), ["doubled"], "delivered and dead");
    }

    #[test]
    fn the_applications_rows_tell_what_was_committed_and_what_is_gone() {
        let text = "try 1\nok 1\ntry 2\ntry 3\nno 3\ntry 4\ntry 5\nok 5\n";
        let told = |rows: &[u64], gone: &[u64]| {
            let mut journals = BTreeMap::from([(3, Journal::parse(text))]);
            let names = |all: &[u64]| all.iter().map(|&n| (3, n)).collect::<BTreeSet<Name>>();
            let found = resolve(&mut journals, &names(rows), &names(gone));
            let journal = journals.remove(&3).unwrap();
            (
                kinds(&found),
                journal.committed.into_iter().collect::<Vec<_>>(),
                journal.undone.into_iter().collect::<Vec<_>>(),
            )
        };
        let none = Vec::<String>::new;
        assert_eq!(told(&[1, 2, 5], &[]), (none(), vec![1, 2, 5], vec![3, 4]), "2 was committed, 4 was not");
        assert_eq!(told(&[1], &[2, 5]), (none(), vec![1], vec![3, 4]), "gone: it may have arrived, and need not");
        assert_eq!(told(&[1], &[]).0, ["lost"], "a row that the producer has been told of");
        assert_eq!(told(&[1, 3, 5], &[]).0, ["not_committed"]);
        assert_eq!(told(&[1, 5], &[3]).0, ["not_committed"]);
        assert_eq!(told(&[1, 5, 6], &[]).0, ["not_committed"], "nobody has written it");
    }

    #[test]
    fn what_comes_again_needs_a_reason_and_the_same_id() {
        let one = |at_ms, n, id: &str| Receipt { at_ms, event: (3, n), id: id.to_owned(), sure: true, network: false };
        let unsure = |receipt: Receipt| Receipt { sure: false, ..receipt };
        let told = |receipts: &[Receipt]| kinds(&again("d", receipts, &[(100, 200), (900, 900)]));
        let none: [&str; 0] = [];
        assert_eq!(told(&[one(1, 1, "a"), one(2, 9, "b")]), none);
        assert_eq!(told(&[one(1, 1, "a"), one(2, 1, "a")]), ["repeated"], "nothing had happened");
        assert_eq!(told(&[one(201, 1, "a"), one(899, 1, "a")]), ["repeated"], "it had happened before, and after");
        assert_eq!(told(&[one(1, 1, "a"), one(100, 1, "a"), one(210, 1, "a")]), none, "a relay was disturbed");
        assert_eq!(told(&[one(1, 1, "a"), one(150, 1, "a"), one(210, 1, "a"), one(220, 1, "a")]), ["repeated"]);
        assert_eq!(told(&[unsure(one(1, 1, "a")), one(2, 1, "a")]), none, "the answer was lost");
        assert_eq!(told(&[one(1, 1, "a"), unsure(one(2, 1, "a"))]), none, "the older request came later");
        assert_eq!(told(&[unsure(one(1, 1, "a")), one(2, 1, "b")]), ["other_id"], "the receiver cannot recognise it");
        assert_eq!(told(&[one(1, 1, "a"), one(2, 9, "a")]), ["other_id"], "two events under one id");
        let doubled = Receipt { network: true, ..one(1, 1, "a") };
        assert_eq!(told(&[one(1, 1, "a"), doubled.clone(), one(2, 9, "b")]), none, "the network's doing");
        assert_eq!(told(&[one(1, 1, "a"), doubled, one(2, 1, "a")]), ["repeated"], "and nobody's excuse");
        assert_eq!(first(&[one(1, 9, "b"), one(2, 1, "a"), one(3, 9, "b")]), [(3, 9), (3, 1)]);
    }
}
