//! Deletes the markers that no redelivery can need any more.
//!
//! Called by a cron job or the command line, on a connection of its own. Invariants: one look at the
//! database's clock decides for the whole run; each batch is one short READ COMMITTED transaction that
//! skips what another transaction holds; committed batches stay whatever happens next.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use crate::driver::{CleanDriver, Filter, Page};
use crate::error::InboxError;
use crate::horizon::{Horizon, cutoff_of};
use crate::ident::Scope;
use crate::inbox::Inbox;
use crate::moment::Moment;

/// Markers per transaction, unless the caller says otherwise.
const BATCH: u32 = 1_000;
/// The largest batch: a transaction stays short, and MySQL's statements small.
const BATCH_MAX: u32 = 10_000;
/// Conflicts of one batch in a row that are no reason to end a run: the server lets one of two go on, each time.
const CONFLICTS_MAX: u32 = 20;
/// How many scopes one table may have when silence is counted.
const SCOPES_MAX: usize = 10_000;

/// What a cleanup did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanupResult {
    /// Markers dated before it were deleted, except those of the scopes in `own`.
    pub cutoff: SystemTime,
    /// How many markers were deleted.
    pub deleted: u64,
    /// The scopes that had a cutoff of their own: another retention, or a silence that was counted.
    pub own: Vec<ScopePlan>,
}

/// A scope with a cutoff of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopePlan {
    /// The scope's name.
    pub scope: String,
    /// The first date that is kept.
    pub cutoff: SystemTime,
    /// The silence beyond the declared downtime, which does not count as age.
    pub silence: Duration,
}

/// What a cleanup would do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CleanPlan {
    /// The cutoff of every scope that is not in `own`.
    pub cutoff: SystemTime,
    /// How many markers would be deleted.
    pub doomed: u64,
    /// The scopes with a cutoff of their own.
    pub own: Vec<ScopePlan>,
}

/// Told after each batch has committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Progress {
    /// Markers deleted by this batch.
    pub batch: u64,
    /// Markers deleted so far.
    pub deleted: u64,
}

#[derive(Debug, Clone, Copy)]
struct Rule {
    retention: Duration,
    horizon: Horizon,
}

struct Cutoffs {
    cutoff: Moment,
    own: Vec<(String, Moment, Duration)>,
}

/// Deletes old markers in batches. Several may run at once and share the work.
///
/// Dropping the future of a run stops it: the batch under way is rolled back, committed ones stay.
pub struct Cleaner {
    inbox: Inbox,
    rule: Rule,
    scopes: BTreeMap<Scope, Rule>,
    batch: u32,
    progress: Option<Box<dyn FnMut(Progress) + Send>>,
}

impl Cleaner {
    /// A cleaner that keeps markers for `retention`. `horizon` is that of every scope that is not
    /// declared with [`Cleaner::scope`]; a retention below it is refused.
    pub fn new(inbox: &Inbox, retention: Duration, horizon: Horizon) -> Result<Self, InboxError> {
        horizon.check("every scope not declared", retention)?;
        let rule = Rule { retention, horizon };
        Ok(Self { inbox: inbox.clone(), rule, scopes: BTreeMap::new(), batch: BATCH, progress: None })
    }

    /// Declares one scope's own retention and horizon. A retention below the horizon is refused.
    pub fn scope(mut self, scope: Scope, retention: Duration, horizon: Horizon) -> Result<Self, InboxError> {
        horizon.check(scope.as_str(), retention)?;
        self.scopes.insert(scope, Rule { retention, horizon });
        Ok(self)
    }

    /// Sets the markers per transaction, 1 to 10,000; 1,000 unless set.
    pub fn batch_size(mut self, markers: u32) -> Result<Self, InboxError> {
        if !(1..=BATCH_MAX).contains(&markers) {
            return Err(InboxError::OutOfRange { what: "the batch size (1 to 10000)", value: markers.to_string() });
        }
        self.batch = markers;
        Ok(self)
    }

