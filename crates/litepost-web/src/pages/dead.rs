//! Dead letters: filter, inspect, choose some, edit one.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query as Asked, State};
use axum::http::StatusCode;
use axum::routing::get;
use litepost::dead::{DeadEvent, DeadFilter, DeadSummary};
use maud::{Markup, html};
use rusqlite::types::Value;
use serde::Deserialize;

use super::{Trouble, deed, facts, field, files, page, when};
use crate::auth::csrf;
use crate::error::Refusal;
use crate::events::{pretty, time};
use crate::state::Admin;

/// Letters of one page.
const PAGE: u32 = 100;
/// See [`litepost_core::DeadReason`].
const REASONS: [&str; 6] = ["max_attempts", "max_age", "permanent", "expired", "malformed", "skipped"];

pub(super) fn routes() -> Router<Arc<Admin>> {
    Router::new().route("/dead", get(dead)).route("/dead/{file}/{dead_id}", get(dead_letter))
}

/// The names are those of the deeds' fields.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Query {
    file: usize,
    destination: String,
    topic: String,
    key: String,
    #[serde(rename = "type")]
    kind: String,
    dead_reason: String,
    error_code: String,
    since: String,
    until: String,
    done: String,
    after: i64,
}

impl Query {
    /// What says which letters, for forms.
    fn fields(&self) -> Vec<(&'static str, &str)> {
        let all = [
            ("destination", &self.destination),
            ("topic", &self.topic),
            ("key", &self.key),
            ("type", &self.kind),
            ("dead_reason", &self.dead_reason),
            ("error_code", &self.error_code),
            ("since", &self.since),
            ("until", &self.until),
        ];
        all.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name, value.as_str())).collect()
    }

    fn filter(&self) -> Result<DeadFilter, Refusal> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let at = |text: &str| time(text).map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why, ""));
        Ok(DeadFilter {
            destination: given(&self.destination),
            topic: given(&self.topic),
            key: given(&self.key),
            kind: given(&self.kind),
            reason: given(&self.dead_reason),
            error_code: given(&self.error_code),
            dead_since: at(&self.since)?,
            dead_until: at(&self.until)?,
            done: if self.done == "too" { None } else { Some(false) },
            after: self.after,
            limit: PAGE,
            ..DeadFilter::default()
        })
    }
}

async fn dead(State(admin): State<Arc<Admin>>, Asked(query): Asked<Query>) -> Result<Markup, Trouble> {
    let filter = query.filter()?;
    let letters = admin.read(query.file, move |connection| litepost::dead::list(connection, &filter)).await?;
    Ok(page(
        "/dead",
        "Dead letters",
        &html! {
            (search(&admin, &query))
            @if letters.is_empty() { p { "No dead letter matches." } } @else {
                (table(&query, &letters))
                (everything(&query))
            }
            @if let Some(last) = letters.last().filter(|_| letters.len() == PAGE as usize) {
                form method="get" {
                    @for (name, value) in query.fields() { input type="hidden" name=(name) value=(value); }
                    input type="hidden" name="file" value=(query.file);
                    input type="hidden" name="done" value=(query.done);
                    button name="after" value=(last.dead_id) { "Newer" }
                }
            }
        },
    ))
}

fn search(admin: &Admin, query: &Query) -> Markup {
    html! {
        form method="get" role="search" aria-label="Filter dead letters" {
            (files(admin, query.file))
            (field("destination", "Destination", &query.destination, "text"))
            (field("topic", "Topic", &query.topic, "text")) (field("key", "Key", &query.key, "text"))
            (field("type", "Type", &query.kind, "text"))
            label { "Reason " select name="dead_reason" {
                option value="" { "any" }
                @for reason in REASONS { option value=(reason) selected[reason == query.dead_reason] { (reason) } }
            } }
            (field("error_code", "Error code", &query.error_code, "text"))
            (field("since", "Dead since (UTC)", &query.since, "datetime-local"))
            (field("until", "Dead before (UTC)", &query.until, "datetime-local"))
            label class="check" { input type="checkbox" name="done" value="too" checked[query.done == "too"]; " Replayed and discarded too" }
            button type="submit" { "Filter" }
        }
    }
}

