//! What the log held in a range of positions, in 128 bits.
//!
//! Written into receipts by the store, recomputed by verify and by `where`. Invariant: every column counts, each with
//! its type and length, so that no two rows hash alike. The digest of a range is the sum of its rows' hashes: a range can
//! grow row by row, and several destinations share the hashing of a row. It finds damage; it is no signature.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use sha2::{Digest as _, Sha256};

/// Every column of the log, in the order in which they are hashed.
const ROWS: &str = "SELECT seq, id, topic, key, type, payload, headers, version, dedup_key, source, created_at, deliver_after, \
    expires_at, only_for FROM main.litepost_outbox WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq";
const COLUMNS: usize = 14;

/// The digest of some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeDigest {
    sum: u128,
    /// How many rows.
    pub(crate) events: i64,
}

impl RangeDigest {
    /// Takes one more row in.
    pub(crate) fn add(&mut self, row: u128) {
        self.sum = self.sum.wrapping_add(row);
        self.events += 1;
    }

    /// Both together.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { sum: self.sum.wrapping_add(other.sum), events: self.events + other.events }
    }

    /// Reads what [`RangeDigest::to_text`] wrote.
    pub(crate) fn parse(text: &str, events: i64) -> Option<Self> {
        (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok()).flatten().map(|sum| Self { sum, events })
    }

    /// 32 hexadecimal digits.
    pub(crate) fn to_text(self) -> String {
        format!("{:032x}", self.sum)
    }
}

/// Calls `each` with the position and hash of every row from `first` to `last`.
pub(crate) fn rows(
    connection: &Connection,
    first: i64,
    last: i64,
    mut each: impl FnMut(i64, u128),
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(ROWS)?;
    let mut rows = statement.query([first, last])?;
    while let Some(row) = rows.next()? {
        each(row.get(0)?, hash(row)?);
    }
    Ok(())
}

fn hash(row: &Row<'_>) -> rusqlite::Result<u128> {
    let mut sha = Sha256::new();
    for column in 0..COLUMNS {
        match row.get_ref(column)? {
            ValueRef::Null => sha.update([0]),
            ValueRef::Integer(number) => {
                sha.update([1]);
                sha.update(number.to_be_bytes());
            }
            ValueRef::Real(number) => {
                sha.update([2]);
                sha.update(number.to_bits().to_be_bytes());
            }
            ValueRef::Text(bytes) => sized(&mut sha, 3, bytes),
            ValueRef::Blob(bytes) => sized(&mut sha, 4, bytes),
        }
    }
    let hash: [u8; 32] = sha.finalize().into();
    Ok(hash.iter().take(16).fold(0, |number, &byte| number << 8 | u128::from(byte)))
}

fn sized(sha: &mut Sha256, kind: u8, bytes: &[u8]) {
    sha.update([kind]);
    sha.update((bytes.len() as u64).to_be_bytes());
    sha.update(bytes);
}
