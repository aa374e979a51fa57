//! Places where a test may end the process, have something fail, or wait: one at each commit and each effect outside.
//!
//! Called wherever a [`Point`] is named; armed by the environment variable `LITEPOST_FAILPOINT`, and only in a build with
//! the feature `failpoints`. Invariant: without the feature [`hit`] is `false`, known when compiling; each point has a
//! run in the crash tests of `litepost-cli`, which list [`Point::ALL`].

macro_rules! points {
    ($($(#[doc = $text:literal])+ $variant:ident = $name:literal,)+) => {
        /// A place that a test can arm.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Point {
            $($(#[doc = $text])+ $variant,)+
        }

        impl Point {
            /// Every point.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// As the environment names it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

points! {
    /// The event's row is inserted, its transaction is open.
    EnqueueInserted = "enqueue.inserted",
    /// A producer is about to commit.
    EnqueueBeforeCommit = "enqueue.before-commit",
    /// A producer has committed and does not know it yet.
    EnqueueAfterCommit = "enqueue.after-commit",
    /// A destination's lanes are about to be registered.
    RegisterBeforeCommit = "register.before-commit",
    /// A destination's lanes are registered.
    RegisterAfterCommit = "register.after-commit",
    /// A lane is about to be taken.
    AcquireBeforeCommit = "acquire.before-commit",
    /// A lane is taken.
    AcquireAfterCommit = "acquire.after-commit",
    /// A pulse is about to be shown.
    RenewBeforeCommit = "renew.before-commit",
    /// A pulse is shown.
    RenewAfterCommit = "renew.after-commit",
    /// A lane is about to be given back.
    ReleaseBeforeCommit = "release.before-commit",
    /// A lane is given back.
    ReleaseAfterCommit = "release.after-commit",
    /// A settlement is about to be committed.
    SettleBeforeCommit = "settle.before-commit",
    /// A settlement is committed, and not synced.
    SettleAfterCommit = "settle.after-commit",
    /// Rows nobody needs are about to be gone.
    PruneBeforeCommit = "prune.before-commit",
    /// Rows nobody needs are gone.
    PruneAfterCommit = "prune.after-commit",
    /// The WAL is about to be moved into the database.
    CheckpointBefore = "checkpoint.before",
    /// The WAL is moved.
    CheckpointAfter = "checkpoint.after",
    /// What was read is about to be synced.
    ReadBeforeSync = "read.before-sync",
    /// What was read is synced, and not handed out.
    ReadAfterSync = "read.after-sync",
    /// A batch is about to go to its destination.
    DeliverBefore = "deliver.before",
    /// The destination has answered, nothing is written of it.
    DeliverAfter = "deliver.after",
    /// The file destination is about to append.
    FileBeforeWrite = "file.before-write",
    /// Lines are appended, and not synced.
    FileBeforeSync = "file.before-sync",
    /// Lines are synced.
    FileAfterSync = "file.after-sync",
    /// A SQLite target holds the batch and its ledger in an open transaction.
    LedgerBeforeCommit = "ledger.before-commit",
    /// A SQLite target has committed.
    LedgerAfterCommit = "ledger.after-commit",
    /// A batch with its ledger is about to go to a database server.
    RemoteBeforeApply = "remote.before-apply",
    /// A database server has committed.
    RemoteAfterApply = "remote.after-apply",
    /// Rows of sqloutbox are in the log, and not committed.
    BridgeBeforeCommit = "bridge.before-commit",
    /// Rows of sqloutbox are moved.
    BridgeAfterCommit = "bridge.after-commit",
    /// What an operator does is about to be committed.
    OperateBeforeCommit = "operate.before-commit",
    /// What an operator does is committed.
    OperateAfterCommit = "operate.after-commit",
}

/// Whether the caller shall fail here as if what it does had failed. Ends the process or waits when armed so.
#[cfg(not(feature = "failpoints"))]
pub const fn hit(_: Point) -> bool {
    false
}

#[cfg(feature = "failpoints")]
pub use armed::hit;

/// How far a test has set the wall clock, milliseconds; never in a build without failpoints.
#[cfg(not(feature = "failpoints"))]
pub const fn clock_ms() -> i64 {
    0
}

#[cfg(feature = "failpoints")]
pub use armed::clock_ms;

/// Fails with an I/O error when armed so.
#[cfg(feature = "rusqlite")]
pub(crate) fn pass(point: Point, doing: &'static str) -> Result<(), crate::StoreError> {
    // SQLITE_IOERR, which a full or failing disk gives, and which may pass.
    if hit(point) { Err(crate::StoreError::from_code(doing, 10, point.name())) } else { Ok(()) }
}

#[cfg(feature = "failpoints")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::Point;

    /// How long `delay` waits.
    const DELAY: Duration = Duration::from_millis(300);

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Deed {
        Abort,
        Error,
        Errors,
        Delay,
    }

    #[derive(Debug)]
    pub(super) struct Armed {
        pub(super) point: Point,
        pub(super) nth: u64,
        pub(super) deed: Deed,
        seen: AtomicU64,
    }

    static ARMED: OnceLock<Vec<Armed>> = OnceLock::new();

    /// Whether the caller shall fail here as if what it does had failed. Ends the process or waits when armed so.
    pub fn hit(point: Point) -> bool {
        let armed = ARMED.get_or_init(|| {
            let text = std::env::var("LITEPOST_FAILPOINT").unwrap_or_default();
            // A point that does not exist would never fire, and its test would pass for nothing.
            parse(&text).unwrap_or_else(|why| panic!("LITEPOST_FAILPOINT: {why}"))
        });
        armed.iter().filter(|armed| armed.point == point).fold(false, |fails, armed| fails | armed.fires())
    }

    /// How far a test has set the wall clock, milliseconds: what the file that `LITEPOST_CLOCK` names holds now, so that the
    /// clock of a process that runs can be set, forwards and back. 0 while there is none.
    pub fn clock_ms() -> i64 {
        static FILE: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
        let Some(file) = FILE.get_or_init(|| std::env::var_os("LITEPOST_CLOCK")) else { return 0 };
        std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    impl Armed {
        fn fires(&self) -> bool {
            let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
            if seen < self.nth || (seen > self.nth && self.deed != Deed::Errors) {
                return false;
            }
            match self.deed {
                Deed::Abort => std::process::abort(),
                Deed::Delay => std::thread::sleep(DELAY),
                Deed::Error | Deed::Errors => {}
            }
            self.deed != Deed::Delay
        }
    }

    /// Reads `name[:nth]=abort|error|errors|delay`, several with `;` between them. `error` fails once, `errors` from
    /// then on.
    pub(super) fn parse(text: &str) -> Result<Vec<Armed>, String> {
        text.split(';').map(str::trim).filter(|part| !part.is_empty()).map(parse_one).collect()
    }

    fn parse_one(part: &str) -> Result<Armed, String> {
        let (place, deed) = part.split_once('=').ok_or_else(|| format!("{part:?} is not name[:nth]=deed"))?;
        let (name, nth) = match place.split_once(':') {
            Some((name, nth)) => (name, nth.parse().map_err(|_| format!("{nth:?} is no number"))?),
            None => (place, 1),
        };
        let point = Point::ALL.iter().find(|point| point.name() == name);
        let point = *point.ok_or_else(|| format!("there is no point {name:?}"))?;
        let deed = match deed {
            "abort" => Deed::Abort,
            "error" => Deed::Error,
            "errors" => Deed::Errors,
            "delay" => Deed::Delay,
            other => return Err(format!("{other:?} is none of abort, error, errors, delay")),
        };
        Ok(Armed { point, nth, deed, seen: AtomicU64::new(0) })
    }
}

#[cfg(all(test, feature = "failpoints"))]
mod tests {
    use super::armed::{Deed, parse};
    use super::*;

    #[test]
    fn what_is_armed_is_what_was_written() {
        let armed = parse("settle.before-commit:3=abort; prune.after-commit=delay").unwrap();
        let read: Vec<_> = armed.iter().map(|a| (a.point, a.nth, a.deed)).collect();
        assert_eq!(read, [(Point::SettleBeforeCommit, 3, Deed::Abort), (Point::PruneAfterCommit, 1, Deed::Delay)]);
        for wrong in ["settle=abort", "prune.after-commit", "prune.after-commit:x=abort", "prune.after-commit=boom"] {
            parse(wrong).unwrap_err();
        }
    }
}
