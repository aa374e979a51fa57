//! Leases: who may move a lane's cursor.
//!
//! ```text
//!            acquire (free, or its pulse stood still for lease_ms of the observer's clock)
//!   free ------------------------------------------------------------> held, token + 1
//!    ^                                                                  |  renew: beat + 1
//!    +------------------------------ release ---------------------------+
//! ```
//!
//! A relay that comes later is given a share: see [`LaneStore::ask_for_share`].
//!
//! The holder knows the pulse that it has shown last. Finds it another one under its token, an older copy was written over the
//! file: the lane is not its own any more, and it takes it again with what the file says.
//!
//! No clock is ever written to be compared: an observer watches `(token, beat)` on its own monotonic clock, so a clock
//! that is set changes nothing. A holder that was only slow finds its token gone at its next write and stops; until
//! then two processes may believe they hold the lane, and the token decides.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};

use super::register::{must_be, split_of};
use super::{Acquire, Beat, LaneStore, Lease, LeaseClaim, Split, Wish};
use crate::clock;
use crate::error::{Doing as _, StoreError};
use crate::failpoint::{self, Point};

/// What this process has written last of the pulses of its lanes: the token, and the beat. Two beats when a commit failed and
/// may have been made all the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Shown(HashMap<(Arc<str>, u32), (i64, i64, i64)>);

impl Shown {
    /// The beats that the row of a lease may have.
    pub(super) fn of(&self, lease: &Lease) -> (i64, i64) {
        match self.0.get(&(Arc::clone(&lease.destination), lease.lane)) {
            Some(&(token, from, to)) if token == lease.token => (from, to),
            // Granted through another connection.
            _ => (i64::MIN, i64::MAX),
        }
    }

    /// The row has that beat.
    pub(super) fn set(&mut self, lease: &Lease, beat: i64) {
        self.0.insert((Arc::clone(&lease.destination), lease.lane), (lease.token, beat, beat));
    }

    /// The row has the beat that it had, or the one of `others`, which could not be committed for certain.
    pub(super) fn doubt(&mut self, others: Self) {
        for (lane, (token, _, to)) in others.0 {
            let from = self.0.get(&lane).filter(|known| known.0 == token).map_or(i64::MIN, |known| known.1);
            self.0.insert(lane, (token, from, to));
        }
    }
}

/// The row of a lane as far as leases are concerned. `owner` is `None` when it is free.
struct Row {
    owner: Option<String>,
    holder: Option<String>,
    token: i64,
    beat: i64,
    lease_ms: i64,
    split: Split,
}

