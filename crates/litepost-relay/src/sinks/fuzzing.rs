//! What no input from outside may do to the sinks' small languages.
//!
//! Called by the property tests beside the code, and by fuzzers; compiled for these alone.

use litepost_core::{Event, Seq};

use super::encode::{Format, push_event};
pub use super::exec::feed as exec;
pub use super::hrana::feed as hrana;
use super::template::{Otherwise, Rules, Template};

/// Like a NATS subject: values are escaped.
static ESCAPING: Rules = Rules {
    what: "subject",
    bytes_max: 40,
    plain: |c| !matches!(c, ' ' | '.' | '*' | '>' | '%') && !c.is_control(),
    otherwise: Otherwise::Percent,
    check: |name| if name.contains("..") { Err("an empty token") } else { Ok(()) },
};
/// Like an MQTT topic: values that do not fit are refused.
static STRICT: Rules = Rules { what: "topic", otherwise: Otherwise::Reject, check: |_| Ok(()), ..ESCAPING };

/// A template, and an event with this key and these headers: the name keeps the rules, or there is none; the event is one
/// line of JSON.
///
/// # Panics
///
/// When it is not so.
pub fn templates(text: &str, key: &str, headers: &str) {
    let mut event = Event::new(Seq(7), "id-7", "orders", "1");
    event.key = Some(key.into());
    event.headers = Some(headers.into());
    for rules in [&ESCAPING, &STRICT] {
        let Ok(template) = Template::compile(text, rules) else { continue };
        if let Ok(name) = template.render(&event) {
            let fits = !name.is_empty() && name.len() <= rules.bytes_max && (rules.check)(&name).is_ok();
            assert!(fits, "{name:?} breaks the rules of a {}", rules.what);
        }
    }
    for format in [Format::Json, Format::CloudEvents] {
        let mut line = Vec::new();
        push_event(&mut line, &event, format, "0af3");
        assert!(!line.contains(&b'\n') && !line.contains(&b'\r'), "more than a line");
        // By its grammar: a number too large for a double is JSON, and is handed on digit for digit.
        let value: Result<&serde_json::value::RawValue, _> = serde_json::from_slice(&line);
        assert!(value.is_ok(), "{value:?}: {}", String::from_utf8_lossy(&line));
    }
}
