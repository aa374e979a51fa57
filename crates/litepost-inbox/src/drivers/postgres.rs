//! tokio-postgres: claims on a `Transaction`, cleaning on a `Client`.
//!
//! Called through the seam. Invariant: each statement is one round trip. Parameter types are given with
//! the statement, so that no separate prepare is needed and no connection state is left behind (which
//! also makes it work behind a transaction-mode pooler).

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, IsolationLevel, Row, Statement, Transaction};

use super::Boxed;
use crate::claim::Outcome;
use crate::driver::{Batch, ClaimDriver, CleanDriver, Filter, InboxTransaction, Marker, Page, Seen, Totals};
use crate::error::InboxError;
use crate::inbox::Inbox;
use crate::moment::Moment;
use crate::sql::{Dialect, Sql};
use crate::table::TableName;

type Typed<'a> = (&'a (dyn ToSql + Sync), Type);

impl From<tokio_postgres::Error> for InboxError {
    fn from(error: tokio_postgres::Error) -> Self {
        let sqlstate = error.code().map(|code| code.code().to_owned());
        // 08: connection exceptions, 57P: the server shuts down. No SQLSTATE and closed: the socket is gone.
        let gone = sqlstate
            .as_deref()
            .map_or_else(|| error.is_closed(), |state| state.starts_with("08") || state.starts_with("57P"));
        Self::from_driver(error, sqlstate.as_deref(), None, gone)
    }
}

fn sql(inbox: &Inbox) -> &Sql {
    inbox.sql(Dialect::Postgres)
}

/// The claim, prepared on one connection: the server then neither parses nor plans it. See [`Inbox::prepare`].
#[derive(Clone)]
pub struct Prepared {
    table: TableName,
    claim: Statement,
    claim_digest: Option<Statement>,
}

/// A transaction on the connection that a claim was prepared on: what [`Inbox::claim`] takes.
#[derive(Clone, Copy)]
pub struct PreparedTransaction<'a> {
    tx: &'a Transaction<'a>,
    prepared: &'a Prepared,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Prepared").field("table", &self.table).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for PreparedTransaction<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("PreparedTransaction").field("prepared", self.prepared).finish_non_exhaustive()
    }
}

impl Prepared {
    /// A transaction of the same connection, to claim in.
    pub fn on<'a>(&'a self, tx: &'a Transaction<'a>) -> PreparedTransaction<'a> {
        PreparedTransaction { tx, prepared: self }
    }
}

impl Inbox {
    /// Prepares the claim on a connection, once: `inbox.claim(prepared.on(&tx), &scope, &id)`.
    ///
    /// Without it a claim is parsed and planned each time, in the same single round trip, and leaves nothing on the
    /// connection. Behind a pooler that hands out transactions leave it so. The table is looked at as by [`Inbox::check`].
    pub async fn prepare(&self, client: &Client) -> Result<Prepared, InboxError> {
        self.judge(Dialect::Postgres, flaw(&client.query_typed(&sql(self).flaw, &[]).await?)?)?;
        let claim = client.prepare_typed(&sql(self).claim, &[Type::TEXT, Type::TEXT]).await?;
        let claim_digest = if self.options().digests {
            let types = [Type::TEXT, Type::TEXT, Type::BYTEA];
            Some(client.prepare_typed(&sql(self).claim_digest, &types).await?)
        } else {
            None
        };
        Ok(Prepared { table: self.table().clone(), claim, claim_digest })
    }
}

