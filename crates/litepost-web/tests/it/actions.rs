//! What an operator does over HTTP: by the API, and by the dashboard's forms as a browser sends them.

use std::path::Path;

use reqwest::{Client, StatusCode, redirect};
use serde_json::{Value, json};

use super::{admin, get, outbox, served};

async fn post(base: &str, deed: &str, body: &Value) -> (StatusCode, Value) {
    let client = Client::new();
    let answer = client.post(format!("{base}/api/{deed}")).header("x-litepost-actor", "ada").json(body).send().await;
    let answer = answer.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

fn number(file: &Path, sql: &str) -> i64 {
    rusqlite::Connection::open(file).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

async fn audit(base: &str) -> Value {
    serde_json::from_str(&get(&format!("{base}/api/audit")).await.1).unwrap()
}

#[tokio::test]
async fn a_dry_run_tells_and_does_nothing_and_the_deed_is_in_the_audit_log() {
    let folder = tempfile::tempdir().unwrap();
    let file = outbox(folder.path());
    let base = served(admin(file.clone(), None, 60_000)).await;
    let (status, answer) = post(&base, "dead/replay", &json!({ "ids": [1], "dry_run": true })).await;
    assert_eq!(
        (status, &answer["replayed"][0]["replayed_as"], &answer["dry_run"]),
        (StatusCode::OK, &json!(3), &json!(true))
    );
    assert_eq!(number(&file, "SELECT count(*) FROM litepost_outbox"), 2, "a dry run wrote");
    assert_eq!(audit(&base).await["audit"], json!([]));
    let (status, _) = post(&base, "dead/replay", &json!({ "ids": [1], "reason": "fixed" })).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(number(&file, "SELECT count(*) FROM litepost_outbox WHERE only_for = 'shop.hook'"), 1);
    let deed = &audit(&base).await["audit"][0];
    assert_eq!((&deed["action"], &deed["actor"], &deed["reason"]), (&json!("replay"), &json!("ada"), &json!("fixed")));
    let (status, answer) = post(&base, "dead/replay", &json!({ "ids": [1] })).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");
    let journeys: Value = serde_json::from_str(&get(&format!("{base}/api/timeline/0/1")).await.1).unwrap();
    assert_eq!(journeys["destinations"][0]["standing"], "replayed");
    assert_eq!(journeys["destinations"][0]["moments"][1]["what"], "replayed");
    let journeys: Value = serde_json::from_str(&get(&format!("{base}/api/timeline/0/2")).await.1).unwrap();
    assert_eq!(journeys["destinations"][0]["standing"], "waiting");
}

#[tokio::test]
async fn an_edit_answers_with_the_difference_and_sends_the_new_body() {
    let folder = tempfile::tempdir().unwrap();
    let file = outbox(folder.path());
    let base = served(admin(file.clone(), None, 60_000)).await;
    let (status, answer) = post(&base, "dead/edit", &json!({ "dead_id": 1, "payload": "{}" })).await;
    assert_eq!((status, &answer["error"]), (StatusCode::BAD_REQUEST, &json!("nothing was changed")));
    let body = json!({ "dead_id": 1, "payload": "{\"total\":10}", "headers": { "tenant": "7" } });
    let (status, answer) = post(&base, "dead/edit", &body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(answer["diff"]["payload"], json!({ "old": "{}", "new": "{\n  \"total\": 10\n}" }));
    let written =
        "SELECT payload = '{\"total\":10}' AND headers = '{\"tenant\":\"7\"}' FROM litepost_outbox WHERE seq = 3";
    assert_eq!(number(&file, written), 1);
    assert_eq!(number(&file, "SELECT payload = '{}' FROM litepost_dead WHERE dead_id = 1"), 1, "the letter changed");
}

#[tokio::test]
async fn every_deed_on_destinations_goes_through_and_a_wrong_one_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let file = outbox(folder.path());
    let base = served(admin(file.clone(), None, 60_000)).await;
    let hook = |more: Value| {
        let mut body = json!({ "destination": "shop.hook" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (deed, body, status) in [
        ("destinations/pause", hook(json!({ "key": "k1" })), StatusCode::OK),
        ("destinations/pause", hook(json!({ "key": "k1", "topic": "orders" })), StatusCode::BAD_REQUEST),
        ("destinations/pause", json!({ "destination": "shop.nobody" }), StatusCode::NOT_FOUND),
        ("destinations/resume", hook(json!({ "key": "k1" })), StatusCode::OK),
        ("destinations/resume", hook(json!({ "key": "k1" })), StatusCode::CONFLICT),
        ("destinations/skip", hook(json!({})), StatusCode::BAD_REQUEST),
        ("destinations/skip", hook(json!({ "seqs": [1] })), StatusCode::OK),
        ("destinations/skip", hook(json!({ "seqs": [77] })), StatusCode::CONFLICT),
        ("destinations/accept-holes", hook(json!({})), StatusCode::CONFLICT),
        ("destinations/rewind", hook(json!({})), StatusCode::BAD_REQUEST),
        ("dead/discard", json!({}), StatusCode::BAD_REQUEST),
        ("dead/discard", json!({ "all": true, "file": 4 }), StatusCode::NOT_FOUND),
        ("dead/discard", json!({ "all": true }), StatusCode::OK),
        ("dead/purge", json!({ "older_than_ms": 0 }), StatusCode::OK),
    ] {
        let (found, answer) = post(&base, deed, &body).await;
        assert_eq!(found, status, "{deed} {body}: {answer}");
        assert!(status == StatusCode::OK || answer["error"].is_string(), "{answer}");
    }
    assert_eq!(number(&file, "SELECT count(*) FROM litepost_dead"), 0);
    assert_eq!(number(&file, "SELECT count(*) FROM litepost_skip"), 1);
}

/// A form of another site can send these types, and its own page's Origin.
#[tokio::test]
async fn what_another_site_can_send_does_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = outbox(folder.path());
    let base = served(admin(file.clone(), None, 60_000)).await;
    let client = Client::new();
    let body = r#"{"all":true}"#;
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let answer = client.post(format!("{base}/api/dead/discard")).header("content-type", kind).body(body);
        assert_eq!(answer.send().await.unwrap().status(), StatusCode::UNSUPPORTED_MEDIA_TYPE, "{kind}");
    }
    for origin in ["http://evil.example", "null"] {
        let answer =
            client.post(format!("{base}/api/dead/discard")).header("origin", origin).json(&json!({ "all": true }));
        assert_eq!(answer.send().await.unwrap().status(), StatusCode::FORBIDDEN, "{origin}");
    }
    for csrf in ["", "csrf=&", "csrf=0123456789abcdef&"] {
        let body = format!("{csrf}all=true&confirmed=yes");
        let answer = client.post(format!("{base}/act/dead/discard")).body(body).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{csrf}");
    }
    assert_eq!(number(&file, "SELECT count(*) FROM litepost_dead WHERE discarded_at IS NULL"), 1);
}

fn csrf(page: &str) -> &str {
    let from = page.split("name=\"csrf\" value=\"").nth(1).expect("a form");
    from.split('"').next().unwrap()
}

#[tokio::test]
async fn a_form_shows_what_would_be_done_and_does_it_when_confirmed() {
    let folder = tempfile::tempdir().unwrap();
    let file = outbox(folder.path());
    let base = served(admin(file.clone(), None, 60_000)).await;
    let (_, page) = get(&format!("{base}/dead/0/1")).await;
    let csrf = csrf(&page).to_owned();
    let client = Client::builder().redirect(redirect::Policy::none()).build().unwrap();
    let send = |fields: &str| {
        let form = client.post(format!("{base}/act/dead/edit")).header("origin", &base);
        form.body(format!("csrf={csrf}&file=0&dead_id=1&{fields}")).send()
    };
    // As shown, with a browser's line ends.
    let same = send("payload=%7B%7D%0D%0A&headers=").await.unwrap();
    assert_eq!(same.status(), StatusCode::BAD_REQUEST);
    let edited = send("payload=%7B%0D%0A++%22a%22%3A+1%0D%0A%7D&headers=").await.unwrap();
    assert_eq!(edited.status(), StatusCode::OK);
    let text = edited.text().await.unwrap();
    assert!(text.contains("<del>- {}</del>") && text.contains("<ins>+   &quot;a&quot;: 1</ins>"), "{text}");
    assert!(text.contains("name=\"payload\" value=\"{&quot;a&quot;:1}\""), "{text}");
    assert_eq!(number(&file, "SELECT count(*) FROM litepost_outbox"), 2, "looking wrote");
    let done = send("payload=%7B%22a%22%3A1%7D&confirmed=yes&reason=typo").await.unwrap();
    assert_eq!(
        (done.status(), done.headers()["location"].to_str().unwrap()),
        (StatusCode::SEE_OTHER, "/audit?file=0&done=true")
    );
    assert_eq!(number(&file, "SELECT payload = '{\"a\":1}' FROM litepost_outbox WHERE seq = 3"), 1);
    let (_, page) = get(&format!("{base}/audit?file=0&done=true")).await;
    assert!(page.contains("Done.") && page.contains("typo"), "{page}");
}
