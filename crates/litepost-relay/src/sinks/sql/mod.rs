//! What the SQL destinations behind a network share: settings, statement planning, and delivery.
//!
//! Called by the sinks `postgres`, `mysql` and `hrana`, which bring a [`session::Session`]: one connection that
//! can run a list of statements and ledger writes in one transaction. Invariant: whatever a session is asked to apply
//! commits whole, together with the ledger, or not at all.

mod ahead;
mod beginning;
mod engine;
mod exact;
mod look;
mod options;
mod outbox_seq;
mod plan;
mod session;

pub(crate) use ahead::{Known, Parsed, read_on};
pub(crate) use beginning::Beginnings;
pub(crate) use engine::{look, open, unavailable};
pub(crate) use exact::{Columns, Held, Holds, moment};
pub(crate) use look::{findings, inspect};
pub(crate) use options::{Options, deadline};
pub(crate) use outbox_seq::{Numbers, Speak};
pub(crate) use plan::{Planned, Planner};
pub(crate) use session::{Failure, Fault, Session, Work};

use super::ledger::{self, Guard};

/// Makes `ring` the process's TLS provider unless the program has chosen one.
pub(crate) fn ensure_tls_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// A message with its source's, without line breaks: what people see in `status`.
pub(crate) fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let more = inner.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = inner.source();
    }
    text.replace(['\n', '\r'], " ")
}
