//! What can become of an event at a destination. Total: a sink answers one [`Outcome`] per event, never a
//! bare error.

use serde::{Deserialize, Serialize};

/// What the destination did with one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The destination has confirmed, by its own confirmation, that it holds the event.
    Delivered,
    /// The destination says that this event is wrong. It blocks its own line and nothing else.
    Rejected(Rejection),
    /// The destination cannot be used at the moment. Costs no event an attempt; opens the breaker.
    Unavailable(Unavailable),
    /// Not tried: an event before it in the batch failed and this one must not overtake it, or the batch was
    /// cut short. Costs nothing; the event is offered again.
    Deferred,
}

/// The most characters that are kept of what a destination says.
pub const MESSAGE_CHARS_MAX: usize = 2_000;

impl Outcome {
    /// Shortens what the destination says to [`MESSAGE_CHARS_MAX`] characters: some repeat the value that they refuse, which
    /// may be as large as a payload is, and what they say is kept with the event, logged and shown.
    pub fn shorten(&mut self) {
        match self {
            Self::Delivered | Self::Deferred => {}
            Self::Rejected(Rejection { code, message, .. }) => {
                cut(code);
                cut(message);
            }
            Self::Unavailable(trouble) => trouble.shorten(),
        }
    }
}

fn cut(text: &mut String) {
    // (A character has a byte at least: most texts are not read for this.)
    if text.len() > MESSAGE_CHARS_MAX
        && let Some((end, _)) = text.char_indices().nth(MESSAGE_CHARS_MAX - 1)
        && text[end..].chars().nth(1).is_some()
    {
        text.truncate(end);
        text.push('\u{2026}');
    }
}

/// Why a destination refused an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The destination's own code: SQLSTATE, HTTP status, broker code. Stable; what filters match on.
    pub code: String,
    /// The destination's message, with secrets already removed.
    pub message: String,
    /// Whether trying again can help.
    pub retry: RetryHint,
    /// The destination asked for this pause before the next attempt, milliseconds.
    pub retry_after_ms: Option<i64>,
}

/// Whether trying a rejected event again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryHint {
    /// By the destination's retry policy, `max_attempts` included.
    Policy,
    /// It can never succeed (undecodable, unsupported, too large): a dead letter at once.
    Never,
    /// Something outside the event is missing (a table, a topic): retried with backoff for as long as it
    /// takes, never counted towards `max_attempts`.
    Hold,
}

impl Rejection {
    /// A rejection that the retry policy decides about.
    #[must_use]
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), retry: RetryHint::Policy, retry_after_ms: None }
    }

    /// A rejection that no retry can change.
    #[must_use]
    pub fn never(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { retry: RetryHint::Never, ..Self::new(code, message) }
    }

    /// A rejection that waits for something outside the event.
    #[must_use]
    pub fn hold(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { retry: RetryHint::Hold, ..Self::new(code, message) }
    }
}

/// Why a destination cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The kind of trouble.
    pub kind: UnavailableKind,
    /// What happened, with secrets already removed.
    pub message: String,
    /// The destination asked for this pause, milliseconds.
    pub retry_after_ms: Option<i64>,
    /// Whether it is certain that nothing has left, as when there was no connection.
    pub unsent: bool,
}

impl Unavailable {
    /// An unavailability without a wish for a pause.
    #[must_use]
    pub fn new(kind: UnavailableKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), retry_after_ms: None, unsent: false }
    }

    /// The same, when it is certain that nothing has left.
    #[must_use]
    pub fn unsent(self) -> Self {
        Self { unsent: true, ..self }
    }

    /// As [`Outcome::shorten`].
    pub fn shorten(&mut self) {
        cut(&mut self.message);
    }

    /// Whether the destination may hold the event all the same: it has not said that it does not.
    #[must_use]
    pub fn may_have_arrived(&self) -> bool {
        use UnavailableKind::{Denied, Fenced, Throttled};
        !self.unsent && !matches!(self.kind, Throttled | Denied | Fenced)
    }
}

/// The kinds of unavailability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnavailableKind {
    /// No connection: refused, reset, name not found, TLS failed.
    Connect,
    /// No answer within the deadline.
    Timeout,
    /// The destination asked to slow down (429, quota).
    Throttled,
    /// A lock, a deadlock, a serialization failure, a failover: the same request may work in a moment.
    Busy,
    /// The destination reported a fault of its own (5xx, out of disk, read-only).
    Server,
    /// Credentials or permissions are wrong: no event is at fault, an operator is needed.
    Denied,
    /// Another relay with a newer fencing token has taken over: stop at once.
    Fenced,
}

/// Why an event is a dead letter; the word stored in `litepost_dead.reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeadReason {
    /// Rejected as often as the policy allows.
    MaxAttempts,
    /// Blocked for longer than the policy allows.
    MaxAge,
    /// It can never succeed at this destination.
    Permanent,
    /// `expires_at` has passed.
    Expired,
    /// The row itself is unusable (no UTF-8 in its topic, say).
    Malformed,
    /// An operator took it out of the line.
    Skipped,
}

impl DeadReason {
    /// The word stored in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MaxAttempts => "max_attempts",
            Self::MaxAge => "max_age",
            Self::Permanent => "permanent",
            Self::Expired => "expired",
            Self::Malformed => "malformed",
            Self::Skipped => "skipped",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_destination_says_is_kept_up_to_a_length() {
        let long = |chars: usize| "\u{e9}".repeat(chars);
        for (chars, kept) in [(0, 0), (1_999, 1_999), (2_000, 2_000), (2_001, 2_000), (900_000, 2_000)] {
            let mut rejected = Outcome::Rejected(Rejection::never(long(chars), long(chars)));
            rejected.shorten();
            let Outcome::Rejected(Rejection { code, message, retry, .. }) = &rejected else { unreachable!() };
            assert_eq!((code.chars().count(), message.chars().count(), *retry), (kept, kept, RetryHint::Never));
            assert_eq!(message.ends_with('\u{2026}'), chars > kept, "{chars}");
            let mut away = Outcome::Unavailable(Unavailable::new(UnavailableKind::Server, long(chars)).unsent());
            away.shorten();
            let Outcome::Unavailable(trouble) = &away else { unreachable!() };
            assert!(trouble.message.chars().count() == kept && trouble.unsent);
        }
    }
}
