//! mysql_async: claims on a `Transaction`, cleaning on a `Conn`.
//!
//! Called through the seam. Invariant: only a marker that is there makes a duplicate message; any other
//! violation is an error.

use std::fmt::Write as _;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, IsolationLevel, Params, Transaction, TxOpts, Value};

use super::Boxed;
use crate::claim::Outcome;
use crate::driver::{Batch, ClaimDriver, CleanDriver, Filter, InboxTransaction, Marker, Page, Seen, Totals};
use crate::error::InboxError;
use crate::inbox::Inbox;
use crate::moment::Moment;
use crate::sql::{Dialect, Sql};

impl From<Error> for InboxError {
    fn from(error: Error) -> Self {
        let (sqlstate, code) = match &error {
            Error::Server(server) => (Some(server.state.clone()), Some(i64::from(server.code))),
            _ => (None, None),
        };
        let gone = error.is_fatal() && !matches!(error, Error::Server(_));
        Self::from_driver(error, sqlstate.as_deref(), code, gone)
    }
}

fn sql(inbox: &Inbox) -> &Sql {
    inbox.sql(Dialect::MySql)
}

fn bytes(text: &str) -> Value {
    Value::Bytes(text.as_bytes().to_vec())
}

fn positional(values: Vec<Value>) -> Params {
    Params::Positional(values)
}

/// A marker's result and digest.
type Columns = (Option<Vec<u8>>, Option<Vec<u8>>);

struct Driver<'t, 'c>(&'t mut Transaction<'c>);

impl ClaimDriver for Driver<'_, '_> {
    const DIALECT: Dialect = Dialect::MySql;

    async fn flaw(&mut self, inbox: &Inbox) -> Result<Option<String>, InboxError> {
        Ok(self.0.query_first(sql(inbox).flaw.as_str()).await?)
    }

    async fn insert(&mut self, inbox: &Inbox, marker: &Marker<'_>) -> Result<bool, InboxError> {
        let mut values = vec![bytes(marker.scope.as_str()), bytes(marker.id.as_str())];
        let mut text = &sql(inbox).claim;
        if let Some(digest) = marker.digest {
            values.push(Value::Bytes(digest.as_bytes().to_vec()));
            text = &sql(inbox).claim_digest;
        }
        // A duplicate key stays an error: whether it was the marker's own, the look at the marker tells.
        self.0.exec_drop(text.as_str(), positional(values)).await?;
        Ok(true)
    }

    async fn seen(&mut self, inbox: &Inbox, marker: &Marker<'_>, _protect: bool) -> Result<Option<Seen>, InboxError> {
        let values = vec![bytes(marker.scope.as_str()), bytes(marker.id.as_str())];
        let row: Option<Columns> = self.0.exec_first(sql(inbox).seen.as_str(), positional(values)).await?;
        Ok(row.map(|(result, digest)| Seen { result, digest }))
    }

    async fn record(&mut self, inbox: &Inbox, marker: &Marker<'_>, result: &[u8]) -> Result<u64, InboxError> {
        let values = vec![Value::Bytes(result.to_vec()), bytes(marker.scope.as_str()), bytes(marker.id.as_str())];
        self.0.exec_drop(sql(inbox).record.as_str(), positional(values)).await?;
        // Recording the same result again changes no row; the marker's existence is what counts.
        match self.0.affected_rows() {
            0 => Ok(u64::from(self.seen(inbox, marker, false).await?.is_some())),
            rows => Ok(rows),
        }
    }
}

impl InboxTransaction for &mut Transaction<'_> {
    type Reply<'a, T: Send + 'a>
        = Boxed<'a, T>
    where
        Self: 'a;

    fn claim_marker<'a, T: From<Outcome> + Send + 'a>(self, inbox: &'a Inbox, marker: Marker<'a>) -> Boxed<'a, T>
    where
        Self: 'a,
    {
        Box::pin(async move { Ok(crate::claim::claim(&mut Driver(self), inbox, &marker).await?.into()) })
    }

    fn record_result<'a>(self, inbox: &'a Inbox, marker: Marker<'a>, result: &'a [u8]) -> Boxed<'a, ()>
    where
        Self: 'a,
    {
        Box::pin(async move { crate::claim::record(&mut Driver(self), inbox, &marker, result).await })
    }
}

async fn moment(conn: &mut Conn, text: &str, values: Vec<Value>) -> Result<Option<Moment>, InboxError> {
    Ok(conn.exec_first::<i64, _, _>(text, positional(values)).await?.map(Moment::from_micros))
}

