//! Which events a destination takes, by topic and by header: exact names, prefixes and globs, checked when the
//! configuration loads.

use std::fmt;

use crate::Event;
use crate::statement::STATEMENT_KIND;

/// One pattern of a `topics = [...]` list.
///
/// `*` stands for any run of characters, the empty one included; everything else stands for itself. So
/// `orders` is an exact name, `payments.*` a prefix, `*.created` a suffix, `*` everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicPattern {
    text: Box<str>,
    parts: Vec<Box<str>>,
}

/// Why a pattern was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicPatternError {
    /// The empty pattern would match nothing, as no topic is empty.
    #[error("a topic pattern must not be empty; use \"*\" for every topic")]
    Empty,
    /// No topic contains a NUL character.
    #[error("a topic pattern must not contain a NUL character")]
    Nul,
}

impl TopicPattern {
    /// Reads a pattern.
    pub fn parse(text: &str) -> Result<Self, TopicPatternError> {
        if text.is_empty() {
            return Err(TopicPatternError::Empty);
        }
        if text.contains('\0') {
            return Err(TopicPatternError::Nul);
        }
        Ok(Self { text: text.into(), parts: text.split('*').map(Into::into).collect() })
    }

    /// Whether `topic` matches.
    #[must_use]
    pub fn matches(&self, topic: &str) -> bool {
        let [first, middle @ .., last] = self.parts.as_slice() else {
            return *self.text == *topic;
        };
        let Some(mut rest) = topic.strip_prefix(&**first) else {
            return false;
        };
        for part in middle {
            // The leftmost match leaves the most room for what follows, so trying others is never needed.
            match rest.find(&**part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(&**last)
    }
}

impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

/// A destination's topics: an event is taken when any pattern matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicFilter {
    patterns: Vec<TopicPattern>,
}

impl TopicFilter {
    /// Takes every topic.
    #[must_use]
    pub fn all() -> Self {
        Self { patterns: vec![TopicPattern { text: "*".into(), parts: vec!["".into(), "".into()] }] }
    }

    /// Takes what any of `patterns` matches.
    pub fn parse<S: AsRef<str>>(patterns: impl IntoIterator<Item = S>) -> Result<Self, TopicPatternError> {
        let patterns = patterns.into_iter().map(|p| TopicPattern::parse(p.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self { patterns })
    }

    /// Takes exactly these names, in which `*` has no meaning (table names may contain anything).
    #[must_use]
    pub fn exact<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Self {
        Self {
            patterns: names
                .into_iter()
                .map(|name| TopicPattern { text: name.as_ref().into(), parts: vec![name.as_ref().into()] })
                .collect(),
        }
    }

    /// Whether it takes nothing at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Its patterns as a text that [`TopicFilter::from_text`] reads; empty when it has none.
    #[must_use]
    pub fn to_text(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        self.patterns.iter().map(|pattern| &*pattern.text).collect::<serde_json::Value>().to_string()
    }

    /// Reads what [`TopicFilter::to_text`] wrote.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::default());
        }
        let patterns: Vec<String> = serde_json::from_str(text).ok()?;
        Self::parse(patterns).ok()
    }

    /// Whether the destination takes events of `topic`.
    #[must_use]
    pub fn matches(&self, topic: &str) -> bool {
        self.patterns.iter().any(|p| p.matches(topic))
    }
}

/// What a destination asks of an event's headers: each of these must be there and match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderFilter {
    wanted: Vec<(Box<str>, TopicPattern)>,
}

impl HeaderFilter {
    /// Takes events whose header of each name matches the pattern beside it; with no pair every event.
    pub fn parse<N: AsRef<str>, P: AsRef<str>>(
        pairs: impl IntoIterator<Item = (N, P)>,
    ) -> Result<Self, TopicPatternError> {
        let pair = |(name, pattern): (N, P)| Ok((name.as_ref().into(), TopicPattern::parse(pattern.as_ref())?));
        Ok(Self { wanted: pairs.into_iter().map(pair).collect::<Result<_, _>>()? })
    }

