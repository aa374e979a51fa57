//! What a response means: delivered, this event is wrong, or the server cannot be used now.
//!
//! Called by the http sink for each request. Invariant: nothing configured as a secret gets into a message, whatever
//! the server echoes; no response occupies more memory than a bound.

use std::error::Error as _;

use litepost_core::{Outcome, Rejection, Unavailable, UnavailableKind};
use reqwest::header::RETRY_AFTER;
use reqwest::{Response, StatusCode};
use secrecy::ExposeSecret as _;

use super::Endpoint;
use super::addresses::Refused;
use crate::clock;

/// How much of an error's body is looked at, bytes.
const ERROR_BODY_MAX: usize = 2 << 10;
/// How much of a success's body is read so that the connection can be used again, bytes.
const DRAIN_MAX: usize = 64 << 10;
/// How much of an error's body is shown, characters.
const SHOWN_MAX: usize = 300;
/// The longest pause a server may ask for: a day. A header is no reason to stop for years.
const RETRY_AFTER_MAX_MS: i64 = 86_400_000;
/// How long an endpoint that is gone is left alone, at least: an hour.
const GONE_PAUSE_MS: i64 = 3_600_000;

/// Sorts a response.
pub(super) async fn outcome(endpoint: &Endpoint, mut response: Response) -> Outcome {
    let status = response.status();
    if status.is_success() {
        read(&mut response, DRAIN_MAX).await;
        return Outcome::Delivered;
    }
    let retry_after_ms = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()).and_then(retry_after);
    let body = read(&mut response, ERROR_BODY_MAX).await;
    let message = describe(endpoint, status, &body);
    classify(status, message, retry_after_ms)
}

fn classify(status: StatusCode, message: String, retry_after_ms: Option<i64>) -> Outcome {
    let unavailable =
        |kind| Outcome::Unavailable(Unavailable { retry_after_ms, ..Unavailable::new(kind, message.clone()) });
    let code = status.as_str();
    let rejected = |rejection| Outcome::Rejected(Rejection { retry_after_ms, ..rejection });
    match status.as_u16() {
        429 => unavailable(UnavailableKind::Throttled),
        408 => unavailable(UnavailableKind::Timeout),
        425 => unavailable(UnavailableKind::Busy),
        401 | 403 | 407 => unavailable(UnavailableKind::Denied),
        // The receiver is gone and has said so. No event is at fault, and asking again soon would be rude.
        410 => Outcome::Unavailable(Unavailable {
            retry_after_ms: Some(retry_after_ms.unwrap_or(0).max(GONE_PAUSE_MS)),
            ..Unavailable::new(
                UnavailableKind::Denied,
                format!("{message} (the endpoint is gone for good: set another url, or remove the destination)"),
            )
        }),
        // Too large: no later attempt makes it smaller.
        413 | 431 => rejected(Rejection::never(code, message)),
        // The endpoint is not there, or does not speak our method or media type: nothing of the event's doing.
        404 | 405 | 406 | 415 => rejected(Rejection::hold(code, message)),
        400..=499 => rejected(Rejection::new(code, message)),
        _ => unavailable(UnavailableKind::Server),
    }
}

fn describe(endpoint: &Endpoint, status: StatusCode, body: &[u8]) -> String {
    let mut message = format!("{} answered {status}", endpoint.shown);
    if status.is_redirection() {
        message.push_str(" (redirects are not followed; set the url to where it leads)");
    }
    let mut text = String::from_utf8_lossy(body).into_owned();
    for secret in &endpoint.secrets {
        text = text.replace(secret.expose_secret(), "***");
    }
    let text: String = text.trim().chars().take(SHOWN_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if !text.is_empty() {
        message.push_str(": ");
        message.push_str(&text);
    }
    message
}

/// Reads up to `max` bytes; an error half-way ends it, the status has already decided.
async fn read(response: &mut Response, max: usize) -> Vec<u8> {
    let mut body = Vec::new();
    while body.len() < max {
        match response.chunk().await {
            Ok(Some(chunk)) => body.extend_from_slice(&chunk[..chunk.len().min(max - body.len())]),
            Ok(None) | Err(_) => break,
        }
    }
    body
}

/// No response at all.
pub(super) fn failed(endpoint: &Endpoint, e: reqwest::Error) -> Unavailable {
    let mut kind = if e.is_timeout() { UnavailableKind::Timeout } else { UnavailableKind::Connect };
    let unsent = e.is_connect();
    let e = e.without_url();
    let mut message = format!("{}: {e}", endpoint.shown);
    let mut cause = e.source();
    while let Some(inner) = cause {
        if inner.is::<Refused>() {
            kind = UnavailableKind::Denied;
        }
        let text = inner.to_string();
        if !message.ends_with(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        cause = inner.source();
    }
    Unavailable { unsent, ..Unavailable::new(kind, message) }
}

/// `Retry-After` in seconds or as an HTTP date, as milliseconds from now.
pub(in crate::sinks) fn retry_after(value: &str) -> Option<i64> {
    let value = value.trim();
    let ms = match value.parse::<i64>() {
        Ok(seconds) => seconds.saturating_mul(1_000),
        Err(_) => jiff::fmt::rfc2822::parse(value).ok()?.timestamp().as_millisecond() - clock::wall().0,
    };
    Some(ms.clamp(0, RETRY_AFTER_MAX_MS))
}

#[cfg(test)]
mod tests {
    use litepost_core::RetryHint;

    use super::*;

    fn kind(status: u16) -> String {
        match classify(StatusCode::from_u16(status).unwrap(), String::new(), Some(7)) {
            Outcome::Rejected(r) => {
                assert_eq!((r.retry_after_ms, r.code), (Some(7), status.to_string()));
                match r.retry {
                    RetryHint::Policy => "policy".into(),
                    RetryHint::Never => "never".into(),
                    RetryHint::Hold => "hold".into(),
                }
            }
            Outcome::Unavailable(u) => format!("{:?}", u.kind),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn every_status_has_its_class() {
        for (status, class) in [
            (301, "Server"),
            (400, "policy"),
            (401, "Denied"),
            (403, "Denied"),
            (404, "hold"),
            (408, "Timeout"),
            (410, "Denied"),
            (409, "policy"),
            (413, "never"),
            (415, "hold"),
            (422, "policy"),
            (425, "Busy"),
            (429, "Throttled"),
            (500, "Server"),
            (503, "Server"),
            (599, "Server"),
        ] {
            assert_eq!(kind(status), class, "{status}");
        }
    }

    #[test]
    fn retry_after_in_both_forms() {
        assert_eq!(retry_after("120"), Some(120_000));
        assert_eq!(retry_after("-1"), Some(0));
        assert_eq!(retry_after("99999999999999"), Some(RETRY_AFTER_MAX_MS));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(0));
        let soon = retry_after("Thu, 31 Dec 9998 23:59:59 GMT");
        assert_eq!(soon, Some(RETRY_AFTER_MAX_MS));
        assert_eq!(retry_after("soon"), None);
    }
}
