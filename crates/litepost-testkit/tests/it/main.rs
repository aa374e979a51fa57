//! The test kit's own servers, held against the clients of others.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod hrana;
