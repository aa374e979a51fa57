//! The dialect layer: the first byte is the number of values, the rest the statement.
#![no_main]

use libfuzzer_sys::fuzz_target;
use litepost_relay::dialect::fuzzing::feed;

fuzz_target!(|input: &[u8]| {
    let Some((count, sql)) = input.split_first() else { return };
    if let Ok(sql) = std::str::from_utf8(sql) {
        feed(sql, usize::from(count % 4));
    }
});
