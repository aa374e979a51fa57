//! What an operator can see and do: counts per scope, and forgetting markers.
//!
//! Called by the command line. Invariant: it reads without locks, and forgets only what it is named.

use std::time::{Duration, SystemTime};

use crate::cleaner::{Conflicts, all_scopes};
use crate::driver::{CleanDriver, Totals};
use crate::error::InboxError;
use crate::ident::{MessageId, Scope};
use crate::inbox::Inbox;

/// Markers per transaction when a whole scope is forgotten.
const FORGET_BATCH: u32 = 1_000;

/// The state of an inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// The database's clock.
    pub now: SystemTime,
    /// How many markers there are.
    pub markers: u64,
    /// The date of the oldest.
    pub oldest: Option<SystemTime>,
    /// The age of the oldest.
    pub oldest_age: Option<Duration>,
    /// The date of the newest.
    pub newest: Option<SystemTime>,
    /// The same per scope, in the table's order.
    pub scopes: Vec<ScopeStatus>,
}

/// The state of one scope.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScopeStatus {
    /// The scope's name.
    pub scope: String,
    /// How many markers it has.
    pub markers: u64,
    /// The date of its oldest.
    pub oldest: Option<SystemTime>,
    /// The date of its newest: the consumer's last sign of life.
    pub newest: Option<SystemTime>,
}

impl Inbox {
    /// Counts the markers, in all and per scope. It reads the whole table.
    pub async fn status<D: CleanDriver>(&self, connection: &mut D) -> Result<Status, InboxError> {
        let now = connection.now(self).await?;
        let Totals { markers, earliest, latest } = connection.totals(self, None).await?;
        let mut scopes = Vec::new();
        for scope in all_scopes(connection, self).await? {
            let totals = connection.totals(self, Some(&scope)).await?;
            scopes.push(ScopeStatus {
                scope,
                markers: totals.markers,
                oldest: totals.earliest.map(SystemTime::from),
                newest: totals.latest.map(SystemTime::from),
            });
        }
        Ok(Status {
            now: now.into(),
            markers,
            oldest: earliest.map(SystemTime::from),
            oldest_age: earliest.map(|earliest| now.since(earliest)),
            newest: latest.map(SystemTime::from),
            scopes,
        })
    }

    /// Deletes one marker, so that its message is processed again when it comes back. True when there
    /// was one.
    pub async fn forget<D: CleanDriver>(
        &self,
        connection: &mut D,
        scope: &Scope,
        id: &MessageId,
    ) -> Result<bool, InboxError> {
        Ok(connection.forget(self, scope.as_str(), id.as_str()).await? > 0)
    }

    /// Deletes every marker of a scope, in batches: for a consumer that is gone for good.
    pub async fn forget_scope<D: CleanDriver>(&self, connection: &mut D, scope: &Scope) -> Result<u64, InboxError> {
        let (mut forgotten, mut conflicts) = (0, Conflicts::default());
        loop {
            match connection.forget_scope(self, scope.as_str(), FORGET_BATCH).await {
                Ok(0) => return Ok(forgotten),
                Ok(batch) => {
                    forgotten += batch;
                    conflicts = Conflicts::default();
                }
                Err(error) => conflicts.pass(error)?,
            }
        }
    }
}

#[cfg(feature = "rusqlite")]
mod blocking {
    //! The same for a driver that blocks.

    use super::{Inbox, InboxError, MessageId, Scope, Status};
    use crate::ready::ready;

    impl Inbox {
        /// [`Inbox::status`] for a driver that blocks.
        pub fn status_blocking(&self, connection: &mut rusqlite::Connection) -> Result<Status, InboxError> {
            ready(self.status(connection))
        }

        /// [`Inbox::forget`] for a driver that blocks.
        pub fn forget_blocking(
            &self,
            connection: &mut rusqlite::Connection,
            scope: &Scope,
            id: &MessageId,
        ) -> Result<bool, InboxError> {
            ready(self.forget(connection, scope, id))
        }

        /// [`Inbox::forget_scope`] for a driver that blocks.
        pub fn forget_scope_blocking(
            &self,
            connection: &mut rusqlite::Connection,
            scope: &Scope,
        ) -> Result<u64, InboxError> {
            ready(self.forget_scope(connection, scope))
        }
    }
}
