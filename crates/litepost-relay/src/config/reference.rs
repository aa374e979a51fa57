//! docs/configuration.md, from the same key tables that read the file.
//!
//! Called by the test that keeps the page current.

use std::fmt::Write as _;

use super::keys::{AdminKeys, AppKeys, Delivery, KeySpec, RetryKeys, Scope, SinkKeys};

const HEAD: &str = include_str!("reference_head.md");

/// The whole page, in Markdown.
#[must_use]
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    table(&mut page, "Keys of `[app.NAME]`", "", AppKeys::KEYS);
    table(&mut page, "Keys of `[app.NAME.sink.S]`", "Beside `type` and `connection`.", SinkKeys::KEYS);
    let groups = [
        (Scope::Delivery, "Delivery", "How events reach a destination."),
        (
            Scope::File,
            "The outbox file",
            "In an app with `database` these stand at app level, since all its targets share one file. In an app \
             with `db_dir` every table is a file, and targets that name the same table must agree.",
        ),
        (
            Scope::Statements,
            "SQL databases",
            "For `[app.NAME.db.D]` and its tables; may be set once for all at app level.",
        ),
    ];
    page.push_str("\n## Keys of every level\n\nThey may stand at table, target and app level; the nearest wins.\n");
    for (scope, title, about) in groups {
        heading(&mut page, "###", title, about);
        rows(&mut page, Delivery::KEYS.iter().filter(|key| key.scope == scope));
    }
    table(
        &mut page,
        "Keys of `retry`",
        "A table at any level: `retry = { first = \"1s\", cap = \"1m\" }`. Each key is inherited on its own.",
        RetryKeys::KEYS,
    );
    table(
        &mut page,
        "Keys of `[admin]`",
        "The dashboard, the API and the probes of `litepost run`; see [The dashboard](dashboard.md). A running relay keeps \
         its listener over a reload.",
        AdminKeys::KEYS,
    );
    page.push_str(
        "\n## Types of destinations\n\n[Destinations](sinks.md) has every `type` with the keys of its `connection`.\n",
    );
    page
}

/// A doc comment as one paragraph.
pub(crate) fn unwrapped(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn heading(page: &mut String, level: &str, title: &str, about: &str) {
    // Writing into a String cannot fail.
    let _ = writeln!(page, "\n{level} {title}\n");
    if !about.is_empty() {
        let _ = writeln!(page, "{}\n", unwrapped(about));
    }
}

fn table(page: &mut String, title: &str, about: &str, keys: &[KeySpec]) {
    heading(page, "##", title, about);
    rows(page, keys.iter());
}

fn rows<'a>(page: &mut String, keys: impl Iterator<Item = &'a KeySpec>) {
    page.push_str("| key | values | default | what it does |\n|---|---|---|---|\n");
    for key in keys {
        let default = key.default;
        let shown = if default.contains(' ') { default.to_owned() } else { format!("`{default}`") };
        let _ = writeln!(page, "| `{}` | {} | {shown} | {} |", key.name, (key.values)(), unwrapped(key.doc));
    }
}
