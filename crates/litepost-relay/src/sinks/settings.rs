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
    toml::Value::Table(table.clone()).try_into().map_err(|e: toml::de::Error| unreadable(&e, key))
}

/// The error with the key it is about. The reader keeps the key for its own text only, as a last line.
pub(crate) fn unreadable(error: &toml::de::Error, above: &str) -> SinkConfigError {
    let text = error.to_string();
    let below = text.lines().find_map(|line| line.strip_prefix("in `")?.strip_suffix('`'));
    let key =
        [Some(above).filter(|above| !above.is_empty()), below].into_iter().flatten().collect::<Vec<_>>().join(".");
    let message = error.message();
    let missing = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    SinkConfigError::new(key, missing.map_or_else(|| plain(message), |field| format!("needs {field}")))
}

/// What serde says of a wrong type, in the words that the rest of the configuration has.
fn plain(message: &str) -> String {
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    let Some((found, expected)) = rest.and_then(|rest| rest.split_once(", expected ")) else {
        return message.to_owned();
    };
    let expected = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number from 0 on",
        "path string" => "a path",
        "a string" => "a text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a table",
        other => other,
    };
    let value = |kind: &str| found.strip_prefix(kind)?.strip_prefix(" `")?.strip_suffix('`');
    let found = match (found, found.strip_prefix("string ")) {
        (_, Some(text)) => format!("the text {text}"),
        ("sequence", _) => "a list".to_owned(),
        ("map", _) => "a table".to_owned(),
        _ => match (value("integer").or_else(|| value("floating point")), value("boolean")) {
            (Some(number), _) => format!("the number {number}"),
            (_, Some(word)) => word.to_owned(),
            _ => found.to_owned(),
        },
    };
    format!("expected {expected}, found {found}")
}

/// `path`, relative to the folder of the configuration file.
pub(crate) fn path(settings: &SinkSettings, path: &Path, key: &str) -> Result<PathBuf, SinkConfigError> {
    if path.as_os_str().is_empty() {
        return Err(SinkConfigError::new(key, "must not be empty; name a file"));
    }
    Ok(settings.base_dir.join(path))
}

/// Checks numbers of the connection: each at least 1, and at most its bound where it has one.
pub(crate) fn within<'a>(
    numbers: impl IntoIterator<Item = (&'a str, u64, Option<u64>)>,
) -> Result<(), SinkConfigError> {
    for (key, value, most) in numbers {
        let message = match most {
            Some(most) if value == 0 || value > most => format!("must lie between 1 and {most}"),
            None if value == 0 => "must be at least 1".to_owned(),
            _ => continue,
        };
        return Err(SinkConfigError::new(format!("connection.{key}"), message));
    }
    Ok(())
}

/// A file that the connection names, relative to the folder of the configuration file.
pub(crate) fn file(
    settings: &SinkSettings,
    given: Option<&Path>,
    key: &str,
) -> Result<Option<PathBuf>, SinkConfigError> {
    given.map(|given| path(settings, given, &format!("connection.{key}"))).transpose()
}

/// `tls_client_cert` and `tls_client_key`: both or neither.
pub(crate) fn tls_client(
    settings: &SinkSettings,
    cert: Option<&Path>,
    key: Option<&Path>,
) -> Result<Option<(PathBuf, PathBuf)>, SinkConfigError> {
    match (file(settings, cert, "tls_client_cert")?, file(settings, key, "tls_client_key")?) {
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        (None, None) => Ok(None),
        _ => {
            let message = "needs tls_client_key beside it, and the other way round";
            Err(SinkConfigError::new("connection.tls_client_cert", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_type_is_told_in_plain_words() {
        for (said, told) in [
            ("invalid type: integer `5`, expected path string", "expected a path, found the number 5"),
            (
                "invalid type: string \"many\", expected usize",
                "expected a whole number from 0 on, found the text \"many\"",
            ),
            ("invalid value: integer `-1`, expected u64", "expected a whole number from 0 on, found the number -1"),
            ("invalid type: boolean `true`, expected a string", "expected a text, found true"),
            ("invalid type: map, expected a sequence", "expected a list, found a table"),
            ("invalid type: floating point `1.5`, expected a boolean", "expected true or false, found the number 1.5"),
            ("unknown variant `x`, expected `y`", "unknown variant `x`, expected `y`"),
        ] {
            assert_eq!(plain(said), told);
        }
    }
}
