//! What a claim answers, and the steps it takes on any database.
//!
//! Called by the drivers. Invariant: it begins, commits and rolls back nothing, and it answers `First`
//! only when this transaction has inserted the marker.

use crate::digest::Digest;
use crate::driver::{ClaimDriver, Marker, Seen};
use crate::error::InboxError;
use crate::inbox::Inbox;

/// How often a marker may vanish between the insert that met it and the look at it.
const LOOKS_MAX: u32 = 16;

/// Whose the message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a duplicate must not be handled again"]
pub enum Claim {
    /// This transaction inserted the marker: handle the message.
    First,
    /// The message was claimed before, by a committed transaction or earlier in this one: skip it.
    Duplicate,
}

impl Claim {
    /// True for [`Claim::First`].
    pub fn is_first(self) -> bool {
        self == Self::First
    }
}

/// Whose the message is, with the answer that the first handler recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a duplicate must not be handled again"]
pub enum Answer {
    /// This transaction inserted the marker: handle the message and record its result.
    First,
    /// The message was handled before, with this result, if it recorded one.
    Duplicate(Option<Vec<u8>>),
}

/// What the steps found, before it takes the caller's shape.
#[derive(Debug)]
pub enum Outcome {
    /// The marker is new.
    Inserted,
    /// The marker was there. What it holds is known only when the claim had a reason to look.
    Found(Option<Seen>),
}

impl From<Outcome> for Claim {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Inserted => Self::First,
            Outcome::Found(_) => Self::Duplicate,
        }
    }
}

impl From<Outcome> for Answer {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Inserted => Self::First,
            Outcome::Found(seen) => Self::Duplicate(seen.and_then(|seen| seen.result)),
        }
    }
}

/// Claims `marker` with any driver. The first claim of an [`Inbox`] also looks at its table, and one now and then.
///
/// It looks after the insert, which waits for its locks as every other claim's does: a look before it would begin a snapshot
/// that the insert may then be refused for.
pub(crate) async fn claim<D: ClaimDriver>(
    driver: &mut D,
    inbox: &Inbox,
    marker: &Marker<'_>,
) -> Result<Outcome, InboxError> {
    let outcome = take(driver, inbox, marker).await;
    // A marker that is refused again and again and never there: the table may drop what comes in.
    let vanishes = matches!(outcome, Err(InboxError::Contended { .. }));
    if vanishes || (outcome.is_ok() && !inbox.is_sound(D::DIALECT)) {
        let flaw = driver.flaw(inbox).await?;
        inbox.judge(D::DIALECT, flaw)?;
    }
    outcome
}

async fn take<D: ClaimDriver>(driver: &mut D, inbox: &Inbox, marker: &Marker<'_>) -> Result<Outcome, InboxError> {
    let options = inbox.options();
    if marker.digest.is_some() && !options.digests {
        return Err(InboxError::NotEnabled { option: "digests" });
    }
    if marker.wants_result && !options.results {
        return Err(InboxError::NotEnabled { option: "results" });
    }
    let look = options.protect_duplicates || marker.wants_result || marker.digest.is_some();
    for _ in 0..LOOKS_MAX {
        match driver.insert(inbox, marker).await {
            Ok(true) => return Ok(Outcome::Inserted),
            Ok(false) => {}
            // MySQL names the key that was met twice in words alone, and a trigger that writes elsewhere may have met one
            // of the same name: only the marker itself tells.
            Err(error) if error.is_mysql_duplicate() => {
                let Some(seen) = driver.seen(inbox, marker, true).await? else { return Err(error) };
                check_digest(marker, seen.digest.as_deref())?;
                return Ok(Outcome::Found(Some(seen)));
            }
            Err(error) => return Err(error),
        }
        if !look {
            return Ok(Outcome::Found(None));
        }
        // A cleaner may delete the marker between the two statements: then it is ours to insert.
        if let Some(seen) = driver.seen(inbox, marker, options.protect_duplicates).await? {
            check_digest(marker, seen.digest.as_deref())?;
            return Ok(Outcome::Found(Some(seen)));
        }
    }
    Err(InboxError::Contended { id: marker.id.clone() })
}

/// Records what a duplicate is to be answered.
pub(crate) async fn record<D: ClaimDriver>(
    driver: &mut D,
    inbox: &Inbox,
    marker: &Marker<'_>,
    result: &[u8],
) -> Result<(), InboxError> {
    if !inbox.options().results {
        return Err(InboxError::NotEnabled { option: "results" });
    }
    if driver.record(inbox, marker, result).await? == 1 {
        return Ok(());
    }
    Err(InboxError::NotClaimed { scope: marker.scope.clone(), id: marker.id.clone() })
}

/// A marker without a digest was made before digests were asked for: it says nothing about the payload.
fn check_digest(marker: &Marker<'_>, stored: Option<&[u8]>) -> Result<(), InboxError> {
    match (marker.digest.map(Digest::as_bytes), stored) {
        (Some(ours), Some(theirs)) if ours.as_slice() != theirs => {
            Err(InboxError::PayloadMismatch { scope: marker.scope.clone(), id: marker.id.clone() })
        }
        _ => Ok(()),
    }
}
