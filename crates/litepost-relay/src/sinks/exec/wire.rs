//! The lines of the exec protocol: what the relay writes, and what it takes for an answer.
//!
//! Used by the sink next door; docs/exec-protocol.md is its contract. Invariant: an answer is either exactly one outcome
//! per event of that very batch, or an error that says what was wrong with it.

use std::io::Write as _;

use litepost_core::{EventRef, Outcome, Rejection, RetryHint, Unavailable, UnavailableKind};
use serde::Deserialize;

use super::Launch;
use crate::sink::SinkContext;
use crate::sinks::encode::{self, Format};

/// The protocol's version.
pub(super) const PROTOCOL: u32 = 1;
/// So much of a wrong line is shown, and of what is wrong with it: either can be as long as the program likes.
const SHOWN_CHARS: usize = 200;

/// The first line.
pub(super) fn hello(launch: &Launch, context: &SinkContext) -> Vec<u8> {
    let mut line = serde_json::json!({ "hello": {
        "protocol": PROTOCOL,
        "litepost": env!("CARGO_PKG_VERSION"),
        "destination": &*context.destination,
        "origin": &*context.origin,
        "epoch": context.epoch,
        "lane": context.lane.index,
        "lanes": context.lane.count,
        "statements": launch.statements,
        "options": launch.options.expose(),
    }})
    .to_string()
    .into_bytes();
    line.push(b'\n');
    line
}

