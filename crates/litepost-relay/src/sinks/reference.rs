//! The page of destinations, made from the registry: what "acknowledged" means, where duplicates come from, the keys of
//! each connection.
//!
//! Called by the test that compares `docs/sinks.md` with it, and writes it. Invariant: whatever a sink type says about
//! itself stands there, so nothing on the page can fall behind the code.

use std::fmt::Write as _;

use crate::config::unwrapped;
use crate::sink::SinkType;

const HEAD: &str = "\
# Destinations

<!-- Generated from the registry of destinations: cargo xtask docs -->

A destination is a table `[app.NAME.sink.S]`, which takes events by their topics, or `[app.NAME.db.D]`, which executes
statement events. Its `type` is one of those below; its `connection` is a table of the keys that the type has. Keys that
all destinations share (order, retries, batches, lanes) stand in [Configuration](configuration.md).
";

const MESSAGES: &str = "
## Messages

Brokers and streams get an event as a message. `format` says what its body is:

| `format` | body | headers |
|---|---|---|
| `raw` | the payload, byte for byte | `litepost-topic`, `litepost-key`, `litepost-type`, `litepost-created-at`, `litepost-version`, `litepost-source` |
| `json` | the columns of the log as a JSON object, as the `file` destination writes them | |
| `cloudevents` | CloudEvents 1.0, structured, as JSON | |
| `cloudevents_binary` | the payload, byte for byte | CloudEvents 1.0 attributes, spelt as the transport's binding has them |

Every message also has `litepost-id` and `litepost-seq`, the event's own headers (`traceparent` among them), and those of
`headers`. A header's value is text: numbers digit for digit, objects and arrays as their JSON. Names that belong to the
broker, to litepost or to CloudEvents are left out when an event brings them. A line break or NUL in a value, and a name
that the transport does not have, make the event a dead letter with the code `header`.

`compression = { algorithm = \"zstd\", above_bytes = 1024 }` (or `\"gzip\"`), where a destination has it, compresses bodies above
that size, and says so in `content-encoding`; what does not become smaller is sent as it is. (Kafka's own compression is one of
batches, which its consumers undo by themselves.)

## Templates

Topics, subjects, routing keys, streams and the values of `headers` are templates. They are checked when the
configuration is read; a mistake is told with its place.

| written | stands for |
|---|---|
| `{topic}` `{key}` `{type}` `{id}` `{seq}` `{source}` `{version}` | the event's column of that name |
| `{header.NAME}` | the event's header NAME |
| `{key\\|none}` | the column, or `none` when it is absent or empty |
| `{{` `}}` | a brace |

An event without the value that a template needs, and one whose value the destination does not allow there, is a dead
letter with the code `template`. What has a meaning in the destination's names (a dot in a NATS subject, say) is escaped
in values as `%XX` where the destination says so below.

## Order and redelivery

Events of one line (a key, with the default `ordering`) are handed over one after the other: the next leaves when the
one before it is confirmed. A consumer that drops the ids it has seen (`litepost-id`, or where the type says) sees every
line in order, each event once; the [inbox](guarantees.md#the-inbox) does that within the consumer's own transaction.
";

/// The text of `docs/sinks.md`.
#[must_use]
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n| type | in | what it is |\n|---|---|---|\n");
    for kind in super::registry() {
        let family = if kind.statements { "db" } else { "sink" };
        push(&mut page, format_args!("| [`{0}`](#{0}) | `{family}` | {1} |\n", kind.name, kind.summary));
    }
    page.push_str(MESSAGES);
    for kind in super::registry() {
        one(&mut page, kind);
    }
    page
}

fn one(page: &mut String, kind: &SinkType) {
    push(page, format_args!("\n## {}\n\n{}.\n\n", kind.name, capital(kind.summary)));
    push(page, format_args!("- **Acknowledged** means: {}\n", sentence(kind.acknowledged)));
    push(page, format_args!("- **Duplicates**: {}\n", sentence(kind.duplicates)));
    let schema = (kind.connection_schema)().to_value();
    if !kind.statements {
        page.push_str("- **Payloads** can be encrypted, and large ones put into a store: [Payloads](payloads.md).\n");
    }
    let Some(keys) = schema["properties"].as_object().filter(|keys| !keys.is_empty()) else {
        page.push_str("\nIts connection has no keys.\n");
        return;
    };
    let required: Vec<&str> =
        schema["required"].as_array().map(|list| list.iter().filter_map(|v| v.as_str()).collect()).unwrap_or_default();
    page.push_str("\n| key of `connection` | default | meaning |\n|---|---|---|\n");
    for (key, schema) in keys {
        let default = match &schema["default"] {
            _ if required.contains(&key.as_str()) => "needed".to_owned(),
            serde_json::Value::Null => String::new(),
            serde_json::Value::Object(map) if map.is_empty() => String::new(),
            value => format!("`{value}`"),
        };
        let text = unwrapped(schema["description"].as_str().unwrap_or_default()).replace('|', "\\|");
        push(page, format_args!("| `{key}` | {default} | {text} |\n"));
    }
}

fn sentence(text: &str) -> String {
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing into a String cannot fail.
    let _ = page.write_fmt(text);
}