struct Driver<'t, 'c>(&'t Transaction<'c>, Option<&'t Prepared>);

/// The one row of a look at the table.
fn flaw(rows: &[Row]) -> Result<Option<String>, InboxError> {
    Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
}

impl ClaimDriver for Driver<'_, '_> {
    const DIALECT: Dialect = Dialect::Postgres;

    async fn flaw(&mut self, inbox: &Inbox) -> Result<Option<String>, InboxError> {
        flaw(&self.0.query_typed(&sql(inbox).flaw, &[]).await?)
    }

    async fn insert(&mut self, inbox: &Inbox, marker: &Marker<'_>) -> Result<bool, InboxError> {
        let (scope, id) = (marker.scope.as_str(), marker.id.as_str());
        // What was prepared for another inbox would claim in its table.
        let prepared = self.1.filter(|prepared| prepared.table == *inbox.table());
        let rows = if let Some(digest) = marker.digest {
            let digest = digest.as_bytes().as_slice();
            if let Some(claim) = prepared.and_then(|prepared| prepared.claim_digest.as_ref()) {
                return Ok(self.0.execute(claim, &[&scope, &id, &digest]).await? == 1);
            }
            self.0
                .execute_typed(
                    &sql(inbox).claim_digest,
                    &[(&scope, Type::TEXT), (&id, Type::TEXT), (&digest, Type::BYTEA)],
                )
                .await?
        } else if let Some(prepared) = prepared {
            self.0.execute(&prepared.claim, &[&scope, &id]).await?
        } else {
            self.0.execute_typed(&sql(inbox).claim, &[(&scope, Type::TEXT), (&id, Type::TEXT)]).await?
        };
        Ok(rows == 1)
    }

    async fn seen(&mut self, inbox: &Inbox, marker: &Marker<'_>, protect: bool) -> Result<Option<Seen>, InboxError> {
        let (scope, id) = (marker.scope.as_str(), marker.id.as_str());
        let text = if protect { &sql(inbox).seen_protected } else { &sql(inbox).seen };
        let rows = self.0.query_typed(text, &[(&scope, Type::TEXT), (&id, Type::TEXT)]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        Ok(Some(Seen { result: row.try_get(0)?, digest: row.try_get(1)? }))
    }

    async fn record(&mut self, inbox: &Inbox, marker: &Marker<'_>, result: &[u8]) -> Result<u64, InboxError> {
        let (scope, id) = (marker.scope.as_str(), marker.id.as_str());
        let params: [Typed<'_>; 3] = [(&result, Type::BYTEA), (&scope, Type::TEXT), (&id, Type::TEXT)];
        Ok(self.0.execute_typed(&sql(inbox).record, &params).await?)
    }
}

impl InboxTransaction for &Transaction<'_> {
    type Reply<'a, T: Send + 'a>
        = Boxed<'a, T>
    where
        Self: 'a;

    fn claim_marker<'a, T: From<Outcome> + Send + 'a>(self, inbox: &'a Inbox, marker: Marker<'a>) -> Boxed<'a, T>
    where
        Self: 'a,
    {
        Box::pin(async move { Ok(crate::claim::claim(&mut Driver(self, None), inbox, &marker).await?.into()) })
    }

    fn record_result<'a>(self, inbox: &'a Inbox, marker: Marker<'a>, result: &'a [u8]) -> Boxed<'a, ()>
    where
        Self: 'a,
    {
        Box::pin(async move { crate::claim::record(&mut Driver(self, None), inbox, &marker, result).await })
    }
}

impl InboxTransaction for PreparedTransaction<'_> {
    type Reply<'a, T: Send + 'a>
        = Boxed<'a, T>
    where
        Self: 'a;

    fn claim_marker<'a, T: From<Outcome> + Send + 'a>(self, inbox: &'a Inbox, marker: Marker<'a>) -> Boxed<'a, T>
    where
        Self: 'a,
    {
        Box::pin(async move {
            Ok(crate::claim::claim(&mut Driver(self.tx, Some(self.prepared)), inbox, &marker).await?.into())
        })
    }

    fn record_result<'a>(self, inbox: &'a Inbox, marker: Marker<'a>, result: &'a [u8]) -> Boxed<'a, ()>
    where
        Self: 'a,
    {
        Box::pin(async move {
            crate::claim::record(&mut Driver(self.tx, Some(self.prepared)), inbox, &marker, result).await
        })
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
        (&*self).claim_marker(inbox, marker)
    }

    fn record_result<'a>(self, inbox: &'a Inbox, marker: Marker<'a>, result: &'a [u8]) -> Boxed<'a, ()>
    where
        Self: 'a,
    {
        (&*self).record_result(inbox, marker, result)
    }
}

/// A page's parameters in the statement's order.
fn typed<'a>(numbers: &'a [i64], scopes: &'a [&'a str], last: Option<&'a i64>) -> Vec<Typed<'a>> {
    let mut params: Vec<Typed<'_>> = numbers.iter().map(|number| (number as &(dyn ToSql + Sync), Type::INT8)).collect();
    params.extend(scopes.iter().map(|scope| (scope as &(dyn ToSql + Sync), Type::TEXT)));
    params.extend(last.map(|last| (last as &(dyn ToSql + Sync), Type::INT8)));
    params
}

