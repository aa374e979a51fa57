//! Reading a sink's `connection` table into its own type, with errors that name the key.
//!
//! Called by every sink's `build`. Invariant: an unknown key is an error, never ignored.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::sink::{SinkConfigError, SinkSettings};

/// The `connection` table as `T` (which denies unknown fields).
pub(crate) fn connection<T: DeserializeOwned>(settings: &SinkSettings) -> Result<T, SinkConfigError> {
    table(&settings.connection, "connection")
}

/// The keys beside `connection` as `T` (which denies unknown fields).
pub(crate) fn options<T: DeserializeOwned>(settings: &SinkSettings) -> Result<T, SinkConfigError> {
    table(&settings.options, "")
}

fn table<T: DeserializeOwned>(table: &toml::Table, key: &str) -> Result<T, SinkConfigError> {
    toml::Value::Table(table.clone())
        .try_into()
        .map_err(|e: toml::de::Error| SinkConfigError::new(key, e.message().to_owned()))
}

/// `path`, relative to the folder of the configuration file.
pub(crate) fn path(settings: &SinkSettings, path: &Path, key: &str) -> Result<PathBuf, SinkConfigError> {
    if path.as_os_str().is_empty() {
        return Err(SinkConfigError::new(key, "must not be empty; name a file"));
    }
    Ok(settings.base_dir.join(path))
}
