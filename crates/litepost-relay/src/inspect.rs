//! What a look at a destination finds: what a relay would create or change there, what is missing, what is weaker than
//! the promise.
//!
//! Made by [`crate::sink::SinkFactory::inspect`], shown by `litepost check --connect`. Invariant: looking changes
//! nothing at the destination.

use serde::Serialize;

/// What kind of a finding it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingKind {
    /// It is there, and as it should be.
    Found,
    /// The relay would create it.
    Creates,
    /// The relay would change it.
    Changes,
    /// Nothing could be delivered as it is: somebody has to put it right.
    Broken,
    /// It works, and promises less than litepost does.
    Weaker,
}

/// One thing that a look has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What kind it is.
    pub kind: FindingKind,
    /// What was found, or would be done.
    pub message: String,
    /// What to do about it; empty when nothing has to be done.
    pub hint: String,
}

impl Finding {
    /// `what` is there.
    pub fn found(what: impl Into<String>) -> Self {
        Self { kind: FindingKind::Found, message: what.into(), hint: String::new() }
    }

    /// The relay would create `what`.
    pub fn creates(what: impl Into<String>) -> Self {
        Self { kind: FindingKind::Creates, message: what.into(), hint: String::new() }
    }

    /// The relay would change `what`.
    pub fn changes(what: impl Into<String>) -> Self {
        Self { kind: FindingKind::Changes, message: what.into(), hint: String::new() }
    }

    /// Nothing could be delivered.
    pub fn broken(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { kind: FindingKind::Broken, message: message.into(), hint: hint.into() }
    }

    /// Less is promised.
    pub fn weaker(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { kind: FindingKind::Weaker, message: message.into(), hint: hint.into() }
    }
}
