//! The command line as people and scripts use it: the real binary, real files, exact messages and exit codes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod admin;
mod admin_config;
mod backup;
mod bench;
mod broken_configs;
mod check_connect;
mod crash;
mod daemon;
mod decrypt;
mod doctor;
mod enqueue;
mod exec;
#[cfg(feature = "failpoints")]
mod failpoints;
mod generated;
mod hostile;
mod hostile_config;
mod inbox;
mod init;
mod load;
mod logging;
mod many_hands;
mod migrate;
mod operate;
mod readme_configs;
mod reload;
mod run;
mod schema;
mod secrets;
mod secrets_admin;
mod sqloutbox;
mod sqloutbox_codes;
mod sqloutbox_receipts;
mod sqloutbox_surface;
mod status;
mod support;
mod surface;
mod systemd;
mod tail;
mod telemetry;
mod top;
mod torture;
mod two_relays;
mod variables;
mod verify;
