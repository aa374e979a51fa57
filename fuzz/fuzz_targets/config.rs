//! A configuration, as it stands in the file.
#![no_main]

#[path = "../../crates/litepost-relay/tests/fuzz/promises.rs"]
mod promises;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use promises::{load, reaches_out};

static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder"));

fuzz_target!(|input: &[u8]| {
    if !reaches_out(input) {
        load(FOLDER.path(), input);
    }
});
