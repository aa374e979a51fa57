//! One server over HTTP: finds out what it speaks, sends pipelines, keeps the stream's baton and address.
//!
//! Called by the session. Invariants: the token goes to the configured address and to the `base_url` that this server
//! names for its own stream, and nowhere by an HTTP redirect; what is secret never stands in a message; an answer
//! that does not fit the question is no answer.

use std::collections::HashMap;
use std::time::Duration;

use litepost_core::{Unavailable, UnavailableKind};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Response, Url};
use secrecy::{ExposeSecret as _, SecretString};

use super::wire::{Answer, Batch, Condition, Outcome, Pipeline, Request, Response as Reply, Step, Stmt};
use super::{Endpoint, address, errors};
use crate::sinks::http::retry_after;
use crate::sinks::sql;

/// Largest answer that is read, bytes: rows are asked for only from the ledger.
const ANSWER_MAX: usize = 64 << 20;
/// Largest error body that is read, bytes.
const ERROR_MAX: usize = 4 << 10;
/// How much of an error is shown, characters.
const SHOWN_MAX: usize = 300;
/// Redirects within the same server that are followed.
const REDIRECTS_MAX: usize = 5;

/// A server and what it speaks.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    shown: String,
    token: Option<HeaderValue>,
    secrets: Vec<SecretString>,
    version: &'static str,
    /// Streams, stored texts and `describe`; without it only `execute` and `batch`.
    whole: bool,
}

/// The state of a stream between two pipelines.
#[derive(Debug, Default)]
pub(super) struct Stream {
    /// What the next pipeline must bring; `None` begins a new stream.
    pub(super) baton: Option<String>,
    /// Where the rest of the stream goes, when the server has said so.
    base: Option<Url>,
    /// The texts that the stream has stored, with their numbers.
    pub(super) stored: HashMap<String, i32>,
}

/// No answer to a pipeline.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The HTTP status, when there was one.
    pub(super) status: Option<u16>,
    pub(super) why: Unavailable,
}

impl Refusal {
    fn new(kind: UnavailableKind, message: String) -> Self {
        Self { status: None, why: Unavailable::new(kind, message) }
    }

    /// Whether this status means that the server does not know what was asked.
    fn is_unknown_request(&self) -> bool {
        matches!(self.status, Some(400 | 404 | 405 | 422 | 500 | 501))
    }

    /// Whether this status means that the stream of our baton is gone, and its transaction with it.
    pub(super) fn is_lost_stream(&self) -> bool {
        matches!(self.status, Some(400 | 404 | 409 | 410 | 422))
    }
}

/// Redirects stay on the same server and keep method and body; any other one is left as an answer.
fn redirect(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let keeps = matches!(attempt.status().as_u16(), 307 | 308);
    let same = attempt.previous().last().is_some_and(|from| from.origin() == attempt.url().origin());
    if keeps && same && attempt.previous().len() <= REDIRECTS_MAX { attempt.follow() } else { attempt.stop() }
}

