//! A template, a key and headers, one per line; the headers may have more lines.
#![no_main]

use libfuzzer_sys::fuzz_target;
use litepost_relay::sinks::fuzzing::templates;

fuzz_target!(|input: &str| {
    let mut parts = input.splitn(3, '\n');
    let mut next = || parts.next().unwrap_or_default();
    templates(next(), next(), next());
});
