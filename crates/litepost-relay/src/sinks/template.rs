//! Templates for topics, subjects, routing keys and header values: text with an event's values in it.
//!
//! Compiled by a sink's `build`, so that a mistake is found at start, with its position; rendered for each event.
//! Invariant: a value can never change the structure of the name around it: what the destination gives a meaning to
//! (`.` and `*` in a NATS subject, `/` and `+` in an MQTT topic) is escaped or refused by the destination's [`Rules`].
//!
//! The syntax, the same for every destination:
//!
//! | written | stands for |
//! |---|---|
//! | `{topic}` `{key}` `{type}` `{id}` `{seq}` `{source}` `{version}` | the event's column of that name |
//! | `{header.NAME}` | the header NAME of the event |
//! | `{key\|none}` | the column, or `none` when it is absent or empty |
//! | `{{` `}}` | a brace |
//! | anything else | itself |

use std::fmt::Write as _;

use litepost_core::{Event, Rejection};

use super::encode;

/// What a destination allows in a name, and what it does with values that do not fit.
#[derive(Debug)]
pub(crate) struct Rules {
    /// What the result is, for messages: "subject", "topic".
    pub(crate) what: &'static str,
    /// Most bytes of the result.
    pub(crate) bytes_max: usize,
    /// Whether a character of a value may stand as it is.
    pub(crate) plain: fn(char) -> bool,
    /// What becomes of the others.
    pub(crate) otherwise: Otherwise,
    /// Whether the result is allowed: called with what was rendered, and at start with a sample. Says what is wrong.
    pub(crate) check: fn(&str) -> Result<(), &'static str>,
}

/// What becomes of a character of a value that may not stand as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "each destination uses one of them, behind its feature")]
pub(crate) enum Otherwise {
    /// Its UTF-8 bytes as `%XX`, and `%` itself too: different values stay different.
    Percent,
    /// The event is rejected.
    Reject,
}

/// A compiled template.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    parts: Vec<Part>,
    rules: &'static Rules,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value { field: Field, fallback: Option<String> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    Topic,
    Key,
    Type,
    Id,
    Seq,
    Source,
    Version,
    Header(String),
}

/// The names that may stand in braces, for messages.
const NAMES: &str = "topic, key, type, id, seq, source, version, header.NAME";

/// A mistake in a template.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} (character {position} of {text:?})")]
pub(crate) struct TemplateError {
    /// What is wrong and what would be right.
    message: String,
    /// Which character, counted from 1.
    position: usize,
    text: String,
}

impl Template {
    /// Compiles `text`, and tries it with plain values: what then breaks the rules would always.
    pub(crate) fn compile(text: &str, rules: &'static Rules) -> Result<Self, TemplateError> {
        let fail =
            |position: usize, message: String| TemplateError { message, position: position + 1, text: text.to_owned() };
        if text.is_empty() {
            return Err(fail(0, format!("the {} must not be empty", rules.what)));
        }
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut chars = text.chars().enumerate().peekable();
        while let Some((at, c)) = chars.next() {
            let doubled = chars.peek().is_some_and(|&(_, next)| next == c);
            match c {
                '{' | '}' if doubled => {
                    chars.next();
                    plain.push(c);
                }
                '}' => return Err(fail(at, "a lone }; write }} for a brace".into())),
                '{' => {
                    let mut name = String::new();
                    loop {
                        match chars.next() {
                            Some((_, '}')) => break,
                            Some((_, c)) if c != '{' => name.push(c),
                            _ => return Err(fail(at, "this { is not closed; write {{ for a brace".into())),
                        }
                    }
                    if !plain.is_empty() {
                        parts.push(Part::Text(std::mem::take(&mut plain)));
                    }
                    let part = value(&name).and_then(|part| fallback_fits(part, rules));
                    parts.push(part.map_err(|message| fail(at + 1, message))?);
                }
                _ => plain.push(c),
            }
        }
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        let template = Self { parts, rules };
        let sample = template.sample();
        (rules.check)(&sample).map_err(|why| fail(0, format!("{sample:?} is no {}: {why}", rules.what)))?;
        let bytes = template.with_every_value("").len();
        if bytes > rules.bytes_max {
            let (what, most) = (rules.what, rules.bytes_max);
            return Err(fail(0, format!("the {what} has {bytes} bytes without any value, {most} are allowed")));
        }
        Ok(template)
    }

