//! The statements of the inbox through sqlx: one text for all databases, which differ in how a key is bound, how a
//! duplicate is told and how the cleaner's transaction begins.
//!
//! Called through the seam, `litepost_inbox::driver`. Invariant: a driver binds and reads; it decides nothing.

#![allow(unused_macros, unused_imports, dead_code, reason = "without any database's feature nothing uses them")]

use litepost_inbox::driver::{Batch, ClaimDriver, CleanDriver, Filter, Marker, Page, Seen, Totals};
use litepost_inbox::{Dialect, Inbox, InboxError, Moment};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use crate::{Connection, InboxDatabase, error};

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Implements the seam for one database: its type, its connection, its dialect, a key as it is bound.
macro_rules! database {
    ($database:ty, $connection:ty, $dialect:expr, $key:expr, $insert:path, $doomed:path) => {
        impl InboxDatabase for $database {
            fn claims(connection: &mut $connection) -> impl ClaimDriver {
                Claims(connection)
            }
        }

        struct Claims<'c>(&'c mut $connection);

        async fn flaw(connection: &mut $connection, inbox: &Inbox) -> Result<Option<String>, InboxError> {
            let query = sqlx::query::<$database>(AssertSqlSafe(inbox.sql($dialect).flaw.as_str()));
            let row = query.fetch_optional(connection).await.map_err(error)?;
            row.map(|row| row.try_get(0).map_err(error)).transpose()
        }

        impl ClaimDriver for Claims<'_> {
            const DIALECT: Dialect = $dialect;

            async fn flaw(&mut self, inbox: &Inbox) -> Result<Option<String>, InboxError> {
                flaw(self.0, inbox).await
            }

            async fn insert(&mut self, inbox: &Inbox, marker: &Marker<'_>) -> Result<bool, InboxError> {
                let sql = inbox.sql($dialect);
                let text = if marker.digest.is_some() { &sql.claim_digest } else { &sql.claim };
                let mut query = sqlx::query::<$database>(AssertSqlSafe(text.as_str()))
                    .bind($key(marker.scope.as_str()))
                    .bind($key(marker.id.as_str()));
                if let Some(digest) = marker.digest {
                    query = query.bind(digest.as_bytes().to_vec());
                }
                $insert(self.0, query).await
            }

            async fn seen(
                &mut self,
                inbox: &Inbox,
                marker: &Marker<'_>,
                protect: bool,
            ) -> Result<Option<Seen>, InboxError> {
                let sql = inbox.sql($dialect);
                let text = if protect { &sql.seen_protected } else { &sql.seen };
                let query = sqlx::query::<$database>(AssertSqlSafe(text.as_str()))
                    .bind($key(marker.scope.as_str()))
                    .bind($key(marker.id.as_str()));
                let Some(row) = query.fetch_optional(&mut *self.0).await.map_err(error)? else { return Ok(None) };
                Ok(Some(Seen { result: row.try_get(0).map_err(error)?, digest: row.try_get(1).map_err(error)? }))
            }

            async fn record(&mut self, inbox: &Inbox, marker: &Marker<'_>, result: &[u8]) -> Result<u64, InboxError> {
                let query = sqlx::query::<$database>(AssertSqlSafe(inbox.sql($dialect).record.as_str()))
                    .bind(result.to_vec())
                    .bind($key(marker.scope.as_str()))
                    .bind($key(marker.id.as_str()));
                Ok(query.execute(&mut *self.0).await.map_err(error)?.rows_affected())
            }
        }

        async fn moment(
            connection: &mut $connection,
            text: &str,
            scope: Option<&str>,
            bounds: &[Moment],
        ) -> Result<Option<Moment>, InboxError> {
            let mut query = sqlx::query::<$database>(AssertSqlSafe(text));
            if let Some(scope) = scope {
                query = query.bind($key(scope));
            }
            for bound in bounds {
                query = query.bind(bound.micros());
            }
            let row = query.fetch_optional(&mut *connection).await.map_err(error)?;
            row.map(|row| row.try_get(0).map(Moment::from_micros).map_err(error)).transpose()
        }

        impl CleanDriver for Connection<'_, $connection> {
            const DIALECT: Dialect = $dialect;

            async fn flaw(&mut self, inbox: &Inbox) -> Result<Option<String>, InboxError> {
                flaw(self.0, inbox).await
            }

            async fn now(&mut self, inbox: &Inbox) -> Result<Moment, InboxError> {
                Ok(moment(self.0, &inbox.sql($dialect).now, None, &[]).await?.unwrap_or(Moment::MIN))
            }

            async fn next_scope(&mut self, inbox: &Inbox, after: &str) -> Result<Option<String>, InboxError> {
                let query =
                    sqlx::query::<$database>(AssertSqlSafe(inbox.sql($dialect).next_scope.as_str())).bind($key(after));
                let row = query.fetch_optional(&mut *self.0).await.map_err(error)?;
                row.map(|row| row.try_get(0).map_err(error)).transpose()
            }

            async fn earliest(
                &mut self,
                inbox: &Inbox,
                scope: &str,
                from: Moment,
                to: Moment,
            ) -> Result<Option<Moment>, InboxError> {
                moment(self.0, &inbox.sql($dialect).earliest, Some(scope), &[from, to]).await
            }

            async fn latest(
                &mut self,
                inbox: &Inbox,
                scope: &str,
                before: Moment,
            ) -> Result<Option<Moment>, InboxError> {
                moment(self.0, &inbox.sql($dialect).latest, Some(scope), &[before]).await
            }

            async fn delete(&mut self, inbox: &Inbox, page: Page<'_>) -> Result<Batch, InboxError> {
                let text = inbox.sql($dialect).doomed.text(page.filter);
                let mut query =
                    sqlx::query::<$database>(AssertSqlSafe(text)).bind(page.low.micros()).bind(page.cutoff.micros());
                for scope in page.filter.scopes() {
                    query = query.bind($key(scope));
                }
                $doomed(self.0, inbox, query.bind(i64::from(page.limit))).await
            }

            async fn count(&mut self, inbox: &Inbox, before: Moment, filter: Filter<'_>) -> Result<u64, InboxError> {
                let text = inbox.sql($dialect).count_before.text(filter);
                let mut query = sqlx::query::<$database>(AssertSqlSafe(text)).bind(before.micros());
                for scope in filter.scopes() {
                    query = query.bind($key(scope));
                }
                let row = query.fetch_one(&mut *self.0).await.map_err(error)?;
                Ok(unsigned(row.try_get(0).map_err(error)?))
            }

            async fn totals(&mut self, inbox: &Inbox, scope: Option<&str>) -> Result<Totals, InboxError> {
                let sql = inbox.sql($dialect);
                let text = if scope.is_some() { &sql.scope_totals } else { &sql.totals };
                let mut query = sqlx::query::<$database>(AssertSqlSafe(text.as_str()));
                if let Some(scope) = scope {
                    query = query.bind($key(scope));
                }
                let row = query.fetch_one(&mut *self.0).await.map_err(error)?;
                let date = |column: usize| {
                    row.try_get::<Option<i64>, _>(column).map(|date| date.map(Moment::from_micros)).map_err(error)
                };
                Ok(Totals { markers: unsigned(row.try_get(0).map_err(error)?), earliest: date(1)?, latest: date(2)? })
            }

            async fn forget(&mut self, inbox: &Inbox, scope: &str, id: &str) -> Result<u64, InboxError> {
                let query = sqlx::query::<$database>(AssertSqlSafe(inbox.sql($dialect).forget.as_str()))
                    .bind($key(scope))
                    .bind($key(id));
                Ok(query.execute(&mut *self.0).await.map_err(error)?.rows_affected())
            }

            async fn forget_scope(&mut self, inbox: &Inbox, scope: &str, limit: u32) -> Result<u64, InboxError> {
                let query = sqlx::query::<$database>(AssertSqlSafe(inbox.sql($dialect).forget_scope.as_str()))
                    .bind($key(scope))
                    .bind(i64::from(limit));
                Ok(query.execute(&mut *self.0).await.map_err(error)?.rows_affected())
            }
        }
    };
}

