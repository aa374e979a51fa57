//! The consumer's database as the loop uses it: connect, begin, claim, commit.
//!
//! Called by the loop. Invariant: it holds one connection, makes a new one when that is gone, and never commits without
//! having been told to.

use std::pin::Pin;

use super::attempts::Attempts;
use crate::claim::Claim;
use crate::error::InboxError;
use crate::ident::{MessageId, Scope};
use crate::inbox::Inbox;

/// What a database promises: boxed, so that the compiler sees that the loop's future is `Send`, whatever borrows whom in
/// it (rust-lang/rust#100013).
pub type Promise<'a, T> = Pin<Box<dyn Future<Output = Result<T, InboxError>> + Send + 'a>>;

/// A database with transactions that a message can be claimed in.
pub trait Database: 'static {
    /// The driver's transaction.
    type Tx<'t>;
    /// What claims have prepared on the connection; nothing where the driver keeps that itself.
    type Claims: Send + Sync;

    /// Connects, unless it is connected.
    fn connect(&mut self) -> Promise<'_, ()>;
    /// Forgets the connection.
    fn disconnect(&mut self);
    /// What has been prepared on the connection for the claims of this inbox.
    fn claims<'a>(&'a mut self, inbox: &'a Inbox) -> Promise<'a, Self::Claims>;
    /// Begins a transaction on the connection.
    fn begin(&mut self) -> Promise<'_, Self::Tx<'_>>;
    /// Claims a message in the transaction.
    fn claim<'a>(
        tx: &'a mut Self::Tx<'_>,
        claims: &'a Self::Claims,
        inbox: &'a Inbox,
        scope: &'a Scope,
        id: &'a MessageId,
    ) -> Promise<'a, Claim>;
    /// Counts an attempt at a message, forgets those that are long past, and says how many there are now.
    fn count<'a>(
        tx: &'a mut Self::Tx<'_>,
        attempts: &'a Attempts,
        scope: &'a Scope,
        id: &'a MessageId,
    ) -> Promise<'a, u32>;
    /// Forgets the attempts at a message.
    fn forget<'a>(
        tx: &'a mut Self::Tx<'_>,
        attempts: &'a Attempts,
        scope: &'a Scope,
        id: &'a MessageId,
    ) -> Promise<'a, ()>;
    /// Commits.
    fn commit(tx: Self::Tx<'_>) -> Promise<'_, ()>;
    /// Rolls back.
    fn rollback(tx: Self::Tx<'_>) -> Promise<'_, ()>;
}

/// A call on a connection that is not there.
fn not_connected() -> InboxError {
    InboxError::from_driver(std::io::Error::from(std::io::ErrorKind::NotConnected), None, None, true)
}

#[cfg(feature = "tokio-postgres")]
pub use postgres::Postgres;
#[cfg(feature = "tokio-postgres")]
mod postgres {
    use tokio_postgres::types::Type;
    use tokio_postgres::{Client, Error, Transaction};

    use super::{Attempts, Claim, Database, Inbox, MessageId, Promise, Scope, not_connected};
    use crate::drivers::Prepared;
    use crate::sql::Dialect;

    /// PostgreSQL by tokio-postgres, in READ COMMITTED unless the session says otherwise.
    pub struct Postgres<C> {
        connect: C,
        client: Option<Client>,
        prepares: bool,
        /// On this client.
        prepared: Option<Prepared>,
    }

    impl<C> std::fmt::Debug for Postgres<C> {
        fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.debug_struct("Postgres").field("connected", &self.client.is_some()).finish_non_exhaustive()
        }
    }

    impl<C, F> Postgres<C>
    where
        C: FnMut() -> F + Send + 'static,
        F: Future<Output = Result<Client, Error>> + Send + 'static,
    {
        /// `connect` makes a client and spawns its connection; it is called again when that is gone.
        pub fn new(connect: C) -> Self {
            Self { connect, client: None, prepares: false, prepared: None }
        }

        /// The same with the claim prepared once on each connection (see [`Inbox::prepare`]): not behind a pooler that hands
        /// out transactions.
        #[must_use]
        pub fn prepared(mut self) -> Self {
            self.prepares = true;
            self
        }
    }

    impl<C, F> Database for Postgres<C>
    where
        C: FnMut() -> F + Send + 'static,
        F: Future<Output = Result<Client, Error>> + Send + 'static,
    {
        type Tx<'t> = Transaction<'t>;
        type Claims = Option<Prepared>;

        fn connect(&mut self) -> Promise<'_, ()> {
            Box::pin(async move {
                if self.client.as_ref().is_none_or(Client::is_closed) {
                    self.disconnect();
                    self.client = Some((self.connect)().await?);
                }
                Ok(())
            })
        }

        fn disconnect(&mut self) {
            (self.client, self.prepared) = (None, None);
        }

        fn claims<'a>(&'a mut self, inbox: &'a Inbox) -> Promise<'a, Option<Prepared>> {
            Box::pin(async move {
                if self.prepares && self.prepared.is_none() {
                    let client = self.client.as_ref().ok_or_else(not_connected)?;
                    self.prepared = Some(inbox.prepare(client).await?);
                }
                Ok(self.prepared.clone())
            })
        }

        fn begin(&mut self) -> Promise<'_, Transaction<'_>> {
            Box::pin(async move { Ok(self.client.as_mut().ok_or_else(not_connected)?.transaction().await?) })
        }

        fn claim<'a>(
            tx: &'a mut Transaction<'_>,
            prepared: &'a Option<Prepared>,
            inbox: &'a Inbox,
            scope: &'a Scope,
            id: &'a MessageId,
        ) -> Promise<'a, Claim> {
            match prepared {
                Some(prepared) => inbox.claim(prepared.on(tx), scope, id),
                None => inbox.claim(&*tx, scope, id),
            }
        }

        fn count<'a>(
            tx: &'a mut Transaction<'_>,
            attempts: &'a Attempts,
            scope: &'a Scope,
            id: &'a MessageId,
        ) -> Promise<'a, u32> {
            Box::pin(async move {
                let texts = attempts.sql(Dialect::Postgres);
                let (scope, id) = (scope.as_str(), id.as_str());
                tx.execute_typed(&texts.expire, &[(&scope, Type::TEXT)]).await?;
                let row = tx.query_typed_one(&texts.count, &[(&scope, Type::TEXT), (&id, Type::TEXT)]).await?;
                Ok(u32::try_from(row.try_get::<_, i64>(0)?).unwrap_or(u32::MAX))
            })
        }

        fn forget<'a>(
            tx: &'a mut Transaction<'_>,
            attempts: &'a Attempts,
            scope: &'a Scope,
            id: &'a MessageId,
        ) -> Promise<'a, ()> {
            Box::pin(async move {
                let (scope, id) = (scope.as_str(), id.as_str());
                let forget = &attempts.sql(Dialect::Postgres).forget;
                tx.execute_typed(forget, &[(&scope, Type::TEXT), (&id, Type::TEXT)]).await?;
                Ok(())
            })
        }

        fn commit(tx: Self::Tx<'_>) -> Promise<'_, ()> {
            Box::pin(async move { Ok(tx.commit().await?) })
        }

        fn rollback(tx: Self::Tx<'_>) -> Promise<'_, ()> {
            Box::pin(async move { Ok(tx.rollback().await?) })
        }
    }
}

