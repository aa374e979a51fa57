//! The same configuration, built in code: builders whose methods have the names of the TOML keys.
//!
//! Called by programs that embed a relay. Invariant: what is built here passes through the very same reader and checks
//! as a file, so nothing is legal in code that is refused in TOML.

use std::fmt;
use std::path::Path;

use super::keys::{AdminOptions, AppOptions, DeliveryOptions, RetryOptions, SetKey, SinkOptions};
use super::load::Config;
use super::masked;
use super::problem::ConfigError;

/// A configuration with any number of apps.
///
/// ```
/// use litepost_relay::config::{AppBuilder, AppOptions as _, ConfigBuilder, DeliveryOptions as _};
/// use litepost_relay::config::{SinkOptions as _, TargetBuilder};
///
/// let config = ConfigBuilder::new()
///     .app(
///         AppBuilder::new("shop")
///             .database("shop.db")
///             .batch_size(100)
///             .sink(
///                 TargetBuilder::new("audit", "file")
///                     .topics(vec!["orders", "payments.*"])
///                     .connection("path", "events.jsonl"),
///             ),
///     )
///     .build(".")?;
/// assert_eq!(&*config.apps[0].destinations[0].name, "shop.audit");
/// # Ok::<(), litepost_relay::config::ConfigError>(())
/// ```
#[derive(Clone, Default)]
pub struct ConfigBuilder {
    admin: Option<toml::Table>,
    apps: toml::Table,
}

impl ConfigBuilder {
    /// No apps yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `[admin]`.
    #[must_use]
    pub fn admin(mut self, admin: AdminBuilder) -> Self {
        self.admin = Some(admin.table);
        self
    }

    /// Adds an app; one of the same name is replaced.
    #[must_use]
    pub fn app(mut self, app: AppBuilder) -> Self {
        self.apps.insert(app.name, toml::Value::Table(app.table));
        self
    }

    /// Checks everything; relative paths start at `folder`.
    pub fn build(self, folder: impl AsRef<Path>) -> Result<Config, ConfigError> {
        let mut root = toml::Table::new();
        root.insert("app".into(), toml::Value::Table(self.apps));
        root.extend(self.admin.map(|admin| ("admin".to_owned(), toml::Value::Table(admin))));
        Config::from_table(root, folder.as_ref())
    }
}

/// `[admin]`.
#[derive(Clone, Default)]
pub struct AdminBuilder {
    table: toml::Table,
}

impl AdminBuilder {
    /// Nothing is served yet; [`AdminOptions::listen`] says where.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// `[app.NAME]`.
#[derive(Clone)]
pub struct AppBuilder {
    name: String,
    table: toml::Table,
}

impl AppBuilder {
    /// An app; needs [`AppOptions::database`] or [`AppOptions::db_dir`].
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), table: toml::Table::new() }
    }

    /// Adds `[app.NAME.sink.S]`.
    #[must_use]
    pub fn sink(self, target: TargetBuilder) -> Self {
        self.target("sink", target)
    }

    /// Adds `[app.NAME.db.D]`.
    #[must_use]
    pub fn db(self, target: TargetBuilder) -> Self {
        self.target("db", target)
    }

    fn target(mut self, family: &str, target: TargetBuilder) -> Self {
        insert_below(&mut self.table, family, &target.name, toml::Value::Table(target.table));
        self
    }

    /// A key of the `retry` table.
    #[must_use]
    pub fn retry(mut self, retry: RetryBuilder) -> Self {
        self.table.insert("retry".into(), toml::Value::Table(retry.table));
        self
    }
}

/// `[app.NAME.sink.S]` or `[app.NAME.db.D]`.
#[derive(Clone)]
pub struct TargetBuilder {
    name: String,
    table: toml::Table,
}

impl TargetBuilder {
    /// A destination of one of the types that `litepost sinks` lists.
    pub fn new(name: impl Into<String>, kind: impl Into<String>) -> Self {
        let mut table = toml::Table::new();
        table.insert("type".into(), toml::Value::String(kind.into()));
        Self { name: name.into(), table }
    }

    /// Sets a key of its `connection`.
    #[must_use]
    pub fn connection(mut self, key: &str, value: impl Into<toml::Value>) -> Self {
        insert_below(&mut self.table, "connection", key, value.into());
        self
    }

    /// Adds a table to a database.
    #[must_use]
    pub fn table(mut self, table: impl Into<TableBuilder>) -> Self {
        let list = self.table.entry("tables").or_insert_with(|| toml::Value::Array(Vec::new()));
        if let toml::Value::Array(list) = list {
            list.push(toml::Value::Table(table.into().table));
        }
        self
    }

    /// Adds tables to a database.
    #[must_use]
    pub fn tables<T: Into<TableBuilder>>(self, tables: impl IntoIterator<Item = T>) -> Self {
        tables.into_iter().fold(self, Self::table)
    }

    /// Sets the `retry` table.
    #[must_use]
    pub fn retry(mut self, retry: RetryBuilder) -> Self {
        self.table.insert("retry".into(), toml::Value::Table(retry.table));
        self
    }
}

/// An entry of `tables`.
#[derive(Clone, Debug)]
pub struct TableBuilder {
    table: toml::Table,
}

impl TableBuilder {
    /// A table with its target's settings.
    pub fn new(name: impl Into<String>) -> Self {
        let mut table = toml::Table::new();
        table.insert("name".into(), toml::Value::String(name.into()));
        Self { table }
    }
}

impl<S: Into<String>> From<S> for TableBuilder {
    fn from(name: S) -> Self {
        Self::new(name)
    }
}

/// A `retry` table.
#[derive(Clone, Debug, Default)]
pub struct RetryBuilder {
    table: toml::Table,
}

impl RetryBuilder {
    /// All defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

fn insert_below(table: &mut toml::Table, family: &str, key: &str, value: toml::Value) {
    let below = table.entry(family).or_insert_with(|| toml::Value::Table(toml::Table::new()));
    if let toml::Value::Table(below) = below {
        below.insert(key.to_owned(), value);
    }
}

macro_rules! options {
    ($($builder:ty: $($keys:ident),+;)+) => {
        $(
            impl SetKey for $builder {
                fn set_key(mut self, key: &str, value: impl Into<toml::Value>) -> Self {
                    self.table.insert(key.to_owned(), value.into());
                    self
                }
            }
            $(impl $keys for $builder {})+
        )+
    };
}

/// Connections and the token are secrets, and a builder is the first thing that somebody prints.
macro_rules! masked {
    ($($builder:ident: $table:ident;)+) => {
        $(impl fmt::Debug for $builder {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($builder)).field(&masked::table(&self.$table)).finish()
            }
        })+
    };
}

masked! {
    AdminBuilder: table;
    AppBuilder: table;
    ConfigBuilder: apps;
    TargetBuilder: table;
}

options! {
    AdminBuilder: AdminOptions;
    AppBuilder: AppOptions, DeliveryOptions;
    TargetBuilder: SinkOptions, DeliveryOptions;
    TableBuilder: DeliveryOptions;
    RetryBuilder: RetryOptions;
}
