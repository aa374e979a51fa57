//! Test servers, conformance suites and fault injection for litepost (never linked in production).

pub mod servers;
