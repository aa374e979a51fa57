//! A line of a program: the first byte is the number of events that it answers, the rest the line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use litepost_relay::sinks::fuzzing::exec;

fuzz_target!(|input: &[u8]| {
    let Some((count, line)) = input.split_first() else { return };
    exec(line, usize::from(count % 4));
});