    /// Is called after each committed batch.
    #[must_use]
    pub fn on_progress(mut self, progress: impl FnMut(Progress) + Send + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// Deletes until a batch deletes nothing. An error ends the run; the next run deletes what is left.
    pub async fn run<D: CleanDriver>(&mut self, connection: &mut D) -> Result<CleanupResult, InboxError> {
        let cutoffs = self.cutoffs(connection).await?;
        let names: Vec<String> = cutoffs.own.iter().map(|(scope, ..)| scope.clone()).collect();
        let mut deleted = self.pass(connection, cutoffs.cutoff, Filter::Except(&names), 0).await?;
        for (scope, cutoff, _) in &cutoffs.own {
            deleted = self.pass(connection, *cutoff, Filter::Only(scope), deleted).await?;
        }
        tracing::info!(table = %self.inbox.table(), deleted, "inbox cleaned");
        Ok(CleanupResult { cutoff: cutoffs.cutoff.into(), deleted, own: plans(&cutoffs) })
    }

    /// Counts what [`Cleaner::run`] would delete now, and deletes nothing.
    pub async fn plan<D: CleanDriver>(&self, connection: &mut D) -> Result<CleanPlan, InboxError> {
        let cutoffs = self.cutoffs(connection).await?;
        let names: Vec<String> = cutoffs.own.iter().map(|(scope, ..)| scope.clone()).collect();
        let mut doomed = connection.count(&self.inbox, cutoffs.cutoff, Filter::Except(&names)).await?;
        for (scope, cutoff, _) in &cutoffs.own {
            doomed += connection.count(&self.inbox, *cutoff, Filter::Only(scope)).await?;
        }
        Ok(CleanPlan { cutoff: cutoffs.cutoff.into(), doomed, own: plans(&cutoffs) })
    }

    /// [`Cleaner::run`] for a driver that blocks.
    #[cfg(feature = "rusqlite")]
    pub fn run_blocking(&mut self, connection: &mut rusqlite::Connection) -> Result<CleanupResult, InboxError> {
        crate::ready::ready(self.run(connection))
    }

    /// [`Cleaner::plan`] for a driver that blocks.
    #[cfg(feature = "rusqlite")]
    pub fn plan_blocking(&self, connection: &mut rusqlite::Connection) -> Result<CleanPlan, InboxError> {
        crate::ready::ready(self.plan(connection))
    }

    /// Deletes one filter's markers, batch by batch. Each batch starts at the date where the last one
    /// ended, so that it does not walk over the dead entries which the last one left in the index.
    async fn pass<D: CleanDriver>(
        &mut self,
        driver: &mut D,
        cutoff: Moment,
        filter: Filter<'_>,
        before: u64,
    ) -> Result<u64, InboxError> {
        let mut deleted = before;
        let mut low = Moment::MIN;
        loop {
            let page = Page { low, cutoff, filter, limit: self.batch };
            let mut conflicts = Conflicts::default();
            let batch = loop {
                match driver.delete(&self.inbox, page).await {
                    Err(error) => conflicts.pass(error)?,
                    Ok(batch) => break batch,
                }
            };
            if batch.deleted == 0 {
                return Ok(deleted);
            }
            deleted += batch.deleted;
            low = batch.latest.unwrap_or(low);
            tracing::debug!(table = %self.inbox.table(), batch = batch.deleted, deleted, "inbox batch cleaned");
            if let Some(progress) = &mut self.progress {
                progress(Progress { batch: batch.deleted, deleted });
            }
        }
    }

    /// The common cutoff and the scopes that differ from it, all by one look at the clock.
    async fn cutoffs<D: CleanDriver>(&self, driver: &mut D) -> Result<Cutoffs, InboxError> {
        let now = driver.now(&self.inbox).await?;
        let cutoff = now.back(self.rule.retention);
        let mut own = Vec::new();
        for scope in self.scopes_to_look_at(driver).await? {
            let rule =
                Scope::new(scope.clone()).ok().and_then(|scope| self.scopes.get(&scope)).copied().unwrap_or(self.rule);
            let theirs = cutoff_of(driver, &self.inbox, &scope, now, rule.retention, rule.horizon.downtime()).await?;
            if theirs != cutoff {
                own.push((scope, theirs, now.back(rule.retention).since(theirs)));
            }
        }
        Ok(Cutoffs { cutoff, own })
    }

    /// Every scope when silence is counted, otherwise the declared ones.
    async fn scopes_to_look_at<D: CleanDriver>(&self, driver: &mut D) -> Result<Vec<String>, InboxError> {
        if self.rule.horizon.downtime().is_zero() {
            return Ok(self.scopes.keys().map(|scope| scope.as_str().to_owned()).collect());
        }
        all_scopes(driver, &self.inbox).await
    }
}

/// Batches that the server has ended in favour of another transaction (a deadlock, a serialization failure): rolled back,
/// and to be run again. Two cleaners that share the work, or one beside claims, meet that now and then.
#[derive(Debug, Default)]
pub(crate) struct Conflicts(u32);

impl Conflicts {
    /// The error, unless the batch may be run again.
    pub(crate) fn pass(&mut self, error: InboxError) -> Result<(), InboxError> {
        self.0 += 1;
        if error.is_conflict() && self.0 <= CONFLICTS_MAX { Ok(()) } else { Err(error) }
    }
}

/// The scopes of a table, one indexed look each.
pub(crate) async fn all_scopes<D: CleanDriver>(driver: &mut D, inbox: &Inbox) -> Result<Vec<String>, InboxError> {
    let mut scopes: Vec<String> = Vec::new();
    while let Some(scope) = driver.next_scope(inbox, scopes.last().map_or("", String::as_str)).await? {
        if scopes.len() == SCOPES_MAX {
            return Err(InboxError::OutOfRange {
                what: "the number of scopes in one table",
                value: format!("above {SCOPES_MAX}"),
            });
        }
        scopes.push(scope);
    }
    Ok(scopes)
}

fn plans(cutoffs: &Cutoffs) -> Vec<ScopePlan> {
    let plan = |(scope, cutoff, silence): &(String, Moment, Duration)| ScopePlan {
        scope: scope.clone(),
        cutoff: (*cutoff).into(),
        silence: *silence,
    };
    cutoffs.own.iter().map(plan).collect()
}

impl fmt::Debug for Cleaner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Cleaner")
            .field("table", self.inbox.table())
            .field("rule", &self.rule)
            .field("scopes", &self.scopes)
            .field("batch", &self.batch)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Batch, Totals};
    use crate::sql::Dialect;

    /// A database that answers each batch with so many deadlocks first.
    struct Deadlocks {
        each: u32,
        left: u32,
        batches: u64,
    }

    fn deadlock() -> InboxError {
        InboxError::from_driver(std::io::Error::other("deadlock"), Some("40001"), Some(1213), false)
    }

    impl CleanDriver for Deadlocks {
        const DIALECT: Dialect = Dialect::MySql;

        async fn flaw(&mut self, _: &Inbox) -> Result<Option<String>, InboxError> {
            Ok(None)
        }

        async fn now(&mut self, _: &Inbox) -> Result<Moment, InboxError> {
            Ok(Moment::from_micros(1_000_000))
        }

        async fn next_scope(&mut self, _: &Inbox, _: &str) -> Result<Option<String>, InboxError> {
            Ok(None)
        }

        async fn earliest(&mut self, _: &Inbox, _: &str, _: Moment, _: Moment) -> Result<Option<Moment>, InboxError> {
            Ok(None)
        }

        async fn latest(&mut self, _: &Inbox, _: &str, _: Moment) -> Result<Option<Moment>, InboxError> {
            Ok(None)
        }

        async fn delete(&mut self, _: &Inbox, _: Page<'_>) -> Result<Batch, InboxError> {
            let deleted = self.answer()?;
            Ok(Batch { deleted, latest: None })
        }

        async fn count(&mut self, _: &Inbox, _: Moment, _: Filter<'_>) -> Result<u64, InboxError> {
            Ok(0)
        }

        async fn totals(&mut self, _: &Inbox, _: Option<&str>) -> Result<Totals, InboxError> {
            Ok(Totals::default())
        }

        async fn forget(&mut self, _: &Inbox, _: &str, _: &str) -> Result<u64, InboxError> {
            Ok(0)
        }

        async fn forget_scope(&mut self, _: &Inbox, _: &str, _: u32) -> Result<u64, InboxError> {
            self.answer()
        }
    }

    impl Deadlocks {
        fn new(each: u32) -> Self {
            Self { each, left: each, batches: 3 }
        }

        fn answer(&mut self) -> Result<u64, InboxError> {
            if self.left > 0 {
                self.left -= 1;
                return Err(deadlock());
            }
            self.left = self.each;
            self.batches -= u64::from(self.batches > 0);
            Ok(self.batches * 10)
        }
    }

    #[tokio::test]
    async fn a_batch_that_loses_a_deadlock_is_run_again_and_not_for_ever() {
        let inbox = Inbox::new("inbox").unwrap();
        let week = Duration::from_secs(7 * 24 * 3_600);
        let horizon = Horizon::new(Duration::from_secs(60), Duration::ZERO);
        let mut cleaner = Cleaner::new(&inbox, week, horizon).unwrap();
        let scope = Scope::new("orders").unwrap();
        for each in [0, 1, CONFLICTS_MAX] {
            assert_eq!(cleaner.run(&mut Deadlocks::new(each)).await.unwrap().deleted, 30, "{each}");
            assert_eq!(inbox.forget_scope(&mut Deadlocks::new(each), &scope).await.unwrap(), 30, "{each}");
        }
        let mut never = Deadlocks::new(CONFLICTS_MAX + 1);
        assert_eq!(cleaner.run(&mut never).await.unwrap_err().sqlstate(), Some("40001"));
        let mut never = Deadlocks::new(CONFLICTS_MAX + 1);
        assert_eq!(inbox.forget_scope(&mut never, &scope).await.unwrap_err().sqlstate(), Some("40001"));
    }

    #[test]
    fn another_error_ends_the_run_at_once() {
        let lost = InboxError::from_driver(std::io::Error::other("x"), Some("57P01"), None, true);
        assert!(Conflicts::default().pass(lost).is_err());
        // A lock that was waited for until the server's timeout would be waited for again, twenty times.
        let waited = InboxError::from_driver(std::io::Error::other("x"), Some("HY000"), Some(1205), false);
        assert!(Conflicts::default().pass(waited).is_err());
    }
}