    /// The name for this event. A value that is absent, or one that does not fit, is a rejection that no retry changes.
    pub(crate) fn render(&self, event: &Event) -> Result<String, Rejection> {
        let mut out = String::with_capacity(64);
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Value { field, fallback } => self.push(&mut out, event, field, fallback.as_deref())?,
            }
        }
        if out.len() > self.rules.bytes_max {
            let (what, len, most) = (self.rules.what, out.len(), self.rules.bytes_max);
            return Err(Rejection::never("template", format!("the {what} has {len} bytes, {most} are allowed")));
        }
        match (self.rules.check)(&out) {
            Ok(()) => Ok(out),
            Err(why) => Err(Rejection::never("template", format!("{out:?} is no {}: {why}", self.rules.what))),
        }
    }

    /// The text, when the template holds no value: the same name for every event.
    pub(crate) fn constant(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// What it names for the events of `topics`, when nothing else of an event goes into it; empty when that is not known
    /// before there is an event.
    pub(crate) fn names(&self, topics: &[String]) -> Vec<String> {
        if let Some(name) = self.constant() {
            return vec![name.to_owned()];
        }
        let topic_only = |part: &Part| match part {
            Part::Text(_) => true,
            Part::Value { field, .. } => *field == Field::Topic,
        };
        if !self.parts.iter().all(topic_only) {
            return Vec::new();
        }
        let event = |topic: &String| Event::new(litepost_core::Seq(1), "look", topic.as_str(), "");
        topics.iter().filter_map(|topic| self.render(&event(topic)).ok()).collect()
    }

    /// Whether the event's value of this name stands in it.
    pub(crate) fn holds(&self, name: &str) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Value { field, .. } if field.name() == name))
    }

    /// The template with `value` in place of every value (a wildcard of the destination, say).
    pub(crate) fn with_every_value(&self, value: &str) -> String {
        self.parts.iter().fold(String::new(), |mut all, part| {
            all.push_str(if let Part::Text(text) = part { text } else { value });
            all
        })
    }

    fn sample(&self) -> String {
        self.with_every_value("x")
    }

    fn push(&self, out: &mut String, event: &Event, field: &Field, fallback: Option<&str>) -> Result<(), Rejection> {
        let (owned, borrowed);
        let value = match field {
            Field::Topic => Some(&*event.topic),
            Field::Key => event.key.as_deref(),
            Field::Type => Some(&*event.kind),
            Field::Id => Some(&*event.id),
            Field::Source => event.source.as_deref(),
            Field::Seq => {
                owned = event.seq.to_string();
                Some(owned.as_str())
            }
            Field::Version => {
                borrowed = event.version.map(|v| v.to_string());
                borrowed.as_deref()
            }
            Field::Header(name) => {
                borrowed = encode::header(event, name);
                borrowed.as_deref()
            }
        };
        let Some(value) = value.filter(|v| !v.is_empty()).or(fallback) else {
            let (what, name) = (self.rules.what, field.name());
            return Err(Rejection::never(
                "template",
                format!("the {what} needs the event's {name}, which is absent or empty; give a fallback: {{{name}|…}}"),
            ));
        };
        for c in value.chars() {
            if (self.rules.plain)(c) && !(c == '%' && self.rules.otherwise == Otherwise::Percent) {
                out.push(c);
            } else if self.rules.otherwise == Otherwise::Percent {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing into a String cannot fail.
                    let _ = write!(out, "%{byte:02X}");
                }
            } else {
                let (what, name) = (self.rules.what, field.name());
                return Err(Rejection::never(
                    "template",
                    format!("the event's {name} holds {c:?}, which a {what} must not hold"),
                ));
            }
        }
        Ok(())
    }
}

impl Field {
    fn name(&self) -> String {
        match self {
            Self::Topic => "topic".into(),
            Self::Key => "key".into(),
            Self::Type => "type".into(),
            Self::Id => "id".into(),
            Self::Seq => "seq".into(),
            Self::Source => "source".into(),
            Self::Version => "version".into(),
            Self::Header(name) => format!("header.{name}"),
        }
    }
}

/// What stands between the braces.
fn value(inside: &str) -> Result<Part, String> {
    let (name, fallback) = match inside.split_once('|') {
        Some((name, fallback)) => (name, Some(fallback.to_owned())),
        None => (inside, None),
    };
    if fallback.as_deref() == Some("") {
        return Err(format!("{{{name}|}} has an empty fallback; leave the | out or name one"));
    }
    let field = match name {
        "topic" => Field::Topic,
        "key" => Field::Key,
        "type" => Field::Type,
        "id" => Field::Id,
        "seq" => Field::Seq,
        "source" => Field::Source,
        "version" => Field::Version,
        _ => match name.strip_prefix("header.") {
            Some(header) if !header.is_empty() => Field::Header(header.to_owned()),
            _ => return Err(format!("there is no {{{name}}}; known: {NAMES}")),
        },
    };
    Ok(Part::Value { field, fallback })
}

/// A fallback that the destination would refuse each time is a mistake of the template, not of the events.
fn fallback_fits(part: Part, rules: &Rules) -> Result<Part, String> {
    if let Part::Value { field, fallback: Some(text) } = &part
        && rules.otherwise == Otherwise::Reject
        && let Some(c) = text.chars().find(|c| !(rules.plain)(*c))
    {
        return Err(format!("the fallback of {{{}}} holds {c:?}, which a {} must not hold", field.name(), rules.what));
    }
    Ok(part)
}

