//! `/live`: the process answers. `/ready`: delivery moves.
//!
//! Called by probes. Invariant: ready means progress, not "the process runs": it fails when a destination's oldest event
//! has waited longer than it may (so also when nothing has moved for that long while something waits), when a destination
//! is stalled, or when a file cannot be read.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::state::{Admin, Looked};

pub(crate) async fn live() -> &'static str {
    "live\n"
}

pub(crate) async fn ready(State(admin): State<Arc<Admin>>) -> Response {
    let trouble = trouble(&admin.look().await, admin.freshness_ms);
    let status = if trouble.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(serde_json::json!({ "ready": trouble.is_empty(), "trouble": trouble }))).into_response()
}

/// Why delivery does not move, one line each.
pub(crate) fn trouble(files: &[Looked], freshness_ms: i64) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        if let Some(error) = &file.error {
            found.push(format!("{}: {error}", file.database));
        }
        for destination in file.status.iter().flat_map(|status| &status.destinations) {
            let name = &destination.destination;
            if destination.state == "stalled" {
                found.push(format!("{name}: stalled: {}", destination.error.as_deref().unwrap_or("events are lost")));
            }
            let own = file.freshness_ms.iter().find(|(whose, _)| **whose == **name).map(|(_, own)| *own);
            let allowed = own.unwrap_or(freshness_ms);
            if let Some(age) = destination.oldest_age_ms.filter(|age| *age > allowed) {
                let (age, allowed) = (age / 1_000, allowed / 1_000);
                found.push(format!("{name}: the oldest event has waited {age} s, {allowed} s are allowed"));
            }
        }
    }
    found
}
