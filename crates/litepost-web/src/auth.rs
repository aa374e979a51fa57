//! Who may ask: Host, Origin and token of every request.
//!
//! Called by the router before anything else. Invariants: a browser that was lured here by another site's name or page
//! is refused before any handler runs; tokens are compared in constant time.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use subtle::ConstantTimeEq as _;

use crate::error::Refusal;

/// The shortest token that is accepted.
const TOKEN_CHARACTERS_MIN: usize = 16;

/// Nothing from elsewhere, nothing inline, no frames.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; \
                          form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// A secret that an operator's client sends: `Authorization: Bearer …`, or as the password of Basic, which browsers ask
/// for.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// Takes a token of at least 16 characters.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        if text.len() < TOKEN_CHARACTERS_MIN {
            return Err("the admin token is shorter than 16 characters");
        }
        Ok(Self(text.into()))
    }

    fn is(&self, given: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(given).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// What is compared.
pub(crate) struct Guard {
    /// `Host` headers that mean this listener; `None`: any, since a token is asked for and names are unknown.
    hosts: Option<HashSet<String>>,
    token: Option<Token>,
}

impl Guard {
    pub(crate) fn new(address: SocketAddr, token: Option<Token>) -> Self {
        let port = address.port();
        let names = ["127.0.0.1", "localhost", "[::1]"].map(|name| format!("{name}:{port}"));
        let hosts = address.ip().is_loopback().then(|| names.into_iter().chain([address.to_string()]).collect());
        Self { hosts, token }
    }

    fn refuses(&self, headers: &HeaderMap, uri_host: Option<&str>) -> Option<Refusal> {
        let host = uri_host.or_else(|| text(headers.get(header::HOST))).unwrap_or_default().to_ascii_lowercase();
        if self.hosts.as_ref().is_some_and(|known| !known.contains(&host)) {
            return Some(Refusal::new(
                StatusCode::FORBIDDEN,
                "the Host header names another machine",
                "use http://127.0.0.1 or http://localhost with the listener's port",
            ));
        }
        // A browser sends Origin with every request that can change something, and with those of other sites.
        if let Some(origin) = headers.get(header::ORIGIN) {
            let own = text(Some(origin))
                .and_then(|origin| origin.split_once("://"))
                .is_some_and(|(_, name)| name.eq_ignore_ascii_case(&host));
            if !own {
                return Some(Refusal::new(StatusCode::FORBIDDEN, "the request comes from another site", ""));
            }
        }
        let token = self.token.as_ref()?;
        if given(headers).is_some_and(|given| token.is(&given)) {
            return None;
        }
        Some(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "the token is missing or wrong",
            "send Authorization: Bearer TOKEN",
        ))
    }
}

fn text(value: Option<&HeaderValue>) -> Option<&str> {
    value.and_then(|value| value.to_str().ok())
}

/// What the dashboard's forms carry: nobody else can know it, and it is another one in each process.
pub(crate) fn csrf() -> &'static str {
    static TOKEN: LazyLock<String> =
        LazyLock::new(|| litepost::ids::random_identity() + &litepost::ids::random_identity());
    &TOKEN
}

/// The header that says who acts.
pub(crate) const ACTOR: &str = "x-litepost-actor";

/// Who acts, for the audit trail: what the header says, or the user of Basic authentication, or "admin".
pub(crate) fn actor(headers: &HeaderMap) -> String {
    let named = text(headers.get(ACTOR)).map(str::to_owned);
    let user = || {
        let (scheme, rest) = text(headers.get(header::AUTHORIZATION))?.split_once(' ')?;
        let pair = scheme.eq_ignore_ascii_case("basic").then(|| BASE64.decode(rest.trim()).ok())??;
        Some(String::from_utf8_lossy(&pair).split_once(':')?.0.to_owned())
    };
    named.or_else(user).filter(|name| !name.is_empty()).unwrap_or_else(|| "admin".to_owned())
}

