//! The API: JSON for what the dashboard shows, and the stream that keeps it current.
//!
//! Invariant: every route stands in [`ROUTES`], or in [`DEEDS`], from which the OpenAPI document is made; a test asks each.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::Stream;
use futures_util::stream;
use litepost::dead::DeadFilter;
use litepost::operate;
use litepost_core::Seq;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::auth::{ACTOR, actor};
use crate::deeds::{DEEDS, Deed};
use crate::error::{Asked, Placed, Refusal};
use crate::events::{Query, dead_document, document};
use crate::state::Admin;

/// Between two looks of a stream.
const STREAM_EVERY: Duration = Duration::from_secs(1);

/// A route as the OpenAPI document tells it: path, what it answers, parameters in the path, parameters in the query.
pub(crate) const ROUTES: &[(&str, &str, &[&str], &[&str])] = &[
    ("/api/status", "Every outbox file with its destinations and lanes", &[], &[]),
    (
        "/api/events",
        "Events of one file, newest first; `next_before` goes on",
        &[],
        &["file", "id", "key", "topic", "type", "since", "until", "before", "limit"],
    ),
    ("/api/events/{file}/{seq}", "One event, whole", &["file", "seq"], &[]),
    ("/api/dead", "Dead letters of one file, oldest first", &[], &["file", "destination", "after", "limit"]),
    ("/api/dead/{file}/{dead_id}", "One dead letter, whole", &["file", "dead_id"], &[]),
    ("/api/timeline/{file}/{seq}", "What became of an event at every destination", &["file", "seq"], &[]),
    (
        "/api/progress",
        "How far a destination is on its way to a position, the newest unless given: what `drain` waits for",
        &[],
        &["file", "destination", "until_seq"],
    ),
    ("/api/audit", "Who did what to delivery, and why, oldest first", &[], &["file", "destination", "limit"]),
    ("/api/config", "The configuration, secrets masked", &[], &[]),
    ("/api/stream", "The status again and again, as server-sent events", &[], &[]),
    ("/api/openapi.json", "This document", &[], &[]),
];

pub(crate) fn routes() -> Router<Arc<Admin>> {
    let mut router = Router::new();
    for deed in DEEDS {
        let act = move |state, headers, body| act(deed, state, headers, body);
        router = router.route(&format!("/api/{}", deed.name), post(act));
    }
    router
        .route("/api/timeline/{file}/{seq}", get(timeline))
        .route("/api/progress", get(progress))
        .route("/api/audit", get(audit))
        .route("/api/status", get(status))
        .route("/api/events", get(events))
        .route("/api/events/{file}/{seq}", get(event))
        .route("/api/dead", get(dead))
        .route("/api/dead/{file}/{dead_id}", get(dead_letter))
        .route("/api/config", get(config))
        .route("/api/openapi.json", get(openapi))
}

/// Routes whose answers have no end.
pub(crate) fn streams() -> Router<Arc<Admin>> {
    Router::new().route("/api/stream", get(stream))
}

async fn status(State(admin): State<Arc<Admin>>) -> Json<Value> {
    Json(status_document(&admin).await)
}

pub(crate) async fn status_document(admin: &Arc<Admin>) -> Value {
    let files = admin.look().await;
    let trouble = crate::health::trouble(&files, admin.freshness_ms);
    json!({ "version": admin.version, "ready": trouble.is_empty(), "trouble": trouble, "files": files })
}

async fn events(State(admin): State<Arc<Admin>>, Asked(query): Asked<Query>) -> Result<Json<Value>, Refusal> {
    let search = query.search()?;
    let results = admin.read(query.file, move |connection| litepost::search::search(connection, &search)).await?;
    Ok(Json(json!(results)))
}

