//! An outbox file with damage: each piece of the input is a place (three bytes), a length (one), and what is written there.
//! The place `ff ff ff` cuts the file instead, to so many 256ths as the length says.
#![no_main]

#[path = "../../crates/litepost/tests/it/damaged.rs"]
mod damaged;
#[path = "../../crates/litepost/tests/it/support.rs"]
mod support;

use damaged::{WHOLE, use_bytes, write_over};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut bytes = WHOLE.clone();
    let mut rest = input;
    while let [a, b, c, len, more @ ..] = rest {
        let place = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        if place == 0x00ff_ffff {
            bytes.truncate(bytes.len() * usize::from(*len) / 256);
            rest = more;
            continue;
        }
        let (values, after) = more.split_at(usize::from(*len).min(more.len()));
        write_over(&mut bytes, place % WHOLE.len(), values);
        rest = after;
    }
    use_bytes(&bytes);
});
