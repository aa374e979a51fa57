//! The destinations: one file or folder each, and the table that lists them.
//!
//! Configuration, `litepost sinks`, the docs and the conformance tests follow from [`registry`]. A new sink is one
//! file and one line here.

mod blackhole;
mod encode;
mod exec;
mod file;
mod hrana;
mod http;
#[cfg(feature = "postgres")]
mod postgres;
mod settings;
mod sql;
mod sqlite;
mod stdout;

use crate::sink::SinkType;

/// Every sink type, in the order in which they are listed to people.
#[must_use]
pub fn registry() -> &'static [SinkType] {
    static TYPES: &[SinkType] = &[
        stdout::TYPE,
        file::TYPE,
        http::TYPE,
        exec::EXEC,
        sqlite::TYPE,
        #[cfg(feature = "postgres")]
        postgres::TYPE,
        hrana::LIBSQL,
        hrana::TURSO,
        exec::PYTHON,
        blackhole::TYPE,
    ];
    TYPES
}

/// The sink type that a configuration calls `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static SinkType> {
    registry().iter().find(|t| t.name == name)
}
