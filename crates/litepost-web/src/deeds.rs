//! What an operator may do over HTTP: one table, from which the routes, the checks of a body and the OpenAPI document
//! follow.
//!
//! Used by the API and by the dashboard's forms. Invariant: a body with a field that the deed does not take is refused,
//! so that a slip of the pen never widens what is done.

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::Refusal;

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Number,
    Numbers,
    Flag,
    Object,
}

/// One thing that can be done.
#[derive(Debug)]
pub(crate) struct Deed {
    /// Its path below `/api/`.
    pub(crate) name: &'static str,
    pub(crate) summary: &'static str,
    /// Fields that must be there.
    pub(crate) needs: &'static [&'static str],
    /// Fields that may be there, beside those that all take.
    pub(crate) takes: &'static [&'static [&'static str]],
}

/// Which dead letters.
const WHICH: &[&str] =
    &["ids", "all", "destination", "topic", "key", "type", "dead_reason", "error_code", "since", "until", "limit"];
/// How lanes are taken from a relay.
const LANES: &[&str] = &["wait_ms", "force"];
/// What every deed takes.
const COMMON: &[&str] = &["file", "actor", "reason", "dry_run"];

pub(crate) const DEEDS: &[Deed] = &[
    Deed {
        name: "dead/replay",
        summary: "Deliver dead letters again, each to its destination",
        needs: &[],
        takes: &[WHICH],
    },
    Deed {
        name: "dead/replay-in-order",
        summary: "Deliver all dead letters of a key again, before whatever is held behind them",
        needs: &["destination", "key"],
        takes: &[LANES],
    },
    Deed {
        name: "dead/edit",
        summary: "Replay one dead letter with another body; the letter keeps the old one",
        needs: &["dead_id"],
        takes: &[&["payload", "payload_base64", "headers", "remove_headers"]],
    },
    Deed { name: "dead/discard", summary: "Mark dead letters as done with; they stay", needs: &[], takes: &[WHICH] },
    Deed {
        name: "dead/purge",
        summary: "Delete dead letters that were replayed or discarded",
        needs: &["older_than_ms"],
        takes: &[&["destination", "topic", "key", "type", "dead_reason", "error_code", "limit"]],
    },
    Deed {
        name: "destinations/pause",
        summary: "Stop delivering to a destination, or a topic or key of it",
        needs: &["destination"],
        takes: &[&["topic", "key"], LANES],
    },
    Deed {
        name: "destinations/resume",
        summary: "Deliver again what was paused, or is held behind a dead letter",
        needs: &["destination"],
        takes: &[&["topic", "key"], LANES],
    },
    Deed {
        name: "destinations/skip",
        summary: "Take events out of their line; they become dead letters",
        needs: &["destination"],
        takes: &[&["seqs", "topic", "key"], LANES],
    },
    Deed {
        name: "destinations/accept-holes",
        summary: "Accept that events missing from the log are lost",
        needs: &["destination"],
        takes: &[LANES],
    },
    Deed {
        name: "destinations/rewind",
        summary: "Deliver again from an event or a time on",
        needs: &["destination"],
        takes: &[&["seq", "time", "reapply"], LANES],
    },
];

/// Every field: name, type, what it means.
pub(crate) const FIELDS: &[(&str, Kind, &str)] = &[
    ("file", Kind::Number, "Which outbox file, by its place in /api/status; 0 unless given"),
    ("actor", Kind::Text, "Who acts, for the audit trail; the user of Basic authentication unless given"),
    ("reason", Kind::Text, "Why, for the audit trail"),
    ("dry_run", Kind::Flag, "Answer what would be done, and do nothing"),
    ("ids", Kind::Numbers, "Numbers of dead letters"),
    ("all", Kind::Flag, "All of them; needed when nothing else says which"),
    ("destination", Kind::Text, "Full name, app.name"),
    ("topic", Kind::Text, "Only this topic"),
    ("key", Kind::Text, "Only this key"),
    ("type", Kind::Text, "Only this type"),
    (
        "dead_reason",
        Kind::Text,
        "Only those dead for this reason: max_attempts, max_age, permanent, expired, malformed, skipped",
    ),
    ("error_code", Kind::Text, "Only those with this code from the destination"),
    ("since", Kind::Text, "Only those dead since this time: RFC 3339, or milliseconds since the Unix epoch"),
    ("until", Kind::Text, "Only those dead before this time"),
    ("limit", Kind::Number, "At most so many, in one transaction; 1000 unless given, at most 10000"),
    ("dead_id", Kind::Number, "Number of the dead letter"),
    ("payload", Kind::Text, "The new payload as text; left as it is unless given"),
    ("payload_base64", Kind::Text, "The new payload as bytes"),
    ("headers", Kind::Object, "The new headers; left as they are unless given"),
    ("remove_headers", Kind::Flag, "Send no headers"),
    ("older_than_ms", Kind::Number, "Only those that died longer ago, milliseconds"),
    ("seqs", Kind::Numbers, "Positions of events"),
    ("seq", Kind::Number, "The first event to be delivered again"),
    ("time", Kind::Text, "Deliver again what was written since"),
    ("reapply", Kind::Flag, "Apply again, too, what a SQL target or a Redis stream remembers as applied"),
    ("wait_ms", Kind::Number, "How long a relay has to hand over its lanes; 10000 unless given, at most 25000"),
    ("force", Kind::Flag, "Take lanes that are not handed over in time; what is in flight may reach a broker twice"),
];

