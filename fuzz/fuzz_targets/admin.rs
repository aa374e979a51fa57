//! A request to the admin listener: two bytes choose method and media type, a line is path and query, the rest the body.
#![no_main]

#[path = "../../crates/litepost-web/tests/it/beside.rs"]
mod beside;

use libfuzzer_sys::fuzz_target;

const METHODS: [&str; 8] = ["GET", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"];
const KINDS: [&str; 4] = ["application/json", "application/x-www-form-urlencoded", "text/plain", ""];

fuzz_target!(|input: &[u8]| {
    let [method, kind, rest @ ..] = input else { return };
    let end = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
    // What no HTTP library sends is hyper's to refuse; what is sent is ours.
    let target: String =
        rest[..end].iter().filter(|byte| byte.is_ascii_graphic()).map(|byte| char::from(*byte)).collect();
    let body = rest.get(end + 1..).unwrap_or_default();
    let (method, kind) = (METHODS[usize::from(*method) % METHODS.len()], KINDS[usize::from(*kind) % KINDS.len()]);
    beside::feed(method, &format!("/{}", target.trim_start_matches('/')), kind, None, body);
});
