//! Idempotent consumers: claim a message inside the transaction that handles it.
//!
//! A broker that promises at-least-once delivery sends some messages twice. An inbox makes the second
//! delivery harmless: the consumer inserts a *marker* `(scope, message_id)` in the same database
//! transaction as its own writes. Marker and effects commit together or not at all, so a redelivered
//! message finds its marker and is skipped.
//!
//! ```
//! # #[cfg(feature = "rusqlite")] {
//! use litepost_inbox::{Claim, Dialect, Inbox, MessageId, Scope};
//!
//! let inbox = Inbox::new("inbox")?;
//! let scope = Scope::new("billing.charge-card.v1")?;
//! let mut connection = rusqlite::Connection::open_in_memory()?;
//! connection.execute_batch(&inbox.schema(Dialect::Sqlite))?;
//!
//! for delivery in ["m-1", "m-2", "m-1"] {
//!     let tx = connection.transaction()?;
//!     if inbox.claim(&tx, &scope, &MessageId::new(delivery)?)? == Claim::First {
//!         // the consumer's own writes, on `tx`
//!     }
//!     tx.commit()?; // and now the broker may be told
//! }
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same call takes a `&tokio_postgres::Transaction` or a `&mut mysql_async::Transaction` and is then
//! awaited. Each driver is a feature: `tokio-postgres`, `mysql`, `rusqlite`.
//!
//! A connection that is in no transaction is not accepted:
//!
//! ```compile_fail,E0277
//! # fn nothing(connection: &rusqlite::Connection) {
//! let inbox = litepost_inbox::Inbox::new("inbox").unwrap();
//! let scope = litepost_inbox::Scope::new("orders.ship.v1").unwrap();
//! let id = litepost_inbox::MessageId::new("42").unwrap();
//! let claim = inbox.claim(connection, &scope, &id);
//! # }
//! ```
//!
//! With a feature for its broker (`nats`, `redis`, `amqp`, `kafka`) the module `consume` has the loop around the
//! claim: receive, claim, handle, commit, and only then acknowledge.
//!
//! What the claim promises on each database, and where they differ, is in `docs/inbox.md`.

mod claim;
mod cleaner;
mod clock;
#[cfg(feature = "consume")]
pub mod consume;
mod digest;
mod drivers;
mod error;
mod horizon;
mod ident;
mod inbox;
mod moment;
mod ready;
mod sql;
mod status;
mod table;

pub mod driver;

pub use claim::{Answer, Claim};
pub use cleaner::{CleanPlan, Cleaner, CleanupResult, Progress, ScopePlan};
pub use digest::Digest;
#[cfg(feature = "tokio-postgres")]
pub use drivers::{Prepared, PreparedTransaction};
pub use error::{IdentError, InboxError};
pub use horizon::Horizon;
pub use ident::{LENGTH_MAX, MessageId, Scope};
pub use inbox::{Inbox, InboxOptions};
pub use moment::Moment;
pub use sql::Dialect;
pub use status::{ScopeStatus, Status};
pub use table::TableName;
