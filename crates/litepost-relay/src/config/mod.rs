//! The configuration: TOML or code in, destinations and outbox files out, every mistake told with its place.
//!
//! Called by the command line and by programs that embed a relay. Invariant: nothing in here is ignored in silence: a
//! key is known and has an effect, or the load fails and says so.
//!
//! One rule of inheritance: a key may stand at table, target or app level, and the nearest wins.

mod admin;
mod build;
mod checks;
mod connection;
mod deliver;
mod doppler;
mod interpolate;
pub mod keys;
mod load;
mod masked;
mod policy;
mod problem;
mod reader;
mod reference;
mod resolve;
mod schema;
mod secrets;
mod spec;
mod values;
mod variables;
mod words;

pub use admin::{Address, Admin, Token};
pub use build::{AdminBuilder, AppBuilder, ConfigBuilder, RetryBuilder, TableBuilder, TargetBuilder};
pub use keys::{AdminOptions, AppOptions, DeliveryOptions, RetryOptions, SetKey, SinkOptions};
pub use load::{Config, FILE_NAMES, Purpose};
pub use policy::{FilePolicy, Pace, Policy};
pub use problem::{ConfigError, Problem, Severity, Source, Span, one_line};
pub use reference::reference;
pub(crate) use reference::unwrapped;
pub use resolve::{App, Destination, Outbox, OutboxFile, Table};
pub use schema::json_schema;
pub use spec::table_name;
pub use values::{InjectOutboxSeq, parse_duration};
pub use variables::Variables;
pub use words::{Dedupe, Start};

#[cfg(test)]
mod inheritance;
#[cfg(test)]
mod tests;