#[cfg(feature = "mysql")]
pub use mysql::MySql;
#[cfg(feature = "mysql")]
mod mysql {
    use mysql_async::prelude::Queryable as _;
    use mysql_async::{Conn, Opts, Transaction, TxOpts};

    use super::{Attempts, Claim, Database, Inbox, MessageId, Promise, Scope, not_connected};
    use crate::sql::Dialect;

    /// MySQL and MariaDB by mysql_async.
    pub struct MySql {
        options: Opts,
        conn: Option<Conn>,
    }

    impl std::fmt::Debug for MySql {
        fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            // The options have the password.
            out.debug_struct("MySql").field("connected", &self.conn.is_some()).finish_non_exhaustive()
        }
    }

    impl MySql {
        /// Connects with these options, again when the connection is gone.
        pub fn new(options: Opts) -> Self {
            Self { options, conn: None }
        }
    }

    impl Database for MySql {
        type Tx<'t> = Transaction<'t>;
        type Claims = ();

        fn connect(&mut self) -> Promise<'_, ()> {
            Box::pin(async move {
                if self.conn.is_none() {
                    self.conn = Some(Conn::new(self.options.clone()).await?);
                }
                Ok(())
            })
        }

        fn disconnect(&mut self) {
            self.conn = None;
        }

        fn claims<'a>(&'a mut self, _inbox: &'a Inbox) -> Promise<'a, ()> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn begin(&mut self) -> Promise<'_, Transaction<'_>> {
            Box::pin(async move {
                Ok(self.conn.as_mut().ok_or_else(not_connected)?.start_transaction(TxOpts::new()).await?)
            })
        }

        fn claim<'a>(
            tx: &'a mut Transaction<'_>,
            _prepared: &'a (),
            inbox: &'a Inbox,
            scope: &'a Scope,
            id: &'a MessageId,
        ) -> Promise<'a, Claim> {
            inbox.claim(tx, scope, id)
        }

        fn count<'a>(
            tx: &'a mut Transaction<'_>,
            attempts: &'a Attempts,
            scope: &'a Scope,
            id: &'a MessageId,
        ) -> Promise<'a, u32> {
            Box::pin(async move {
                let texts = attempts.sql(Dialect::MySql);
                let key = (scope.as_str().as_bytes(), id.as_str().as_bytes());
                tx.exec_drop(texts.expire.as_str(), (key.0,)).await?;
                tx.exec_drop(texts.count.as_str(), key).await?;
                Ok(tx.exec_first(texts.read.as_str(), key).await?.unwrap_or(1))
            })
        }

        fn forget<'a>(
            tx: &'a mut Transaction<'_>,
            attempts: &'a Attempts,
            scope: &'a Scope,
            id: &'a MessageId,
        ) -> Promise<'a, ()> {
            Box::pin(async move {
                let key = (scope.as_str().as_bytes(), id.as_str().as_bytes());
                Ok(tx.exec_drop(attempts.sql(Dialect::MySql).forget.as_str(), key).await?)
            })
        }

        fn commit(tx: Self::Tx<'_>) -> Promise<'_, ()> {
            Box::pin(async move { Ok(tx.commit().await?) })
        }

        fn rollback(tx: Self::Tx<'_>) -> Promise<'_, ()> {
            Box::pin(async move { Ok(tx.rollback().await?) })
        }
    }
}