#[cfg(feature = "postgres")]
mod postgres {
    use sqlx::postgres::{PgArguments, PgConnection, Postgres};
    use sqlx::query::Query;

    use super::*;

    database!(Postgres, PgConnection, Dialect::Postgres, str::to_owned, insert, doomed);

    type Asked<'q> = Query<'q, Postgres, PgArguments>;

    async fn insert(connection: &mut PgConnection, query: Asked<'_>) -> Result<bool, InboxError> {
        Ok(query.execute(connection).await.map_err(error)?.rows_affected() == 1)
    }

    async fn doomed(connection: &mut PgConnection, _inbox: &Inbox, query: Asked<'_>) -> Result<Batch, InboxError> {
        let mut tx = connection.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED").await.map_err(error)?;
        let row = query.fetch_one(&mut *tx).await.map_err(error)?;
        let latest: Option<i64> = row.try_get(1).map_err(error)?;
        let deleted = unsigned(row.try_get(0).map_err(error)?);
        tx.commit().await.map_err(error)?;
        Ok(Batch { deleted, latest: latest.map(Moment::from_micros) })
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use sqlx::query::Query;
    use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteConnection};

    use super::*;

    database!(Sqlite, SqliteConnection, Dialect::Sqlite, str::to_owned, insert, doomed);

