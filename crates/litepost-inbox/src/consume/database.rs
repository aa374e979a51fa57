//! The consumer's database as the loop uses it: connect, begin, claim, commit.
//!
//! Called by the loop. Invariant: it holds one connection, makes a new one when that is gone, and never commits without
//! having been told to.

use crate::claim::Claim;
use crate::error::InboxError;
use crate::ident::{MessageId, Scope};
use crate::inbox::Inbox;

/// A database with transactions that a message can be claimed in.
pub trait Database: 'static {
    /// The driver's transaction.
    type Tx<'t>;

    /// Connects, unless it is connected.
    fn connect(&mut self) -> impl Future<Output = Result<(), InboxError>>;
    /// Forgets the connection.
    fn disconnect(&mut self);
    /// Begins a transaction on the connection.
    fn begin(&mut self) -> impl Future<Output = Result<Self::Tx<'_>, InboxError>>;
    /// Claims a message in the transaction.
    fn claim(
        tx: &mut Self::Tx<'_>,
        inbox: &Inbox,
        scope: &Scope,
        id: &MessageId,
    ) -> impl Future<Output = Result<Claim, InboxError>>;
    /// Commits.
    fn commit(tx: Self::Tx<'_>) -> impl Future<Output = Result<(), InboxError>>;
    /// Rolls back.
    fn rollback(tx: Self::Tx<'_>) -> impl Future<Output = Result<(), InboxError>>;
}

/// A call on a connection that is not there.
fn not_connected() -> InboxError {
    InboxError::from_driver(std::io::Error::from(std::io::ErrorKind::NotConnected), None, None, true)
}

#[cfg(feature = "tokio-postgres")]
pub use postgres::Postgres;
#[cfg(feature = "tokio-postgres")]
mod postgres {
    use tokio_postgres::{Client, Error, Transaction};

    use super::{Claim, Database, Inbox, InboxError, MessageId, Scope, not_connected};

    /// PostgreSQL by tokio-postgres, in READ COMMITTED unless the session says otherwise.
    #[derive(Debug)]
    pub struct Postgres<C> {
        connect: C,
        client: Option<Client>,
    }

    impl<C: AsyncFnMut() -> Result<Client, Error> + 'static> Postgres<C> {
        /// `connect` makes a client and spawns its connection; it is called again when that is gone.
        pub fn new(connect: C) -> Self {
            Self { connect, client: None }
        }
    }

    impl<C: AsyncFnMut() -> Result<Client, Error> + 'static> Database for Postgres<C> {
        type Tx<'t> = Transaction<'t>;

        async fn connect(&mut self) -> Result<(), InboxError> {
            if self.client.as_ref().is_none_or(Client::is_closed) {
                self.client = Some((self.connect)().await?);
            }
            Ok(())
        }

        fn disconnect(&mut self) {
            self.client = None;
        }

        async fn begin(&mut self) -> Result<Transaction<'_>, InboxError> {
            Ok(self.client.as_mut().ok_or_else(not_connected)?.transaction().await?)
        }

        async fn claim(
            tx: &mut Self::Tx<'_>,
            inbox: &Inbox,
            scope: &Scope,
            id: &MessageId,
        ) -> Result<Claim, InboxError> {
            inbox.claim(&*tx, scope, id).await
        }

        async fn commit(tx: Self::Tx<'_>) -> Result<(), InboxError> {
            Ok(tx.commit().await?)
        }

        async fn rollback(tx: Self::Tx<'_>) -> Result<(), InboxError> {
            Ok(tx.rollback().await?)
        }
    }
}

#[cfg(feature = "mysql")]
pub use mysql::MySql;
#[cfg(feature = "mysql")]
mod mysql {
    use mysql_async::{Conn, Opts, Transaction, TxOpts};

    use super::{Claim, Database, Inbox, InboxError, MessageId, Scope, not_connected};

    /// MySQL and MariaDB by mysql_async.
    #[derive(Debug)]
    pub struct MySql {
        options: Opts,
        conn: Option<Conn>,
    }

    impl MySql {
        /// Connects with these options, again when the connection is gone.
        pub fn new(options: Opts) -> Self {
            Self { options, conn: None }
        }
    }

    impl Database for MySql {
        type Tx<'t> = Transaction<'t>;

        async fn connect(&mut self) -> Result<(), InboxError> {
            if self.conn.is_none() {
                self.conn = Some(Conn::new(self.options.clone()).await?);
            }
            Ok(())
        }

        fn disconnect(&mut self) {
            self.conn = None;
        }

        async fn begin(&mut self) -> Result<Transaction<'_>, InboxError> {
            Ok(self.conn.as_mut().ok_or_else(not_connected)?.start_transaction(TxOpts::new()).await?)
        }

        async fn claim(
            tx: &mut Self::Tx<'_>,
            inbox: &Inbox,
            scope: &Scope,
            id: &MessageId,
        ) -> Result<Claim, InboxError> {
            inbox.claim(tx, scope, id).await
        }

        async fn commit(tx: Self::Tx<'_>) -> Result<(), InboxError> {
            Ok(tx.commit().await?)
        }

        async fn rollback(tx: Self::Tx<'_>) -> Result<(), InboxError> {
            Ok(tx.rollback().await?)
        }
    }
}

#[cfg(feature = "rusqlite")]
pub use sqlite::Sqlite;
#[cfg(feature = "rusqlite")]
mod sqlite {
    use rusqlite::{Connection, Transaction, TransactionBehavior};

    use super::{Claim, Database, Inbox, InboxError, MessageId, Scope, not_connected};

    /// SQLite by rusqlite. Transactions begin with BEGIN IMMEDIATE, and every call blocks the thread: run the consumer
    /// on a thread of its own.
    #[derive(Debug)]
    pub struct Sqlite<O> {
        open: O,
        connection: Option<Connection>,
    }

    impl<O: FnMut() -> rusqlite::Result<Connection> + 'static> Sqlite<O> {
        /// `open` opens the database and sets its pragmas.
        pub fn new(open: O) -> Self {
            Self { open, connection: None }
        }
    }

    impl<O: FnMut() -> rusqlite::Result<Connection> + 'static> Database for Sqlite<O> {
        type Tx<'t> = Transaction<'t>;

        async fn connect(&mut self) -> Result<(), InboxError> {
            if self.connection.is_none() {
                self.connection = Some((self.open)()?);
            }
            Ok(())
        }

        fn disconnect(&mut self) {
            self.connection = None;
        }

        async fn begin(&mut self) -> Result<Transaction<'_>, InboxError> {
            let connection = self.connection.as_mut().ok_or_else(not_connected)?;
            Ok(connection.transaction_with_behavior(TransactionBehavior::Immediate)?)
        }

        async fn claim(
            tx: &mut Self::Tx<'_>,
            inbox: &Inbox,
            scope: &Scope,
            id: &MessageId,
        ) -> Result<Claim, InboxError> {
            inbox.claim(&*tx, scope, id)
        }

        async fn commit(tx: Self::Tx<'_>) -> Result<(), InboxError> {
            Ok(tx.commit()?)
        }

        async fn rollback(tx: Self::Tx<'_>) -> Result<(), InboxError> {
            Ok(tx.rollback()?)
        }
    }
}
