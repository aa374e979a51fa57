//! What MySQL's and MariaDB's errors mean for delivery: by error number, never by message text.

use litepost_core::{Rejection, Unavailable, UnavailableKind};
use mysql_async::Error;

use crate::sinks::sql::{Fault, one_line};

/// Sorts an error of the driver.
pub(super) fn sort(error: &Error) -> Fault {
    match error {
        Error::Server(e) => by_number(e.code, &e.state, &e.message),
        _ => Fault::Unavailable(Unavailable::new(UnavailableKind::Connect, one_line(error))),
    }
}

fn by_number(code: u16, state: &str, message: &str) -> Fault {
    use UnavailableKind::{Busy, Connect, Denied, Server, Timeout};
    let unavailable = |kind| Fault::Unavailable(Unavailable::new(kind, format!("{message} ({code})")));
    let name = code.to_string();
    match code {
        // Lock wait, deadlock, too many connections (of the server, of the user), record changed since read.
        1205 | 1213 | 1040 | 1203 | 1226 | 1020 | 3572 => unavailable(Busy),
        // Shutting down, connection killed, gone away, lost, aborted, idle for too long, packets out of order.
        1053 | 1927 | 2006 | 2013 | 1152 | 1158..=1161 | 1184 | 4031 | 1043 => unavailable(Connect),
        // Statement time exceeded, query interrupted, idle transaction ended.
        1969 | 3024 | 1317 | 4027..=4030 => unavailable(Timeout),
        // Read-only (failover), disk full, out of memory or resources, table full, internal errors of InnoDB; the server's
        // own files: not made, not found, not read, not written, locked, damaged. Below 1000 are those of the operating
        // system, as they come from temporary files (28: no space).
        1290
        | 1792
        | 1836
        | 1021
        | 1037
        | 1038
        | 1041
        | 1114
        | 1030
        | 1105
        | 1180
        | 1181
        | 1..=999
        | 1004
        | 1016..=1018
        | 1023
        | 1024
        | 1026
        | 1034
        | 1035
        | 1194
        | 1195 => unavailable(Server),
        // Access denied to the server or the database, unknown database, host blocked.
        1044 | 1045 | 1049 | 1129 | 1130 | 1698 | 1862 => unavailable(Denied),
        // Missing: table, column, routine; and the right to use one.
        1146 | 1054 | 1305 | 1142 | 1143 | 1370 => Fault::Rejected(Rejection::hold(name, message)),
        // Syntax; not preparable.
        1064 | 1149 | 1295 => Fault::Rejected(Rejection::never(name, message)),
        _ if state.starts_with("08") => unavailable(Connect),
        _ if state.starts_with("40") => unavailable(Busy),
        _ => Fault::Rejected(Rejection::new(name, message)),
    }
}

#[cfg(test)]
mod tests {
    use litepost_core::RetryHint;

    use super::*;

    #[test]
    fn only_what_is_wrong_with_the_event_is_rejected() {
        for (code, kind) in [
            (1205, UnavailableKind::Busy),
            (1213, UnavailableKind::Busy),
            (1040, UnavailableKind::Busy),
            (1290, UnavailableKind::Server),
            (2006, UnavailableKind::Connect),
            (1053, UnavailableKind::Connect),
            (2, UnavailableKind::Server),
            (28, UnavailableKind::Server),
            (1017, UnavailableKind::Server),
            (1026, UnavailableKind::Server),
            (1045, UnavailableKind::Denied),
        ] {
            assert!(matches!(by_number(code, "HY000", "m"), Fault::Unavailable(u) if u.kind == kind), "{code}");
        }
        for (code, retry) in [
            (1062, RetryHint::Policy),
            (1366, RetryHint::Policy),
            (1064, RetryHint::Never),
            (1146, RetryHint::Hold),
            (1054, RetryHint::Hold),
        ] {
            assert!(matches!(by_number(code, "42000", "m"), Fault::Rejected(r) if r.retry == retry), "{code}");
        }
    }
}
