//! Who asks AWS, and at which address: what every connection to it says in the same keys.
//!
//! Called by the destinations `sqs` and `sns`, and by the claim check's bucket, when the configuration is read. Invariants: a
//! secret stays in a type that prints nothing of it; a URL that was refused is not repeated.

use reqwest::Url;
use secrecy::SecretString;

use crate::sink::SinkConfigError;

/// An access key that the configuration names.
pub(in crate::sinks) struct AccessKey {
    pub(in crate::sinks) id: String,
    pub(in crate::sinks) secret: SecretString,
    pub(in crate::sinks) token: Option<SecretString>,
}

impl AccessKey {
    /// `access_key_id`, `secret_access_key` and `session_token` of the table `table`: the first two together or neither.
    pub(in crate::sinks) fn read(
        table: &str,
        id: Option<String>,
        secret: Option<SecretString>,
        token: Option<SecretString>,
    ) -> Result<Option<Self>, SinkConfigError> {
        match (id, secret, token) {
            (Some(id), Some(secret), token) => Ok(Some(Self { id, secret, token })),
            (None, None, None) => Ok(None),
            _ => Err(SinkConfigError::new(
                format!("{table}.access_key_id"),
                "and secret_access_key are needed together; a session_token may stand beside them",
            )),
        }
    }
}

/// `endpoint` of the table `table`: the URL of another service that speaks the protocol.
pub(in crate::sinks) fn endpoint(table: &str, given: Option<&str>) -> Result<Option<Url>, SinkConfigError> {
    let Some(given) = given else { return Ok(None) };
    let url = Url::parse(given).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
    match url.filter(|url| url.username().is_empty() && url.password().is_none()) {
        Some(url) => Ok(Some(url)),
        // (Who writes a password into it must not find it in a message.)
        None => Err(SinkConfigError::new(format!("{table}.endpoint"), "is no URL such as https://host:4566")),
    }
}

/// The endpoint as the clients want it.
pub(in crate::sinks) fn address(endpoint: &Url) -> &str {
    endpoint.as_str().trim_end_matches('/')
}
