//! Values that cannot be printed: URLs that may hold a password, and what client libraries make of them.
//!
//! Used by every sink whose connection is a URL. Invariant: `Debug` and `Display` show where a URL leads and nothing that
//! opens it; what a library keeps of it shows nothing at all.

use std::fmt;

use reqwest::Url;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

/// What stands in place of a secret.
const HIDDEN: &str = "***";

/// A value of a client library that holds a secret somewhere.
#[derive(Clone)]
pub(crate) struct Hidden<T>(T);

impl<T> Hidden<T> {
    /// Hides it.
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, for the library.
    pub(crate) const fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// A URL, or several separated by commas, with whatever secret is in it.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub(crate) struct SecretUrl(SecretString);

impl SecretUrl {
    /// The whole of it, for the library that connects.
    pub(crate) fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.expose().split(',').map(|one| shown(one.trim())).collect();
        f.write_str(&shown.join(","))
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl JsonSchema for SecretUrl {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SecretUrl".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

fn shown(text: &str) -> String {
    // What is no URL may be a password alone.
    Url::parse(text).map_or_else(|_| HIDDEN.to_owned(), |url| without_secrets(&url))
}

/// The URL as people may see it: no user, no password, no query, and no part of the path that looks like a token
/// (services that give each customer a URL of his own keep the secret there).
pub(crate) fn without_secrets(url: &Url) -> String {
    let Some(host) = url.host_str() else { return format!("{}:{HIDDEN}", url.scheme()) };
    let port = url.port().map_or_else(String::new, |port| format!(":{port}"));
    let path: Vec<&str> =
        url.path().split('/').map(|part| if looks_like_a_token(part) { HIDDEN } else { part }).collect();
    format!("{}://{host}{port}{}", url.scheme(), path.join("/"))
}

/// Long and of letters and digits, or very long.
fn looks_like_a_token(part: &str) -> bool {
    const MIXED_MIN: usize = 12;
    const ANY_MIN: usize = 24;
    let mixed = part.contains(|c: char| c.is_ascii_digit()) && part.contains(|c: char| c.is_ascii_alphabetic());
    part.len() >= ANY_MIN || mixed && part.len() >= MIXED_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_shows_where_it_leads_and_nothing_that_opens_it() {
        for (url, wanted) in [
            ("http://user:hunter2@example.com:81/a/b?key=hunter2#hunter2", "http://example.com:81/a/b"),
            ("redis://:hunter2@10.0.0.1:6379/0", "redis://10.0.0.1:6379/0"),
            ("nats://a:hunter2@h:1, tls://hunter2@i", "nats://h:1,tls://i"),
            (
                "https://hooks.slack.com/services/T0000/B0000/XXXXXXXXXXXXXXXXXXXXXXXX",
                "https://hooks.slack.com/services/T0000/B0000/***",
            ),
            ("https://api.telegram.org/bot123456:ABC-DEF1234/sendMessage", "https://api.telegram.org/***/sendMessage"),
            ("hunter2", "***"),
            ("redis+unix:hunter2", "redis+unix:***"),
            ("http://h:notaport/?hunter2", "***"),
        ] {
            let url: SecretUrl = serde_json::from_value(url.into()).unwrap();
            assert_eq!((url.to_string(), format!("{url:?}")), (wanted.to_owned(), wanted.to_owned()));
        }
        assert_eq!(format!("{:?}", Hidden::new("hunter2")), "***");
    }
}
