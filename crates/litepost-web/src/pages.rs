//! The dashboard: pages made on the server, with a script that keeps the overview current.
//!
//! Invariant: every page works without the script and without any request to elsewhere; what comes from events is text,
//! escaped by maud, never markup.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query as Asked, State};
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use axum::routing::get;
use litepost::dead::DeadFilter;
use litepost_core::Seq;
use maud::{DOCTYPE, Markup, html};
use serde::Deserialize;

use crate::error::Refusal;
use crate::events::{Query, pretty};
use crate::state::{Admin, Looked, wall};

const STYLE: &str = include_str!("assets/style.css");
const SCRIPT: &str = include_str!("assets/app.js");

/// The pages in the order of the navigation.
const PAGES: [(&str, &str); 5] = [
    ("/", "Overview"),
    ("/events", "Events"),
    ("/dead", "Dead letters"),
    ("/leases", "Leases"),
    ("/config", "Configuration"),
];

pub(crate) fn routes() -> Router<Arc<Admin>> {
    Router::new()
        .route("/", get(overview))
        .route("/events", get(events))
        .route("/events/{file}/{seq}", get(event))
        .route("/dead", get(dead))
        .route("/dead/{file}/{dead_id}", get(dead_letter))
        .route("/leases", get(leases))
        .route("/config", get(config))
        .route("/assets/style.css", get(|| async { asset("text/css; charset=utf-8", STYLE) }))
        .route("/assets/app.js", get(|| async { asset("text/javascript; charset=utf-8", SCRIPT) }))
}

fn asset(kind: &'static str, text: &'static str) -> ([(HeaderName, &'static str); 2], &'static str) {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=3600")], text)
}

/// A page that could not be made, as a page.
struct Trouble(Refusal);

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> axum::response::Response {
        let body = page("", "Not found", &html! { p role="alert" { (self.0.text()) } });
        (self.0.status(), body).into_response()
    }
}

fn page(path: &str, title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " - litepost" }
                link rel="stylesheet" href="/assets/style.css";
                link rel="icon" href="data:,";
            }
            body {
                a class="skip" href="#main" { "Skip to content" }
                header {
                    strong { "litepost" }
                    nav aria-label="Pages" {
                        @for (to, name) in PAGES {
                            a href=(to) aria-current=[(to == path).then_some("page")] { (name) }
                        }
                    }
                }
                main id="main" { h1 { (title) } (body) }
                script src="/assets/app.js" defer {}
            }
        }
    }
}

async fn overview(State(admin): State<Arc<Admin>>) -> Markup {
    let files = admin.look().await;
    let trouble = crate::health::trouble(&files, admin.freshness_ms);
    page(
        "/",
        "Overview",
        &html! {
            p id="health" role="status" class=(if trouble.is_empty() { "good" } else { "bad" }) {
                @if trouble.is_empty() { "Everything moves." } @else { (trouble.join("; ")) }
            }
            div class="scroll" tabindex="0" role="region" aria-label="Destinations" {
                table id="destinations" {
                    thead { tr {
                        th scope="col" { "Destination" } th scope="col" { "State" } th scope="col" class="number" { "Waiting" }
                        th scope="col" class="number" { "Oldest" } th scope="col" class="number" { "Blocked keys" }
                        th scope="col" class="number" { "Dead" } th scope="col" class="number" { "Delivered" }
                        th scope="col" { "Rate" }
                    } }
                    tbody { @for file in &files { (destinations(file)) } }
                }
            }
            h2 { "Outbox files" }
            ul class="files" {
                @for file in &files {
                    li {
                        code { (file.database) } ": "
                        @if let Some(error) = &file.error { span class="bad" { (error) } }
                        @else if let Some(status) = &file.status { "log up to event " (status.head) ", " }
                        (size(file.database_bytes)) " and " (size(file.wal_bytes)) " of WAL"
                        @if let Some(free) = file.free_bytes { ", " (size(free)) " free" }
                    }
                }
            }
        },
    )
}

fn destinations(file: &Looked) -> Markup {
    html! {
        @for found in file.status.iter().flat_map(|status| &status.destinations) {
            tr data-destination=(found.destination) {
                th scope="row" { (found.destination) }
                td data-field="state" { (state(&found.state)) @if let Some(error) = &found.error { " " small { (error) } } }
                td data-field="pending" class="number" { (found.pending) }
                td data-field="oldest" class="number" { (found.oldest_age_ms.map_or_else(|| "-".to_owned(), age)) }
                td data-field="blocked" class="number" { (found.blocked_keys) }
                td data-field="dead" class="number" { a href={ "/dead?destination=" (found.destination) } { (found.dead) } }
                td data-field="delivered" class="number" { (found.delivered) }
                td data-field="rate" { "-" }
            }
        }
    }
}

async fn events(State(admin): State<Arc<Admin>>, Asked(query): Asked<Query>) -> Result<Markup, Trouble> {
    let search = query.search()?;
    let file = query.file;
    let results = admin.read(file, move |connection| litepost::search::search(connection, &search)).await?;
    let field = |name: &str, label: &str, value: &str, kind: &str| {
        html! {
            label { (label) " " input type=(kind) name=(name) value=(value); }
        }
    };
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
    let body = body.ok_or_else(|| Refusal::not_found(format!("the log does not hold event {seq}")))?;
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
            h2 { "Payload" }
            pre tabindex="0" { (pretty(&body.payload)) }
        },
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeadQuery {
    #[serde(default)]
    file: usize,
    #[serde(default)]
    destination: String,
    #[serde(default)]
    after: i64,
}

