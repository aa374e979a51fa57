//! The example itself, bounded: it counts, and fails when anything is missing or there twice.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

use std::process::Command;

#[test]
fn every_order_is_shipped_exactly_once_although_everything_is_killed() {
    let output = Command::new(env!("CARGO_BIN_EXE_outbox-to-inbox"))
        .args(["--orders", "600", "--kills", "15"])
        .output()
        .unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    assert!(stdout.contains("600 orders taken; 600 shipments of 600 orders"), "{stdout}");
    assert!(stdout.contains("kill 15"), "{stdout}");
}