async fn moment(client: &Client, text: &str, params: &[Typed<'_>]) -> Result<Option<Moment>, InboxError> {
    let rows = client.query_typed(text, params).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(Moment::from_micros(row.try_get(0)?)))
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

impl CleanDriver for Client {
    const DIALECT: Dialect = Dialect::Postgres;

    async fn flaw(&mut self, inbox: &Inbox) -> Result<Option<String>, InboxError> {
        flaw(&self.query_typed(&sql(inbox).flaw, &[]).await?)
    }

    async fn now(&mut self, inbox: &Inbox) -> Result<Moment, InboxError> {
        Ok(moment(self, &sql(inbox).now, &[]).await?.unwrap_or(Moment::MIN))
    }

    async fn next_scope(&mut self, inbox: &Inbox, after: &str) -> Result<Option<String>, InboxError> {
        let rows = self.query_typed(&sql(inbox).next_scope, &[(&after, Type::TEXT)]).await?;
        Ok(rows.first().map(|row| row.try_get(0)).transpose()?)
    }

    async fn earliest(
        &mut self,
        inbox: &Inbox,
        scope: &str,
        from: Moment,
        to: Moment,
    ) -> Result<Option<Moment>, InboxError> {
        let params: [Typed<'_>; 3] = [(&scope, Type::TEXT), (&from.micros(), Type::INT8), (&to.micros(), Type::INT8)];
        moment(self, &sql(inbox).earliest, &params).await
    }

    async fn latest(&mut self, inbox: &Inbox, scope: &str, before: Moment) -> Result<Option<Moment>, InboxError> {
        moment(self, &sql(inbox).latest, &[(&scope, Type::TEXT), (&before.micros(), Type::INT8)]).await
    }

    async fn delete(&mut self, inbox: &Inbox, page: Page<'_>) -> Result<Batch, InboxError> {
        let text = sql(inbox).doomed.text(page.filter);
        let (bounds, scopes, limit) =
            ([page.low.micros(), page.cutoff.micros()], page.filter.scopes(), i64::from(page.limit));
        let tx = self.build_transaction().isolation_level(IsolationLevel::ReadCommitted).start().await?;
        let row = tx.query_typed_one(&text, &typed(&bounds, &scopes, Some(&limit))).await?;
        let batch = Batch {
            deleted: unsigned(row.try_get(0)?),
            latest: row.try_get::<_, Option<i64>>(1)?.map(Moment::from_micros),
        };
        tx.commit().await?;
        Ok(batch)
    }

    async fn count(&mut self, inbox: &Inbox, before: Moment, filter: Filter<'_>) -> Result<u64, InboxError> {
        let (bounds, scopes) = ([before.micros()], filter.scopes());
        let row = self.query_typed_one(&sql(inbox).count_before.text(filter), &typed(&bounds, &scopes, None)).await?;
        Ok(unsigned(row.try_get(0)?))
    }

    async fn totals(&mut self, inbox: &Inbox, scope: Option<&str>) -> Result<Totals, InboxError> {
        let row = match scope {
            Some(scope) => self.query_typed_one(&sql(inbox).scope_totals, &[(&scope, Type::TEXT)]).await?,
            None => self.query_typed_one(&sql(inbox).totals, &[]).await?,
        };
        let date =
            |column| Ok::<_, tokio_postgres::Error>(row.try_get::<_, Option<i64>>(column)?.map(Moment::from_micros));
        Ok(Totals { markers: unsigned(row.try_get(0)?), earliest: date(1)?, latest: date(2)? })
    }

    async fn forget(&mut self, inbox: &Inbox, scope: &str, id: &str) -> Result<u64, InboxError> {
        Ok(self.execute_typed(&sql(inbox).forget, &[(&scope, Type::TEXT), (&id, Type::TEXT)]).await?)
    }

    async fn forget_scope(&mut self, inbox: &Inbox, scope: &str, limit: u32) -> Result<u64, InboxError> {
        let limit = i64::from(limit);
        Ok(self.execute_typed(&sql(inbox).forget_scope, &[(&scope, Type::TEXT), (&limit, Type::INT8)]).await?)
    }
}