async fn event(
    State(admin): State<Arc<Admin>>,
    Placed((file, seq)): Placed<(usize, i64)>,
) -> Result<Json<Value>, Refusal> {
    let body = admin.read(file, move |connection| litepost::search::body(connection, Seq(seq))).await?;
    let body = body.ok_or_else(|| Refusal::not_found(format!("the log does not hold event {seq}")))?;
    Ok(Json(document(&body)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeadQuery {
    #[serde(default)]
    file: usize,
    destination: Option<String>,
    #[serde(default)]
    after: i64,
    limit: Option<u32>,
}

async fn dead(State(admin): State<Arc<Admin>>, Asked(query): Asked<DeadQuery>) -> Result<Json<Value>, Refusal> {
    let list = move |connection: &rusqlite::Connection| {
        let limit = query.limit.unwrap_or(100).clamp(1, 1_000);
        let filter = DeadFilter { destination: query.destination, after: query.after, limit, ..DeadFilter::default() };
        litepost::dead::list(connection, &filter)
    };
    Ok(Json(json!({ "dead": admin.read(query.file, list).await? })))
}

async fn dead_letter(
    State(admin): State<Arc<Admin>>,
    Placed((file, dead_id)): Placed<(usize, i64)>,
) -> Result<Json<Value>, Refusal> {
    let letter = admin.read(file, move |connection| litepost::dead::show(connection, dead_id)).await?;
    let letter = letter.ok_or_else(|| Refusal::not_found(format!("there is no dead letter {dead_id}")))?;
    Ok(Json(dead_document(&letter)))
}

async fn timeline(
    State(admin): State<Arc<Admin>>,
    Placed((file, seq)): Placed<(usize, i64)>,
) -> Result<Json<Value>, Refusal> {
    let routing = admin.shown.sources().get(file).map(|source| Arc::clone(&source.routing)).unwrap_or_default();
    let found = admin.read(file, move |connection| operate::journeys(connection, Seq(seq), &routing)).await?;
    Ok(Json(json!({ "seq": seq, "destinations": found })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgressQuery {
    #[serde(default)]
    file: usize,
    destination: String,
    until_seq: Option<i64>,
}

async fn progress(State(admin): State<Arc<Admin>>, Asked(query): Asked<ProgressQuery>) -> Result<Json<Value>, Refusal> {
    let look = move |connection: &rusqlite::Connection| {
        let until = query.until_seq.map_or_else(|| operate::head(connection), |seq| Ok(Seq(seq)))?;
        let found = operate::progress(connection, &query.destination, until)?;
        Ok(json!({ "progress": found, "done": found.is_done() }))
    };
    Ok(Json(admin.read(query.file, look).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuditQuery {
    #[serde(default)]
    file: usize,
    destination: Option<String>,
    limit: Option<u32>,
}

async fn audit(State(admin): State<Arc<Admin>>, Asked(query): Asked<AuditQuery>) -> Result<Json<Value>, Refusal> {
    let limit = query.limit.unwrap_or(100).clamp(1, 1_000);
    let look =
        move |connection: &rusqlite::Connection| operate::audit_trail(connection, query.destination.as_deref(), limit);
    Ok(Json(json!({ "audit": admin.read(query.file, look).await? })))
}

/// A deed. The type of its content is asked for, since a form of another site cannot send it.
async fn act(
    deed: &'static Deed,
    State(admin): State<Arc<Admin>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "the body must be application/json",
            "send Content-Type: application/json",
        ));
    }
    let body = serde_json::from_slice(&body).map_err(|error| {
        Refusal::new(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}"), "see /api/openapi.json")
    })?;
    let request = deed.read(body)?;
    Ok(Json(crate::act::perform(&admin, deed, request, &actor(&headers)).await?))
}

async fn config(State(admin): State<Arc<Admin>>) -> Json<Value> {
    Json(json!({ "config": &*admin.shown.config() }))
}

async fn stream(State(admin): State<Arc<Admin>>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let looks = stream::unfold((admin, false), |(admin, waited)| async move {
        if waited {
            tokio::time::sleep(STREAM_EVERY).await;
        }
        let event = Event::default().event("status").data(status_document(&admin).await.to_string());
        Some((Ok(event), (admin, true)))
    });
    Sse::new(looks).keep_alive(KeepAlive::default())
}

async fn openapi() -> Json<Value> {
    let asked = ROUTES.iter().map(|route| (route.0.to_owned(), json!({ "get": described(route) })));
    let done = DEEDS.iter().map(|deed| (format!("/api/{}", deed.name), json!({ "post": deed_described(deed) })));
    let paths: serde_json::Map<String, Value> = asked.chain(done).collect();
    Json(json!({
        "openapi": "3.1.0",
        "info": { "title": "litepost", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        // Without a token the listener is on loopback, and asks for none.
        "security": [{}, { "token": [] }],
        "components": {
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            "schemas": { "Refusal": {
                "type": "object",
                "required": ["error", "hint"],
                "properties": {
                    "error": { "type": "string", "description": "What happened" },
                    "hint": { "type": "string", "description": "What to do" },
                },
            } },
        },
    }))
}

/// A GET.
fn described((path, summary, in_path, in_query): &(&str, &str, &[&str], &[&str])) -> Value {
    let parameter = |place: &str, name: &str| {
        let number = matches!(name, "file" | "seq" | "dead_id" | "before" | "after" | "limit" | "until_seq");
        let required = place == "path" || (*path == "/api/progress" && name == "destination");
        let mut schema = json!({ "type": if number { "integer" } else { "string" } });
        if matches!(name, "file" | "limit") {
            (schema["minimum"], schema["maximum"]) = (0.into(), u32::MAX.into());
        }
        json!({ "name": name, "in": place, "required": required, "schema": schema })
    };
    let in_path = in_path.iter().map(|name| parameter("path", name));
    let parameters: Vec<Value> = in_path.chain(in_query.iter().map(|name| parameter("query", name))).collect();
    let content = if *path == "/api/stream" { "text/event-stream" } else { "application/json" };
    json!({
        "operationId": path.trim_start_matches("/api/").replace(['/', '.', '{', '}'], "_"),
        "summary": summary,
        "parameters": parameters,
        "responses": answers(summary, content),
    })
}

/// A POST.
fn deed_described(deed: &Deed) -> Value {
    let parameter = json!({
        "name": ACTOR, "in": "header", "required": false, "schema": { "type": "string" },
        "description": "Who acts, unless the body says so",
    });
    json!({
        "operationId": deed.name.replace(['/', '-'], "_"),
        "summary": deed.summary,
        "parameters": [parameter],
        "requestBody": { "required": true, "content": { "application/json": { "schema": deed.schema() } } },
        "responses": answers("What was done, or would be (`dry_run`)", "application/json"),
    })
}

fn answers(good: &str, content: &str) -> Value {
    let refusal = json!({ "schema": { "$ref": "#/components/schemas/Refusal" } });
    json!({
        "200": { "description": good, "content": { content: {} } },
        "default": { "description": "Nothing was done", "content": { "application/json": refusal } },
    })
}