async fn dead(State(admin): State<Arc<Admin>>, Asked(query): Asked<DeadQuery>) -> Result<Markup, Trouble> {
    const PAGE: u32 = 100;
    let (file, destination) = (query.file, query.destination.clone());
    let after = query.after;
    let list = move |connection: &rusqlite::Connection| {
        let destination = (!destination.is_empty()).then_some(destination);
        litepost::dead::list(connection, &DeadFilter { destination, after, limit: PAGE, ..DeadFilter::default() })
    };
    let letters = admin.read(file, list).await?;
    Ok(page(
        "/dead",
        "Dead letters",
        &html! {
            form method="get" role="search" aria-label="Filter dead letters" {
                (files(&admin, file))
                label { "Destination " input type="text" name="destination" value=(query.destination); }
                button type="submit" { "Filter" }
            }
            @if letters.is_empty() { p { "No dead letters." } } @else {
                div class="scroll" tabindex="0" role="region" aria-label="Dead letters" {
                    table {
                        thead { tr {
                            th scope="col" class="number" { "Number" } th scope="col" { "Destination" } th scope="col" { "Topic" }
                            th scope="col" { "Key" } th scope="col" { "Reason" } th scope="col" class="number" { "Tries" } th scope="col" { "Error" }
                        } }
                        tbody { @for letter in &letters { tr {
                            td class="number" { a href={ "/dead/" (file) "/" (letter.dead_id) } { (letter.dead_id) } }
                            td { (letter.destination) } td { (letter.topic) } td { (letter.key.as_deref().unwrap_or("-")) }
                            td { (letter.reason) @if letter.replayed_at.is_some() { " (replayed)" } }
                            td class="number" { (letter.attempts) }
                            td { (letter.error.as_deref().or(letter.error_code.as_deref()).unwrap_or("-")) }
                        } } }
                    }
                }
            }
            @if let Some(last) = letters.last().filter(|_| letters.len() == PAGE as usize) {
                form method="get" {
                    input type="hidden" name="file" value=(file);
                    input type="hidden" name="destination" value=(query.destination);
                    button name="after" value=(last.dead_id) { "Newer" }
                }
            }
        },
    ))
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
            h2 { "Payload" }
            pre tabindex="0" { (pretty(&letter.payload)) }
        },
    ))
}

async fn leases(State(admin): State<Arc<Admin>>) -> Markup {
    let files = admin.look().await;
    let now = wall().0;
    page(
        "/leases",
        "Leases",
        &html! {
            div class="scroll" tabindex="0" role="region" aria-label="Leases" {
                table {
                    thead { tr {
                        th scope="col" { "Destination" } th scope="col" class="number" { "Lane" } th scope="col" { "Held by" }
                        th scope="col" class="number" { "Token" } th scope="col" class="number" { "Settled up to" }
                        th scope="col" class="number" { "Last settled" }
                    } }
                    tbody {
                        @for found in files.iter().filter_map(|file| file.status.as_ref()).flat_map(|status| &status.destinations) {
                            @for lane in &found.lanes { tr {
                                th scope="row" { (found.destination) } td class="number" { (lane.lane) }
                                td { (lane.holder.as_deref().or(lane.owner.as_deref()).unwrap_or("nobody")) }
                                td class="number" { (lane.token) } td class="number" { (lane.acked) }
                                td class="number" { (age(now - lane.updated_at.0)) " ago" }
                            } }
                        }
                    }
                }
            }
        },
    )
}

async fn config(State(admin): State<Arc<Admin>>) -> Markup {
    page(
        "/config",
        "Configuration",
        &html! {
            p { "litepost " (admin.version) ". Values of connections are masked." }
            pre tabindex="0" { (admin.config) }
        },
    )
}

/// Which file, when there are several.
fn files(admin: &Admin, chosen: usize) -> Markup {
    html! {
        @if admin.sources.len() > 1 {
            label { "File " select name="file" {
                @for (index, source) in admin.sources.iter().enumerate() {
                    option value=(index) selected[index == chosen] { (source.path.display()) }
                }
            } }
        }
    }
}

fn facts(rows: &[(&str, String)]) -> Markup {
    html! { dl { @for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) { dt { (name) } dd { (value) } } } }
}

fn state(word: &str) -> Markup {
    let (class, text) = match word {
        "closed" => ("good", "delivering"),
        "half_open" => ("warn", "probing"),
        "open" => ("bad", "unavailable"),
        _ => ("bad", "stalled"),
    };
    html! { span class={ "state " (class) } { (text) } }
}

fn when(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |at| at.strftime("%F %T%.3fZ").to_string())
}

fn age(ms: i64) -> String {
    match ms {
        ..1_000 => format!("{} ms", ms.max(0)),
        1_000..120_000 => format!("{} s", ms / 1_000),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        10_485_760..10_737_418_240 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}