    type Asked<'q> = Query<'q, Sqlite, SqliteArguments>;

    async fn insert(connection: &mut SqliteConnection, query: Asked<'_>) -> Result<bool, InboxError> {
        // SQLite rolls back by itself after a full disk, which sqlx does not notice: the marker would then commit
        // alone. Inside a transaction, and only there, SQLite refuses another one.
        if sqlx::query("BEGIN").execute(&mut *connection).await.is_ok() {
            sqlx::query("ROLLBACK").execute(&mut *connection).await.map_err(error)?;
            return Err(InboxError::NoTransaction);
        }
        Ok(query.execute(connection).await.map_err(error)?.rows_affected() == 1)
    }

    async fn doomed(connection: &mut SqliteConnection, _inbox: &Inbox, query: Asked<'_>) -> Result<Batch, InboxError> {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await.map_err(error)?;
        let mut batch = Batch { deleted: 0, latest: None };
        for row in query.fetch_all(&mut *tx).await.map_err(error)? {
            batch.deleted += 1;
            batch.latest = batch.latest.max(Some(Moment::from_micros(row.try_get(0).map_err(error)?)));
        }
        tx.commit().await.map_err(error)?;
        Ok(batch)
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use std::fmt::Write as _;

    use sqlx::mysql::{MySql, MySqlArguments, MySqlConnection};
    use sqlx::query::Query;

    use super::*;

    fn key(text: &str) -> Vec<u8> {
        text.as_bytes().to_vec()
    }

    database!(MySql, MySqlConnection, Dialect::MySql, key, insert, doomed);

    type Asked<'q> = Query<'q, MySql, MySqlArguments>;

    async fn insert(connection: &mut MySqlConnection, query: Asked<'_>) -> Result<bool, InboxError> {
        // A duplicate key stays an error: whether it was the marker's own, the look at the marker tells.
        query.execute(connection).await.map_err(error)?;
        Ok(true)
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    async fn doomed(connection: &mut MySqlConnection, inbox: &Inbox, query: Asked<'_>) -> Result<Batch, InboxError> {
        let level = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED";
        sqlx::query(level).execute(&mut *connection).await.map_err(error)?;
        let mut tx = connection.begin().await.map_err(error)?;
        let (mut keys, mut latest) = (Vec::new(), None);
        for row in query.fetch_all(&mut *tx).await.map_err(error)? {
            let (scope, id): (Vec<u8>, Vec<u8>) = (row.try_get(0).map_err(error)?, row.try_get(1).map_err(error)?);
            latest = latest.max(Some(Moment::from_micros(row.try_get(2).map_err(error)?)));
            keys.push(format!(r#"["{}","{}"]"#, hex(&scope), hex(&id)));
        }
        let mut deleted = 0;
        if !keys.is_empty() {
            let delete = sqlx::query(AssertSqlSafe(inbox.sql(Dialect::MySql).delete.as_str()));
            let delete = delete.bind(format!("[{}]", keys.join(",")));
            deleted = delete.execute(&mut *tx).await.map_err(error)?.rows_affected();
        }
        tx.commit().await.map_err(error)?;
        Ok(Batch { deleted, latest })
    }
}
