//! Test servers, conformance suites and fault injection for litepost (never linked in production).

mod clock;
pub mod hrana;
pub mod measure;
pub mod servers;