impl LaneStore {
    /// Asks for a lane. Granted when it is free, or when its row still shows exactly the pulse `observed`, which the
    /// caller has watched unchanged for its `lease_ms` on its own monotonic clock (or whose holder is known to be gone,
    /// see [`super::holder_is_gone`]).
    pub fn acquire(
        &mut self,
        destination: &str,
        lane: u32,
        claim: &LeaseClaim,
        observed: Option<&Beat>,
    ) -> Result<Acquire, StoreError> {
        let doing = "acquiring a lease";
        let known = self.registered.get(destination);
        // A standby asks many times and gets nothing: it must not take the write lock for that.
        let asks = Asks { owner: &claim.owner, known, observed };
        if let Some(refusal) = refusal(&self.connection, destination, lane, &asks)? {
            return Ok(refusal);
        }
        let now = clock::wall();
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)?;
        if let Some(refusal) = refusal(&tx, destination, lane, &asks)? {
            return Ok(refusal);
        }
        let row = read(&tx, destination, lane)?;
        let token = row.token + 1;
        let changed = tx
            .prepare_cached(
                "UPDATE main.litepost_cursor SET owner = ?3, holder = ?4, token = ?5, beat = beat + 1, lease_ms = ?6, \
                 renewed_at = ?7 WHERE destination = ?1 AND lane = ?2 AND token = ?5 - 1",
            )
            .and_then(|mut s| {
                s.execute(params![destination, lane, claim.owner, claim.holder_json, token, claim.lease_ms, now.0])
            })
            .doing(doing)?;
        if changed != 1 {
            return Err(StoreError::UnknownLane { destination: destination.into(), lane });
        }
        // What we may have asked for is ours now.
        forget_wish(&tx, destination, lane, &claim.owner)?;
        failpoint::pass(Point::AcquireBeforeCommit, doing)?;
        tx.commit().doing(doing)?;
        failpoint::hit(Point::AcquireAfterCommit);
        let lease = Lease {
            destination: destination.into(),
            lane,
            token,
            owner: Arc::from(claim.owner.as_str()),
            lease_ms: claim.lease_ms,
            taken_over: row.owner.is_some(),
        };
        self.shown.set(&lease, row.beat + 1);
        Ok(Acquire::Granted(lease))
    }

    /// Asks the relay that has most lanes of a destination for `lane`, when it is its turn to be given away so that all
    /// have as many, give or take one. The holder settles what is in flight and gives it back; [`LaneStore::acquire`]
    /// takes it then. True when the lane is asked for by us.
    pub fn ask_for_share(&mut self, destination: &str, lane: u32, claim: &LeaseClaim) -> Result<bool, StoreError> {
        let doing = "asking for a share of the lanes";
        if let Some(asked) = asked_for(&self.connection, destination, lane, &claim.owner)? {
            return Ok(asked);
        }
        if !is_due(&owners(&self.connection, destination)?, &claim.owner, lane) {
            return Ok(false);
        }
        let tx = self.write(doing)?;
        if let Some(asked) = asked_for(&tx, destination, lane, &claim.owner)? {
            return Ok(asked);
        }
        if !is_due(&owners(&tx, destination)?, &claim.owner, lane) {
            return Ok(false);
        }
        tx.prepare_cached(
            "INSERT INTO main.litepost_wanted (destination, lane, nonce, holder, patience_ms) VALUES (?1, ?2, ?3, ?4, ?5)",
        )
        .and_then(|mut s| s.execute(params![destination, lane, claim.owner, claim.holder_json, claim.lease_ms]))
        .doing(doing)?;
        tx.commit().doing(doing)?;
        Ok(true)
    }

    /// Forgets a wish that has outlasted its patience, or whose process is gone. False when it was gone.
    pub fn lapse(&mut self, wish: &Wish) -> Result<bool, StoreError> {
        let doing = "forgetting an operator's wish";
        let tx = self.write(doing)?;
        let changed = forget_wish(&tx, &wish.destination, wish.lane, &wish.nonce)?;
        tx.commit().doing(doing)?;
        Ok(changed == 1)
    }

    /// Shows a pulse. False when the lease is gone.
    pub fn renew(&mut self, lease: &Lease) -> Result<bool, StoreError> {
        let shown = self.shown.of(lease);
        self.on_lease(
            [Point::RenewBeforeCommit, Point::RenewAfterCommit],
            "renewing a lease",
            "UPDATE main.litepost_cursor SET beat = beat + 1, renewed_at = ?5 \
             WHERE destination = ?1 AND lane = ?2 AND token = ?3 AND owner = ?4 AND beat BETWEEN ?6 AND ?7 RETURNING beat",
            lease,
            shown,
        )
    }

    /// Gives the lane back, so that another process need not wait. False when the lease was gone.
    pub fn release(&mut self, lease: &Lease) -> Result<bool, StoreError> {
        // Whatever pulse it has: what is ours by its token is nobody's afterwards.
        self.on_lease(
            [Point::ReleaseBeforeCommit, Point::ReleaseAfterCommit],
            "releasing a lease",
            "UPDATE main.litepost_cursor SET owner = NULL, holder = NULL, beat = beat + 1, renewed_at = ?5 \
             WHERE destination = ?1 AND lane = ?2 AND token = ?3 AND owner = ?4 AND beat BETWEEN ?6 AND ?7 RETURNING beat",
            lease,
            (i64::MIN, i64::MAX),
        )
    }

    fn on_lease(
        &mut self,
        [before, after]: [Point; 2],
        doing: &'static str,
        sql: &str,
        lease: &Lease,
        shown: (i64, i64),
    ) -> Result<bool, StoreError> {
        let now = clock::wall();
        let mut after_this = self.shown.clone();
        // A transaction of its own that begins IMMEDIATE: a bare UPDATE would read first and could fail for it.
        let tx = self.write(doing)?;
        let whose = params![&*lease.destination, lease.lane, lease.token, &*lease.owner, now.0, shown.0, shown.1];
        let beat: Option<i64> =
            tx.prepare_cached(sql).and_then(|mut s| s.query_row(whose, |row| row.get(0)).optional()).doing(doing)?;
        if let Some(beat) = beat {
            after_this.set(lease, beat);
        }
        failpoint::pass(before, doing)?;
        if let Err(error) = tx.commit().doing(doing) {
            self.shown.doubt(after_this);
            return Err(error);
        }
        self.shown = after_this;
        failpoint::hit(after);
        Ok(beat.is_some())
    }
}