#[cfg(test)]
mod tests {
    use litepost_core::Seq;
    use proptest::prelude::*;

    use super::*;

    static ESCAPING: Rules = Rules {
        what: "subject",
        bytes_max: 40,
        plain: |c| !matches!(c, ' ' | '.' | '*' | '>' | '%') && !c.is_control(),
        otherwise: Otherwise::Percent,
        check: |name| if name.contains("..") { Err("an empty token") } else { Ok(()) },
    };
    static STRICT: Rules =
        Rules { what: "topic", bytes_max: 40, otherwise: Otherwise::Reject, check: |_| Ok(()), ..ESCAPING };

    fn event() -> Event {
        let mut event = Event::new(Seq(7), "id-7", "orders", "1");
        event.key = Some("a.b*".into());
        event.kind = "Created".into();
        event.headers = Some(r#"{"tenant":"x y","n":1.10}"#.into());
        event
    }

    fn rendered(text: &str) -> Result<String, String> {
        let template = Template::compile(text, &ESCAPING).map_err(|e| e.to_string())?;
        template.render(&event()).map_err(|r| r.message)
    }

    #[test]
    fn values_stand_where_they_are_named_and_braces_are_doubled() {
        let ok = |text: &str| rendered(text).unwrap();
        assert_eq!(ok("{topic}.{type}.{id}.{seq}"), "orders.Created.id-7.7");
        assert_eq!(ok("orders.{key}"), "orders.a%2Eb%2A");
        assert_eq!(ok("{header.tenant}-{header.n}"), "x%20y-1%2E10");
        assert_eq!(ok("{{{topic}}}"), "{orders}");
        assert_eq!(ok("{source|none}.{version|0}.{topic|t}"), "none.0.orders");
        assert_eq!(Template::compile("a{{b", &ESCAPING).unwrap().constant(), Some("a{b"));
        assert_eq!(Template::compile("a.{key}", &ESCAPING).unwrap().with_every_value("*"), "a.*");
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        let wrong = |text: &str| rendered(text).unwrap_err();
        assert_eq!(wrong("é.{kye}"), format!("there is no {{kye}}; known: {NAMES} (character 4 of \"é.{{kye}}\")"));
        assert!(wrong("ab{key").starts_with("this { is not closed; write {{ for a brace (character 3 of"));
        assert!(wrong("a}b").starts_with("a lone }; write }} for a brace (character 2 of"));
        assert!(wrong("{key|}").contains("empty fallback"));
        assert!(wrong("{header.}").contains("there is no {header.}"));
        assert!(wrong("a..{key}").contains("is no subject: an empty token"));
        assert!(wrong("").contains("must not be empty"));
        assert!(wrong(&"long".repeat(11)).contains("44 bytes without any value, 40 are allowed"));
        let strict = |text: &str| Template::compile(text, &STRICT).map(drop).map_err(|e| e.to_string());
        assert!(
            strict("{key|a b}")
                .unwrap_err()
                .starts_with("the fallback of {key} holds ' ', which a topic must not hold")
        );
        assert_eq!((strict("{key|a-b}"), rendered("{source|a b}").as_deref()), (Ok(()), Ok("a%20b")));
    }

    #[test]
    fn what_does_not_fit_is_rejected_for_good() {
        assert!(rendered("{source}").unwrap_err().contains("the event's source, which is absent or empty"));
        assert!(rendered("{header.none}").unwrap_err().contains("header.none"));
        assert!(rendered(&"{id}".repeat(11)).unwrap_err().contains("44 bytes, 40 are allowed"));
        let strict = Template::compile("{key}", &STRICT).unwrap();
        assert!(strict.render(&event()).unwrap_err().message.contains("the event's key holds '.'"));
    }

    proptest! {
        #[test]
        fn fuzz_templates(text in "([{}|a.]|\\{(key|topic|header\\.[a-z]|version|seq)(\\|x)?\\}|\\PC){0,12}", key in ".{0,9}",
                          headers in prop_oneof![Just("{\"a\":[1,{}]}".to_owned()), ".{0,20}", "\\[{0,300}"]) {
            crate::sinks::fuzzing::templates(&text, &key, &headers);
        }

        #[test]
        fn different_keys_have_different_names_of_the_same_shape(a in "\\PC{1,8}", b in "\\PC{1,8}") {
            static LONG: Rules = Rules { bytes_max: 4_096, ..ESCAPING };
            let template = Template::compile("t.{key}", &LONG).unwrap();
            let name = |key: &str| template.render(&Event { key: Some(key.into()), ..event() }).unwrap();
            prop_assert_eq!(name(&a).matches(['.', ' ', '*', '>']).count(), 1);
            prop_assert_eq!(a == b, name(&a) == name(&b));
        }
    }
}
