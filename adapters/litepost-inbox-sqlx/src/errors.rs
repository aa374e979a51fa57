//! sqlx's errors as those of the inbox: by SQLSTATE and vendor code.
//!
//! Called by the drivers, and by consumers for their own statements. Invariant: what is retryable here is what is with
//! the other drivers.

use litepost_inbox::InboxError;

/// The inbox's error for one of sqlx's; `InboxError::is_retryable` and `is_disconnected` then speak for it.
pub fn error(error: sqlx::Error) -> InboxError {
    let gone = matches!(
        error,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
    );
    let Some(database) = error.as_database_error() else {
        return InboxError::from_driver(error, None, None, gone);
    };
    let code = database.code().map(std::borrow::Cow::into_owned);
    #[cfg(feature = "sqlite")]
    if database.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        let code = code.and_then(|code| code.parse().ok());
        return InboxError::from_driver(error, None, code, false);
    }
    #[cfg(feature = "mysql")]
    if let Some(mysql) = database.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        let number = i64::from(mysql.number());
        return InboxError::from_driver(error, code.as_deref(), Some(number), false);
    }
    // 08: connection exceptions, 57P: the server shuts down.
    let gone = code.as_deref().is_some_and(|state| state.starts_with("08") || state.starts_with("57P"));
    InboxError::from_driver(error, code.as_deref(), None, gone)
}
