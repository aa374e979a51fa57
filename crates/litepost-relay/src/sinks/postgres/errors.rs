//! What PostgreSQL's errors mean for delivery: by SQLSTATE, never by message text.

use litepost_core::{Rejection, Unavailable, UnavailableKind};

use crate::sinks::sql::{Fault, one_line};

/// Sorts an error of the driver.
pub(super) fn sort(error: &tokio_postgres::Error) -> Fault {
    let message = one_line(error);
    match error.as_db_error() {
        Some(db) => {
            let message = match (db.constraint(), db.detail()) {
                (Some(constraint), _) => format!("{} (constraint {constraint})", db.message()),
                _ => db.message().to_owned(),
            };
            by_state(db.code().code(), message)
        }
        None => Fault::Unavailable(Unavailable::new(UnavailableKind::Connect, message)),
    }
}

fn by_state(state: &str, message: String) -> Fault {
    use UnavailableKind::{Busy, Connect, Denied, Server, Timeout};
    let unavailable = |kind| Fault::Unavailable(Unavailable::new(kind, format!("{message} ({state})")));
    match state {
        // The one member of class 40 that a retry cannot cure.
        "40002" => Fault::Rejected(Rejection::new(state, message)),
        // Statement prepared elsewhere or changed under us, lock not available, too many connections.
        "26000" | "55P03" | "53300" => unavailable(Busy),
        "57014" | "25P03" | "25P04" | "57P05" => unavailable(Timeout),
        "25006" => unavailable(Server),
        "3D000" | "0P000" => unavailable(Denied),
        // Missing: table, column, schema, function, type, the index of ON CONFLICT; and the right to use one.
        "42P01" | "42703" | "3F000" | "42883" | "42704" | "42501" | "42P10" => {
            Fault::Rejected(Rejection::hold(state, message))
        }
        "42601" => Fault::Rejected(Rejection::never(state, message)),
        _ => match state.get(..2) {
            Some("08") => unavailable(Connect),
            Some("40") => unavailable(Busy),
            Some("28") => unavailable(Denied),
            Some("53" | "57" | "58" | "XX" | "F0") => unavailable(Server),
            _ => Fault::Rejected(Rejection::new(state, message)),
        },
    }
}

#[cfg(test)]
mod tests {
    use litepost_core::RetryHint;

    use super::*;

    #[test]
    fn only_what_is_wrong_with_the_event_is_rejected() {
        for (state, kind) in [
            ("08006", UnavailableKind::Connect),
            ("40001", UnavailableKind::Busy),
            ("40P01", UnavailableKind::Busy),
            ("55P03", UnavailableKind::Busy),
            ("53300", UnavailableKind::Busy),
            ("57P01", UnavailableKind::Server),
            ("57P03", UnavailableKind::Server),
            ("53100", UnavailableKind::Server),
            ("25006", UnavailableKind::Server),
            ("57014", UnavailableKind::Timeout),
            ("28P01", UnavailableKind::Denied),
        ] {
            assert!(matches!(by_state(state, "m".into()), Fault::Unavailable(u) if u.kind == kind), "{state}");
        }
        for (state, retry) in [
            ("23505", RetryHint::Policy),
            ("22P02", RetryHint::Policy),
            ("42601", RetryHint::Never),
            ("42P01", RetryHint::Hold),
            ("42703", RetryHint::Hold),
        ] {
            assert!(matches!(by_state(state, "m".into()), Fault::Rejected(r) if r.retry == retry), "{state}");
        }
    }
}