fn table(query: &Query, letters: &[DeadSummary]) -> Markup {
    html! {
        form method="post" action="/act/dead/replay" class="list" {
            input type="hidden" name="csrf" value=(csrf());
            input type="hidden" name="file" value=(query.file);
            div class="scroll" tabindex="0" role="region" aria-label="Dead letters" {
                table {
                    thead { tr {
                        th scope="col" { "Choose" }
                        th scope="col" class="number" { "Number" } th scope="col" { "Destination" } th scope="col" { "Topic" }
                        th scope="col" { "Key" } th scope="col" { "Reason" } th scope="col" class="number" { "Tries" } th scope="col" { "Error" }
                    } }
                    tbody { @for letter in letters { tr {
                        td { @if !is_done(letter) {
                            input type="checkbox" name="ids" value=(letter.dead_id) aria-label={ "Choose dead letter " (letter.dead_id) };
                        } }
                        td class="number" { a href={ "/dead/" (query.file) "/" (letter.dead_id) } { (letter.dead_id) } }
                        td { (letter.destination) } td { (letter.topic) } td { (letter.key.as_deref().unwrap_or("-")) }
                        td { (letter.reason) @if letter.replayed_at.is_some() { " (replayed)" } @if letter.discarded_at.is_some() { " (discarded)" } }
                        td class="number" { (letter.attempts) }
                        td class="wide" { (letter.error.as_deref().or(letter.error_code.as_deref()).unwrap_or("-")) }
                    } } }
                }
            }
            div class="row" {
                button type="submit" { "Replay chosen…" }
                button type="submit" formaction="/act/dead/discard" { "Discard chosen…" }
            }
        }
    }
}

/// The deeds on all that match, beyond this page as well.
fn everything(query: &Query) -> Markup {
    let file = query.file.to_string();
    let mut hidden = query.fields();
    hidden.push(("file", &file));
    if hidden.len() == 1 {
        hidden.push(("all", "true"));
    }
    html! {
        h2 { "All that match" }
        p { "Nothing happens before you have seen what would be done." }
        div class="row" {
            (deed("dead/replay", &hidden, &html! {}, "Replay all that match…"))
            (deed("dead/discard", &hidden, &html! {}, "Discard all that match…"))
        }
    }
}

fn is_done(letter: &DeadSummary) -> bool {
    letter.replayed_at.is_some() || letter.discarded_at.is_some()
}

async fn dead_letter(
    State(admin): State<Arc<Admin>>,
    Path((file, dead_id)): Path<(usize, i64)>,
) -> Result<Markup, Trouble> {
    let letter = admin.read(file, move |connection| litepost::dead::show(connection, dead_id)).await?;
    let letter = letter.ok_or_else(|| Refusal::not_found(format!("there is no dead letter {dead_id}")))?;
    let summary = &letter.summary;
    let rows: Vec<(&str, String)> = vec![
        ("Destination", summary.destination.clone()),
        ("Reason", summary.reason.clone()),
        ("Attempts", summary.attempts.to_string()),
        ("Error", summary.error.clone().unwrap_or_default()),
        ("Error code", summary.error_code.clone().unwrap_or_default()),
        ("Dead since", when(summary.dead_at.0)),
        ("Replayed", summary.replayed_at.map(|at| when(at.0)).unwrap_or_default()),
        ("Replayed as event", summary.replayed_as.map(|seq| seq.to_string()).unwrap_or_default()),
        ("Discarded", summary.discarded_at.map(|at| when(at.0)).unwrap_or_default()),
        ("Event", format!("{} (seq {})", summary.id, summary.seq)),
        ("Topic", summary.topic.clone()),
        ("Key", summary.key.clone().unwrap_or_default()),
        ("Type", summary.kind.clone()),
        ("Written", when(letter.created_at.0)),
        ("Headers", letter.headers.clone().unwrap_or_default()),
    ];
    Ok(page(
        "/dead",
        &format!("Dead letter {dead_id}"),
        &html! {
            (facts(&rows))
            p { a href={ "/events/" (file) "/" (summary.seq) } { "What became of event " (summary.seq) " everywhere" } }
            h2 { "Payload" }
            pre tabindex="0" { (pretty(&letter.payload)) }
            @if !is_done(summary) { (hands(file, &letter)) }
        },
    ))
}

fn hands(file: usize, letter: &DeadEvent) -> Markup {
    let (file, number) = (file.to_string(), letter.summary.dead_id.to_string());
    let this = [("file", file.as_str()), ("ids", number.as_str())];
    let edited = [("file", file.as_str()), ("dead_id", number.as_str())];
    let text = match &letter.payload {
        Value::Text(_) => Some(pretty(&letter.payload)),
        _ => None,
    };
    html! {
        h2 { "Deal with it" }
        div class="row" {
            (deed("dead/replay", &this, &html! {}, "Replay as it is…"))
            (deed("dead/discard", &this, &html! {}, "Discard…"))
        }
        @if let Some(key) = &letter.summary.key {
            @let line = [("file", file.as_str()), ("destination", letter.summary.destination.as_str()), ("key", key.as_str())];
            (deed("dead/replay-in-order", &line, &html! {}, "Replay all of its key in order…"))
        }
        h2 { "Edit and replay" }
        p { "The dead letter keeps the old body. You see the difference before anything is written." }
        (deed("dead/edit", &edited, &html! {
            @if let Some(text) = text { label class="wide" { "Payload " textarea name="payload" rows="12" spellcheck="false" { "\n" (text) } } }
            @else { p { "The payload is bytes and stays as it is; the API takes other bytes as payload_base64." } }
            label class="wide" { "Headers, a JSON object " textarea name="headers" rows="3" spellcheck="false" { "\n" (letter.headers.as_deref().unwrap_or_default()) } }
        }, "Show the difference…"))
    }
}