#[cfg(feature = "rusqlite")]
pub use sqlite::Sqlite;
#[cfg(feature = "rusqlite")]
mod sqlite {
    use rusqlite::{Connection, Transaction, TransactionBehavior};

    use super::{Attempts, Claim, Database, Inbox, InboxError, MessageId, Promise, Scope, not_connected};
    use crate::sql::Dialect;

    /// What has been done already, as everything that blocks.
    fn done<'a, T: Send + 'a>(result: Result<T, InboxError>) -> Promise<'a, T> {
        Box::pin(std::future::ready(result))
    }

    /// SQLite by rusqlite. Transactions begin with BEGIN IMMEDIATE, and every call blocks the thread: run the consumer
    /// on a thread of its own.
    pub struct Sqlite<O> {
        open: O,
        connection: Option<Connection>,
    }

    impl<O> std::fmt::Debug for Sqlite<O> {
        fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            out.debug_struct("Sqlite").field("connected", &self.connection.is_some()).finish_non_exhaustive()
        }
    }

    impl<O: FnMut() -> rusqlite::Result<Connection> + 'static> Sqlite<O> {
        /// `open` opens the database and sets its pragmas.
        pub fn new(open: O) -> Self {
            Self { open, connection: None }
        }
    }

    impl<O: FnMut() -> rusqlite::Result<Connection> + 'static> Database for Sqlite<O> {
        type Tx<'t> = Transaction<'t>;
        type Claims = ();

        fn connect(&mut self) -> Promise<'_, ()> {
            if self.connection.is_none() {
                match (self.open)() {
                    Ok(connection) => self.connection = Some(connection),
                    Err(error) => return done(Err(error.into())),
                }
            }
            done(Ok(()))
        }

        fn disconnect(&mut self) {
            self.connection = None;
        }

        fn claims<'a>(&'a mut self, _inbox: &'a Inbox) -> Promise<'a, ()> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn begin(&mut self) -> Promise<'_, Transaction<'_>> {
            // The transaction itself is not `Send`, the connection is.
            let connection = self.connection.as_mut();
            Box::pin(async move {
                let connection = connection.ok_or_else(not_connected)?;
                Ok(connection.transaction_with_behavior(TransactionBehavior::Immediate)?)
            })
        }

        fn claim<'a>(
            tx: &'a mut Transaction<'_>,
            _prepared: &'a (),
            inbox: &'a Inbox,
            scope: &'a Scope,
            id: &'a MessageId,
        ) -> Promise<'a, Claim> {
            done(inbox.claim(&*tx, scope, id))
        }

        fn count<'a>(
            tx: &'a mut Transaction<'_>,
            attempts: &'a Attempts,
            scope: &'a Scope,
            id: &'a MessageId,
        ) -> Promise<'a, u32> {
            let texts = attempts.sql(Dialect::Sqlite);
            let counted = tx
                .execute(&texts.expire, [scope.as_str()])
                .and_then(|_| tx.query_row(&texts.count, (scope.as_str(), id.as_str()), |row| row.get(0)));
            done(counted.map_err(InboxError::from))
        }

        fn forget<'a>(
            tx: &'a mut Transaction<'_>,
            attempts: &'a Attempts,
            scope: &'a Scope,
            id: &'a MessageId,
        ) -> Promise<'a, ()> {
            let forgotten = tx.execute(&attempts.sql(Dialect::Sqlite).forget, (scope.as_str(), id.as_str()));
            done(forgotten.map(drop).map_err(InboxError::from))
        }

        fn commit(tx: Self::Tx<'_>) -> Promise<'_, ()> {
            done(tx.commit().map_err(InboxError::from))
        }

        fn rollback(tx: Self::Tx<'_>) -> Promise<'_, ()> {
            done(tx.rollback().map_err(InboxError::from))
        }
    }
}
