//! `cargo xtask test`: install what is missing, then run every test of the project.
//!
//! Called by people, `ci` and `.ci/run`. Invariant: the exit code is 0 only when every test ran and passed;
//! a part of the project that has no tests yet is not mentioned, one that has them is never left out.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::shell::{cargo, command, root, target, tee};
use crate::summary::Summary;
use crate::{blocks, contrib, deb, quickstart, sbom, setup, wheel};

/// The workspace of adapters to drivers that bring a SQLite of their own.
pub const ADAPTERS: &str = "adapters/Cargo.toml";

/// Where that workspace is built.
pub fn adapters_target() -> PathBuf {
    target().join("adapters")
}

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Args {
    /// Only tests whose name contains this (Rust tests of the main workspace only)
    filter: Option<String>,
}

/// Runs everything, or what the filter names.
pub fn run(args: &Args) -> Result<()> {
    setup::everything()?;
    let nextest = setup::nextest();
    let mut summary = Summary::default();
    if let Some(filter) = &args.filter {
        summary.tests("Rust tests", || tee(&mut rust_tests(nextest.as_deref(), &["--workspace", filter])));
    } else {
        all(&mut summary, nextest.as_deref());
    }
    summary.close()
}

/// Every test of the project, as steps of `summary`. What they need is there already.
pub fn all(summary: &mut Summary, nextest: Option<&[PathBuf]>) {
    summary.tests("Rust tests", || tee(&mut rust_tests(nextest, &["--workspace"])));
    summary.tests("documentation tests", || tee(&mut cargo(&["test", "--workspace", "--all-features", "--doc"])));
    summary.tests("Kafka over TLS", || tee(&mut kafka_over_tls()));
    if root().join(ADAPTERS).is_file() {
        let adapters = ["--manifest-path", ADAPTERS, "--workspace"];
        let target = adapters_target();
        summary.tests("Rust tests of the adapters", || {
            tee(rust_tests(nextest, &adapters).env("CARGO_TARGET_DIR", &target))
        });
        summary.tests("documentation tests of the adapters", || {
            let scope = ["test", "--manifest-path", ADAPTERS, "--workspace", "--all-features", "--doc"];
            tee(cargo(&scope).env("CARGO_TARGET_DIR", &target))
        });
    }
    summary.tests("quick starts", quickstart::test);
    summary.tests("the documentation's blocks", blocks::test);
    summary.tests("the dashboard in Chromium", browser_tests);
    summary.tests("the Debian package, installed, started, upgraded", || Ok(deb::test()));
    summary.step("alert rules, Dockerfile, unit", contrib::check);
    summary.step("bill of materials", sbom::test);
    if root().join("clients/python").is_dir() {
        summary.tests("Python tests", python_tests);
        summary.tests("the wheel, installed and used", wheel::test);
    }
}

/// The dashboard beside a real relay, in a real browser.
fn browser_tests() -> Result<(bool, String)> {
    crate::shell::run(&mut cargo(&["build", "-p", "litepost-cli", "--bin", "litepost"]))?;
    let mut node = command("node", &["--test", "--test-reporter=tap"]);
    node.current_dir(root().join("tests/browser")).env("LITEPOST_BIN", target().join("debug/litepost"));
    tee(&mut node)
}

/// The one test that needs a librdkafka with OpenSSL, which no other build of ours asks for.
fn kafka_over_tls() -> Command {
    let features = ["--all-features", "--features", "rdkafka/ssl"];
    let mut command = cargo(&["test", "--package", "litepost-relay", "--test", "it"]);
    command.args(features).args(["--", "brokers::kafka::over_tls"]);
    command
}

/// The command that runs Rust tests: nextest where it is to be had, else `cargo test`.
fn rust_tests(nextest: Option<&[PathBuf]>, args: &[&str]) -> Command {
    let Some(folders) = nextest else {
        let mut command = cargo(&["test", "--all-features", "--no-fail-fast", "--lib", "--bins", "--tests"]);
        command.args(args);
        return command;
    };
    let mut command = cargo(&["nextest", "run", "--all-features", "--no-fail-fast", "--no-tests=fail"]);
    command.args(args).env("PATH", path_with(folders));
    command
}

fn path_with(folders: &[PathBuf]) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = folders.iter().cloned().chain(std::env::split_paths(&path));
    std::env::join_paths(all).unwrap_or(path)
}

fn python_tests() -> Result<(bool, String)> {
    let python = setup::python_client()?.join("python");
    let mut pytest = command(python, &["-m", "pytest", "-q", "-rs"]);
    pytest.current_dir(root().join("clients/python")).env("LITEPOST_BIN", quickstart::litepost()?);
    tee(&mut pytest)
}
