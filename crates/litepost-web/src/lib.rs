//! The operator's HTTP side: `/metrics`, `/live`, `/ready`, the API and the dashboard.
//!
//! Started by `litepost run --admin ADDRESS`. Invariants: without a token it listens on loopback only; a request whose
//! Host or Origin is not this listener's own is refused, so that no web page can reach it through a browser (DNS
//! rebinding, cross-site requests); nothing here shows a secret; reading opens the outbox files read-only.

mod act;
mod api;
mod auth;
mod deeds;
mod error;
mod events;
mod forms;
mod health;
mod meters;
mod metrics;
mod pages;
pub mod readers;
mod shown;
mod state;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;

pub use auth::Token;
pub use error::WebError;
pub use metrics::{Recorder, measure};
pub use shown::Shown;
pub use state::{Admin, Source};

/// No request of an operator is larger.
const BODY_BYTES_MAX: usize = 1 << 20;
/// No answer takes longer, streams aside.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A listener that is bound and not serving yet.
pub struct Listener {
    socket: tokio::net::TcpListener,
    address: SocketAddr,
    admin: Arc<Admin>,
}

impl Listener {
    /// Binds `address`. Without a token only a loopback address is accepted.
    pub async fn bind(address: SocketAddr, admin: Admin) -> Result<Self, WebError> {
        if !address.ip().is_loopback() && admin.token.is_none() {
            return Err(WebError::Exposed { address });
        }
        let socket = tokio::net::TcpListener::bind(address).await;
        let socket = socket.map_err(|source| WebError::Bind { address, source })?;
        let address = socket.local_addr().map_err(|source| WebError::Bind { address, source })?;
        Ok(Self { socket, address, admin: Arc::new(admin) })
    }

    /// Where it listens; the port is known also when 0 was asked for.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` completes. Streams are cut then.
    pub async fn serve(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), WebError> {
        let address = self.address;
        let guard = Arc::new(auth::Guard::new(address, self.admin.token.clone()));
        axum::serve(self.socket, router(self.admin, guard))
            .with_graceful_shutdown(shutdown)
            .await
            .map_err(|source| WebError::Serve { address, source })
    }
}

fn router(admin: Arc<Admin>, guard: Arc<auth::Guard>) -> Router {
    let bounded = Router::new()
        .route("/metrics", get(metrics::show))
        .route("/ready", get(health::ready))
        .merge(api::routes())
        .merge(pages::routes())
        .merge(forms::routes())
        .layer(TimeoutLayer::with_status_code(axum::http::StatusCode::GATEWAY_TIMEOUT, ANSWER_WITHIN));
    bounded
        .merge(api::streams())
        .layer(axum::middleware::from_fn_with_state(guard, auth::check))
        // Probes carry no token and learn nothing but that the process answers.
        .route("/live", get(health::live))
        .layer(RequestBodyLimitLayer::new(BODY_BYTES_MAX))
        .with_state(admin)
}
