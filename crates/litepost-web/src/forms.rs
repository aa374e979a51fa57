//! The dashboard's forms: what a deed would do is shown first, and done when that is confirmed.
//!
//! Works without a script. Invariants: a form that this process did not make is refused (CSRF); the first answer is a
//! dry run of the very deed.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::post;
use litepost::dead::DeadEvent;
use maud::{Markup, html};
use rusqlite::types::Value as Payload;
use serde_json::{Map, Value};
use similar::{ChangeTag, TextDiff};
use subtle::ConstantTimeEq as _;

use crate::auth::{actor, csrf};
use crate::deeds::{Deed, Kind};
use crate::error::Refusal;
use crate::events::{compact, pretty};
use crate::pages::{Trouble, page};
use crate::state::Admin;

/// Rows of a list that are shown.
const SHOWN: usize = 100;

pub(crate) fn routes() -> Router<Arc<Admin>> {
    Router::new().route("/act/{*deed}", post(act))
}

type Fields = Vec<(String, String)>;

async fn act(
    State(admin): State<Arc<Admin>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Trouble> {
    let mut fields: Fields = form_urlencoded::parse(&body).into_owned().collect();
    let take = |fields: &mut Fields, name: &str| {
        let at = fields.iter().position(|(found, _)| found == name)?;
        Some(fields.remove(at).1)
    };
    let given = take(&mut fields, "csrf").unwrap_or_default();
    if !bool::from(given.as_bytes().ct_eq(csrf().as_bytes())) {
        let hint = "open the page again; the relay may have been restarted meanwhile";
        return Err(Refusal::new(StatusCode::FORBIDDEN, "this form was not made by this relay", hint).into());
    }
    let deed = Deed::named(&name).ok_or_else(|| Refusal::not_found(format!("there is nothing called {name}")))?;
    let confirmed = take(&mut fields, "confirmed").is_some();
    if deed.name == "dead/edit" && !confirmed {
        fields = only_what_changed(&admin, fields).await?;
    }
    let mut request = deed.read(body_of(&fields)?)?;
    request.dry_run = !confirmed;
    let file = request.file;
    let answer = crate::act::perform(&admin, deed, request, &actor(&headers)).await?;
    if confirmed {
        return Ok(Redirect::to(&format!("/audit?file={file}&done=true")).into_response());
    }
    Ok(preview(deed, &fields, &answer).into_response())
}

/// The fields of a form as the body that the API takes.
fn body_of(fields: &Fields) -> Result<Value, Refusal> {
    let wrong = |name: &str, what: &str| Refusal::new(StatusCode::BAD_REQUEST, format!("{name} is no {what}"), "");
    let mut body = Map::new();
    for (name, text) in fields {
        let kind = Kind::of(name).unwrap_or(Kind::Text);
        // An empty field of a form is one that was not filled in; an empty payload is a payload.
        if text.trim().is_empty() && name != "payload" {
            continue;
        }
        let value = match kind {
            Kind::Text => Value::from(text.as_str()),
            Kind::Number => text.trim().parse::<i64>().map_err(|_| wrong(name, "whole number"))?.into(),
            Kind::Flag => Value::from(text == "true" || text == "on"),
            Kind::Object => serde_json::from_str(text).map_err(|_| wrong(name, "JSON object"))?,
            Kind::Numbers => {
                let list = body.entry(name.clone()).or_insert_with(|| Value::Array(Vec::new()));
                for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
                    let number: i64 = word.parse().map_err(|_| wrong(name, "list of whole numbers"))?;
                    if let Value::Array(list) = list {
                        list.push(number.into());
                    }
                }
                continue;
            }
        };
        body.insert(name.clone(), value);
    }
    Ok(Value::Object(body))
}

/// A form shows JSON indented and sends lines as browsers do; what differs only in that was not changed.
async fn only_what_changed(admin: &Arc<Admin>, fields: Fields) -> Result<Fields, Refusal> {
    let of = |name: &str| fields.iter().find(|(found, _)| found == name).map(|(_, text)| text.as_str());
    let number = |name: &str| of(name).and_then(|text| text.parse::<i64>().ok()).unwrap_or_default();
    let (file, dead_id) = (usize::try_from(number("file")).unwrap_or_default(), number("dead_id"));
    let letter = admin.read(file, move |connection| litepost::dead::show(connection, dead_id)).await?;
    let letter = letter.ok_or_else(|| Refusal::not_found(format!("there is no dead letter {dead_id}")))?;
    let mut left = Fields::new();
    for (name, text) in fields {
        let text = text.replace("\r\n", "\n");
        match name.as_str() {
            "payload" => left.extend(changed_payload(&letter, &text).map(|text| (name, text))),
            "headers" => match &letter.headers {
                Some(old) if *old == text => {}
                Some(_) if text.trim().is_empty() => left.push(("remove_headers".into(), "true".into())),
                _ => left.push((name, text)),
            },
            _ => left.push((name, text)),
        }
    }
    Ok(left)
}