impl Client {
    /// Finds out what the server speaks, and whether it can hold a ledger at all.
    pub(super) async fn connect(endpoint: &Endpoint) -> Result<Self, Unavailable> {
        sql::ensure_tls_provider();
        let unusable =
            |e: &dyn std::fmt::Display| Unavailable::new(UnavailableKind::Connect, format!("{}: {e}", endpoint.shown));
        let mut builder = reqwest::Client::builder();
        if let Some(path) = &endpoint.tls_root_cert {
            let read = std::fs::read(path).map_err(|e| unusable(&format!("{} cannot be read: {e}", path.display())))?;
            let certificates = reqwest::Certificate::from_pem_bundle(&read)
                .ok()
                .filter(|found| !found.is_empty())
                .ok_or_else(|| unusable(&format!("{} holds no certificate", path.display())))?;
            builder = builder.tls_certs_only(certificates);
        }
        let http = builder
            .redirect(Policy::custom(redirect))
            .connect_timeout(endpoint.connect_timeout)
            .pool_idle_timeout(Duration::from_secs(60))
            .user_agent(concat!("litepost/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| unusable(&e))?;
        let mut client = Self {
            http,
            base: endpoint.base.clone(),
            shown: endpoint.shown.clone(),
            token: endpoint.token.clone(),
            secrets: endpoint.secrets.clone(),
            version: "v2",
            whole: true,
        };
        // A server that announces neither may still speak version 2: the probe tells.
        for version in ["v3", "v2"] {
            if client.announces(version).await? {
                client.version = version;
                break;
            }
        }
        client.probe().await?;
        Ok(client)
    }

    /// Whether streams, stored texts and `describe` can be used.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    async fn announces(&self, version: &str) -> Result<bool, Unavailable> {
        let url = self.join(&self.base, version).map_err(|r| r.why)?;
        let mut request = self.http.get(url);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        let response = request.send().await.map_err(|e| self.failed(e).why)?;
        let status = response.status().as_u16();
        match status {
            200..=299 => Ok(true),
            // The version is not there; the reason is in the answer to a pipeline, if there is one.
            400..=499 if !matches!(status, 401 | 403 | 407 | 408 | 425 | 429) => Ok(false),
            501 => Ok(false),
            _ => Err(self.refused(response).await.why),
        }
    }

    /// What the ledger stands on: a failed step stops those that depend on it, and only those.
    async fn probe(&mut self) -> Result<(), Unavailable> {
        let steps = || {
            let step = |condition, sql| Step { condition, stmt: Stmt::plain(sql) };
            vec![
                step(None, "SELECT abs(-9223372036854775807 - 1)"),
                step(Some(Condition::Ok { step: 0 }), "SELECT 1"),
                step(Some(Condition::Ok { step: 0 }.negated()), "SELECT 1"),
                step(Some(Condition::And { conds: vec![Condition::Ok { step: 2 }] }), "SELECT 1"),
            ]
        };
        let whole = [Request::Batch { batch: Batch { steps: steps() } }, Request::Close];
        let answer = match self.pipeline(&mut Stream::default(), &whole).await {
            Err(refusal) if refusal.is_unknown_request() => {
                let least = [Request::Batch { batch: Batch { steps: steps() } }];
                // A server in trouble fails this one as well, and then nothing is decided.
                let answer = self.pipeline(&mut Stream::default(), &least).await.map_err(|_| refusal.why)?;
                self.whole = false;
                answer
            }
            answer => answer.map_err(|refusal| refusal.why)?,
        };
        let holds = match answer.into_iter().next() {
            Some(Outcome::Ok { response: Reply::Batch { result } }) => {
                let ran: Vec<bool> = result.step_results.iter().map(Option::is_some).collect();
                let failed: Vec<bool> = result.step_errors.iter().map(Option::is_some).collect();
                ran == [false, false, true, true] && failed == [true, false, false, false]
            }
            Some(Outcome::Error { error }) => return Err(self.clean(errors::unavailable(&error))),
            _ => false,
        };
        if holds {
            return Ok(());
        }
        Err(Unavailable::new(
            UnavailableKind::Denied,
            format!(
                "{} does not run batches as Hrana says (a failed step must stop those that depend on it): statements and \
                 their ledger row could not commit together, so nothing is delivered there",
                self.shown
            ),
        ))
    }

    /// Sends requests on the stream; exactly one outcome per request.
    pub(super) async fn pipeline(
        &self,
        stream: &mut Stream,
        requests: &[Request<'_>],
    ) -> Result<Vec<Outcome>, Refusal> {
        let base = stream.base.clone().unwrap_or_else(|| self.base.clone());
        let url = self.join(&base, &format!("{}/pipeline", self.version))?;
        // A baton is good for one request: should the answer be lost, so is the stream.
        let baton = stream.baton.take();
        let body = serde_json::to_vec(&Pipeline { baton: baton.as_deref(), requests })
            .map_err(|e| Refusal::new(UnavailableKind::Server, format!("the request cannot be written: {e}")))?;
        let mut request = self.http.post(url).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.clone());
        }
        let response = request.send().await.map_err(|e| self.failed(e))?;
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        let body = self.read(response, ANSWER_MAX).await?;
        let strange = |what: String| {
            Refusal::new(UnavailableKind::Server, format!("{} answered what is no Hrana: {what}", self.shown))
        };
        let answer: Answer = serde_json::from_slice(&body).map_err(|e| strange(e.to_string()))?;
        if answer.results.len() != requests.len() {
            return Err(strange(format!("{} results for {} requests", answer.results.len(), requests.len())));
        }
        stream.baton = answer.baton;
        if let Some(to) = answer.base_url.filter(|_| stream.baton.is_some()) {
            let followed = address::follow(&base, &to);
            stream.base = Some(followed.map_err(|message| Refusal::new(UnavailableKind::Denied, message))?);
        }
        if stream.baton.is_none() {
            *stream = Stream::default();
        }
        Ok(answer.results)
    }

    fn join(&self, base: &Url, path: &str) -> Result<Url, Refusal> {
        base.join(path).map_err(|e| Refusal::new(UnavailableKind::Denied, format!("{}: {e}", self.shown)))
    }

    async fn read(&self, mut response: Response, max: usize) -> Result<Vec<u8>, Refusal> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.failed(e))? {
            if body.len() + chunk.len() > max {
                let message = format!("{} answered with more than {max} bytes", self.shown);
                return Err(Refusal::new(UnavailableKind::Server, message));
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// A status other than 2xx.
    async fn refused(&self, mut response: Response) -> Refusal {
        let status = response.status();
        let pause = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()).and_then(retry_after);
        let mut message = format!("{} answered {status}", self.shown);
        if status.is_redirection() {
            message.push_str(
                " (redirects to another server are not followed: it would be told the token; set the url to where it leads)",
            );
        }
        let mut body = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk);
            if body.len() >= ERROR_MAX {
                break;
            }
        }
        let text = String::from_utf8_lossy(&body);
        let text: String = text.trim().chars().take(SHOWN_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
        if !text.is_empty() {
            message = format!("{message}: {text}");
        }
        let kind = errors::by_status(status.as_u16());
        let why = Unavailable { retry_after_ms: pause, ..Unavailable::new(kind, message) };
        Refusal { status: Some(status.as_u16()), why: self.clean(why) }
    }

    /// No answer at all, or half of one.
    fn failed(&self, e: reqwest::Error) -> Refusal {
        let kind = if e.is_timeout() { UnavailableKind::Timeout } else { UnavailableKind::Connect };
        let message = format!("{}: {}", self.shown, sql::one_line(&e.without_url()));
        Refusal { status: None, why: self.clean(Unavailable::new(kind, message)) }
    }

    /// Without what is secret, whatever the server has echoed.
    fn clean(&self, mut why: Unavailable) -> Unavailable {
        for secret in &self.secrets {
            why.message = why.message.replace(secret.expose_secret(), "***");
        }
        why
    }

    /// As [`Client::clean`], for a text.
    pub(super) fn clean_text(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.expose_secret(), "***"))
    }
}
