//! Variables from Doppler's HTTP API.
//!
//! Called once per load, when `DOPPLER_TOKEN` is set. Invariant: the token stands in no message, and any answer but a
//! complete one is an error: a service that starts with half of its secrets is worse than one that does not start.

use std::collections::BTreeMap;
use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};

use super::problem::ConfigError;

/// Where Doppler answers unless `DOPPLER_API_HOST` says otherwise.
const HOST: &str = "https://api.doppler.com";
/// The longest a fetch may take; the service manager tries again.
const SECONDS_MAX: u64 = 15;
/// No set of secrets is larger.
const BYTES_MAX: usize = 8 << 20;

/// What to fetch.
pub(crate) struct Request {
    /// The service token.
    pub(crate) token: SecretString,
    /// Another base URL.
    pub(crate) host: Option<String>,
    /// The project, for tokens that reach several.
    pub(crate) project: Option<String>,
    /// The config within the project.
    pub(crate) config: Option<String>,
}

/// Fetches all secrets.
pub(crate) fn fetch(request: &Request) -> Result<BTreeMap<String, String>, ConfigError> {
    let host = request.host.as_deref().unwrap_or(HOST).trim_end_matches('/');
    let fault = |what: String| ConfigError::Variables {
        message: format!(
            "the secrets cannot be fetched from Doppler at {host} (token {}): {what}",
            masked(request.token.expose_secret())
        ),
        hint: "check DOPPLER_TOKEN and the network, or unset DOPPLER_TOKEN to start without Doppler".into(),
    };
    // The load is synchronous and may be called from inside a runtime, where blocking on another is forbidden; a
    // thread of its own is right in both cases.
    let answer = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|error| error.to_string())?
                    .block_on(ask(request, host))
            })
            .join()
            .unwrap_or_else(|_| Err("the request ended unexpectedly".into()))
    });
    let body = answer.map_err(fault)?;
    read(&body).map_err(fault)
}

async fn ask(request: &Request, host: &str) -> Result<Vec<u8>, String> {
    // Another provider may be installed already; either serves.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .timeout(Duration::from_secs(SECONDS_MAX))
        // A redirect could carry the token elsewhere.
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .map_err(|error| chain(&error))?;
    let mut query = vec![("format", "json")];
    query.extend(request.project.as_deref().map(|project| ("project", project)));
    query.extend(request.config.as_deref().map(|config| ("config", config)));
    let mut url = reqwest::Url::parse(&format!("{host}/v3/configs/config/secrets/download"))
        .map_err(|error| format!("DOPPLER_API_HOST is no URL: {error}"))?;
    url.query_pairs_mut().extend_pairs(query);
    let mut response = client
        .get(url)
        .bearer_auth(request.token.expose_secret())
        .send()
        .await
        .map_err(|error| if error.is_timeout() { no_answer() } else { chain(&error.without_url()) })?;
    let status = response.status();
    if !status.is_success() {
        return Err(match status.as_u16() {
            401 | 403 => format!("it refused the token ({status})"),
            _ => format!("it answered {status}"),
        });
    }
    let mut body = Vec::new();
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| if error.is_timeout() { no_answer() } else { chain(&error.without_url()) })?
    {
        body.extend_from_slice(&chunk);
        if body.len() > BYTES_MAX {
            return Err("its answer is larger than 8 MiB".into());
        }
    }
    Ok(body)
}

fn no_answer() -> String {
    format!("no answer within {SECONDS_MAX} s")
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Reads the answer. The text of a JSON error could repeat a secret, so only its place is told.
fn read(body: &[u8]) -> Result<BTreeMap<String, String>, String> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err("its answer is empty".into());
    }
    let answer: BTreeMap<String, serde_json::Value> = serde_json::from_slice(body)
        .map_err(|error| format!("its answer is no JSON object (line {}, column {})", error.line(), error.column()))?;
    if answer.is_empty() {
        return Err("its answer holds no secret".into());
    }
    answer
        .into_iter()
        .map(|(name, value)| match value {
            serde_json::Value::String(text) => Ok((name, text)),
            serde_json::Value::Null => Ok((name, String::new())),
            _ => Err(format!("the secret {name} is no text")),
        })
        .collect()
}

/// The first characters of a token: enough to recognise it, not enough to use it.
fn masked(token: &str) -> String {
    let head: String = token.chars().take(token.chars().count().min(24) / 3).collect();
    format!("{head}***")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_masked() {
        assert_eq!(masked("dp.st.prd.abcdefghijklmnopqrstuvwxyz"), "dp.st.pr***");
        assert_eq!(masked("short"), "s***");
        assert_eq!(masked(""), "***");
    }

    #[test]
    fn half_an_answer_is_none() {
        assert_eq!(read(b" ").unwrap_err(), "its answer is empty");
        assert_eq!(read(b"{}").unwrap_err(), "its answer holds no secret");
        assert_eq!(read(br#"{"A": "hunter2"#).unwrap_err(), "its answer is no JSON object (line 1, column 14)");
        assert_eq!(read(br#"{"A": 5}"#).unwrap_err(), "the secret A is no text");
        assert_eq!(read(br#"{"A": "x", "B": null}"#).unwrap()["A"], "x");
    }
}
