//! The keys beside `connection` that every SQL destination understands, for the target and for each of its tables.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::sink::{SinkConfigError, SinkSettings};
use crate::sinks::settings;

/// Keys beside `connection`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    /// How a statement that is sent twice is recognised.
    #[serde(default)]
    pub(crate) dedupe: Dedupe,
    /// Whether what is missing in the target (the ledger, the column `outbox_seq`) is created.
    #[serde(default = "yes")]
    pub(crate) auto_schema: bool,
    /// What holds for single tables.
    #[serde(skip)]
    tables: BTreeMap<String, TableOptions>,
}

/// What holds for one table.
#[derive(Clone, Copy, Debug)]
struct TableOptions {
    dedupe: Dedupe,
    auto_schema: bool,
}

/// What a table's entry says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    dedupe: Option<Dedupe>,
    auto_schema: Option<bool>,
}

/// How a statement that is sent twice is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Dedupe {
    /// By a ledger in the target.
    #[default]
    Ledger,
    /// By the ledger, and each row of an INSERT carries the number of its event (sqloutbox's column).
    OutboxSeq,
    /// Not at all.
    None,
}

fn yes() -> bool {
    true
}

impl Options {
    /// Reads and checks them, for a type of destination that has no `outbox_seq`.
    #[allow(dead_code, reason = "which types are built is a matter of features")]
    pub(crate) fn read(settings: &SinkSettings) -> Result<Self, SinkConfigError> {
        let options = Self::read_with_outbox_seq(settings)?;
        if options.dedupe == Dedupe::OutboxSeq || options.tables.values().any(|t| t.dedupe == Dedupe::OutboxSeq) {
            return Err(SinkConfigError::new(
                "dedupe",
                "\"outbox_seq\" needs a conflict that is aimed at one index, which this type of destination does not have; \
                 use \"ledger\", which needs no column in your tables and takes any SQL, or \"none\"",
            ));
        }
        Ok(options)
    }

    /// Reads and checks them.
    pub(crate) fn read_with_outbox_seq(settings: &SinkSettings) -> Result<Self, SinkConfigError> {
        let mut options: Self = settings::options(settings)?;
        for (name, table) in &settings.tables {
            let said: Said = toml::Value::Table(table.clone())
                .try_into()
                .map_err(|e: toml::de::Error| SinkConfigError::new("tables", format!("{name}: {}", e.message())))?;
            let table = TableOptions {
                dedupe: said.dedupe.unwrap_or(options.dedupe),
                auto_schema: said.auto_schema.unwrap_or(options.auto_schema),
            };
            options.tables.insert(name.clone(), table);
        }
        Ok(options)
    }

    /// Whether the target keeps a ledger: one table that needs it is enough, since all share the lane's transactions.
    pub(crate) fn keeps_ledger(&self) -> bool {
        if self.tables.is_empty() {
            return self.dedupe != Dedupe::None;
        }
        self.tables.values().any(|table| table.dedupe != Dedupe::None)
    }

    /// The tables that the target names.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &str> {
        self.tables.keys().map(String::as_str)
    }

    /// Whether the ledger may be created.
    pub(crate) fn may_create_ledger(&self) -> bool {
        self.auto_schema
    }

    /// Whether rows of `table` carry numbers, and if so whether the column may be added.
    pub(crate) fn outbox_seq(&self, table: &str) -> Option<bool> {
        let own = self.tables.get(table).copied();
        let own = own.unwrap_or(TableOptions { dedupe: self.dedupe, auto_schema: self.auto_schema });
        (own.dedupe == Dedupe::OutboxSeq).then_some(own.auto_schema)
    }
}

/// A deadline from the configuration, in milliseconds.
pub(crate) fn deadline(key: &str, ms: u64) -> Result<Duration, SinkConfigError> {
    if ms == 0 || ms > 86_400_000 {
        return Err(SinkConfigError::new(key, "must be between 1 and 86400000 milliseconds"));
    }
    Ok(Duration::from_millis(ms))
}