impl Deed {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        DEEDS.iter().find(|deed| deed.name == name)
    }

    /// The fields a body may have.
    pub(crate) fn fields(&self) -> impl Iterator<Item = &'static str> {
        self.needs.iter().chain(self.takes.iter().copied().flatten()).chain(COMMON).copied()
    }

    /// Reads a body.
    pub(crate) fn read(&self, body: Value) -> Result<Request, Refusal> {
        let wrong = |message: String| Refusal::new(StatusCode::BAD_REQUEST, message, "see /api/openapi.json");
        let Value::Object(fields) = &body else { return Err(wrong("the body is no JSON object".into())) };
        if let Some(unknown) = fields.keys().find(|name| self.fields().all(|known| known != name.as_str())) {
            return Err(wrong(format!("{} takes no field {unknown:?}", self.name)));
        }
        if let Some(missing) = self.needs.iter().find(|name| fields.get(**name).is_none_or(Value::is_null)) {
            return Err(wrong(format!("{} needs the field {missing:?}", self.name)));
        }
        serde_json::from_value(body).map_err(|error| wrong(error.to_string()))
    }

    /// The body as JSON Schema.
    pub(crate) fn schema(&self) -> Value {
        let properties: serde_json::Map<String, Value> = FIELDS
            .iter()
            .filter(|(name, ..)| self.fields().any(|field| field == *name))
            .map(|(name, kind, help)| ((*name).to_owned(), kind.schema(help)))
            .collect();
        json!({ "type": "object", "required": self.needs, "properties": properties, "additionalProperties": false })
    }
}

impl Kind {
    pub(crate) fn of(field: &str) -> Option<Self> {
        FIELDS.iter().find(|(name, ..)| *name == field).map(|(_, kind, _)| *kind)
    }

    fn schema(self, help: &str) -> Value {
        match self {
            Self::Text => json!({ "type": "string", "description": help }),
            Self::Number => json!({ "type": "integer", "description": help }),
            Self::Numbers => json!({ "type": "array", "items": { "type": "integer" }, "description": help }),
            Self::Flag => json!({ "type": "boolean", "description": help }),
            Self::Object => json!({ "type": "object", "description": help }),
        }
    }
}

/// What a body says. Which of the fields may be there is the deed's business.
#[derive(Clone, Debug, Default, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "the flags are fields of a JSON body, independent of each other")]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Request {
    pub(crate) file: usize,
    pub(crate) actor: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) dry_run: bool,
    pub(crate) ids: Vec<i64>,
    pub(crate) all: bool,
    pub(crate) destination: Option<String>,
    pub(crate) topic: Option<String>,
    pub(crate) key: Option<String>,
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) dead_reason: Option<String>,
    pub(crate) error_code: Option<String>,
    pub(crate) since: Option<String>,
    pub(crate) until: Option<String>,
    pub(crate) limit: Option<u32>,
    pub(crate) dead_id: i64,
    pub(crate) payload: Option<String>,
    pub(crate) payload_base64: Option<String>,
    pub(crate) headers: Option<Value>,
    pub(crate) remove_headers: bool,
    pub(crate) older_than_ms: i64,
    pub(crate) seqs: Vec<i64>,
    pub(crate) seq: Option<i64>,
    pub(crate) time: Option<String>,
    pub(crate) reapply: bool,
    pub(crate) wait_ms: Option<u64>,
    pub(crate) force: bool,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn every_field_of_the_table_is_one_that_is_read_and_told() {
        for deed in DEEDS {
            let mut body = serde_json::Map::new();
            for field in deed.fields() {
                let value = match Kind::of(field).unwrap() {
                    Kind::Text => json!("x"),
                    Kind::Number => json!(1),
                    Kind::Numbers => json!([1]),
                    Kind::Flag => json!(true),
                    Kind::Object => json!({}),
                };
                body.insert(field.to_owned(), value);
            }
            deed.read(Value::Object(body)).unwrap();
            assert_eq!(deed.schema()["properties"].as_object().unwrap().len(), deed.fields().count(), "{}", deed.name);
        }
    }

    #[test]
    fn a_slip_is_refused() {
        let pause = Deed::named("destinations/pause").unwrap();
        for (body, says) in [
            (json!([]), "no JSON object"),
            (json!({ "destination": "a.b", "topics": "x" }), "takes no field \"topics\""),
            (json!({ "topic": "x" }), "needs the field \"destination\""),
            (json!({ "destination": 7 }), "invalid type"),
        ] {
            let refusal = pause.read(body).unwrap_err();
            assert!(refusal.text().contains(says), "{}", refusal.text());
        }
    }
}