    /// Whether the destination takes an event with these headers (a JSON object as text). A value that is no text is
    /// compared as JSON writes it.
    #[must_use]
    pub fn matches(&self, headers: Option<&str>) -> bool {
        if self.wanted.is_empty() {
            return true;
        }
        let Some(Ok(serde_json::Value::Object(headers))) = headers.map(serde_json::from_str) else {
            return false;
        };
        self.wanted.iter().all(|(name, pattern)| match headers.get(&**name) {
            Some(serde_json::Value::String(text)) => pattern.matches(text),
            Some(other) => pattern.matches(&other.to_string()),
            None => false,
        })
    }
}

/// Whether a destination takes an event. `topic_matches` is asked last but for the headers: callers remember its answer.
///
/// An event that names its destination is for that one alone. A destination of statements leaves business events to
/// others; an event without a type is for it, so that a statement whose type was forgotten is told and not passed over.
#[must_use]
pub fn is_for(
    event: &Event,
    destination: &str,
    statements_only: bool,
    headers: &HeaderFilter,
    topic_matches: impl FnOnce() -> bool,
) -> bool {
    if let Some(only) = &event.only_for {
        return **only == *destination;
    }
    let statement = event.kind.is_empty() || *event.kind == *STATEMENT_KIND;
    (statement || !statements_only) && topic_matches() && headers.matches(event.headers.as_deref())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, as slow as it is plain.
    fn naive(pattern: &[char], topic: &[char]) -> bool {
        match pattern.split_first() {
            None => topic.is_empty(),
            Some(('*', rest)) => (0..=topic.len()).any(|skip| naive(rest, &topic[skip..])),
            Some((c, rest)) => topic.split_first().is_some_and(|(t, tail)| t == c && naive(rest, tail)),
        }
    }

    proptest! {
        #[test]
        fn matches_like_the_definition(pattern in "[ab*.]{1,8}", topic in "[ab.]{0,10}") {
            let p: Vec<char> = pattern.chars().collect();
            let t: Vec<char> = topic.chars().collect();
            prop_assert_eq!(TopicPattern::parse(&pattern).unwrap().matches(&topic), naive(&p, &t));
        }
    }

    #[test]
    fn a_filter_is_what_its_text_says() {
        for patterns in [&[][..], &["orders", "pay\"ments.*"]] {
            let filter = TopicFilter::parse(patterns).unwrap();
            assert_eq!(TopicFilter::from_text(&filter.to_text()), Some(filter));
        }
        assert_eq!(TopicFilter::default().to_text(), "");
        for text in ["x", "{}", "[1]", "[\"\"]"] {
            assert_eq!(TopicFilter::from_text(text), None, "{text}");
        }
    }

    #[test]
    fn an_exact_name_may_contain_a_star() {
        let filter = TopicFilter::exact(["a*b"]);
        assert!(filter.matches("a*b") && !filter.matches("axb"));
        assert!(TopicFilter::all().matches("anything") && !TopicFilter::default().matches("anything"));
    }

    #[test]
    fn every_header_that_is_asked_for_must_match() {
        let filter = HeaderFilter::parse([("tenant", "a*"), ("tries", "3")]).unwrap();
        assert!(filter.matches(Some(r#"{"tenant": "acme", "tries": 3, "more": null}"#)));
        for headers in [r#"{"tenant": "bolt", "tries": 3}"#, r#"{"tenant": "acme"}"#, "[]", "no JSON"] {
            assert!(!filter.matches(Some(headers)), "{headers}");
        }
        assert!(!filter.matches(None) && HeaderFilter::default().matches(None));
    }

    #[test]
    fn bad_patterns_say_why() {
        assert_eq!(TopicPattern::parse(""), Err(TopicPatternError::Empty));
        assert_eq!(TopicPattern::parse("a\0"), Err(TopicPatternError::Nul));
    }
}
