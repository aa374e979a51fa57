//! rusqlite: claims on a `Transaction` or `Savepoint`, cleaning on a `Connection`.
//!
//! Called through the seam. Invariant: a claim on a connection in autocommit mode is refused; everything
//! blocks and is complete when it returns.

use rusqlite::{
    Connection, OptionalExtension as _, Savepoint, ToSql, Transaction, TransactionBehavior, params_from_iter,
};

use crate::claim::Outcome;
use crate::driver::{Batch, ClaimDriver, CleanDriver, Filter, InboxTransaction, Marker, Page, Seen, Totals};
use crate::error::InboxError;
use crate::inbox::Inbox;
use crate::moment::Moment;
use crate::ready::ready;
use crate::sql::{Dialect, Sql};

impl From<rusqlite::Error> for InboxError {
    fn from(error: rusqlite::Error) -> Self {
        // `sqlite_error` knows nothing of an error that has a place in the SQL.
        let code = match &error {
            rusqlite::Error::SqlInputError { error, .. } => Some(error),
            other => other.sqlite_error(),
        }
        .map(|error| i64::from(error.extended_code));
        Self::from_driver(error, None, code, false)
    }
}

fn sql(inbox: &Inbox) -> &Sql {
    inbox.sql(Dialect::Sqlite)
}

struct Driver<'c>(&'c Connection);

fn flaw(connection: &Connection, inbox: &Inbox) -> Result<Option<String>, InboxError> {
    Ok(connection.query_row(&sql(inbox).flaw, (), |row| row.get(0)).optional()?)
}

impl ClaimDriver for Driver<'_> {
    const DIALECT: Dialect = Dialect::Sqlite;

    async fn flaw(&mut self, inbox: &Inbox) -> Result<Option<String>, InboxError> {
        flaw(self.0, inbox)
    }

    async fn insert(&mut self, inbox: &Inbox, marker: &Marker<'_>) -> Result<bool, InboxError> {
        if self.0.is_autocommit() {
            return Err(InboxError::NoTransaction);
        }
        let (scope, id) = (marker.scope.as_str(), marker.id.as_str());
        let rows = if let Some(digest) = marker.digest {
            self.0.prepare_cached(&sql(inbox).claim_digest)?.execute((scope, id, digest.as_bytes()))?
        } else {
            self.0.prepare_cached(&sql(inbox).claim)?.execute((scope, id))?
        };
        Ok(rows == 1)
    }

    async fn seen(&mut self, inbox: &Inbox, marker: &Marker<'_>, _protect: bool) -> Result<Option<Seen>, InboxError> {
        let mut statement = self.0.prepare_cached(&sql(inbox).seen)?;
        let seen = statement.query_row((marker.scope.as_str(), marker.id.as_str()), |row| {
            Ok(Seen { result: row.get(0)?, digest: row.get(1)? })
        });
        Ok(seen.optional()?)
    }

    async fn record(&mut self, inbox: &Inbox, marker: &Marker<'_>, result: &[u8]) -> Result<u64, InboxError> {
        let rows =
            self.0.prepare_cached(&sql(inbox).record)?.execute((result, marker.scope.as_str(), marker.id.as_str()))?;
        Ok(rows as u64)
    }
}