impl Row {
    fn is_free_for(&self, observed: Option<&Beat>) -> bool {
        self.owner.is_none() || observed.is_some_and(|seen| seen.token == self.token && seen.beat == self.beat)
    }

    fn into_beat(self) -> Beat {
        Beat {
            token: self.token,
            beat: self.beat,
            lease_ms: self.lease_ms,
            owner: self.owner.unwrap_or_default(),
            holder: self.holder,
        }
    }
}

/// Forgets a wish; returns how many there were, one or none.
fn forget_wish(tx: &Connection, destination: &str, lane: u32, nonce: &str) -> Result<usize, StoreError> {
    tx.prepare_cached("DELETE FROM main.litepost_wanted WHERE destination = ?1 AND lane = ?2 AND nonce = ?3")
        .and_then(|mut s| s.execute(params![destination, lane, nonce]))
        .doing("forgetting a wish")
}

/// Who asks for a lane.
struct Asks<'a> {
    owner: &'a str,
    known: Option<&'a Split>,
    observed: Option<&'a Beat>,
}

/// Why a lane cannot be had now; `None` when it can.
fn refusal(
    connection: &Connection,
    destination: &str,
    lane: u32,
    asks: &Asks<'_>,
) -> Result<Option<Acquire>, StoreError> {
    let row = read(connection, destination, lane)?;
    // Another relay has split the destination anew: with our number we would deliver what is not ours.
    if let Some(asked) = asks.known {
        must_be(destination, &row.split, asked)?;
    }
    if !row.is_free_for(asks.observed) {
        return Ok(Some(Acquire::HeldBy(row.into_beat())));
    }
    if let Some(wish) = wishes(connection, Some((destination, lane)))?.pop().filter(|wish| wish.nonce != asks.owner) {
        return Ok(Some(Acquire::WantedBy(wish)));
    }
    let paused: bool = connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM main.litepost_pause WHERE destination = ?1 AND kind = 'destination')",
        )
        .and_then(|mut s| s.query_row([destination], |row| row.get(0)))
        .doing("reading a lease")?;
    Ok(paused.then_some(Acquire::Paused))
}

/// The lanes operators ask for: one, or all there are.
pub(crate) fn wishes(connection: &Connection, lane: Option<(&str, u32)>) -> Result<Vec<Wish>, StoreError> {
    let doing = "reading what operators ask for";
    let mut statement = connection
        .prepare_cached(
            "SELECT destination, lane, nonce, holder, patience_ms FROM main.litepost_wanted \
             WHERE ?1 IS NULL OR (destination = ?1 AND lane = ?2)",
        )
        .doing(doing)?;
    let rows = statement
        .query_map(params![lane.map(|l| l.0), lane.map(|l| l.1)], |row| {
            Ok(Wish {
                destination: row.get::<_, String>(0)?.into(),
                lane: row.get(1)?,
                nonce: row.get(2)?,
                holder: row.get(3)?,
                patience_ms: row.get(4)?,
            })
        })
        .doing(doing)?;
    rows.collect::<Result<_, _>>().doing(doing)
}

