//! The name of the inbox table, checked once and quoted for each database.
//!
//! Called by [`crate::Inbox::new`] and the SQL texts. Invariant: no name reaches SQL unquoted, and no
//! database truncates it or the index name made from it.

use std::fmt;

use crate::error::InboxError;
use crate::sql::Dialect;

/// The longest part of a name in bytes: PostgreSQL cuts names at 63, and `_processed_at` is appended.
const PART_BYTES_MAX: usize = 50;

/// `table` or `schema.table`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableName {
    schema: Option<String>,
    table: String,
}

impl TableName {
    /// Checks a name. The part before the first dot, if any, is the schema.
    pub fn new(name: &str) -> Result<Self, InboxError> {
        let (schema, table) = match name.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, name),
        };
        for part in schema.into_iter().chain([table]) {
            let reason = if part.is_empty() {
                "a part is empty"
            } else if part.len() > PART_BYTES_MAX {
                "a part is longer than 50 bytes"
            } else if part.chars().any(char::is_control) {
                "it contains a control character"
            } else if part.contains('.') {
                "it has more than two parts"
            } else {
                continue;
            };
            return Err(InboxError::TableName { name: name.to_owned(), reason });
        }
        Ok(Self { schema: schema.map(str::to_owned), table: table.to_owned() })
    }

    /// The whole name, quoted for `dialect`.
    pub(crate) fn quoted(&self, dialect: Dialect) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", quote(schema, dialect), quote(&self.table, dialect)),
            None => quote(&self.table, dialect),
        }
    }

    /// The schema, if one is named, and the table, both as they are.
    pub(crate) fn parts(&self) -> (Option<&str>, &str) {
        (self.schema.as_deref(), &self.table)
    }

    /// The table alone: what follows ON in SQLite's CREATE INDEX.
    pub(crate) fn bare(&self, dialect: Dialect) -> String {
        quote(&self.table, dialect)
    }

    /// The name of the index on `processed_at`. In SQLite an index carries its table's schema, elsewhere not.
    pub(crate) fn index(&self, dialect: Dialect) -> String {
        let name = quote(&format!("{}_processed_at", self.table), dialect);
        match (&self.schema, dialect) {
            (Some(schema), Dialect::Sqlite) => format!("{}.{name}", quote(schema, dialect)),
            _ => name,
        }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write!(out, "{schema}.")?;
        }
        out.write_str(&self.table)
    }
}

fn quote(part: &str, dialect: Dialect) -> String {
    let mark = if dialect == Dialect::MySql { '`' } else { '"' };
    let doubled = part.replace(mark, &format!("{mark}{mark}"));
    format!("{mark}{doubled}{mark}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_whatever_it_accepts() {
        let name = TableName::new("app.in\"bo`x; --").unwrap();
        assert_eq!(name.quoted(Dialect::Postgres), "\"app\".\"in\"\"bo`x; --\"");
        assert_eq!(name.quoted(Dialect::MySql), "`app`.`in\"bo``x; --`");
        assert_eq!(name.index(Dialect::Sqlite), "\"app\".\"in\"\"bo`x; --_processed_at\"");
    }

    #[test]
    fn refuses_what_a_database_would_bend() {
        for name in ["", ".", "a.", ".b", "a.b.c", "a\0", &"x".repeat(51)] {
            assert!(TableName::new(name).is_err(), "{name:?}");
        }
        assert!(TableName::new(&"x".repeat(50)).is_ok());
    }
}