macro_rules! claims_on {
    ($transaction:ty) => {
        impl InboxTransaction for $transaction {
            type Reply<'a, T: Send + 'a>
                = Result<T, InboxError>
            where
                Self: 'a;

            fn claim_marker<'a, T: From<Outcome> + Send + 'a>(
                self,
                inbox: &'a Inbox,
                marker: Marker<'a>,
            ) -> Result<T, InboxError>
            where
                Self: 'a,
            {
                ready(crate::claim::claim(&mut Driver(self), inbox, &marker)).map(T::from)
            }

            fn record_result<'a>(self, inbox: &'a Inbox, marker: Marker<'a>, result: &'a [u8]) -> Result<(), InboxError>
            where
                Self: 'a,
            {
                ready(crate::claim::record(&mut Driver(self), inbox, &marker, result))
            }
        }
    };
}
claims_on!(&Transaction<'_>);
claims_on!(&mut Transaction<'_>);
claims_on!(&Savepoint<'_>);
claims_on!(&mut Savepoint<'_>);

fn moment(connection: &Connection, text: &str, params: impl rusqlite::Params) -> Result<Option<Moment>, InboxError> {
    Ok(connection.prepare_cached(text)?.query_row(params, |row| row.get(0)).optional()?.map(Moment::from_micros))
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

impl CleanDriver for Connection {
    const DIALECT: Dialect = Dialect::Sqlite;

    async fn flaw(&mut self, inbox: &Inbox) -> Result<Option<String>, InboxError> {
        flaw(self, inbox)
    }

    async fn now(&mut self, inbox: &Inbox) -> Result<Moment, InboxError> {
        Ok(moment(self, &sql(inbox).now, ())?.unwrap_or(Moment::MIN))
    }

    async fn next_scope(&mut self, inbox: &Inbox, after: &str) -> Result<Option<String>, InboxError> {
        Ok(self.prepare_cached(&sql(inbox).next_scope)?.query_row([after], |row| row.get(0)).optional()?)
    }

    async fn earliest(
        &mut self,
        inbox: &Inbox,
        scope: &str,
        from: Moment,
        to: Moment,
    ) -> Result<Option<Moment>, InboxError> {
        moment(self, &sql(inbox).earliest, (scope, from.micros(), to.micros()))
    }

    async fn latest(&mut self, inbox: &Inbox, scope: &str, before: Moment) -> Result<Option<Moment>, InboxError> {
        moment(self, &sql(inbox).latest, (scope, before.micros()))
    }

    async fn delete(&mut self, inbox: &Inbox, page: Page<'_>) -> Result<Batch, InboxError> {
        let text = sql(inbox).doomed.text(page.filter);
        let (low, cutoff, scopes) = (page.low.micros(), page.cutoff.micros(), page.filter.scopes());
        let mut params: Vec<&dyn ToSql> = vec![&low, &cutoff];
        params.extend(scopes.iter().map(|scope| scope as &dyn ToSql));
        params.push(&page.limit);
        let tx = self.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut batch = Batch { deleted: 0, latest: None };
        {
            let mut statement = tx.prepare_cached(&text)?;
            let mut rows = statement.query(params_from_iter(params))?;
            while let Some(row) = rows.next()? {
                batch.deleted += 1;
                batch.latest = batch.latest.max(Some(Moment::from_micros(row.get(0)?)));
            }
        }
        tx.commit()?;
        Ok(batch)
    }

    async fn count(&mut self, inbox: &Inbox, before: Moment, filter: Filter<'_>) -> Result<u64, InboxError> {
        let (before, scopes) = (before.micros(), filter.scopes());
        let mut params: Vec<&dyn ToSql> = vec![&before];
        params.extend(scopes.iter().map(|scope| scope as &dyn ToSql));
        let count = self
            .prepare(&sql(inbox).count_before.text(filter))?
            .query_row(params_from_iter(params), |row| row.get(0))?;
        Ok(unsigned(count))
    }

    async fn totals(&mut self, inbox: &Inbox, scope: Option<&str>) -> Result<Totals, InboxError> {
        let text = if scope.is_some() { &sql(inbox).scope_totals } else { &sql(inbox).totals };
        let (markers, earliest, latest) = self.prepare(text)?.query_row(params_from_iter(scope), |row| {
            Ok((row.get(0)?, row.get::<_, Option<i64>>(1)?, row.get::<_, Option<i64>>(2)?))
        })?;
        Ok(Totals {
            markers: unsigned(markers),
            earliest: earliest.map(Moment::from_micros),
            latest: latest.map(Moment::from_micros),
        })
    }

    async fn forget(&mut self, inbox: &Inbox, scope: &str, id: &str) -> Result<u64, InboxError> {
        Ok(self.execute(&sql(inbox).forget, (scope, id))? as u64)
    }

    async fn forget_scope(&mut self, inbox: &Inbox, scope: &str, limit: u32) -> Result<u64, InboxError> {
        Ok(self.execute(&sql(inbox).forget_scope, (scope, limit))? as u64)
    }
}
