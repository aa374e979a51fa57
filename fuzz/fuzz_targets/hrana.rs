//! The answer of a Hrana server, as it comes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use litepost_relay::sinks::fuzzing::hrana;

fuzz_target!(|input: &[u8]| hrana(input));
