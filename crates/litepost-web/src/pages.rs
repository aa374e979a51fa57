//! The dashboard: pages made on the server, with a script that keeps the overview current.
//!
//! Invariant: every page works without the script and without any request to elsewhere; what comes from events is text,
//! escaped by maud, never markup.

mod audit;
mod dead;
mod destination;
mod events;

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use axum::routing::get;
use maud::{DOCTYPE, Markup, html};

use crate::auth::csrf;
use crate::error::Refusal;
use crate::state::{Admin, Looked, wall};

const STYLE: &str = include_str!("assets/style.css");
const SCRIPT: &str = include_str!("assets/app.js");

/// The pages in the order of the navigation.
const PAGES: [(&str, &str); 6] = [
    ("/", "Overview"),
    ("/events", "Events"),
    ("/dead", "Dead letters"),
    ("/leases", "Leases"),
    ("/audit", "Audit log"),
    ("/config", "Configuration"),
];

pub(crate) fn routes() -> Router<Arc<Admin>> {
    Router::new()
        .route("/", get(overview))
        .merge(events::routes())
        .merge(dead::routes())
        .merge(destination::routes())
        .merge(audit::routes())
        .route("/leases", get(leases))
        .route("/config", get(config))
        .route("/assets/style.css", get(|| async { asset("text/css; charset=utf-8", STYLE) }))
        .route("/assets/app.js", get(|| async { asset("text/javascript; charset=utf-8", SCRIPT) }))
}

fn asset(kind: &'static str, text: &'static str) -> ([(HeaderName, &'static str); 2], &'static str) {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=3600")], text)
}

/// A page that could not be made, as a page.
pub(crate) struct Trouble(Refusal);

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self(refusal)
    }
}

impl IntoResponse for Trouble {
    fn into_response(self) -> axum::response::Response {
        let found = self.0.status() != axum::http::StatusCode::NOT_FOUND;
        let title = if found { "That did not work" } else { "Not found" };
        let body = page(
            "",
            title,
            &html! {
                p role="alert" class="bad" { (self.0.text()) }
                @if !self.0.hint().is_empty() { p { (self.0.hint()) } }
            },
        );
        (self.0.status(), body).into_response()
    }
}

pub(crate) fn page(path: &str, title: &str, body: &Markup) -> Markup {
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
            @let away = unavailable(&files);
            p id="health" role="status" class=(if !trouble.is_empty() { "bad" } else if away.is_empty() { "good" } else { "warn" }) {
                @if !trouble.is_empty() { (trouble.join("; ")) }
                @else if away.is_empty() { "Everything moves." }
                @else { (away.join(", ")) " cannot be reached; the events wait." }
            }
            div class="scroll" tabindex="0" role="region" aria-label="Destinations" {
                table id="destinations" {
                    thead { tr {
                        th scope="col" { "Destination" } th scope="col" { "State" } th scope="col" class="number" { "Waiting" }
                        th scope="col" class="number" { "Oldest" } th scope="col" class="number" { "Blocked keys" }
                        th scope="col" class="number" { "Dead" } th scope="col" class="number" { "Delivered" }
                        th scope="col" { "Rate" }
                    } }
                    tbody { @for (index, file) in files.iter().enumerate() { (destinations(index, file)) } }
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

/// The destinations that cannot be reached.
fn unavailable(files: &[Looked]) -> Vec<&str> {
    let all = files.iter().filter_map(|file| file.status.as_ref()).flat_map(|status| &status.destinations);
    all.filter(|found| matches!(found.state.as_str(), "open" | "half_open"))
        .map(|found| found.destination.as_str())
        .collect()
}

/// Where a lane's holder runs, for people: what it says of itself is JSON.
fn holder(text: &str) -> String {
    let Ok(found) = serde_json::from_str::<serde_json::Value>(text) else { return text.to_owned() };
    match (found["host"].as_str(), found["pid"].as_u64()) {
        (Some(host), Some(pid)) => format!("process {pid} on {host}"),
        _ => text.to_owned(),
    }
}

fn destinations(index: usize, file: &Looked) -> Markup {
    html! {
        @for found in file.status.iter().flat_map(|status| &status.destinations) {
            tr data-destination=(found.destination) {
                th scope="row" { a href={ "/destinations/" (index) "/" (found.destination) } { (found.destination) } }
                td data-field="state" { (state(&found.state, paused(file, &found.destination))) @if let Some(error) = &found.error { " " small { (error) } } }
                td data-field="pending" class="number" { (found.pending) }
                td data-field="oldest" class="number" { (found.oldest_age_ms.map_or_else(|| "-".to_owned(), age)) }
                td data-field="blocked" class="number" { (found.blocked_keys) }
                td data-field="dead" class="number" { a href={ "/dead?file=" (index) "&destination=" (found.destination) } { (found.dead) } }
                td data-field="delivered" class="number" { (found.delivered) }
                td data-field="rate" { "-" }
            }
        }
    }
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
                                td { (lane.holder.as_deref().map(holder).or_else(|| lane.owner.clone()).unwrap_or_else(|| "nobody".to_owned())) }
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
            pre tabindex="0" { (&*admin.shown.config()) }
        },
    )
}

/// Which file, when there are several.
fn files(admin: &Admin, chosen: usize) -> Markup {
    let sources = admin.shown.sources();
    html! {
        @if sources.len() > 1 {
            label { "File " select name="file" {
                @for (index, source) in sources.iter().enumerate() {
                    option value=(index) selected[index == chosen] { (source.path.display()) }
                }
            } }
        }
    }
}

/// A form that asks for a deed: it leads to a page that shows what would be done.
fn deed(name: &str, hidden: &[(&str, &str)], fields: &Markup, button: &str) -> Markup {
    html! {
        form method="post" action={ "/act/" (name) } {
            input type="hidden" name="csrf" value=(csrf());
            @for (name, value) in hidden { input type="hidden" name=(name) value=(value); }
            (fields)
            button type="submit" { (button) }
        }
    }
}

/// A field of a form.
fn field(name: &str, label: &str, value: &str, kind: &str) -> Markup {
    html! { label { (label) " " input type=(kind) name=(name) value=(value); } }
}

fn facts(rows: &[(&str, String)]) -> Markup {
    html! { dl { @for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) { dt { (name) } dd { (value) } } } }
}

/// What of a destination is paused: all of it, a part, or nothing.
fn paused(file: &Looked, destination: &str) -> Option<&'static str> {
    let mut pauses =
        file.status.iter().flat_map(|status| &status.pauses).filter(|pause| pause.destination == destination);
    let first = pauses.next()?;
    let whole = first.kind == "destination" || pauses.any(|pause| pause.kind == "destination");
    Some(if whole { "paused" } else { "partly paused" })
}

fn state(word: &str, paused: Option<&str>) -> Markup {
    let (class, text) = match word {
        _ if paused.is_some() => ("warn", paused.unwrap_or_default()),
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
