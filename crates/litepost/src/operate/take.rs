//! Taking the lanes of a destination, or of all, from whoever delivers, politely.
//!
//! ```text
//!   wanted (a row per lane) -> the relay settles what is in flight, gives the lane back, stands by
//!   -> token + 1, the deed, the rows of litepost_wanted gone: one transaction -> the relay takes the lane up again
//! ```
//!
//! Invariants: the operator holds no lane longer than its one transaction, so a crash leaves at most a wish, which
//! lapses; whoever delivered before finds its token gone at its next write.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use serde_json::Value as Json;

use super::{Operator, audit, finish};
use crate::clock;
use crate::error::{Doing as _, StoreError};
use crate::lanes::holder_is_gone;

const DOING: &str = "taking the lanes of a destination";

/// Between two looks at whether the lanes are free.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// One lane as far as leases are concerned.
struct LaneRow {
    destination: String,
    lane: u32,
    owner: Option<String>,
    holder: Option<String>,
    token: i64,
    beat: i64,
    lease_ms: i64,
}

/// The pulses seen so far, each since when it stands still.
#[derive(Default)]
struct Pulses(BTreeMap<(String, u32), (i64, i64, Instant)>);

impl Pulses {
    /// Whether nobody delivers from the lane: it is free, its holder is gone, or its pulse stood still for its lease
    /// time while we watched.
    fn is_free(&mut self, row: &LaneRow, now: Instant) -> bool {
        if row.owner.is_none() || row.holder.as_deref().is_some_and(holder_is_gone) {
            return true;
        }
        let seen = self.0.entry((row.destination.clone(), row.lane)).or_insert((row.token, row.beat, now));
        if (seen.0, seen.1) != (row.token, row.beat) {
            *seen = (row.token, row.beat, now);
        }
        now.duration_since(seen.2).as_millis() >= u128::try_from(row.lease_ms.max(1)).unwrap_or(u128::MAX)
    }
}

