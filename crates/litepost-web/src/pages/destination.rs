//! One destination: how it stands, and what can be done to it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::get;
use maud::{Markup, html};

use super::{Trouble, age, deed, facts, field, page, paused, state, when};
use crate::error::Refusal;
use crate::state::Admin;

pub(super) fn routes() -> Router<Arc<Admin>> {
    Router::new().route("/destinations/{file}/{name}", get(destination))
}

async fn destination(
    State(admin): State<Arc<Admin>>,
    Path((file, name)): Path<(usize, String)>,
) -> Result<Markup, Trouble> {
    let looked = admin.look().await;
    let missing = || Refusal::not_found(format!("there is no destination {name} in outbox file {file}"));
    let looked = looked.get(file).ok_or_else(missing)?;
    let status = looked.status.as_ref().ok_or_else(missing)?;
    let found = status.destinations.iter().find(|found| found.destination == name).ok_or_else(missing)?;
    let rows: Vec<(&str, String)> = vec![
        ("Outbox file", looked.database.clone()),
        ("Waiting", found.pending.to_string()),
        ("Oldest", found.oldest_age_ms.map(age).unwrap_or_default()),
        ("Blocked keys", found.blocked_keys.to_string()),
        ("Scheduled", found.scheduled.to_string()),
        ("Dead letters", found.dead.to_string()),
        ("Delivered", found.delivered.to_string()),
        ("Skipped", found.skipped.to_string()),
        ("Expired", found.expired.to_string()),
        ("Trouble", found.error.clone().unwrap_or_default()),
        ("Since", found.state_since.map(|at| when(at.0)).unwrap_or_default()),
    ];
    let number = file.to_string();
    let this = [("file", number.as_str()), ("destination", name.as_str())];
    let pauses: Vec<_> = status.pauses.iter().filter(|pause| pause.destination == name).collect();
    Ok(page(
        "/",
        &name,
        &html! {
            p { (state(&found.state, paused(looked, &name))) }
            (facts(&rows))
            p { a href={ "/dead?file=" (file) "&destination=" (name) } { "Its dead letters" } " "
                a href={ "/audit?file=" (file) "&destination=" (name) } { "What was done to it" } }
            @if !pauses.is_empty() { h2 { "Paused" } }
            @for pause in &pauses {
                @let mut hidden = this.to_vec();
                @let words = if pause.kind == "destination" { "all of it".to_owned() } else { format!("{} {}", pause.kind, pause.name) };
                p { (words) ", since " (when(pause.paused_at.0)) " by " (pause.actor) @if let Some(reason) = &pause.reason { ": " (reason) } }
                ({ if pause.kind != "destination" { hidden.push((pause.kind.as_str(), pause.name.as_str())); }
                   deed("destinations/resume", &hidden, &html! {}, &format!("Resume {words}…")) })
            }
            h2 { "Pause" }
            p { "Nothing of it leaves until it is resumed. Give a topic or a key to pause only that." }
            (deed("destinations/pause", &this, &html! { (field("topic", "Topic", "", "text")) (field("key", "Key", "", "text")) }, "Pause…"))
            h2 { "Resume a held line" }
            p { "Lets a key or topic flow that is held behind a dead letter." }
            (deed("destinations/resume", &this, &html! { (field("topic", "Topic", "", "text")) (field("key", "Key", "", "text")) }, "Resume…"))
            h2 { "Skip" }
            p { "Takes events out of their line. They become dead letters and can be replayed." }
            (deed("destinations/skip", &this, &html! {
                (field("seqs", "Events (positions)", "", "text")) (field("topic", "or topic", "", "text")) (field("key", "or key", "", "text"))
            }, "Skip…"))
            h2 { "Rewind" }
            p { "Delivers again, from an event or a time on. A SQL target or a Redis stream remembers what it was given; its memory must then begin anew." }
            (deed("destinations/rewind", &this, &html! {
                (field("seq", "From event", "", "number")) (field("time", "or from (UTC)", "", "datetime-local"))
                (field("reapply", "Its memory begins anew", "true", "checkbox"))
            }, "Rewind…"))
            @if found.state == "stalled" {
                h2 { "Accept holes" }
                p { "Goes on behind events that are missing from the log. They are lost." }
                (deed("destinations/accept-holes", &this, &html! {}, "Accept…"))
            }
        },
    ))
}
