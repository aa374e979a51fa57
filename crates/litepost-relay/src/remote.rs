//! Compares an outbox file with what its SQL destinations remember of it.
//!
//! Called by `litepost verify --remote`. Invariants: nothing is written, here or there; a healthy file that is in use never
//! fails. For that the order of looking matters: the ledger first, the file after it, since the file is written first (a
//! lease, an event) and the ledger follows.

use litepost::log::LogReader;
use litepost::{LedgerProblem, Problem, StoreError};
use litepost_core::Seq;

use crate::config::OutboxFile;
use crate::sink::{LedgerOf, LedgerRow};
use crate::sinks::recognise;

/// What does not fit together between `outbox` and the ledgers of its destinations.
pub async fn compare(outbox: &OutboxFile) -> Result<Vec<Problem>, StoreError> {
    let mut problems = Vec::new();
    let (origin, epoch) = {
        let log = LogReader::look(&outbox.path)?;
        (log.origin()?, log.epoch()?)
    };
    for (destination, _) in &outbox.routes {
        let who = LedgerOf { origin: origin.clone(), epoch, destination: destination.name.to_string() };
        let rows = match destination.factory.ledger(&who).await {
            Ok(Some(rows)) => rows,
            Ok(None) => continue,
            Err(unavailable) => {
                let error = unavailable.message;
                problems.push(problem(&who, 0, LedgerProblem::Unreachable { error }));
                continue;
            }
        };
        let mut log = LogReader::look(&outbox.path)?;
        for row in rows {
            lane(&mut log, &who, &row, &mut problems)?;
        }
    }
    Ok(problems)
}

fn lane(log: &mut LogReader, who: &LedgerOf, row: &LedgerRow, problems: &mut Vec<Problem>) -> Result<(), StoreError> {
    let newest = log.head()?;
    let applied = row.events.iter().map(|(seq, _)| *seq).max().unwrap_or(0).max(row.seq);
    if applied > newest.0 {
        problems.push(problem(who, row.lane, LedgerProblem::LogBehind { applied: Seq(applied), newest }));
    }
    let known = row.events.iter().map(|(seq, hash)| (*seq, hash.as_str()));
    for (seq, hash) in known.chain([(row.seq, row.hash.as_str())]).filter(|(_, hash)| !hash.is_empty()) {
        // What has been pruned cannot be compared.
        let there = log.fetch(&[Seq(seq)])?;
        if there.first().is_some_and(|event| recognise::hash(event) != hash) {
            problems.push(problem(who, row.lane, LedgerProblem::AnotherEvent { seq: Seq(seq) }));
        }
    }
    // The lanes of earlier splits are held by those of the present one, whichever came last.
    let lanes = log.tokens(&who.destination)?;
    let present = lanes.iter().any(|(_, _, generation)| *generation == row.generation);
    let those = lanes.iter().filter(|(lane, ..)| !present || *lane == row.lane);
    if let Some(here) = those.map(|(_, token, _)| *token).max().filter(|here| row.token > *here) {
        problems.push(problem(who, row.lane, LedgerProblem::NewerLease { remote: row.token, here }));
    }
    Ok(())
}

fn problem(who: &LedgerOf, lane: u32, found: LedgerProblem) -> Problem {
    Problem::Ledger { destination: who.destination.clone(), lane, found }
}
