//! How long a message can come back, and how a consumer's silence counts.
//!
//! Called by the cleaner. Invariant: a marker is deleted only when its message is too old to be
//! redelivered, where a stopped consumer's time does not pass: what waits for it in the broker does not
//! grow too old either.

use std::time::Duration;

use crate::driver::CleanDriver;
use crate::error::InboxError;
use crate::inbox::Inbox;
use crate::moment::Moment;

/// How many looks at a scope's markers one cleanup may take.
const LOOKS_MAX: u64 = 20_000;

/// The longest time after which a message can be delivered again.
///
/// A marker must outlive `redelivery` (the topic's retention, dead letters and the time to replay them,
/// backfills) plus `downtime` (how long a consumer may be stopped between its commit and the
/// acknowledgement that it never sent). Retention below the sum is refused.
///
/// Downtime beyond the declaration is counted too: when a scope has had no marker for longer than
/// `downtime`, the rest of that silence does not age its markers. A consumer that was down for a month
/// finds its markers when it returns. A quiet scope keeps markers longer than it needs to, never shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    redelivery: Duration,
    downtime: Duration,
}

impl Horizon {
    /// A horizon. With a `downtime` of zero, silence is not looked at.
    pub const fn new(redelivery: Duration, downtime: Duration) -> Self {
        Self { redelivery, downtime }
    }

    /// The least retention that is safe.
    pub fn least_retention(self) -> Duration {
        self.redelivery.saturating_add(self.downtime)
    }

    /// The silence that is normal.
    pub const fn downtime(self) -> Duration {
        self.downtime
    }

    /// Refuses a retention that is too short, and one that would take too many looks to check.
    pub(crate) fn check(self, whose: &str, retention: Duration) -> Result<(), InboxError> {
        if retention < self.least_retention() {
            return Err(InboxError::RetentionTooShort {
                whose: whose.to_owned(),
                retention,
                horizon: self.least_retention(),
            });
        }
        let counted = !self.downtime.is_zero();
        if counted && retention.as_micros() / self.downtime.as_micros().max(1) > u128::from(LOOKS_MAX / 4) {
            return Err(InboxError::OutOfRange {
                what: "the downtime (a 5000th of the retention at least)",
                value: format!("{:?}", self.downtime),
            });
        }
        Ok(())
    }
}

/// The cutoff of one scope: `retention` before `now`, and earlier by the silence beyond `downtime`.
///
/// It walks from now into the past in steps of at most `downtime`; two steps always cover more than one
/// `downtime`. It ends at the cutoff, at the scope's first marker, or at the limit (then nothing of the
/// scope is deleted).
pub(crate) async fn cutoff_of<D: CleanDriver>(
    driver: &mut D,
    inbox: &Inbox,
    scope: &str,
    now: Moment,
    retention: Duration,
    downtime: Duration,
) -> Result<Moment, InboxError> {
    let mut silence = Duration::ZERO;
    let mut at = now;
    if downtime.is_zero() {
        return Ok(now.back(retention));
    }
    for _ in 0..LOOKS_MAX {
        let cutoff = now.back(retention.saturating_add(silence));
        if at <= cutoff {
            return Ok(cutoff);
        }
        let normal = at.back(downtime);
        if let Some(marker) = driver.earliest(inbox, scope, normal, at).await? {
            at = marker;
        } else if let Some(marker) = driver.latest(inbox, scope, normal).await? {
            silence = silence.saturating_add(at.since(marker).saturating_sub(downtime));
            at = marker;
        } else {
            return Ok(cutoff);
        }
    }
    Ok(Moment::MIN)
}
