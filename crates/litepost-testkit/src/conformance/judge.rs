//! What was written against what was consumed.
//!
//! Called at the end of every case. Invariant: it accepts exactly what the guarantees promise: nothing lost, nothing
//! changed, nothing invented, and each key in order for a consumer that drops the ids it has seen.

use std::collections::{HashMap, HashSet};

use super::{Received, Sent};

/// How often an event may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duplicates {
    /// Once, whatever happens.
    Never,
    /// At least once.
    Allowed,
}

/// Compares; the error says what is wrong.
pub fn judge(sent: &[Sent], received: &[Received], duplicates: Duplicates) -> Result<(), String> {
    let by_id: HashMap<&str, (usize, &Sent)> =
        sent.iter().enumerate().map(|(at, s)| (s.id.as_str(), (at, s))).collect();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut last: HashMap<Option<&str>, usize> = HashMap::new();
    for message in received {
        let Some(&(at, event)) = by_id.get(message.id.as_str()) else {
            return Err(format!("a message {:?} that nobody sent", message.id));
        };
        if message.body != event.body {
            let (got, want) = (message.body.len(), event.body.len());
            return Err(format!("event {}: a body of {got} bytes that is not the one of {want} sent", event.id));
        }
        if message.key.as_deref() != event.key.as_deref().map(str::as_bytes) {
            return Err(format!("event {}: key {:?} instead of {:?}", event.id, message.key, event.key));
        }
        if !seen.insert(&event.id) {
            if duplicates == Duplicates::Never {
                return Err(format!("event {} arrived twice", event.id));
            }
            continue;
        }
        if let Some(before) = last.insert(event.key.as_deref(), at).filter(|&before| before > at) {
            return Err(format!("event {} of key {:?} arrived behind {}", event.id, event.key, sent[before].id));
        }
    }
    let lost: Vec<&str> = sent.iter().map(|s| s.id.as_str()).filter(|id| !seen.contains(id)).collect();
    if lost.is_empty() { Ok(()) } else { Err(format!("{} of {} are lost: {lost:.60?}", lost.len(), sent.len())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(id: &str, key: &str) -> Sent {
        Sent { id: id.into(), key: Some(key.into()), body: id.into() }
    }

    fn got(id: &str, key: &str) -> Received {
        Received { id: id.into(), key: Some(key.into()), body: id.into(), headers: Vec::new() }
    }

    #[test]
    fn accepts_what_is_promised_and_nothing_else() {
        let all = [sent("1", "a"), sent("2", "b"), sent("3", "a")];
        let ok = |list: &[Received], duplicates| judge(&all, list, duplicates);
        ok(&[got("2", "b"), got("1", "a"), got("3", "a")], Duplicates::Never).unwrap();
        let again = [got("1", "a"), got("3", "a"), got("1", "a"), got("2", "b"), got("3", "a")];
        ok(&again, Duplicates::Allowed).unwrap();
        for (list, duplicates, why) in [
            (&again[..], Duplicates::Never, "event 1 arrived twice"),
            (&[got("1", "a"), got("3", "a")], Duplicates::Allowed, "1 of 3 are lost"),
            (&[got("3", "a"), got("1", "a"), got("2", "b")], Duplicates::Allowed, "arrived behind 3"),
            (&[got("1", "b")], Duplicates::Allowed, "key"),
            (&[got("4", "a")], Duplicates::Allowed, "nobody sent"),
            (&[Received { body: Vec::new(), ..got("1", "a") }], Duplicates::Allowed, "body of 0 bytes"),
        ] {
            let error = ok(list, duplicates).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
