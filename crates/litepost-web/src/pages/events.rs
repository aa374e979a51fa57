//! Finding events, and one event with what became of it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query as Asked, State};
use axum::routing::get;
use litepost::operate::{self, Journey};
use litepost_core::Seq;
use maud::{Markup, html};

use super::{Trouble, facts, field, files, page, when};
use crate::error::Refusal;
use crate::events::{Query, pretty};
use crate::state::Admin;

pub(super) fn routes() -> Router<Arc<Admin>> {
    Router::new().route("/events", get(events)).route("/events/{file}/{seq}", get(event))
}

async fn events(State(admin): State<Arc<Admin>>, Asked(query): Asked<Query>) -> Result<Markup, Trouble> {
    let search = query.search()?;
    let file = query.file;
    let results = admin.read(file, move |connection| litepost::search::search(connection, &search)).await?;
    Ok(page(
        "/events",
        "Events",
        &html! {
            form method="get" role="search" aria-label="Find events" {
                (files(&admin, file))
                (field("id", "Id", &query.id, "text")) (field("key", "Key", &query.key, "text"))
                (field("topic", "Topic", &query.topic, "text")) (field("type", "Type", &query.kind, "text"))
                (field("since", "Since (UTC)", &query.since, "datetime-local")) (field("until", "Until (UTC)", &query.until, "datetime-local"))
                button type="submit" { "Find" }
            }
            @if results.events.is_empty() { p { "No event matches." } } @else {
                div class="scroll" tabindex="0" role="region" aria-label="Events" {
                    table {
                        thead { tr {
                            th scope="col" class="number" { "Seq" } th scope="col" { "Written" } th scope="col" { "Topic" }
                            th scope="col" { "Key" } th scope="col" { "Type" } th scope="col" class="number" { "Bytes" }
                        } }
                        tbody { @for event in &results.events { tr {
                            td class="number" { a href={ "/events/" (file) "/" (event.seq) } { (event.seq) } }
                            td { (when(event.created_at.0)) } td { (event.topic) }
                            td { (event.key.as_deref().unwrap_or("-")) } td { (event.kind) } td class="number" { (event.payload_bytes) }
                        } } }
                    }
                }
            }
            @if let Some(before) = results.next_before {
                form method="get" {
                    @for (name, value) in [("id", &query.id), ("key", &query.key), ("topic", &query.topic), ("type", &query.kind),
                        ("since", &query.since), ("until", &query.until)] {
                        @if !value.is_empty() { input type="hidden" name=(name) value=(value); }
                    }
                    input type="hidden" name="file" value=(file);
                    button name="before" value=(before) { "Older" }
                }
            }
        },
    ))
}

async fn event(State(admin): State<Arc<Admin>>, Path((file, seq)): Path<(usize, i64)>) -> Result<Markup, Trouble> {
    let body = admin.read(file, move |connection| litepost::search::body(connection, Seq(seq))).await?;
    let routing = admin.shown.sources().get(file).map(|source| Arc::clone(&source.routing)).unwrap_or_default();
    let journeys = admin.read(file, move |connection| operate::journeys(connection, Seq(seq), &routing)).await?;
    let Some(body) = body else { return gone(seq, file, &journeys) };
    let event = &body.event;
    let rows: Vec<(&str, String)> = vec![
        ("Id", event.id.clone()),
        ("Topic", event.topic.clone()),
        ("Key", event.key.clone().unwrap_or_default()),
        ("Type", event.kind.clone()),
        ("Written", when(event.created_at.0)),
        ("Version", body.version.map(|version| version.to_string()).unwrap_or_default()),
        ("Source", body.source.clone().unwrap_or_default()),
        ("Deliver after", body.deliver_after.map(|at| when(at.0)).unwrap_or_default()),
        ("Expires", body.expires_at.map(|at| when(at.0)).unwrap_or_default()),
        ("Headers", body.headers.clone().unwrap_or_default()),
    ];
    Ok(page(
        "/events",
        &format!("Event {seq}"),
        &html! {
            (facts(&rows))
            (timeline(file, &journeys))
            h2 { "Payload" }
            pre tabindex="0" { (pretty(&body.payload)) }
        },
    ))
}

/// An event that the log does not hold any more may still be a dead letter.
fn gone(seq: i64, file: usize, journeys: &[Journey]) -> Result<Markup, Trouble> {
    if journeys.iter().all(|journey| journey.moments.is_empty()) {
        return Err(Refusal::not_found(format!("the log does not hold event {seq}")).into());
    }
    let body = html! {
        p { "The log does not hold this event any more: every destination has settled it." }
        (timeline(file, journeys))
    };
    Ok(page("/events", &format!("Event {seq}"), &body))
}

fn timeline(file: usize, journeys: &[Journey]) -> Markup {
    html! {
        h2 { "What became of it" }
        @if journeys.is_empty() { p { "No destination is registered in this file yet." } } @else {
            div class="scroll" tabindex="0" role="region" aria-label="What became of it" {
                table {
                    thead { tr { th scope="col" { "Destination" } th scope="col" { "Stands" } th scope="col" { "Timeline" } } }
                    tbody { @for journey in journeys { tr {
                        th scope="row" { a href={ "/destinations/" (file) "/" (journey.destination) } { (journey.destination) } }
                        td { (standing(&journey.standing)) }
                        td {
                            @if journey.moments.is_empty() { "-" } @else {
                                ol class="timeline" { @for moment in &journey.moments {
                                    li { time { (when(moment.at.0)) } " " strong { (moment.what.replace('_', " ")) } " " (moment.detail) }
                                } }
                            }
                        }
                    } } }
                }
            }
        }
    }
}

fn standing(word: &str) -> Markup {
    let (class, text) = match word {
        "delivered" => ("good", "delivered"),
        "not_for_it" => ("", "not for this destination"),
        "settled" => ("good", "settled: delivered, or not for it"),
        "waiting" => ("", "waits for its turn"),
        "backoff" | "releasing" => ("warn", "failed; will be tried again"),
        "held" => ("bad", "held until an operator resumes its line"),
        "scheduled" => ("", "waits for its time"),
        "behind" => ("warn", "waits behind a failed event of its line"),
        "skipping" => ("warn", "will be skipped"),
        "dead" => ("bad", "dead letter"),
        "replayed" => ("good", "dead letter, replayed"),
        "discarded" => ("", "dead letter, discarded"),
        "elsewhere" => ("", "a replay for another destination"),
        other => ("", other),
    };
    html! { span class={ "state " (class) } { (text) } }
}
