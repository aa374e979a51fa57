//! Receipts against the log: what was delivered must still be what it was.
//!
//! Called by verify, within its snapshot. Only ranges that the log still holds whole can be compared; a range that is
//! partly pruned is left out.

use litepost_core::Seq;
use rusqlite::Transaction;

use super::problem::Problem;
use super::{DOING, LISTED};
use crate::digest::{self, RangeDigest};
use crate::error::{Doing as _, StoreError};

struct Receipt {
    destination: String,
    lane: u32,
    first: i64,
    last: i64,
    /// `None` when it is no digest.
    told: Option<RangeDigest>,
    found: RangeDigest,
}

/// Compares every receipt, hashing each row of the log at most once. Returns how many could be compared.
pub(super) fn check(
    snapshot: &Transaction<'_>,
    oldest: i64,
    newest: i64,
    problems: &mut Vec<Problem>,
) -> Result<usize, StoreError> {
    let mut receipts = load(snapshot, oldest)?;
    for receipt in
        receipts.iter().filter(|receipt| receipt.last > newest).take(usize::try_from(LISTED).unwrap_or(usize::MAX))
    {
        let Receipt { destination, lane, last, .. } = receipt;
        let (destination, lane) = (destination.clone(), *lane);
        problems.push(Problem::ReceiptBeyondLog { destination, lane, last: Seq(*last), newest: Seq(newest) });
    }
    receipts.retain(|receipt| receipt.first >= oldest && receipt.last <= newest);
    receipts.sort_by_key(|receipt| receipt.first);
    let upto = receipts.iter().map(|receipt| receipt.last).max().unwrap_or(0);
    let first = receipts.first().map_or(1, |receipt| receipt.first);
    // The receipts whose range is open at the row that is read.
    let (mut open, mut next): (Vec<usize>, usize) = (Vec::new(), 0);
    digest::rows(snapshot, first, upto, |seq, hash| {
        while receipts.get(next).is_some_and(|receipt| receipt.first <= seq) {
            open.push(next);
            next += 1;
        }
        open.retain(|&at| receipts[at].last >= seq);
        for &at in &open {
            receipts[at].found.add(hash);
        }
    })
    .doing(DOING)?;
    let compared = receipts.len();
    problems.extend(receipts.into_iter().filter(|receipt| receipt.told != Some(receipt.found)).map(|receipt| {
        let Receipt { destination, lane, first, last, .. } = receipt;
        Problem::ReceiptDiffers { destination, lane, first: Seq(first), last: Seq(last) }
    }));
    Ok(compared)
}

/// The receipts that end in what is left of the log, or beyond it.
fn load(snapshot: &Transaction<'_>, oldest: i64) -> Result<Vec<Receipt>, StoreError> {
    let mut statement = snapshot
        .prepare(
            "SELECT destination, lane, first_seq, last_seq, events, digest FROM main.litepost_receipt \
             WHERE last_seq >= ?1 ORDER BY destination, lane, first_seq",
        )
        .doing(DOING)?;
    let rows = statement
        .query_map([oldest], |row| {
            Ok(Receipt {
                destination: row.get(0)?,
                lane: row.get(1)?,
                first: row.get(2)?,
                last: row.get(3)?,
                told: RangeDigest::parse(&row.get::<_, String>(5)?, row.get(4)?),
                found: RangeDigest::default(),
            })
        })
        .doing(DOING)?;
    rows.collect::<Result<_, _>>().doing(DOING)
}
