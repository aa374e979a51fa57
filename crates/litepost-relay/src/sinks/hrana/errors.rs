//! What the errors of a Hrana server mean for delivery: by HTTP status and by code, never by message text.
//!
//! Called by the client and the session. Invariant: a fault of the server, of a lock or of the network costs no event
//! an attempt. `SQLITE_ERROR` alone says neither; the session then asks the server whether the statement compiles.

use litepost_core::{Rejection, Unavailable, UnavailableKind};

use super::wire::Error;

/// Whose fault an error is.
#[derive(Debug)]
pub(super) enum Blame {
    /// The statement's.
    Rejected(Rejection),
    /// The server's.
    Unavailable(Unavailable),
    /// The code does not say; the rejection if it should be the statement's own when it runs.
    Unclear(Rejection),
}

/// Sorts the error of a statement.
pub(super) fn sort(error: &Error) -> Blame {
    use UnavailableKind::{Busy, Connect, Denied, Server, Timeout};
    let code = error.code.as_deref().unwrap_or("");
    let message = error.message.replace(['\n', '\r'], " ");
    let rejected = || Rejection::new(code, message.clone());
    let never = || Blame::Rejected(Rejection::never(code, message.clone()));
    let unavailable = |kind| Blame::Unavailable(Unavailable::new(kind, format!("{message} ({code})")));
    match code {
        "SQL_PARSE_ERROR"
        | "SQL_NO_STATEMENT"
        | "SQL_MANY_STATEMENTS"
        | "ARGS_INVALID"
        | "ARGS_BOTH_POSITIONAL_AND_NAMED" => return never(),
        "TRANSACTION_TIMEOUT" => return unavailable(Timeout),
        "TRANSACTION_BUSY" => return unavailable(Busy),
        "BLOCKED" | "AUTH_REJECTED" => return unavailable(Denied),
        _ => {}
    }
    // Extended codes begin with their primary one: SQLITE_CONSTRAINT_UNIQUE, SQLITE_BUSY_SNAPSHOT.
    match code.strip_prefix("SQLITE_").map(|rest| rest.split('_').next().unwrap_or(rest)) {
        Some("CONSTRAINT" | "MISMATCH") => Blame::Rejected(rejected()),
        Some("TOOBIG" | "RANGE" | "AUTH") => never(),
        Some("BUSY" | "LOCKED" | "PROTOCOL" | "SCHEMA" | "ABORT") => unavailable(Busy),
        Some("INTERRUPT") => unavailable(Timeout),
        Some("CANTOPEN") => unavailable(Connect),
        Some("PERM" | "READONLY") => unavailable(Denied),
        Some("FULL" | "IOERR" | "CORRUPT" | "NOTADB" | "NOMEM" | "INTERNAL" | "NOLFS" | "MISUSE" | "FORMAT") => {
            unavailable(Server)
        }
        _ => Blame::Unclear(rejected()),
    }
}

/// An error outside of any event's statement (BEGIN, COMMIT, the ledger): whatever it is, no event is at fault.
pub(super) fn unavailable(error: &Error) -> Unavailable {
    match sort(error) {
        Blame::Unavailable(u) => u,
        Blame::Rejected(r) | Blame::Unclear(r) => {
            Unavailable::new(UnavailableKind::Server, format!("{} ({})", r.message, r.code))
        }
    }
}

/// The kind of trouble that an HTTP status stands for.
pub(super) fn by_status(status: u16) -> UnavailableKind {
    match status {
        401 | 403 | 407 | 300..=399 => UnavailableKind::Denied,
        408 => UnavailableKind::Timeout,
        429 => UnavailableKind::Throttled,
        425 => UnavailableKind::Busy,
        _ => UnavailableKind::Server,
    }
}

#[cfg(test)]
mod tests {
    use litepost_core::RetryHint;

    use super::*;

    fn class(code: &str) -> String {
        // The message would mislead whoever read it.
        match sort(&Error { message: "no such table: database is locked".into(), code: Some(code.into()) }) {
            Blame::Rejected(r) if r.retry == RetryHint::Never => "never".into(),
            Blame::Rejected(_) => "rejected".into(),
            Blame::Unavailable(u) => format!("{:?}", u.kind),
            Blame::Unclear(_) => "unclear".into(),
        }
    }

    #[test]
    fn every_code_has_its_class() {
        for (code, expected) in [
            ("SQLITE_CONSTRAINT", "rejected"),
            ("SQLITE_CONSTRAINT_PRIMARYKEY", "rejected"),
            ("SQLITE_MISMATCH", "rejected"),
            ("SQLITE_TOOBIG", "never"),
            ("SQLITE_BUSY", "Busy"),
            ("SQLITE_BUSY_SNAPSHOT", "Busy"),
            ("SQLITE_LOCKED_SHAREDCACHE", "Busy"),
            ("SQLITE_IOERR_WRITE", "Server"),
            ("SQLITE_FULL", "Server"),
            ("SQLITE_READONLY", "Denied"),
            ("SQLITE_ERROR", "unclear"),
            ("SQLITE_UNKNOWN", "unclear"),
            ("SQL_INPUT_ERROR", "unclear"),
            ("BATCH_STEP_ERROR", "unclear"),
            ("", "unclear"),
            ("SQL_PARSE_ERROR", "never"),
            ("SQL_MANY_STATEMENTS", "never"),
            ("TRANSACTION_TIMEOUT", "Timeout"),
            ("TRANSACTION_BUSY", "Busy"),
            ("BLOCKED", "Denied"),
        ] {
            assert_eq!(class(code), expected, "{code}");
        }
    }

    #[test]
    fn no_status_costs_an_event_an_attempt() {
        use UnavailableKind::{Denied, Server, Throttled, Timeout};
        for (status, kind) in [
            (302, Denied),
            (401, Denied),
            (403, Denied),
            (408, Timeout),
            (429, Throttled),
            (500, Server),
            (503, Server),
        ] {
            assert_eq!(by_status(status), kind, "{status}");
        }
    }
}
