//! Test servers, conformance suites and fault injection for litepost (never linked in production).

mod clock;
pub mod collector;
#[cfg(feature = "conformance")]
#[allow(clippy::missing_panics_doc, reason = "panicking is how a test suite says no")]
pub mod conformance;
#[cfg(unix)]
pub mod disk;
pub mod hrana;
pub mod http;
pub mod measure;
pub mod proxy;
pub mod sasl_front;
pub mod servers;
pub mod tls;
pub mod tls_front;
