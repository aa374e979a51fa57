//! Does what [`crate::deeds`] lists, through the library's operator.
//!
//! Called by the API and by the dashboard's forms. Invariant: a deed that names nothing does nothing: "all" must be
//! said.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use litepost::dead::{self, DeadFilter};
use litepost::operate::{NewBody, Operator, RewindTo, Scope, Who};
use litepost_core::Seq;
use rusqlite::types::Value as Payload;
use serde_json::{Value, json};

use crate::deeds::{Deed, Request};
use crate::error::Refusal;
use crate::events::{pretty, time};
use crate::state::Admin;

/// Dead letters of one transaction unless asked otherwise; the file is locked for some milliseconds.
const LIMIT: u32 = 1_000;
const LIMIT_MAX: u32 = 10_000;
/// A relay is given less time than an answer may take.
const WAIT_MS: u64 = 10_000;
const WAIT_MS_MAX: u64 = 25_000;

/// Does it, or tells what it would do. `actor` is who asks when the request names nobody.
pub(crate) async fn perform(
    admin: &Arc<Admin>,
    deed: &'static Deed,
    request: Request,
    actor: &str,
) -> Result<Value, Refusal> {
    let sources = admin.shown.sources();
    let Some(source) = sources.get(request.file) else {
        return Err(Refusal::not_found(format!("there is no outbox file {}", request.file)));
    };
    let path = source.path.clone();
    let actor = request.actor.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| actor.to_owned());
    let reason = request.reason.clone().filter(|text| !text.is_empty());
    let work = move || {
        let wait = Duration::from_millis(request.wait_ms.unwrap_or(WAIT_MS).min(WAIT_MS_MAX));
        let operator = Operator::open(&path, Who { actor, reason })?;
        let operator = operator.patience(wait).force(request.force).dry_run(request.dry_run);
        let mut operator = operator.reapply(request.reapply);
        let mut answer = run(deed, &request, &mut operator)?;
        answer["dry_run"] = request.dry_run.into();
        Ok(answer)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string(), "report it")),
    }
}

fn run(deed: &Deed, request: &Request, operator: &mut Operator) -> Result<Value, Refusal> {
    let destination = request.destination.as_deref().unwrap_or_default();
    Ok(match deed.name {
        "dead/replay" => json!({ "replayed": operator.replay(&which(request)?)? }),
        "dead/replay-in-order" => {
            json!(operator.replay_in_order(destination, request.key.as_deref().unwrap_or_default())?)
        }
        "dead/edit" => edit(request, operator)?,
        "dead/discard" => json!({ "discarded": operator.discard(&which(request)?)? }),
        "dead/purge" => json!({ "purged": operator.purge(&filter(request)?, request.older_than_ms)? }),
        "destinations/pause" => json!({ "paused": operator.pause(destination, &scope(request)?)? }),
        "destinations/resume" => json!({ "resumed": operator.resume(destination, &scope(request)?)? }),
        "destinations/skip" => json!({ "skipped": skip(request, destination, operator)? }),
        "destinations/accept-holes" => json!({ "holes": operator.accept_holes(destination)? }),
        "destinations/rewind" => json!({ "rewound": operator.rewind(destination, rewind_to(request)?)? }),
        other => return Err(Refusal::not_found(format!("there is nothing called {other}"))),
    })
}

fn bad(message: &str, hint: &str) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, message, hint)
}

fn filter(request: &Request) -> Result<DeadFilter, Refusal> {
    let at = |text: &Option<String>| time(text.as_deref().unwrap_or_default()).map_err(|why| bad(&why, ""));
    Ok(DeadFilter {
        ids: request.ids.clone(),
        destination: request.destination.clone(),
        topic: request.topic.clone(),
        key: request.key.clone(),
        kind: request.kind.clone(),
        reason: request.dead_reason.clone(),
        error_code: request.error_code.clone(),
        dead_since: at(&request.since)?,
        dead_until: at(&request.until)?,
        limit: request.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX),
        ..DeadFilter::default()
    })
}

fn which(request: &Request) -> Result<DeadFilter, Refusal> {
    let filter = filter(request)?;
    let names_nothing = DeadFilter { limit: filter.limit, ..DeadFilter::default() } == filter;
    if names_nothing && !request.all {
        return Err(bad("which dead letters?", "give ids or what they have in common, or \"all\": true"));
    }
    Ok(filter)
}

fn scope(request: &Request) -> Result<Scope, Refusal> {
    match (&request.topic, &request.key) {
        (None, None) => Ok(Scope::Destination),
        (Some(topic), None) => Ok(Scope::Topic(topic.clone())),
        (None, Some(key)) => Ok(Scope::Key(key.clone())),
        (Some(_), Some(_)) => Err(bad("give a topic or a key, not both", "")),
    }
}

fn skip(request: &Request, destination: &str, operator: &mut Operator) -> Result<Vec<Seq>, Refusal> {
    match (request.seqs.is_empty(), scope(request)?) {
        (false, Scope::Destination) => {
            let seqs: Vec<Seq> = request.seqs.iter().copied().map(Seq).collect();
            Ok(operator.skip(destination, &seqs)?)
        }
        (true, Scope::Destination) => Err(bad("which events?", "give seqs, or a topic, or a key")),
        (true, scope) => Ok(operator.skip_all(destination, &scope)?),
        (false, _) => Err(bad("give seqs, or a topic, or a key", "")),
    }
}

fn rewind_to(request: &Request) -> Result<RewindTo, Refusal> {
    match (request.seq, request.time.as_deref().map(time)) {
        (Some(seq), None) => Ok(RewindTo::Seq(Seq(seq))),
        (None, Some(Ok(Some(at)))) => Ok(RewindTo::Time(at)),
        (None, Some(Err(why))) => Err(bad(&why, "")),
        _ => Err(bad("where to?", "give seq, or time")),
    }
}

fn edit(request: &Request, operator: &mut Operator) -> Result<Value, Refusal> {
    let letter = dead::show(operator.connection(), request.dead_id)?
        .ok_or_else(|| Refusal::not_found(format!("there is no dead letter {}", request.dead_id)))?;
    let payload = match (&request.payload, &request.payload_base64) {
        (Some(_), Some(_)) => return Err(bad("give payload or payload_base64, not both", "")),
        (Some(text), None) => Some(Payload::Text(text.clone())),
        (None, Some(text)) => match BASE64.decode(text) {
            Ok(bytes) => Some(Payload::Blob(bytes)),
            Err(_) => return Err(bad("payload_base64 is no base64", "")),
        },
        (None, None) => None,
    };
    let headers = match (&request.headers, request.remove_headers) {
        (Some(_), true) => return Err(bad("give headers or remove_headers, not both", "")),
        (Some(headers @ Value::Object(_)), false) => Some(Some(headers.to_string())),
        (Some(_), false) => return Err(bad("headers must be a JSON object", "")),
        (None, remove) => remove.then_some(None),
    };
    let payload = payload.filter(|new| *new != letter.payload);
    if payload.is_none() && headers.as_ref().is_none_or(|new| *new == letter.headers) {
        return Err(bad("nothing was changed", "dead/replay sends it as it is"));
    }
    let mut diff = json!({});
    if let Some(new) = &payload {
        diff["payload"] = json!({ "old": pretty(&letter.payload), "new": pretty(new) });
    }
    if let Some(new) = &headers {
        diff["headers"] = json!({ "old": letter.headers, "new": new });
    }
    let replayed = operator.replay_edited(request.dead_id, &NewBody { payload, headers })?;
    Ok(json!({ "replayed": [replayed], "diff": diff }))
}
