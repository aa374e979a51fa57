//! What is broken, and when: all of it follows from a seed.
//!
//! Called by the run and by the shrinker. Invariant: a plan is plain data; the same plan asks for the same deeds at the
//! same times, though processes do not promise to be in the same place then.

use serde::{Deserialize, Serialize};

/// Milliseconds between two deeds, on average.
const BETWEEN_MS: u64 = 700;
/// The same in a soak: most of the time is for work.
const BETWEEN_SOAKING_MS: u64 = 2_500;
/// How long the relays wait for an answer from a network, milliseconds: what is late goes past it, or not.
pub(crate) const PATIENCE_MS: u64 = 1_000;
/// The lease of the run's relays, milliseconds: freezes go past it.
pub(crate) const LEASE_MS: u64 = 1_000;

/// A sequence of numbers that a seed repeats (SplitMix64).
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }

    fn one_of(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).unwrap_or(0)
    }
}

/// A destination that is reached over a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Link {
    /// The receiver of webhooks: it keeps what it got, and is the one that breaks.
    Webhook,
    /// PostgreSQL, behind a proxy.
    Postgres,
}

/// What a run can reach, and so break.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// A receiver of webhooks.
    pub webhook: bool,
    /// A PostgreSQL behind a proxy.
    pub postgres: bool,
    /// That PostgreSQL is the run's own.
    pub server: bool,
}

/// One thing that is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "deed", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Deed {
    /// SIGKILL; it is started again.
    KillProducer {
        /// Which.
        producer: usize,
    },
    /// SIGKILL; it is started again.
    KillRelay {
        /// Which.
        relay: usize,
    },
    /// SIGSTOP, and SIGCONT later.
    FreezeProducer {
        /// Which.
        producer: usize,
        /// How long, milliseconds.
        ms: u64,
    },
    /// SIGSTOP, and SIGCONT later, most often when its lease is gone.
    FreezeRelay {
        /// Which.
        relay: usize,
        /// How long, milliseconds.
        ms: u64,
    },
    /// Every write beyond the first bytes of a file fails, as on a full disk (`RLIMIT_FSIZE`).
    FullDisk {
        /// Which relay.
        relay: usize,
        /// How long, milliseconds.
        ms: u64,
    },
    /// The same for a producer.
    FullDiskProducer {
        /// Which.
        producer: usize,
        /// How long, milliseconds.
        ms: u64,
    },
    /// Somebody holds the outbox's write lock.
    LockOutbox {
        /// How long, milliseconds.
        ms: u64,
    },
    /// Somebody holds the SQLite target's write lock.
    LockTarget {
        /// How long, milliseconds.
        ms: u64,
    },
    /// Every connection is cut, and none is let through for so long.
    CutLink {
        /// Between the relays and what.
        link: Link,
        /// How long, milliseconds.
        ms: u64,
    },
    /// What was asked for is done, and the connection cut instead of an answer: every other request of a webhook, every
    /// COMMIT.
    LoseReplies {
        /// Between the relays and what.
        link: Link,
        /// How long, milliseconds.
        ms: u64,
    },
    /// What was asked for is done, and the answer held back.
    DelayReplies {
        /// Between the relays and what.
        link: Link,
        /// How long, milliseconds.
        ms: u64,
        /// By how much, milliseconds.
        by_ms: u64,
    },
    /// Each webhook arrives twice, as from a network that passes it on twice.
    DoubleRequests {
        /// How long, milliseconds.
        ms: u64,
    },
    /// The receiver of webhooks answers 503 and keeps nothing.
    RefuseRequests {
        /// How long, milliseconds.
        ms: u64,
    },
    /// SIGKILL to PostgreSQL and all its processes; it is started again later, and recovers.
    KillServer {
        /// When it is started again, milliseconds later.
        ms: u64,
    },
    /// SIGSTOP to PostgreSQL and all its processes, and SIGCONT later.
    FreezeServer {
        /// How long, milliseconds.
        ms: u64,
    },
    /// The outbox is copied while everybody works on it.
    Backup {
        /// By `VACUUM INTO` instead of `litepost backup`.
        vacuum: bool,
    },
    /// Everybody is killed, and the outbox replaced by the last backup (`litepost restore`).
    Restore,
    /// The last backup is written over the outbox, by SQLite's backup API, while relays work on it; later it is adopted.
    RestoreInPlace {
        /// When, milliseconds later.
        ms: u64,
    },
    /// A copy of the outbox is put in its place while relays have the old file open; later it is adopted.
    ReplaceFile {
        /// When, milliseconds later.
        ms: u64,
    },
    /// The wall clock of every process is set, forwards or back.
    SetClock {
        /// By how much, milliseconds.
        by_ms: i64,
    },
    /// A relay is started on a copy beside the outbox, and must deliver nothing.
    RunClone,
    /// The relay is started again with this failpoint armed.
    Failpoint {
        /// Which.
        relay: usize,
        /// As in `LITEPOST_FAILPOINT`.
        arm: String,
    },
}

