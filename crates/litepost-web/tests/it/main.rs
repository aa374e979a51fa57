//! The listener over real sockets, beside outbox files with a history.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

mod actions;
mod beside;
mod contrib;
mod fuzz;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use beside::{admin, outbox};
use litepost_web::{Admin, Listener, Source, Token};
use reqwest::StatusCode;

const TOKEN: &str = "0123456789abcdef0123";

async fn served(admin: Admin) -> String {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), admin).await.unwrap();
    let address = listener.address();
    tokio::spawn(listener.serve(std::future::pending()));
    format!("http://{address}")
}

async fn get(url: &str) -> (StatusCode, String) {
    let answer = reqwest::get(url).await.unwrap();
    (answer.status(), answer.text().await.unwrap())
}

#[tokio::test]
async fn every_route_of_the_document_answers() {
    let folder = tempfile::tempdir().unwrap();
    let base = served(admin(outbox(folder.path()), None, 60_000)).await;
    let document: serde_json::Value = serde_json::from_str(&get(&format!("{base}/api/openapi.json")).await.1).unwrap();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{file}", "0").replace("{seq}", "1").replace("{dead_id}", "1");
        let path = path.replace("/api/progress", "/api/progress?destination=shop.hook");
        if !methods["post"].is_null() {
            let answer = reqwest::Client::new().post(format!("{base}{path}")).json(&serde_json::json!({ "no": 1 }));
            assert_eq!(answer.send().await.unwrap().status(), StatusCode::BAD_REQUEST, "{path}");
            continue;
        }
        let answer = reqwest::get(format!("{base}{path}")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
    }
    let (_, status) = get(&format!("{base}/api/status")).await;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["files"][0]["destinations"][0]["pending"], 2);
    let found: serde_json::Value =
        serde_json::from_str(&get(&format!("{base}/api/events?key=k2&topic=ord*")).await.1).unwrap();
    assert_eq!((found["events"].as_array().unwrap().len(), &found["events"][0]["seq"]), (1, &2.into()));
    for wrong in
        ["events?colour=red", "events?since=yesterday", "events?file=-1", "events/0/x", "progress", "audit?limit=-1"]
    {
        let (status, text) = get(&format!("{base}/api/{wrong}")).await;
        let told: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{wrong}: {text}"));
        assert!(status == StatusCode::BAD_REQUEST && told["error"].is_string() && told["hint"].is_string(), "{told}");
    }
    assert_eq!(get(&format!("{base}/api/events/0/99")).await.0, StatusCode::NOT_FOUND);
    assert_eq!(get(&format!("{base}/api/events/7/1")).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn the_document_is_openapi_by_its_own_validator() {
    let folder = tempfile::tempdir().unwrap();
    let base = served(admin(outbox(folder.path()), None, 60_000)).await;
    let (path, document) = (folder.path().join("openapi.json"), get(&format!("{base}/api/openapi.json")).await.1);
    let judged = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let mut python = std::process::Command::new(litepost_testkit::servers::python());
        python.args(["-m", "openapi_spec_validator"]).arg(&path).output().unwrap()
    };
    let good = judged(&document);
    assert!(good.status.success(), "{good:?}");
    // It sees mistakes; otherwise it would prove nothing.
    assert!(!judged(&document.replace("\"responses\"", "\"answers\"")).status.success());
    let names: Vec<&str> =
        document.split("\"operationId\":\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let distinct: std::collections::BTreeSet<&&str> = names.iter().collect();
    assert!(names.len() > 15 && distinct.len() == names.len(), "{names:?}");
}

#[tokio::test]
async fn every_page_is_there_and_no_payload_is_markup() {
    let folder = tempfile::tempdir().unwrap();
    let base = served(admin(outbox(folder.path()), None, 60_000)).await;
    let pages = [
        "/",
        "/events",
        "/events/0/1",
        "/dead",
        "/dead/0/1",
        "/destinations/0/shop.hook",
        "/leases",
        "/audit",
        "/config",
    ];
    for page in pages {
        let answer = reqwest::get(format!("{base}{page}")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{page}");
        assert!(answer.headers()["content-security-policy"].to_str().unwrap().contains("default-src 'none'"));
        let text = answer.text().await.unwrap();
        assert!(text.contains("<main id=\"main\">") && !text.contains("<script>alert"), "{page}: {text}");
        assert!(!text.contains("http://") && !text.contains("https://"), "{page} asks elsewhere: {text}");
    }
    assert!(get(&format!("{base}/events/0/1")).await.1.contains("&lt;script&gt;"));
    assert!(get(&format!("{base}/")).await.1.contains("data-destination=\"shop.hook\""));
}

#[tokio::test]
async fn ready_means_that_delivery_moves() {
    let folder = tempfile::tempdir().unwrap();
    let path = outbox(folder.path());
    let fresh = served(admin(path.clone(), None, 3_600_000)).await;
    assert_eq!(get(&format!("{fresh}/ready")).await.0, StatusCode::OK);
    let stale = served(admin(path.clone(), None, -1)).await;
    let (status, text) = get(&format!("{stale}/ready")).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("shop.hook: the oldest event has waited"), "{text}");
    // Its own time goes before that of all, whichever is longer.
    for (all, own, status) in [(-1, 3_600_000, StatusCode::OK), (3_600_000, -1, StatusCode::SERVICE_UNAVAILABLE)] {
        let admin = admin(path.clone(), None, all);
        let source = |path: &Path| Source {
            path: path.into(),
            destinations: vec!["shop.hook".into()],
            routing: Arc::new([]),
            freshness_ms: Arc::new([("shop.hook".into(), own), ("shop.other".into(), all)]),
        };
        admin.shown.replace(vec![source(&path)], "");
        assert_eq!(get(&format!("{}/ready", served(admin).await)).await.0, status, "{all} for all, {own} for it");
    }
    std::fs::write(folder.path().join("broken.db"), "no database at all, only text that is long enough".repeat(50))
        .unwrap();
    let broken = served(admin(folder.path().join("broken.db"), None, 60_000)).await;
    assert_eq!(get(&format!("{broken}/ready")).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(get(&format!("{broken}/live")).await, (StatusCode::OK, "live\n".to_owned()));
}

#[tokio::test]
async fn metrics_tell_what_the_file_knows() {
    let folder = tempfile::tempdir().unwrap();
    let base = served(admin(outbox(folder.path()), None, 60_000)).await;
    let (_, text) = get(&format!("{base}/metrics")).await;
    for line in [
        "litepost_pending_events{destination=\"shop.hook\"} 2",
        "litepost_dead_letters{destination=\"shop.hook\",reason=\"max_attempts\"} 1",
        "litepost_dead_letters{destination=\"shop.hook\",reason=\"expired\"} 0",
        "litepost_destination_state{destination=\"shop.hook\",state=\"closed\"} 1",
        "litepost_lease_held{destination=\"shop.hook\",lane=\"0\"} 0",
        "# TYPE litepost_events_total counter",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn without_a_token_other_machines_cannot_reach_it_and_with_one_nobody_else_can() {
    let folder = tempfile::tempdir().unwrap();
    let path = outbox(folder.path());
    let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let refused = Listener::bind(everywhere, admin(path.clone(), None, 1)).await.err().unwrap();
    assert!(refused.to_string().contains("can be reached from other machines"), "{refused}");
    let base = served(admin(path, Some(Token::new(TOKEN).unwrap()), 60_000)).await;
    assert_eq!(get(&format!("{base}/live")).await.0, StatusCode::OK, "a probe needs no token");
    for path in ["/", "/metrics", "/ready", "/api/status", "/api/stream", "/nothing"] {
        let answer = reqwest::get(format!("{base}{path}")).await.unwrap();
        assert_eq!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
        assert!(answer.headers().contains_key("www-authenticate"));
        let client = reqwest::Client::new();
        let answer = client.get(format!("{base}{path}")).bearer_auth(TOKEN).send().await.unwrap();
        assert_ne!(answer.status(), StatusCode::UNAUTHORIZED, "{path}");
        let foreign = client.get(format!("{base}{path}")).bearer_auth(TOKEN).header("origin", "http://evil.example");
        assert_eq!(foreign.send().await.unwrap().status(), StatusCode::FORBIDDEN, "{path}");
        let rebound = client.get(format!("{base}{path}")).bearer_auth(TOKEN).header("host", "evil.example");
        assert_eq!(rebound.send().await.unwrap().status(), StatusCode::FORBIDDEN, "{path}");
    }
}
