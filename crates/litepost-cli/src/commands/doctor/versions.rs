//! Which litepost programs have worked on a file, beside this one.
//!
//! Called for each file whose schema is this program's. Invariant: reads only what programs have said of themselves in the
//! file: relays where they hold a lane, and who made or migrated the tables. A process that has neither done is not known.

use litepost::lanes::{HolderInfo, holder_is_gone};
use rusqlite::Connection;

use crate::output::harmless;

/// Another version than this one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Skew {
    pub(super) found: String,
    pub(super) hint: &'static str,
}

const OWN: &str = env!("CARGO_PKG_VERSION");

/// All that is found.
pub(super) fn skews(connection: &Connection) -> rusqlite::Result<Vec<Skew>> {
    let holders =
        texts(connection, "SELECT DISTINCT holder FROM main.litepost_cursor WHERE owner IS NOT NULL ORDER BY 1")?;
    let makers = texts(connection, "SELECT DISTINCT applied_by FROM main.litepost_schema ORDER BY 1")?;
    let mut relays: Vec<Skew> = Vec::new();
    for skew in holders.iter().filter(|holder| !holder_is_gone(holder)).filter_map(|holder| relay(holder)) {
        // A relay that holds many lanes is one.
        if !relays.contains(&skew) {
            relays.push(skew);
        }
    }
    Ok(relays.into_iter().chain(makers.iter().filter_map(|maker| made(maker))).collect())
}

fn texts(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let found: Vec<Option<String>> =
        connection.prepare(sql)?.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(found.into_iter().flatten().collect())
}

/// A relay of another version that has a lane.
fn relay(holder: &str) -> Option<Skew> {
    let holder = HolderInfo::of(holder)?;
    let place = format!("process {} on {}", holder.pid, harmless(&holder.host));
    let found = match holder.version.as_deref() {
        Some(OWN) => return None,
        Some(version) => format!("a relay of litepost {} ({place}) delivers from it, this is {OWN}", harmless(version)),
        None => format!("a relay that does not tell its version ({place}) delivers from it, this is {OWN}"),
    };
    Some(Skew { found, hint: "one version at a time: restart the relay with the program that is installed now" })
}

/// A newer program has made or migrated the tables: `litepost 0.2.0`, `litepost python 0.2.0`.
fn made(applied_by: &str) -> Option<Skew> {
    let (_, version) = applied_by.rsplit_once(' ')?;
    (numbers(version)? > numbers(OWN)?).then(|| Skew {
        found: format!("{} has made or migrated the tables, this is {OWN}", harmless(applied_by)),
        hint: "the schema is the same, and older programs do not know what newer ones changed beside it: update this one",
    })
}

/// `1.2.3` as numbers, whatever stands behind them.
fn numbers(version: &str) -> Option<[u64; 3]> {
    let digits = |part: &str| part.bytes().take_while(u8::is_ascii_digit).count();
    let mut parts = version.splitn(3, '.').map(|part| part[..digits(part)].parse().ok());
    Some([parts.next()??, parts.next()??, parts.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_newer_maker_counts() {
        for fine in
            ["ddl", "litepost 0.1.0", "litepost python 0.1.0", "litepost 0.0.9", "litepost", "", "litepost x.y.z"]
        {
            assert_eq!(made(fine), None, "{fine}");
        }
        for newer in ["litepost 0.1.1", "litepost python 0.10.0", "litepost 1.0.0-rc.1"] {
            assert!(made(newer).unwrap().found.starts_with(&format!("{newer} has made")), "{newer}");
        }
    }

    #[test]
    fn a_holder_that_is_no_json_is_nobody() {
        assert_eq!(relay("{}"), None);
        assert_eq!(relay(""), None);
        assert_eq!(relay(&HolderInfo::current().to_json()), None);
    }
}
