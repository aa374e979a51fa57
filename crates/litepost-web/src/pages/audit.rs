//! Who did what to delivery, and why.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query as Asked, State};
use axum::routing::get;
use litepost::operate;
use maud::{Markup, html};
use serde::Deserialize;

use super::{Trouble, field, files, page, when};
use crate::state::Admin;

/// Deeds of the page.
const PAGE: u32 = 200;

pub(super) fn routes() -> Router<Arc<Admin>> {
    Router::new().route("/audit", get(audit))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Query {
    file: usize,
    destination: String,
    /// Set where a deed's form leads to.
    done: bool,
}

async fn audit(State(admin): State<Arc<Admin>>, Asked(query): Asked<Query>) -> Result<Markup, Trouble> {
    let destination = (!query.destination.is_empty()).then(|| query.destination.clone());
    let look = move |connection: &rusqlite::Connection| operate::audit_trail(connection, destination.as_deref(), PAGE);
    let entries = admin.read(query.file, look).await?;
    Ok(page(
        "/audit",
        "Audit log",
        &html! {
            @if query.done { p role="status" class="good" { "Done. It stands first below." } }
            form method="get" role="search" aria-label="Filter the audit log" {
                (files(&admin, query.file))
                (field("destination", "Destination", &query.destination, "text"))
                button type="submit" { "Filter" }
            }
            @if entries.is_empty() { p { "Nobody has done anything yet." } } @else {
                div class="scroll" tabindex="0" role="region" aria-label="Audit log" {
                    table {
                        thead { tr {
                            th scope="col" { "When" } th scope="col" { "Who" } th scope="col" { "What" }
                            th scope="col" { "Destination" } th scope="col" { "Why" } th scope="col" { "Particulars" }
                        } }
                        tbody { @for entry in entries.iter().rev() { tr {
                            td { (when(entry.at.0)) } td { (entry.actor) } th scope="row" { (entry.action) }
                            td { (entry.destination.as_deref().unwrap_or("-")) } td { (entry.reason.as_deref().unwrap_or("-")) }
                            td class="wide" { code { (entry.detail.to_string()) } }
                        } } }
                    }
                }
            }
        },
    ))
}