fn changed_payload(letter: &DeadEvent, text: &str) -> Option<String> {
    let Payload::Text(old) = &letter.payload else { return None };
    if *text == pretty(&letter.payload) || text == old {
        return None;
    }
    match (compact(old), compact(text)) {
        (Some(old), Some(new)) if old == new => None,
        // Written without white space before, so again.
        (Some(compacted), Some(new)) if compacted == *old => Some(new),
        _ => Some(text.to_owned()),
    }
}

fn preview(deed: &Deed, fields: &Fields, answer: &Value) -> Markup {
    let affects = ["replayed", "discarded", "skipped"].iter().find_map(|name| answer[*name].as_array()).map(Vec::len);
    let nothing = affects == Some(0) || answer["paused"] == false;
    page(
        "",
        "What would be done",
        &html! {
            p { (deed.summary) "." }
            @if let Some(count) = affects { p class="state" { (count) @if count == 1 { " event" } @else { " events" } } }
            @if let Some(diff) = answer["diff"].as_object() { @for (name, both) in diff { (difference(name, both)) } }
            (told(answer))
            @if nothing { p role="status" { "There is nothing to do." } } @else {
                form method="post" action={ "/act/" (deed.name) } {
                    input type="hidden" name="csrf" value=(csrf());
                    input type="hidden" name="confirmed" value="yes";
                    @for (name, value) in fields { @if name != "reason" { input type="hidden" name=(name) value=(value); } }
                    label class="wide" { "Why (for the audit log) " input type="text" name="reason" maxlength="500"; }
                    button type="submit" class="go" { "Do it" }
                }
            }
        },
    )
}

/// The old and the new text of an edit, line by line.
fn difference(name: &str, both: &Value) -> Markup {
    let (old, new) = (both["old"].as_str().unwrap_or_default(), both["new"].as_str().unwrap_or_default());
    let broken = name == "payload" && compact(old).is_some() && compact(new).is_none();
    html! {
        h2 { "Changes of the " (name) }
        @if broken { p role="alert" class="bad" { "The old payload is JSON and the new one is not." } }
        pre class="diff" tabindex="0" { @for change in TextDiff::from_lines(old, new).iter_all_changes() {
            @let line = change.value().trim_end_matches('\n');
            @match change.tag() {
                ChangeTag::Delete => del { "- " (line) },
                ChangeTag::Insert => ins { "+ " (line) },
                ChangeTag::Equal => span { "  " (line) },
            }
        } }
    }
}

/// What the answer lists.
fn told(answer: &Value) -> Markup {
    let Some(answer) = answer.as_object() else { return html! {} };
    html! {
        @for (name, value) in answer.iter().filter(|(name, _)| !matches!(name.as_str(), "dry_run" | "diff")) {
            @match value {
                Value::Array(rows) if rows.iter().all(Value::is_object) => (listed(name, rows)),
                Value::Object(fields) => dl { @for (name, value) in fields { dt { (name.replace('_', " ")) } dd { (plain(value)) } } },
                other => dl { dt { (name.replace('_', " ")) } dd { (plain(other)) } },
            }
        }
    }
}

fn listed(name: &str, rows: &[Value]) -> Markup {
    const COLUMNS: [&str; 6] = ["dead_id", "destination", "seq", "id", "replayed_as", "error"];
    let columns: Vec<&str> = COLUMNS
        .into_iter()
        .filter(|name| rows.iter().any(|row| row.get(*name).is_some_and(|v| !v.is_null())))
        .collect();
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(name) {
            table {
                thead { tr { @for column in &columns { th scope="col" { (column.replace('_', " ")) } } } }
                tbody { @for row in rows.iter().take(SHOWN) { tr { @for column in &columns { td { (plain(&row[*column])) } } } } }
            }
        }
        @if rows.len() > SHOWN { p { "and " (rows.len() - SHOWN) " more" } }
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        other => other.to_string(),
    }
}
