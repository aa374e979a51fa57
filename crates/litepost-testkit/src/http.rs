//! A receiver of webhooks on axum: keeps what it got, and can be killed, frozen, and told what to answer.
//!
//! Called by tests of the http sink. Invariant: a request is kept before it is answered with 2xx, and what is kept
//! survives [`HttpServer::kill`], as a receiver's database would.

use std::collections::{HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::StreamExt as _;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// A request that was answered with 2xx.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The path.
    pub path: String,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// What is answered instead of 204.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(&'static str, &'static str)>,
    /// The body.
    pub body: String,
    /// How long it takes.
    pub after: Duration,
}

impl Reply {
    /// Only a status.
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: String::new(), after: Duration::ZERO }
    }
}

/// The server. It asks for [`HttpServer::USER`] and [`HttpServer::PASSWORD`] and takes what is sent to the paths it has.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    runtime: Option<Runtime>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    taken: Mutex<Vec<Taken>>,
    paths: Mutex<HashSet<String>>,
    script: Mutex<VecDeque<Reply>>,
    asked: Mutex<u64>,
    under_way: Mutex<(usize, usize)>,
    frozen: watch::Sender<bool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl HttpServer {
    /// Who may send.
    pub const USER: &'static str = "litepost";
    /// The password.
    pub const PASSWORD: &'static str = "s3cret-pa55";
    /// The largest body that is taken; a larger one is answered with 413.
    pub const BODY_MAX: usize = 2 << 20;

    /// A server with the path `/ready`.
    ///
    /// # Panics
    /// When there is no free port.
    pub fn start() -> Self {
        let shared = Arc::new(Shared {
            taken: Mutex::default(),
            paths: Mutex::new(HashSet::from(["/ready".to_owned()])),
            script: Mutex::default(),
            asked: Mutex::default(),
            under_way: Mutex::default(),
            frozen: watch::Sender::new(false),
        });
        let mut server = Self { address: SocketAddr::from(([127, 0, 0, 1], 0)), runtime: None, shared };
        server.start_again();
        server
    }

    /// The port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The URL of a path, with user and password.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}:{}@{}{path}", Self::USER, Self::PASSWORD, self.address)
    }

    /// Takes requests to one more path.
    pub fn add_path(&self, path: &str) {
        lock(&self.shared.paths).insert(path.to_owned());
    }

    /// Answers the next requests with these; they are not taken unless the status is a 2xx.
    pub fn answer_next(&self, replies: impl IntoIterator<Item = Reply>) {
        lock(&self.shared.script).extend(replies);
    }

    /// Everything that was taken, in order.
    pub fn taken(&self) -> Vec<Taken> {
        lock(&self.shared.taken).clone()
    }

    /// How many requests arrived, whatever the answer.
    pub fn asked(&self) -> u64 {
        *lock(&self.shared.asked)
    }

    /// The most requests that were under way at once.
    pub fn most_at_once(&self) -> usize {
        lock(&self.shared.under_way).1
    }

    /// Ends it as a crash would: every connection is cut, requests under way get no answer.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }

    /// Starts it again on the same port.
    ///
    /// # Panics
    /// When the port is taken.
    pub fn start_again(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind(self.address)).expect("the port is free");
        self.address = listener.local_addr().expect("a local address");
        let router = Router::new().fallback(answer).with_state(Arc::clone(&self.shared));
        runtime.spawn(async move { axum::serve(listener, router).await });
        self.runtime = Some(runtime);
    }

    /// Connections stay open, and nothing is read or answered.
    pub fn pause(&self) {
        self.shared.frozen.send_replace(true);
    }

    /// Goes on.
    pub fn resume(&self) {
        self.shared.frozen.send_replace(false);
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Counts a request while it is under way.
struct UnderWay(Arc<Shared>);

impl UnderWay {
    fn begin(shared: &Arc<Shared>) -> Self {
        let mut count = lock(&shared.under_way);
        count.0 += 1;
        count.1 = count.1.max(count.0);
        Self(Arc::clone(shared))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        lock(&self.0.under_way).0 -= 1;
    }
}

async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let _under_way = UnderWay::begin(&shared);
    *lock(&shared.asked) += 1;
    // The sender lives as long as the server.
    let _ = shared.frozen.subscribe().wait_for(|frozen| !frozen).await;
    let (head, body) = request.into_parts();
    let Some(body) = read(body).await else { return StatusCode::BAD_REQUEST.into_response() };
    let scripted = lock(&shared.script).pop_front();
    let reply = scripted.unwrap_or_else(|| Reply::status(judge(&shared, head.uri.path(), &head.headers, &body)));
    if !reply.after.is_zero() {
        tokio::time::sleep(reply.after).await;
    }
    let _ = shared.frozen.subscribe().wait_for(|frozen| !frozen).await;
    if (200..300).contains(&reply.status) {
        lock(&shared.taken).push(Taken { path: head.uri.path().to_owned(), headers: head.headers, body });
    }
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, reply.body).into_response();
    for (name, value) in reply.headers {
        response.headers_mut().append(name, axum::http::HeaderValue::from_static(value));
    }
    response
}

/// The whole body, however large, so that the answer is not lost with a connection that is cut; `None` when the client
/// is gone before its end.
async fn read(body: Body) -> Option<Bytes> {
    let mut stream = body.into_data_stream();
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await {
        all.extend_from_slice(&piece.ok()?);
    }
    Some(all.into())
}

fn judge(shared: &Shared, path: &str, headers: &HeaderMap, body: &Bytes) -> u16 {
    let credentials = BASE64.encode(format!("{}:{}", HttpServer::USER, HttpServer::PASSWORD));
    let given = headers.get("authorization").and_then(|value| value.to_str().ok());
    if given != Some(&format!("Basic {credentials}")) {
        401
    } else if !lock(&shared.paths).contains(path) {
        404
    } else if body.len() > HttpServer::BODY_MAX {
        413
    } else {
        204
    }
}
