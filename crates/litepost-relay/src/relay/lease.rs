//! Getting a lane: at once when it is free, within one lease time when its holder died.
//!
//! Called by the lane loop before it delivers anything. Invariant: only this process's monotonic clock is asked. A
//! lease is taken from its holder after its pulse stood still for its lease time while we watched, or when the kernel
//! says that the holder is gone.

use std::time::{Duration, Instant};

use litepost::lanes::{Acquire, Beat, Lease, LeaseClaim, Wish, holder_is_gone};

use super::writer::{WriteError, WriterHandle};
use crate::clock;

/// How often a standby looks: a lane that is given back is taken up this soon.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The same while an operator works on the lane, or its holder is about to give it to us: that takes a moment.
pub(super) const WISH_EVERY: Duration = Duration::from_millis(10);

/// What a standby has seen of a holder's pulse.
#[derive(Default)]
pub(super) struct Watch {
    seen: Option<(Beat, Instant)>,
    first_seen: Option<Instant>,
    /// Somebody's wish, and since when it has been seen.
    wish: Option<(Wish, Instant)>,
}

/// Whether the lane is ours.
pub(super) enum Asked {
    /// It is.
    Granted(Lease),
    /// It is held by this process; look again after a while.
    Held { by: String, for_at_least: Duration, look_after: Duration },
    /// An operator works on it, or it goes to another relay.
    Wanted,
    /// An operator has paused the destination.
    Paused,
}

impl Watch {
    /// How long the lane has been seen in another process's hands.
    pub(super) fn watched_for(&self) -> Duration {
        self.first_seen.map_or(Duration::ZERO, |first| clock::instant().duration_since(first))
    }

    /// Asks for the lane once; with `share`, asks a living holder for it that has more lanes than we have.
    pub(super) async fn ask(
        &mut self,
        writer: &WriterHandle,
        destination: &str,
        lane: u32,
        claim: &LeaseClaim,
        share: bool,
    ) -> Result<Asked, WriteError> {
        let now = clock::instant();
        let dead = self.seen.as_ref().filter(|(beat, since)| is_dead(beat, now.duration_since(*since)));
        let observed = dead.map(|(beat, _)| beat.clone());
        let beat = match writer.acquire(destination, lane, claim.clone(), observed).await? {
            Acquire::Granted(lease) => {
                *self = Self::default();
                return Ok(Asked::Granted(lease));
            }
            Acquire::HeldBy(beat) => beat,
            Acquire::WantedBy(wish) => {
                if self.has_lapsed(&wish, now) {
                    writer.lapse(wish).await?;
                }
                return Ok(Asked::Wanted);
            }
            Acquire::Paused => return Ok(Asked::Paused),
        };
        self.first_seen.get_or_insert(now);
        let since = match &self.seen {
            Some((before, since)) if before.is_same(&beat) => *since,
            _ => now,
        };
        let by = beat.holder.clone().unwrap_or_else(|| beat.owner.clone());
        let gone = is_dead(&beat, now.duration_since(since));
        self.seen = Some((beat, since));
        let look_after = if gone {
            Duration::ZERO
        } else if share && writer.ask_for_share(destination, lane, claim.clone()).await? {
            WISH_EVERY
        } else {
            LOOK_EVERY
        };
        Ok(Asked::Held { by, for_at_least: now.duration_since(since), look_after })
    }
}

impl Watch {
    /// Whether whoever asks is gone, or has asked for longer than it said it would.
    fn has_lapsed(&mut self, wish: &Wish, now: Instant) -> bool {
        let since = match &self.wish {
            Some((seen, since)) if seen == wish => *since,
            _ => {
                self.wish = Some((wish.clone(), now));
                now
            }
        };
        let asked_for = now.duration_since(since).as_millis();
        asked_for >= u128::try_from(wish.patience_ms.max(1)).unwrap_or(u128::MAX) || holder_is_gone(&wish.holder)
    }
}

/// Whether a pulse that has not moved for `still` means that the holder is dead.
fn is_dead(beat: &Beat, still: Duration) -> bool {
    still.as_millis() >= u128::try_from(beat.lease_ms.max(1)).unwrap_or(u128::MAX)
        || beat.holder.as_deref().is_some_and(holder_is_gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulse_that_stands_still_for_its_lease_time_is_dead_and_not_before() {
        let beat = Beat { token: 1, beat: 7, lease_ms: 10_000, owner: "other".into(), holder: None };
        assert!(!is_dead(&beat, Duration::from_millis(9_999)));
        assert!(is_dead(&beat, Duration::from_secs(10)));
    }
}