impl Operator {
    /// One deed on the state of a destination's lanes, while nobody delivers from any of them. A dry run takes no
    /// lane: it tells what would be done to the state as it is.
    pub(super) fn with_lanes<T>(
        &mut self,
        action: &'static str,
        destination: &str,
        deed: impl FnMut(&Transaction<'_>) -> Result<(T, Json), StoreError>,
    ) -> Result<T, StoreError> {
        if lanes(&self.connection, Some(destination))?.is_empty() {
            return Err(StoreError::UnknownDestination { destination: destination.into() });
        }
        self.with_lanes_of(action, Some(destination), deed)
    }

    /// As [`Operator::with_lanes`], on the lanes of all destinations at once; there may be none.
    pub(super) fn with_all_lanes<T>(
        &mut self,
        action: &'static str,
        deed: impl FnMut(&Transaction<'_>) -> Result<(T, Json), StoreError>,
    ) -> Result<T, StoreError> {
        self.with_lanes_of(action, None, deed)
    }

    fn with_lanes_of<T>(
        &mut self,
        action: &'static str,
        destination: Option<&str>,
        mut deed: impl FnMut(&Transaction<'_>) -> Result<(T, Json), StoreError>,
    ) -> Result<T, StoreError> {
        if self.dry_run {
            return self.transact(action, destination, deed);
        }
        let outcome = self.wait_and_do(action, destination, &mut deed);
        if outcome.is_err() {
            // Should this fail too, the wish lapses.
            let _ = self.take_back(destination);
        }
        outcome
    }

    fn wait_and_do<T>(
        &mut self,
        action: &'static str,
        destination: Option<&str>,
        deed: &mut impl FnMut(&Transaction<'_>) -> Result<(T, Json), StoreError>,
    ) -> Result<T, StoreError> {
        let began = clock::mono();
        let mut pulses = Pulses::default();
        loop {
            let late = clock::mono().duration_since(began) >= self.patience;
            let rows = lanes(&self.connection, destination)?;
            let now = clock::mono();
            let mut held = rows.iter().filter(|row| !pulses.is_free(row, now));
            match held.next() {
                Some(row) if late && !self.force => {
                    return Err(StoreError::LaneHeld {
                        destination: row.destination.clone(),
                        lane: row.lane,
                        by: row.holder.clone().or_else(|| row.owner.clone()).unwrap_or_default(),
                    });
                }
                Some(_) if !late => self.wish(destination, rows.len())?,
                _ => {
                    if let Some(answer) = self.try_deed(action, destination, late, &mut pulses, deed)? {
                        return Ok(answer);
                    }
                }
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Does it, unless somebody has taken a lane in between.
    fn try_deed<T>(
        &mut self,
        action: &'static str,
        destination: Option<&str>,
        late: bool,
        pulses: &mut Pulses,
        deed: &mut impl FnMut(&Transaction<'_>) -> Result<(T, Json), StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let by_force = late && self.force;
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(DOING)?;
        let now = clock::mono();
        let rows = lanes(&tx, destination)?;
        let held = rows.iter().filter(|row| !pulses.is_free(row, now)).count();
        if held > 0 && !by_force {
            return Ok(None);
        }
        tx.execute(
            "UPDATE main.litepost_cursor SET owner = NULL, holder = NULL, token = token + 1, beat = beat + 1 \
             WHERE ?1 IS NULL OR destination = ?1",
            [destination],
        )
        .doing(DOING)?;
        let (answer, mut detail) = deed(&tx)?;
        if held > 0
            && let Json::Object(detail) = &mut detail
        {
            detail.insert("taken_by_force".into(), held.into());
        }
        audit::write(&tx, &self.who, action, destination, &detail)?;
        forget_wish(&tx, destination, &self.nonce)?;
        finish(tx, false, action)?;
        Ok(Some(answer))
    }

    /// Asks for the lanes, unless they are being asked for: by us, or by another operator who is faster.
    fn wish(&mut self, destination: Option<&str>, lanes: usize) -> Result<(), StoreError> {
        let there: i64 = self
            .connection
            .prepare_cached("SELECT count(*) FROM main.litepost_wanted WHERE ?1 IS NULL OR destination = ?1")
            .and_then(|mut s| s.query_row([destination], |row| row.get(0)))
            .doing(DOING)?;
        if usize::try_from(there).is_ok_and(|there| there >= lanes) {
            return Ok(());
        }
        let patience_ms = i64::try_from(self.patience.as_millis()).unwrap_or(i64::MAX);
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(DOING)?;
        tx.execute(
            "INSERT OR IGNORE INTO main.litepost_wanted (destination, lane, nonce, holder, patience_ms) \
             SELECT destination, lane, ?2, ?3, ?4 FROM main.litepost_cursor WHERE ?1 IS NULL OR destination = ?1",
            params![destination, self.nonce, self.holder_json, patience_ms],
        )
        .doing(DOING)?;
        tx.commit().doing(DOING)
    }

    fn take_back(&mut self, destination: Option<&str>) -> Result<(), StoreError> {
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(DOING)?;
        forget_wish(&tx, destination, &self.nonce)?;
        tx.commit().doing(DOING)
    }
}

fn forget_wish(tx: &Transaction<'_>, destination: Option<&str>, nonce: &str) -> Result<(), StoreError> {
    tx.execute(
        "DELETE FROM main.litepost_wanted WHERE (?1 IS NULL OR destination = ?1) AND nonce = ?2",
        params![destination, nonce],
    )
    .doing(DOING)?;
    Ok(())
}

fn lanes(connection: &Connection, destination: Option<&str>) -> Result<Vec<LaneRow>, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT destination, lane, owner, holder, token, beat, lease_ms FROM main.litepost_cursor \
             WHERE ?1 IS NULL OR destination = ?1 ORDER BY destination, lane",
        )
        .doing(DOING)?;
    let rows = statement
        .query_map([destination], |row| {
            Ok(LaneRow {
                destination: row.get(0)?,
                lane: row.get(1)?,
                owner: row.get(2)?,
                holder: row.get(3)?,
                token: row.get(4)?,
                beat: row.get(5)?,
                lease_ms: row.get(6)?,
            })
        })
        .doing(DOING)?;
    rows.collect::<Result<_, _>>().doing(DOING)
}
