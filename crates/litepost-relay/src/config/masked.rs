//! The configuration as it may be shown: the file's own text with every text of a `connection` table left out.
//!
//! Called by the admin listener. Invariant: variables stay unresolved, and no value of a `connection` is shown, whether
//! it looks like a secret or not.

use toml::{Table, Value};

use super::load::Config;

const HIDDEN: &str = "***";

impl Config {
    /// The configuration with connections masked, as TOML.
    #[must_use]
    pub fn masked(&self) -> String {
        // The text was read as TOML before; comments are not kept, they may hold a secret as well.
        let Ok(mut table) = self.source.text.parse::<Table>() else { return String::new() };
        hide_connections(&mut table);
        toml::to_string_pretty(&table).unwrap_or_default()
    }
}

fn hide_connections(table: &mut Table) {
    for (key, value) in table.iter_mut() {
        match value {
            _ if key == "connection" => hide(value),
            Value::Table(inner) => hide_connections(inner),
            Value::Array(items) => items.iter_mut().filter_map(Value::as_table_mut).for_each(hide_connections),
            _ => {}
        }
    }
}

fn hide(value: &mut Value) {
    match value {
        Value::Table(table) => table.iter_mut().for_each(|(_, value)| hide(value)),
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::String(text) => HIDDEN.clone_into(text),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Purpose;

    #[test]
    fn nothing_of_a_connection_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("litepost.toml");
        let text = r#"
            # the password is hunter2
            [app.shop]
            database = "shop.db"
            [app.shop.sink.hook]
            type = "http"
            topics = ["*"]
            [app.shop.sink.hook.connection]
            url = "https://app:hunter2@example.org/${TOKEN}"
            headers = { authorization = "Bearer hunter2" }
        "#;
        std::fs::write(&path, text).unwrap();
        let shown = Config::load(Path::new(&path), Purpose::Look).unwrap().masked();
        assert!(!shown.contains("hunter2") && !shown.contains("example.org"), "{shown}");
        assert!(shown.contains("database = \"shop.db\"") && shown.contains("url = \"***\""), "{shown}");
    }
}
