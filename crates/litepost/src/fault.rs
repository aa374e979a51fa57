//! What a SQLite result code means to litepost: one classification for every error of the crate and its adapters.

/// The kinds of trouble that call for different hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Busy,
    /// The snapshot of a transaction that began with a read is out of date: only a new transaction helps.
    StaleSnapshot,
    DiskFull,
    Io,
    ReadOnly,
    Corrupt,
    NotADatabase,
    CannotOpen,
    TooBig,
    NoTable,
    Other,
}

impl Fault {
    /// Classifies an extended result code and its message.
    pub(crate) fn of(extended_code: i32, message: &str) -> Self {
        // https://sqlite.org/rescode.html; the low byte is the primary code.
        const BUSY_SNAPSHOT: i32 = 517;
        match (extended_code & 0xff, extended_code) {
            (5, BUSY_SNAPSHOT) => Self::StaleSnapshot,
            // SQLITE_BUSY, SQLITE_LOCKED (shared cache), SQLITE_PROTOCOL (the WAL's locks kept changing hands)
            (5 | 6 | 15, _) => Self::Busy,
            (13, _) => Self::DiskFull,
            (10, _) => Self::Io,
            (8, _) => Self::ReadOnly,
            (11, _) => Self::Corrupt,
            (26, _) => Self::NotADatabase,
            (14, _) => Self::CannotOpen,
            (18, _) => Self::TooBig,
            (1, _) if message.contains("no such table") && message.contains("litepost_") => Self::NoTable,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_codes_keep_their_family() {
        assert_eq!(Fault::of(5, ""), Fault::Busy);
        assert_eq!(Fault::of(261, ""), Fault::Busy); // SQLITE_BUSY_RECOVERY
        assert_eq!(Fault::of(517, ""), Fault::StaleSnapshot);
        assert_eq!(Fault::of(778, ""), Fault::Io); // SQLITE_IOERR_WRITE
        assert_eq!(Fault::of(1032, ""), Fault::ReadOnly); // SQLITE_READONLY_DBMOVED
        assert_eq!(Fault::of(1, "no such table: main.litepost_outbox"), Fault::NoTable);
        assert_eq!(Fault::of(1, "no such table: orders"), Fault::Other);
    }
}
