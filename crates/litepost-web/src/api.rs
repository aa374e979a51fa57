//! The API: JSON for what the dashboard shows, and the stream that keeps it current.
//!
//! Invariant: every route stands in [`ROUTES`], from which the OpenAPI document is made; a test asks each.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query as Asked, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::Stream;
use futures_util::stream;
use litepost::dead::DeadFilter;
use litepost_core::Seq;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::Refusal;
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
    ("/api/config", "The configuration, secrets masked", &[], &[]),
    ("/api/stream", "The status again and again, as server-sent events", &[], &[]),
    ("/api/openapi.json", "This document", &[], &[]),
];

pub(crate) fn routes() -> Router<Arc<Admin>> {
    Router::new()
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

async fn event(State(admin): State<Arc<Admin>>, Path((file, seq)): Path<(usize, i64)>) -> Result<Json<Value>, Refusal> {
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
    Path((file, dead_id)): Path<(usize, i64)>,
) -> Result<Json<Value>, Refusal> {
    let letter = admin.read(file, move |connection| litepost::dead::show(connection, dead_id)).await?;
    let letter = letter.ok_or_else(|| Refusal::not_found(format!("there is no dead letter {dead_id}")))?;
    Ok(Json(dead_document(&letter)))
}

async fn config(State(admin): State<Arc<Admin>>) -> Json<Value> {
    Json(json!({ "config": admin.config }))
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
    let parameter = |place: &str, name: &str| {
        let number = matches!(name, "file" | "seq" | "dead_id" | "before" | "after" | "limit");
        json!({
            "name": name, "in": place, "required": place == "path",
            "schema": { "type": if number { "integer" } else { "string" } },
        })
    };
    let mut paths = serde_json::Map::new();
    for (path, summary, in_path, in_query) in ROUTES {
        let parameters: Vec<Value> = in_path
            .iter()
            .map(|name| parameter("path", name))
            .chain(in_query.iter().map(|name| parameter("query", name)))
            .collect();
        let content = if *path == "/api/stream" { "text/event-stream" } else { "application/json" };
        let answers = json!({
            "200": { "description": summary, "content": { content: {} } },
            "default": { "description": "`error` says what happened, `hint` what to do", "content": { "application/json": {} } },
        });
        paths.insert(
            (*path).to_owned(),
            json!({ "get": { "summary": summary, "parameters": parameters, "responses": answers } }),
        );
    }
    Json(json!({
        "openapi": "3.1.0",
        "info": { "title": "litepost", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": { "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } } },
    }))
}