/// A deed and its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Milliseconds after the beginning.
    pub at_ms: u64,
    /// What is done.
    #[serde(flatten)]
    pub deed: Deed,
}

/// How fast a producer writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Pace {
    /// With rests of random length.
    #[default]
    Resting,
    /// So many events a second.
    PerSecond(u64),
    /// As fast as it can.
    Full,
}

/// Everything that a run does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Where it came from; also the producers' seed.
    pub seed: u64,
    /// Producer processes.
    pub producers: usize,
    /// Relay processes.
    pub relays: usize,
    /// How long producers write and faults happen, milliseconds.
    pub ms: u64,
    /// How fast each producer writes.
    #[serde(default)]
    pub pace: Pace,
    /// What happens, in the order of time.
    pub faults: Vec<Fault>,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64, producers: usize, relays: usize, ms: u64, reach: Reach) -> Self {
        let faults = faults(seed, ms, BETWEEN_MS, |chance| match chance.below(if reach.webhook { 24 } else { 1 }) {
            0..13 => deed(chance, producers, relays),
            13..20 => network(chance, reach),
            _ => file(chance),
        });
        Self { seed, producers, relays, ms, pace: Pace::Resting, faults }
    }

    /// The plan of a soak: the first relay is frozen, starved and locked out and never ended, so that what it holds can be
    /// watched over the whole run; the second has all the rest.
    pub fn soak(seed: u64, producers: usize, ms: u64, pace: Pace) -> Self {
        let spared = |chance: &mut Chance| match deed(chance, producers, 2) {
            Deed::KillRelay { .. } => Deed::KillRelay { relay: 1 },
            Deed::Failpoint { arm, .. } => Deed::Failpoint { relay: 1, arm },
            other => other,
        };
        Self { seed, producers, relays: 2, ms, pace, faults: faults(seed, ms, BETWEEN_SOAKING_MS, spared) }
    }
}

fn faults(seed: u64, ms: u64, between_ms: u64, mut deed: impl FnMut(&mut Chance) -> Deed) -> Vec<Fault> {
    let mut chance = Chance(seed);
    let mut faults = Vec::new();
    let mut at_ms = 0;
    loop {
        at_ms += 1 + chance.below(2 * between_ms);
        if at_ms >= ms {
            return faults;
        }
        faults.push(Fault { at_ms, deed: deed(&mut chance) });
    }
}

fn deed(chance: &mut Chance, producers: usize, relays: usize) -> Deed {
    let (producer, relay) = (chance.one_of(producers), chance.one_of(relays));
    let short = 50 + chance.below(1_500);
    let long = LEASE_MS / 2 + chance.below(LEASE_MS * 2);
    match chance.below(100) {
        0..14 => Deed::KillProducer { producer },
        14..40 => Deed::KillRelay { relay },
        40..46 => Deed::FreezeProducer { producer, ms: short },
        46..62 => Deed::FreezeRelay { relay, ms: long },
        62..70 => Deed::FullDisk { relay, ms: short },
        70..74 => Deed::FullDiskProducer { producer, ms: short },
        74..80 => Deed::LockOutbox { ms: short },
        80..86 => Deed::LockTarget { ms: short },
        _ => failpoint(chance, relay).unwrap_or(Deed::KillRelay { relay }),
    }
}

