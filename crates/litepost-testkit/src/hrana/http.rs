//! The HTTP side: routes, the token, batons, faults.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use super::wire::{Outcome, PipelineAnswer, PipelineBody, Request};
use super::{HranaFault, Shared, engine};

/// One of the two ports.
#[derive(Clone)]
struct Port {
    shared: Arc<Shared>,
    /// Whether this is where the rest of a stream goes.
    second: bool,
}

/// Serves until `stopped` says so.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    ports: (u16, u16),
    ready: Sender<(u16, u16)>,
    stopped: oneshot::Receiver<()>,
) {
    let first = listener(ports.0).await;
    let second = listener(ports.1).await;
    let port = |listener: &TcpListener| listener.local_addr().expect("a local address").port();
    ready.send((port(&first), port(&second))).expect("somebody who waits for the ports");
    let one = axum::serve(first, router(Port { shared: Arc::clone(&shared), second: false }));
    let two = axum::serve(second, router(Port { shared: Arc::clone(&shared), second: true }));
    let reaper = async {
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            shared.reap();
        }
    };
    tokio::select! {
        _ = one => {}
        _ = two => {}
        () = reaper => {}
        _ = stopped => {}
    }
}

async fn listener(port: u16) -> TcpListener {
    // A port that was just given up may take a moment.
    for _ in 0..100 {
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            return listener;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the port {port} is taken");
}

fn router(port: Port) -> Router {
    let options = &port.shared.options;
    let mut router = Router::new().route("/v2", get(announce)).route("/v2/pipeline", post(two));
    if options.v3 {
        router = router.route("/v3", get(announce)).route("/v3/pipeline", post(three));
    }
    router.fallback(missing).layer(DefaultBodyLimit::max(options.body_max)).with_state(port)
}

async fn missing(State(port): State<Port>) -> StatusCode {
    port.shared.count_request();
    StatusCode::NOT_FOUND
}

async fn announce(State(port): State<Port>) -> &'static str {
    port.shared.count_request();
    "Hello, this is HTTP API"
}

async fn two(State(port): State<Port>, headers: HeaderMap, body: Bytes) -> Response {
    pipeline(port, false, headers, body).await
}

async fn three(State(port): State<Port>, headers: HeaderMap, body: Bytes) -> Response {
    pipeline(port, true, headers, body).await
}

fn refuse(status: StatusCode, code: &str, message: &str) -> Response {
    let body = serde_json::json!({ "message": message, "code": code }).to_string();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

async fn pipeline(port: Port, v3: bool, headers: HeaderMap, body: Bytes) -> Response {
    let shared = port.shared;
    shared.count_request();
    if let Some(token) = &shared.options.token {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if given != Some(&format!("Bearer {token}")) {
            return refuse(StatusCode::UNAUTHORIZED, "AUTH_REJECTED", &format!("not the right token: {given:?}"));
        }
    }
    let text = String::from_utf8_lossy(&body);
    let mut lose = false;
    match shared.fault(&text) {
        Some(HranaFault::LoseReply) => lose = true,
        Some(HranaFault::Status(status, pause)) => {
            let status = StatusCode::from_u16(status).expect("a status");
            let mut response = refuse(status, "INJECTED", "a fault of the test");
            if let Some(pause) = pause {
                response.headers_mut().insert(header::RETRY_AFTER, pause.into());
            }
            return response;
        }
        Some(HranaFault::Slow(time)) => tokio::time::sleep(time).await,
        Some(HranaFault::Redirect(status, to)) => {
            let status = StatusCode::from_u16(status).expect("a status");
            return (status, [(header::LOCATION, to)]).into_response();
        }
        None => {}
    }
    let body: PipelineBody = match serde_json::from_slice(&body) {
        Ok(body) => body,
        Err(e) => return refuse(StatusCode::BAD_REQUEST, "JSON_INVALID", &e.to_string()),
    };
    if !v3 && body.requests.iter().any(|r| matches!(r, Request::GetAutocommit)) {
        return refuse(StatusCode::BAD_REQUEST, "NOT_SUPPORTED", "get_autocommit needs version 3");
    }
    if body.baton.is_some() && shared.options.moves_streams && !port.second {
        return refuse(StatusCode::BAD_REQUEST, "BATON_INVALID", "the stream goes on at its base_url");
    }
    let answer = tokio::task::spawn_blocking(move || run(&shared, body)).await;
    match answer {
        Ok(Ok(answer)) if lose => {
            let broken = futures_util::stream::iter([
                Ok(Bytes::from(serde_json::to_vec(&answer).unwrap_or_default()).slice(..1)),
                Err(std::io::Error::other("the answer is lost")),
            ]);
            Body::from_stream(broken).into_response()
        }
        Ok(Ok(answer)) => {
            let body = serde_json::to_vec(&answer).expect("an answer that can be written");
            ([(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Ok(Err(response)) => *response,
        Err(e) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", &e.to_string()),
    }
}

fn run(shared: &Shared, body: PipelineBody) -> Result<PipelineAnswer, Box<Response>> {
    let refused = |code: &str, message: &str| Box::new(refuse(StatusCode::BAD_REQUEST, code, message));
    let mut stream = match &body.baton {
        Some(baton) => shared.take(baton).ok_or_else(|| refused("BATON_INVALID", "the baton is of no stream"))?,
        None => shared.open().map_err(|e| refused("SQLITE_CANTOPEN", &e.to_string()))?,
    };
    shared.count_pipeline(body.baton.is_some());
    let mut closed = false;
    let mut results = Vec::with_capacity(body.requests.len());
    for request in body.requests {
        closed |= matches!(request, Request::Close);
        results.push(match engine::run(&mut stream, request, shared.options.conditions) {
            Ok(response) => Outcome::Ok { response },
            Err(error) => Outcome::Error { error },
        });
    }
    let baton = (!closed).then(|| shared.put(stream));
    let base_url = baton.is_some().then(|| shared.moved_to()).flatten();
    Ok(PipelineAnswer { baton, base_url, results })
}
