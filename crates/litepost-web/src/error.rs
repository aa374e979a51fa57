//! What can go wrong, to the one who starts the listener and to the one who asks it.
//!
//! Invariant: an answer names the trouble and never a value of the configuration.

use std::net::SocketAddr;

use axum::Json;
use axum::extract::{FromRequestParts, Path, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use litepost::StoreError;
use serde::de::DeserializeOwned;

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebError {
    /// Everybody on the network could operate the relay.
    #[error("{address} can be reached from other machines, and there is no token")]
    Exposed {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Serving ended.
    #[error("the listener on {address} ended: {source}")]
    Serve {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
}

impl WebError {
    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Exposed { .. } => "listen on 127.0.0.1, or set LITEPOST_ADMIN_TOKEN",
            Self::Bind { .. } => "choose another port, or stop what uses this one",
            Self::Serve { .. } => "see the message",
        }
    }
}

/// Why a request was not answered as asked.
#[derive(Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    message: String,
    hint: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { status, message: message.into(), hint: hint.into() }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message, "")
    }

    pub(crate) fn text(&self) -> &str {
        &self.message
    }

    pub(crate) fn hint(&self) -> &str {
        &self.hint
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        let status = match &error {
            StoreError::UnknownDestination { .. }
            | StoreError::UnknownLane { .. }
            | StoreError::EventMissing { .. }
            | StoreError::Missing { .. } => StatusCode::NOT_FOUND,
            // The file is not in the state that the deed needs, and an operator can change that.
            StoreError::Refused { .. }
            | StoreError::LaneHeld { .. }
            | StoreError::LaneCount { .. }
            | StoreError::LaneOrdering { .. }
            | StoreError::CopiedFile { .. }
            | StoreError::DrainHeld { .. }
            | StoreError::NotMigrated
            | StoreError::SchemaOlder { .. }
            | StoreError::SchemaNewer { .. } => StatusCode::CONFLICT,
            StoreError::BadSetting { .. } | StoreError::NotThere { .. } => StatusCode::BAD_REQUEST,
            error if error.is_transient() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.to_string(), error.hint())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = serde_json::json!({ "error": self.message, "hint": self.hint });
        (self.status, Json(body)).into_response()
    }
}

/// The query of a request. One that cannot be read is refused in the form of every other refusal.
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(error) => Err(Refusal::new(error.status(), error.body_text(), "see /api/openapi.json")),
        }
    }
}

/// What stands in the path of a request, likewise.
pub(crate) struct Placed<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Placed<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(place)) => Ok(Self(place)),
            Err(error) => Err(Refusal::new(error.status(), error.body_text(), "see /api/openapi.json")),
        }
    }
}

#[cfg(test)]
mod tests {
    use litepost_core::Seq;

    use super::*;

    #[test]
    fn what_an_operator_can_put_right_is_no_fault_of_the_server() {
        let file = || "/shop.db".into();
        for (error, status) in [
            (StoreError::CopiedFile { path: file() }, StatusCode::CONFLICT),
            (StoreError::NotMigrated, StatusCode::CONFLICT),
            (StoreError::LaneCount { destination: "a.b".into(), found: 1, asked: 2 }, StatusCode::CONFLICT),
            (StoreError::Missing { path: file() }, StatusCode::NOT_FOUND),
            (StoreError::NotThere { asked: Seq(9), first: Seq(1), last: Seq(2) }, StatusCode::BAD_REQUEST),
            (StoreError::Busy { doing: "asking" }, StatusCode::SERVICE_UNAVAILABLE),
            (StoreError::Corrupt { doing: "asking", code: 11 }, StatusCode::INTERNAL_SERVER_ERROR),
        ] {
            assert_eq!(Refusal::from(error).status(), status);
        }
    }
}
