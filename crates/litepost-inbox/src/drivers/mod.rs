//! The database drivers, one file each, behind the feature of the same name.
//!
//! Called through [`crate::Inbox::claim`] and [`crate::Cleaner`]. Invariant: a driver binds and reads;
//! it decides nothing.

#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "tokio-postgres")]
mod postgres;
#[cfg(feature = "rusqlite")]
mod sqlite;

#[cfg(feature = "tokio-postgres")]
pub use postgres::{Prepared, PreparedTransaction};

#[cfg(any(feature = "mysql", feature = "tokio-postgres"))]
pub(crate) type Boxed<'a, T> = std::pin::Pin<Box<dyn Future<Output = Result<T, crate::InboxError>> + Send + 'a>>;
