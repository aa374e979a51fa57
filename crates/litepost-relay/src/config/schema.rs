//! The JSON Schema of the configuration, from the same key tables that read it.
//!
//! Called by `litepost schema --config-schema` and the test that keeps docs/schema/litepost.schema.json current.

use serde_json::{Map, Value, json};

use super::keys::{AdminKeys, AppKeys, Delivery, KeySpec, RetryKeys, SinkKeys};
use super::reference::unwrapped;
use crate::sink::SinkType;
use crate::sinks;

/// The schema, for editors that complete and check the file.
#[must_use]
pub fn json_schema() -> Value {
    let mut schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "litepost configuration",
        "description": "litepost.toml: which outboxes there are, and where their events go.",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "admin": object(&[AdminKeys::KEYS], Map::new()),
            "app": {
                "type": "object",
                "description": "One application each: [app.NAME].",
                "additionalProperties": { "$ref": "#/definitions/app" },
            },
        },
        "definitions": {
            "app": app(),
            "retry": object(&[RetryKeys::KEYS], Map::new()),
            "table": table(),
        },
    });
    // What a connection's schema defines for itself moves to the one place where `#/definitions` finds it.
    for kind in sinks::registry() {
        let definitions = kind.schema().to_value()["$defs"].take();
        for (name, mut definition) in definitions.as_object().cloned().unwrap_or_default() {
            qualify(&mut definition, kind.name);
            schema["definitions"][format!("{}_{name}", kind.name)] = definition;
        }
    }
    schema
}

/// Points references at `#/$defs/NAME` of a sink type to `#/definitions/TYPE_NAME`.
fn qualify(schema: &mut Value, kind: &str) {
    match schema {
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(target) if key == "$ref" => {
                        if let Some(name) = target.strip_prefix("#/$defs/") {
                            *target = format!("#/definitions/{kind}_{name}");
                        }
                    }
                    other => qualify(other, kind),
                }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| qualify(value, kind)),
        _ => {}
    }
}

fn properties(keys: &[KeySpec], into: &mut Map<String, Value>) {
    for key in keys {
        let mut schema = (key.schema)();
        if let Some(schema) = schema.as_object_mut() {
            let text = format!("{}\n\nDefault: {}", unwrapped(key.doc), key.default);
            schema.insert("description".into(), Value::String(text));
        }
        // A variable may stand for any value.
        into.insert(key.name.into(), or_variable(schema));
    }
}

fn or_variable(mut schema: Value) -> Value {
    let Some(object) = schema.as_object_mut() else { return schema };
    let description = object.remove("description").unwrap_or_default();
    if object.get("type").is_some_and(|kind| kind == "string") {
        object.insert("description".into(), description);
        return schema;
    }
    json!({ "description": description, "anyOf": [schema, { "type": "string", "pattern": r"\$\{.+\}" }] })
}

fn object(groups: &[&[KeySpec]], others: Map<String, Value>) -> Value {
    let mut list = others;
    for keys in groups {
        properties(keys, &mut list);
    }
    json!({ "type": "object", "additionalProperties": false, "properties": list })
}

fn retry() -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("retry".into(), json!({ "$ref": "#/definitions/retry" }));
    map
}

fn table() -> Value {
    let mut own = retry();
    own.insert("name".into(), json!({ "type": "string", "minLength": 1 }));
    let mut table = object(&[Delivery::KEYS], own);
    table["required"] = json!(["name"]);
    table
}

fn app() -> Value {
    let mut own = retry();
    own.insert("sink".into(), family(false));
    own.insert("db".into(), family(true));
    let mut app = object(&[AppKeys::KEYS, Delivery::KEYS], own);
    app["oneOf"] = json!([{ "required": ["database"] }, { "required": ["db_dir"] }]);
    app
}

/// `sink` or `db`: tables by name, each with the connection of its type.
fn family(statements: bool) -> Value {
    let kinds: Vec<&SinkType> = sinks::registry().iter().filter(|kind| kind.statements == statements).collect();
    let mut own = retry();
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
    own.insert("type".into(), json!({ "enum": names, "description": "What kind of destination it is." }));
    own.insert("connection".into(), json!({ "type": "object" }));
    let groups: &[&[KeySpec]] = if statements {
        own.insert(
            "writer_class".into(),
            json!({
                "type": "string",
                "description": "sqloutbox's: a Python class as \"package.module:Class\"; implies type = \"python\".",
            }),
        );
        own.insert(
            "tables".into(),
            json!({
                "type": "array",
                "description": "The tables whose statements go there.",
                "items": { "anyOf": [{ "type": "string", "minLength": 1 }, { "$ref": "#/definitions/table" }] },
            }),
        );
        &[Delivery::KEYS]
    } else {
        &[SinkKeys::KEYS, Delivery::KEYS]
    };
    let mut target = object(groups, own);
    if statements {
        target["anyOf"] = json!([{ "required": ["type"] }, { "required": ["writer_class"] }]);
    } else {
        target["required"] = json!(["type"]);
    }
    target["allOf"] = kinds
        .iter()
        .map(|kind| {
            json!({
                "if": { "properties": { "type": { "const": kind.name } }, "required": ["type"] },
                "then": { "properties": { "connection": connection(kind) } },
            })
        })
        .collect();
    json!({ "type": "object", "additionalProperties": target })
}

fn connection(kind: &SinkType) -> Value {
    let mut schema = kind.schema().to_value();
    if let Some(object) = schema.as_object_mut() {
        object.remove("$schema");
        object.remove("$defs");
    }
    qualify(&mut schema, kind.name);
    schema
}