/// The keys as the statement takes them. Hexadecimal digits need no escaping in JSON.
fn keys(markers: &[(Vec<u8>, Vec<u8>, i64)]) -> String {
    let hex = |bytes: &[u8]| {
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    };
    let pairs: Vec<String> =
        markers.iter().map(|(scope, id, _)| format!(r#"["{}","{}"]"#, hex(scope), hex(id))).collect();
    format!("[{}]", pairs.join(","))
}

impl CleanDriver for Conn {
    const DIALECT: Dialect = Dialect::MySql;

    async fn flaw(&mut self, inbox: &Inbox) -> Result<Option<String>, InboxError> {
        Ok(self.query_first(sql(inbox).flaw.as_str()).await?)
    }

    async fn now(&mut self, inbox: &Inbox) -> Result<Moment, InboxError> {
        Ok(moment(self, &sql(inbox).now, Vec::new()).await?.unwrap_or(Moment::MIN))
    }

    async fn next_scope(&mut self, inbox: &Inbox, after: &str) -> Result<Option<String>, InboxError> {
        Ok(self.exec_first(sql(inbox).next_scope.as_str(), positional(vec![bytes(after)])).await?)
    }

    async fn earliest(
        &mut self,
        inbox: &Inbox,
        scope: &str,
        from: Moment,
        to: Moment,
    ) -> Result<Option<Moment>, InboxError> {
        moment(self, &sql(inbox).earliest, vec![bytes(scope), from.micros().into(), to.micros().into()]).await
    }

    async fn latest(&mut self, inbox: &Inbox, scope: &str, before: Moment) -> Result<Option<Moment>, InboxError> {
        moment(self, &sql(inbox).latest, vec![bytes(scope), before.micros().into()]).await
    }

    async fn delete(&mut self, inbox: &Inbox, page: Page<'_>) -> Result<Batch, InboxError> {
        let mut values: Vec<Value> = vec![page.low.micros().into(), page.cutoff.micros().into()];
        values.extend(page.filter.scopes().into_iter().map(bytes));
        values.push(page.limit.into());
        let mut options = TxOpts::new();
        options.with_isolation_level(IsolationLevel::ReadCommitted);
        let mut tx = self.start_transaction(options).await?;
        let selected: Vec<(Vec<u8>, Vec<u8>, i64)> =
            tx.exec(sql(inbox).doomed.text(page.filter), positional(values)).await?;
        let latest = selected.iter().map(|marker| Moment::from_micros(marker.2)).max();
        let mut deleted = 0;
        if !selected.is_empty() {
            tx.exec_drop(sql(inbox).delete.as_str(), (keys(&selected),)).await?;
            deleted = tx.affected_rows();
        }
        tx.commit().await?;
        Ok(Batch { deleted, latest })
    }

    async fn count(&mut self, inbox: &Inbox, before: Moment, filter: Filter<'_>) -> Result<u64, InboxError> {
        let mut values: Vec<Value> = vec![before.micros().into()];
        values.extend(filter.scopes().into_iter().map(bytes));
        Ok(self.exec_first(sql(inbox).count_before.text(filter), positional(values)).await?.unwrap_or(0))
    }

    async fn totals(&mut self, inbox: &Inbox, scope: Option<&str>) -> Result<Totals, InboxError> {
        let text = if scope.is_some() { &sql(inbox).scope_totals } else { &sql(inbox).totals };
        let values: Vec<Value> = scope.into_iter().map(bytes).collect();
        let row: Option<(u64, Option<i64>, Option<i64>)> = self.exec_first(text.as_str(), positional(values)).await?;
        let (markers, earliest, latest) = row.unwrap_or_default();
        Ok(Totals { markers, earliest: earliest.map(Moment::from_micros), latest: latest.map(Moment::from_micros) })
    }

    async fn forget(&mut self, inbox: &Inbox, scope: &str, id: &str) -> Result<u64, InboxError> {
        self.exec_drop(sql(inbox).forget.as_str(), positional(vec![bytes(scope), bytes(id)])).await?;
        Ok(self.affected_rows())
    }

    async fn forget_scope(&mut self, inbox: &Inbox, scope: &str, limit: u32) -> Result<u64, InboxError> {
        self.exec_drop(sql(inbox).forget_scope.as_str(), positional(vec![bytes(scope), limit.into()])).await?;
        Ok(self.affected_rows())
    }
}