/// Whether a destination's lanes are being asked for: `Some(true)` when `lane` is, by us. One at a time is enough.
fn asked_for(connection: &Connection, destination: &str, lane: u32, owner: &str) -> Result<Option<bool>, StoreError> {
    let wishes: Vec<(u32, String)> = connection
        .prepare_cached("SELECT lane, nonce FROM main.litepost_wanted WHERE destination = ?1")
        .and_then(|mut s| s.query_map([destination], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .doing("reading what is asked for")?;
    Ok((!wishes.is_empty()).then(|| wishes.iter().any(|(of, nonce)| *of == lane && nonce == owner)))
}

/// Who has each lane of a destination.
fn owners(connection: &Connection, destination: &str) -> Result<Vec<Option<String>>, StoreError> {
    connection
        .prepare_cached("SELECT owner FROM main.litepost_cursor WHERE destination = ?1 ORDER BY lane")
        .and_then(|mut s| s.query_map([destination], |row| row.get(0))?.collect())
        .doing("reading who has the lanes")
}

/// Whether `lane` is the one that the relay with most lanes gives to `me`: its last one, as long as it has two more.
fn is_due(owners: &[Option<String>], me: &str, lane: u32) -> bool {
    let mut held: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (at, owner) in owners.iter().enumerate() {
        if let Some(owner) = owner.as_deref() {
            let (count, last) = held.entry(owner).or_default();
            (*count, *last) = (*count + 1, at);
        }
    }
    let mine = held.remove(me).map_or(0, |(count, _)| count);
    let richest = held.values().max_by_key(|(count, _)| *count);
    richest.is_some_and(|&(count, last)| count >= mine + 2 && u32::try_from(last) == Ok(lane))
}

fn read(connection: &Connection, destination: &str, lane: u32) -> Result<Row, StoreError> {
    let doing = "reading a lease";
    let mut statement = connection
        .prepare_cached(
            "SELECT owner, holder, token, beat, lease_ms, lanes, ordering, priority FROM main.litepost_cursor \
             WHERE destination = ?1 AND lane = ?2",
        )
        .doing(doing)?;
    let mut rows = statement.query(params![destination, lane]).doing(doing)?;
    let Some(row) = rows.next().doing(doing)? else {
        return Err(StoreError::UnknownLane { destination: destination.into(), lane });
    };
    Ok(Row {
        owner: row.get(0).doing(doing)?,
        holder: row.get(1).doing(doing)?,
        token: row.get(2).doing(doing)?,
        beat: row.get(3).doing(doing)?,
        lease_ms: row.get(4).doing(doing)?,
        split: split_of(row, 5, "litepost_cursor")?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However the lanes are distributed, and whoever comes: in a few steps all relays have as many, give or take one,
        /// and nothing moves any more.
        #[test]
        fn shares_become_fair_and_stay(start in prop::collection::vec(0..5_usize, 1..24), relays in 1..6_usize) {
            let name = |relay: usize| format!("relay-{relay}");
            let mut owners: Vec<Option<String>> = start.iter().map(|relay| Some(name(*relay))).collect();
            let mut moves = 0;
            let all: Vec<String> = (0..relays.max(start.iter().max().map_or(0, |most| most + 1))).map(name).collect();
            while let Some((me, lane)) = all.iter().find_map(|me| {
                (0..owners.len()).find(|&lane| is_due(&owners, me, u32::try_from(lane).unwrap())).map(|lane| (me, lane))
            }) {
                prop_assert_ne!(owners[lane].as_ref(), Some(me));
                owners[lane] = Some(me.clone());
                moves += 1;
                // Each move makes the sum of the squares of the shares smaller by two at least.
                prop_assert!(moves <= owners.len().pow(2) / 2, "lanes go round in circles");
            }
            let count = |me: &String| owners.iter().filter(|owner| owner.as_ref() == Some(me)).count();
            let (least, most) = (all.iter().map(count).min().unwrap(), all.iter().map(count).max().unwrap());
            prop_assert!(most - least <= 1, "{owners:?}");
        }
    }

    #[test]
    fn a_single_lane_and_a_free_one_are_nobodys_to_give() {
        let a = || Some("a".to_owned());
        assert!(!is_due(&[a()], "b", 0));
        assert!(!is_due(&[a(), None], "b", 0) && !is_due(&[a(), None], "b", 1));
        assert!(is_due(&[a(), None, a()], "b", 2) && !is_due(&[a(), None, a()], "b", 0));
    }
}
