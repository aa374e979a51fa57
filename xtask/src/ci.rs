//! `cargo xtask ci`: everything that must hold before a change lands, the same on every machine.
//!
//! Called by people before they push. Invariant: every step runs whatever became of the ones before it, and
//! one failed step makes the run fail.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell::{cargo, command, root, run as sh};
use crate::summary::Summary;
use crate::{book, docs, instructions, laws, pythons, setup, test, tidy};

/// Options of `cargo xtask ci`.
#[derive(clap::Args)]
pub struct Args {
    /// Leave the tests out: only what needs no server (the exit code says nothing about tests then)
    #[arg(long)]
    without_tests: bool,
}

/// Runs every step.
pub fn run(args: &Args) -> Result<()> {
    let mut summary = Summary::default();
    summary.step("format", format);
    summary.step("house rules", tidy::run);
    summary.step("link laws", laws::check);
    summary.step("licences, bans, sources", dependencies);
    summary.step("lints", lints);
    summary.step("documentation", documentation);
    summary.step("generated documents", docs::check);
    summary.step("the book", book::book);
    if root().join("clients/python/check.sh").is_file() {
        summary.step("Python: format, lints, types", python);
    }
    if !args.without_tests {
        summary.step("what the tests need", setup::everything);
        test::all(&mut summary, setup::nextest().as_deref());
        pythons::found(&mut summary);
        summary.step("instructions per event", || instructions::run(&instructions::Args::all()));
    }
    summary.close()
}

/// The manifests of the workspaces: the main one, and the adapters' once there is one.
fn manifests() -> impl Iterator<Item = &'static str> {
    ["Cargo.toml", test::ADAPTERS].into_iter().filter(|manifest| root().join(manifest).is_file())
}

fn format() -> Result<()> {
    manifests()
        .chain(["fuzz/Cargo.toml"])
        .try_for_each(|manifest| sh(&mut cargo(&["fmt", "--all", "--check", "--manifest-path", manifest])))
}

fn lints() -> Result<()> {
    manifests().try_for_each(|manifest| {
        let scope = ["clippy", "--manifest-path", manifest, "--workspace", "--all-targets", "--all-features"];
        sh(own_target(manifest, cargo(&scope).args(["--", "-D", "warnings"])))
    })?;
    // The half of litepost that the adapters use: nothing in it may be left over when its driver is off.
    let alone = ["clippy", "--package", "litepost", "--no-default-features", "--lib", "--", "-D", "warnings"];
    sh(&mut cargo(&alone))
}

/// The adapters build into a folder of their own: another lock file, other versions.
fn own_target<'a>(manifest: &str, command: &'a mut Command) -> &'a mut Command {
    if manifest == test::ADAPTERS {
        command.env("CARGO_TARGET_DIR", test::adapters_target());
    }
    command
}

/// What the Python package's own `check.sh` does before its tests; those are a step of their own.
fn python() -> Result<()> {
    let python = setup::python_client()?.join("python");
    let checks: [&[&str]; 3] = [&["ruff", "format", "--check", "."], &["ruff", "check", "."], &["pyright"]];
    checks.into_iter().try_for_each(|check| {
        let mut command = command(&python, &["-m"]);
        sh(command.args(check).current_dir(root().join("clients/python")))
    })
}

fn documentation() -> Result<()> {
    manifests().try_for_each(|manifest| {
        let scope = ["doc", "--manifest-path", manifest, "--workspace", "--no-deps", "--all-features"];
        let mut doc = cargo(&scope);
        sh(own_target(manifest, doc.arg("--document-private-items").env("RUSTDOCFLAGS", "-D warnings")))
    })
}

/// cargo-deny without the advisories' database, which lies outside the package registries; with it when the
/// machine has fetched one.
fn dependencies() -> Result<()> {
    let deny = setup::deny()?;
    manifests().try_for_each(|manifest| {
        let scope = ["--manifest-path", manifest, "--all-features", "--config", "deny.toml", "check"];
        sh(command(&deny, &scope).args(["bans", "licenses", "sources"]))
    })?;
    let home =
        std::env::var_os("CARGO_HOME").map(Into::into).or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let databases = home.context("no home folder")?.join("advisory-dbs");
    if Path::new(&databases).is_dir() {
        return sh(&mut command(&deny, &["--all-features", "check", "--disable-fetch", "advisories"]));
    }
    println!(
        "advisories: not checked, there is no database in {} (`cargo deny fetch db` makes one)",
        databases.display()
    );
    Ok(())
}