/// The token that came with the request.
fn given(headers: &HeaderMap) -> Option<Vec<u8>> {
    let (scheme, rest) = text(headers.get(header::AUTHORIZATION))?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().as_bytes().to_vec());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = BASE64.decode(rest.trim()).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

/// Lets a request through or refuses it, and puts the headers on that keep a page from being framed or guessed.
pub(crate) async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let host = request.uri().authority().map(|authority| authority.as_str().to_owned());
    let mut response = match guard.refuses(request.headers(), host.as_deref()) {
        None => next.run(request).await,
        Some(refusal) => {
            let unauthorized = refusal.status() == StatusCode::UNAUTHORIZED;
            let mut response = refusal.into_response();
            if unauthorized {
                let realm = HeaderValue::from_static("Basic realm=\"litepost\", charset=\"UTF-8\"");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, realm);
            }
            response
        }
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Not "no-referrer": a browser then sends "Origin: null" with the dashboard's own forms.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn asked(guard: &Guard, headers: &[(&str, &str)]) -> Option<StatusCode> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(header::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        guard.refuses(&map, None).map(|refusal| refusal.status())
    }

    fn loopback() -> Guard {
        Guard::new("127.0.0.1:8765".parse().unwrap(), None)
    }

    #[test]
    fn a_rebound_name_and_a_foreign_page_are_refused() {
        let guard = loopback();
        for host in ["127.0.0.1:8765", "localhost:8765", "LOCALHOST:8765", "[::1]:8765"] {
            assert_eq!(asked(&guard, &[("host", host)]), None, "{host}");
        }
        for host in ["evil.example:8765", "127.0.0.1", "localhost:80", ""] {
            assert_eq!(asked(&guard, &[("host", host)]), Some(StatusCode::FORBIDDEN), "{host}");
        }
        let own = [("host", "localhost:8765"), ("origin", "http://localhost:8765")];
        assert_eq!(asked(&guard, &own), None);
        for origin in ["http://evil.example", "null", "http://localhost:9999", "http://127.0.0.1:8765"] {
            let foreign = [("host", "localhost:8765"), ("origin", origin)];
            assert_eq!(asked(&guard, &foreign), Some(StatusCode::FORBIDDEN), "{origin}");
        }
    }

    #[test]
    fn a_token_is_asked_for_in_both_shapes() {
        let guard = Guard::new("0.0.0.0:8765".parse().unwrap(), Some(Token::new("0123456789abcdef").unwrap()));
        let basic = format!("Basic {}", BASE64.encode("operator:0123456789abcdef"));
        for good in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef", &basic] {
            assert_eq!(asked(&guard, &[("host", "relay.example"), ("authorization", good)]), None, "{good}");
        }
        for bad in ["Bearer 0123456789abcdeF", "Bearer ", "0123456789abcdef", "Basic !!!", "Digest x"] {
            let refused = asked(&guard, &[("host", "relay.example"), ("authorization", bad)]);
            assert_eq!(refused, Some(StatusCode::UNAUTHORIZED), "{bad}");
        }
        assert_eq!(asked(&guard, &[("host", "relay.example")]), Some(StatusCode::UNAUTHORIZED));
    }

    #[test]
    fn a_token_is_not_short_and_not_shown() {
        assert!(Token::new("short").is_err());
        assert_eq!(format!("{:?}", Token::new("0123456789abcdef").unwrap()), "Token(…)");
    }

    #[test]
    fn who_acts_is_the_header_or_the_user_of_basic() {
        let of = |pairs: &[(&'static str, &str)]| {
            actor(
                &pairs
                    .iter()
                    .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()))
                    .collect(),
            )
        };
        let basic = format!("Basic {}", BASE64.encode("ada:0123456789abcdef"));
        assert_eq!(of(&[]), "admin");
        assert_eq!(of(&[("authorization", &basic)]), "ada");
        assert_eq!(of(&[("authorization", &basic), ("x-litepost-actor", "deploy")]), "deploy");
        assert_eq!(of(&[("authorization", "Bearer 0123456789abcdef")]), "admin");
    }
}