/// What operators do to the file: most often they make a backup.
fn file(chance: &mut Chance) -> Deed {
    let ms = 300 + chance.below(1_500);
    match chance.below(if cfg!(feature = "failpoints") { 13 } else { 10 }) {
        10.. => clock(chance),
        vacuum @ 0..4 => Deed::Backup { vacuum: vacuum == 0 },
        4..6 => Deed::Restore,
        6..8 => Deed::RestoreInPlace { ms },
        8 => Deed::ReplaceFile { ms },
        _ => Deed::RunClone,
    }
}

/// A second to a day, both ways.
fn clock(chance: &mut Chance) -> Deed {
    let by_ms = [1_000, 90_000, 3_600_000, 86_400_000][chance.one_of(4)];
    Deed::SetClock { by_ms: if chance.below(2) == 0 { by_ms } else { -by_ms } }
}

/// A third of the deeds, where there is a network.
fn network(chance: &mut Chance, reach: Reach) -> Deed {
    let link = if reach.postgres && chance.below(2) == 0 { Link::Postgres } else { Link::Webhook };
    let ms = 50 + chance.below(1_500);
    match chance.below(if reach.server { 14 } else { 11 }) {
        // After a loss PostgreSQL is asked again a while later.
        0..5 => Deed::LoseReplies { link, ms: ms + 500 },
        5..7 => Deed::DelayReplies { link, ms, by_ms: 1 + chance.below(PATIENCE_MS * 2) },
        7..9 => Deed::CutLink { link, ms: chance.below(ms) },
        9 => Deed::DoubleRequests { ms },
        10 => Deed::RefuseRequests { ms },
        11..13 => Deed::KillServer { ms },
        _ => Deed::FreezeServer { ms: ms * 2 },
    }
}

#[cfg(feature = "failpoints")]
fn failpoint(chance: &mut Chance, relay: usize) -> Option<Deed> {
    let point = litepost::failpoint::Point::ALL.get(chance.one_of(litepost::failpoint::Point::ALL.len()))?;
    let deed = ["abort", "abort", "error", "delay"].get(chance.one_of(4))?;
    Some(Deed::Failpoint { relay, arm: format!("{}:{}={deed}", point.name(), 1 + chance.below(20)) })
}

#[cfg(not(feature = "failpoints"))]
fn failpoint(_: &mut Chance, _: usize) -> Option<Deed> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_a_plan_survives_json() {
        let reach = Reach { webhook: true, postgres: true, server: true };
        let plan = Plan::new(7, 2, 3, 300_000, reach);
        assert_eq!(plan, Plan::new(7, 2, 3, 300_000, reach));
        assert_ne!(plan.faults, Plan::new(8, 2, 3, 300_000, reach).faults);
        let text = serde_json::to_string(&plan).unwrap();
        let all = [
            "cut-link",
            "lose-replies",
            "delay-replies",
            "double-requests",
            "refuse-requests",
            "restore",
            "restore-in-place",
            "replace-file",
            "run-clone",
            "backup",
            "kill-server",
            "freeze-server",
        ];
        assert!(all.iter().all(|deed| text.contains(deed)), "{text}");
        assert_eq!(text.contains("set-clock"), cfg!(feature = "failpoints"));
        assert!(plan.faults.len() > 40 && plan.faults.windows(2).all(|pair| pair[0].at_ms < pair[1].at_ms));
        let read: Plan = serde_json::from_str(&text).unwrap();
        assert_eq!(read, plan);
        let alone = serde_json::to_string(&Plan::new(7, 2, 3, 300_000, Reach::default())).unwrap();
        assert!(!all.iter().any(|deed| alone.contains(deed)), "there is no network: {alone}");
    }

    #[test]
    fn a_soak_never_ends_its_first_relay() {
        let plan = Plan::soak(7, 2, 3_600_000, Pace::PerSecond(9));
        let ends = |deed: &Deed| matches!(deed, Deed::KillRelay { relay: 0 } | Deed::Failpoint { relay: 0, .. });
        assert!(plan.faults.len() > 500 && !plan.faults.iter().any(|fault| ends(&fault.deed)));
        let freezes = |fault: &&Fault| matches!(fault.deed, Deed::FreezeRelay { relay: 0, .. });
        assert!(plan.faults.iter().filter(freezes).count() > 20);
        let read: Plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        assert_eq!(read, plan);
    }
}