/// A batch.
pub(super) fn batch(number: u64, events: &[EventRef], origin: &str) -> Vec<u8> {
    let mut line = Vec::with_capacity(64 + events.len() * 256);
    // Writing to a Vec cannot fail.
    let _ = write!(line, "{{\"batch\":{number},\"events\":[");
    for (at, event) in events.iter().enumerate() {
        if at > 0 {
            line.push(b',');
        }
        encode::push_event(&mut line, event, Format::Json, origin);
    }
    line.extend_from_slice(b"]}\n");
    line
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Greeting {
    ready: Option<Ready>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Ready {
    protocol: u32,
}

/// Reads the answer to the first line; the error is the program's own, or what is wrong with its line.
pub(super) fn ready(line: &[u8]) -> Result<(), String> {
    let greeting: Greeting = serde_json::from_slice(line)
        .map_err(|error| format!("answered the hello with {}: {}", shown(line), cut(&error.to_string())))?;
    match greeting {
        Greeting { error: Some(error), .. } => Err(format!("cannot start: {error}")),
        Greeting { ready: Some(Ready { protocol: PROTOCOL }), .. } => Ok(()),
        Greeting { ready: Some(Ready { protocol }), .. } => {
            Err(format!("speaks version {protocol} of the protocol, not {PROTOCOL}"))
        }
        Greeting { .. } => Err(format!("answered the hello with {}", shown(line))),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answer {
    batch: u64,
    outcomes: Option<Vec<Said>>,
    unavailable: Option<String>,
    #[serde(default)]
    retry_after_ms: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    #[serde(default)]
    ok: bool,
    #[serde(default)]
    deferred: bool,
    rejected: Option<String>,
    #[serde(default)]
    code: Option<String>,
    #[serde(default)]
    permanent: bool,
    #[serde(default)]
    retry_after_ms: Option<u32>,
}

/// Reads the answer to batch `number` of `count` events.
pub(super) fn outcomes(line: &[u8], number: u64, count: usize) -> Result<Vec<Outcome>, String> {
    let answer: Answer = serde_json::from_slice(line)
        .map_err(|error| format!("answered batch {number} with {}: {}", shown(line), cut(&error.to_string())))?;
    if answer.batch != number {
        return Err(format!("answered batch {} instead of batch {number}", answer.batch));
    }
    let said = match answer {
        Answer { unavailable: Some(message), outcomes: None, retry_after_ms, .. } => {
            let mut trouble = Unavailable::new(UnavailableKind::Server, message);
            trouble.retry_after_ms = retry_after_ms.map(i64::from);
            return Ok(vec![Outcome::Unavailable(trouble); count]);
        }
        Answer { outcomes: Some(said), unavailable: None, .. } => said,
        Answer { .. } => {
            return Err(format!("answered batch {number} with neither outcomes nor unavailable, or with both"));
        }
    };
    if said.len() != count {
        return Err(format!("gave {} outcomes for the {count} events of batch {number}", said.len()));
    }
    said.into_iter().enumerate().map(|(at, said)| outcome(said, at, number)).collect()
}

fn outcome(said: Said, at: usize, number: u64) -> Result<Outcome, String> {
    match said {
        Said { ok: true, deferred: false, rejected: None, .. } => Ok(Outcome::Delivered),
        Said { ok: false, deferred: true, rejected: None, .. } => Ok(Outcome::Deferred),
        Said { ok: false, deferred: false, rejected: Some(message), code, permanent, retry_after_ms } => {
            Ok(Outcome::Rejected(Rejection {
                code: code.unwrap_or_else(|| "rejected".into()),
                message,
                retry: if permanent { RetryHint::Never } else { RetryHint::Policy },
                retry_after_ms: retry_after_ms.map(i64::from),
            }))
        }
        Said { .. } => Err(format!(
            "outcome {} of batch {number} is not exactly one of \"ok\": true, \"rejected\": \"why\", \"deferred\": true",
            at + 1
        )),
    }
}

fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    // (Escapes take up to ten times the room of what they stand for.)
    cut(&format!("{:?}", text.trim_end()))
}

/// The beginning, with an ellipsis where something is left out.
fn cut(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Whatever a program writes is one outcome per event, or an error that does not repeat all of it.
///
/// # Panics
///
/// When it is not so.
#[cfg(any(test, fuzzing))]
pub fn feed(line: &[u8], count: usize) {
    let short = |why: &str| assert!(why.chars().count() < 600, "an error repeats everything: {}", why.len());
    match outcomes(line, 7, count) {
        Ok(outcomes) => assert_eq!(outcomes.len(), count, "one per event"),
        Err(why) => short(&why),
    }
    match ready(line) {
        // What the program itself says of its start is shortened where it is kept.
        Err(why) if !why.starts_with("cannot start: ") => short(&why),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outcome_per_event_or_an_exact_reason() {
        let read = |line: &str, count| outcomes(line.as_bytes(), 7, count);
        let good = r#"{"batch":7,"outcomes":[{"ok":true},{"rejected":"no","code":"23505","permanent":true},{"deferred":true}]}"#;
        let found = read(good, 3).unwrap();
        assert_eq!(found[0], Outcome::Delivered);
        assert_eq!(found[1], Outcome::Rejected(Rejection::never("23505", "no")));
        assert_eq!(found[2], Outcome::Deferred);
        assert_eq!(read(good, 2).unwrap_err(), "gave 3 outcomes for the 2 events of batch 7");
        for (line, why) in [
            (r#"{"batch":6,"outcomes":[]}"#, "answered batch 6 instead of batch 7"),
            ("Hello!", "answered batch 7 with \"Hello!\""),
            (r#"{"batch":7}"#, "neither outcomes nor unavailable"),
            (r#"{"batch":7,"outcomes":[{"ok":false}]}"#, "outcome 1 of batch 7 is not exactly one of"),
            (r#"{"batch":7,"outcomes":[{"ok":true,"rejected":"x"}]}"#, "outcome 1 of batch 7 is not exactly one of"),
            (r#"{"batch":7,"outcomes":[{"okay":true}]}"#, "unknown field `okay`"),
        ] {
            let error = read(line, 1).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        // Neither a field's name nor escapes make an error as long as the line.
        feed(format!(r#"{{"batch":7,"outcomes":[{{"{}":true}}]}}"#, "x".repeat(5_000)).as_bytes(), 1);
        feed("\u{7}".repeat(5_000).as_bytes(), 1);
        let away = read(r#"{"batch":7,"unavailable":"down","retry_after_ms":500}"#, 2).unwrap();
        assert!(
            matches!(&away[..], [Outcome::Unavailable(a), Outcome::Unavailable(_)] if a.retry_after_ms == Some(500))
        );
    }

    #[test]
    fn a_program_of_another_version_is_not_spoken_to() {
        assert_eq!(ready(br#"{"ready":{"protocol":1}}"#), Ok(()));
        assert!(ready(br#"{"ready":{"protocol":2}}"#).unwrap_err().contains("version 2"));
        assert_eq!(ready(br#"{"error":"no module named x"}"#).unwrap_err(), "cannot start: no module named x");
        assert!(ready(b"usage: deliver [-h]").unwrap_err().contains("\"usage: deliver [-h]\""));
    }

    proptest::proptest! {
        #[test]
        fn fuzz_exec(at in 0..90_usize, bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..6), count in 0..4_usize) {
            let good = br#"{"batch":7,"outcomes":[{"ok":true},{"rejected":"no","code":"23505","permanent":true},{"deferred":true}]}"#;
            let mut line = good.to_vec();
            line.splice(at..(at + bytes.len()).min(good.len()), bytes);
            feed(&line, count);
            let bomb = format!("{{\"batch\":7,\"outcomes\":{}", "[".repeat(100_000));
            proptest::prop_assert!(outcomes(bomb.as_bytes(), 7, count).is_err());
        }
    }
}
