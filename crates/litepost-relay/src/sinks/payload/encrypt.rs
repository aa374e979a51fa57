//! `encryption`: payloads of some topics leave as JWE (see [`crate::seal`]).
//!
//! Called by the wrapper of the sinks. Invariant: no key is in a message or in a `Debug` text.

use std::collections::BTreeMap;

use litepost_core::{Event, Payload, TopicFilter, Unavailable, UnavailableKind};
use secrecy::SecretString;
use serde::Deserialize;

use super::with_header;
use crate::seal::{self, Key, Sealed};
use crate::sink::SinkConfigError;
use crate::sinks::{encode, message};

/// The header that names the key.
const HEADER: &str = "payload-encryption";

/// The media type of an encrypted payload: a JWE in compact form (RFC 7515, 9.2.1).
pub(crate) const SEALED_TYPE: &str = "application/jose";

/// Whether the event's payload is an encrypted one.
pub(crate) fn is_sealed(event: &Event) -> bool {
    // Headers are parsed only where the name occurs at all.
    event.headers.as_deref().is_some_and(|headers| headers.contains(HEADER)) && encode::header(event, HEADER).is_some()
}

/// `encryption` of a connection.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Encryption {
    /// Id of the key that encrypts, one of `keys`. It travels with each payload.
    key: String,
    /// Keys by their ids, each 32 bytes in base64 (`openssl rand -base64 32`).
    #[schemars(with = "BTreeMap<String, String>")]
    keys: BTreeMap<String, SecretString>,
    /// The topics whose payloads are encrypted, names or patterns; all, when it is left out.
    #[serde(default)]
    topics: Option<Vec<String>>,
}

/// Encrypts the payloads of its topics.
#[derive(Debug)]
pub(super) struct Sealer {
    id: String,
    key: Key,
    topics: TopicFilter,
}

impl Sealer {
    /// Checks the table.
    pub(super) fn new(given: &Encryption) -> Result<Self, SinkConfigError> {
        let error = |key: &str, message: String| SinkConfigError::new(format!("connection.encryption.{key}"), message);
        let mut current = None;
        for (id, text) in &given.keys {
            let key = Key::parse(text).map_err(|e| error(&format!("keys.{id}"), e.to_string()))?;
            if *id == given.key {
                current = Some(key);
            }
        }
        let missing = || error("key", format!("{:?} is not among the keys", given.key));
        let topics = match &given.topics {
            Some(patterns) => TopicFilter::parse(patterns).map_err(|e| error("topics", e.to_string()))?,
            None => TopicFilter::all(),
        };
        Ok(Self { id: given.key.clone(), key: current.ok_or_else(missing)?, topics })
    }

    /// The event with its payload encrypted; `None` when its topic is not among the encrypted ones.
    pub(super) fn sealed(&self, event: &Event) -> Result<Option<Event>, Unavailable> {
        if !self.topics.matches(&event.topic) {
            return Ok(None);
        }
        let header = Sealed::new(&self.id, message::media_type(event), &event.id, &event.topic);
        let token = seal::seal(&self.key, &header, event.payload.bytes())
            .map_err(|e| Unavailable::new(UnavailableKind::Server, format!("encryption: {e}")))?;
        let headers = with_header(event, HEADER, &self.id);
        Ok(Some(Event { payload: Payload::Text(token.into()), headers, ..event.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use litepost_core::Seq;

    use super::*;

    const GOOD: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn sealer(key: &str, value: &str, topics: Option<&str>) -> Result<Sealer, SinkConfigError> {
        let keys = BTreeMap::from([("a".to_owned(), value.into())]);
        Sealer::new(&Encryption { key: key.into(), keys, topics: topics.map(|t| vec![t.to_owned()]) })
    }

    #[test]
    fn wrong_keys_are_told_and_not_repeated() {
        for (key, value, why) in [("a", "hunter2hunter2", "32 bytes in base64"), ("b", GOOD, "not among the keys")] {
            let error = sealer(key, value, None).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn only_the_topics_that_are_named_are_encrypted() {
        let sealer = sealer("a", GOOD, Some("payments.*")).unwrap();
        assert!(!format!("{sealer:?}").contains("AAEC"));
        let mut event = Event::new(Seq(1), "i", "orders", "secret");
        event.headers = Some(r#"{"n":1.10,"payload-encryption":"forged"}"#.into());
        assert_eq!(sealer.sealed(&event).unwrap(), None);
        let event = Event { topic: "payments.eu".into(), ..event };
        let sealed = sealer.sealed(&event).unwrap().unwrap();
        assert!(sealed.payload.as_str().unwrap().starts_with("eyJ"));
        assert_eq!(sealed.headers.as_deref(), Some(r#"{"n":1.10,"payload-encryption":"a"}"#));
    }
}
