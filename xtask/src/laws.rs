//! Who may link what: the dependency graph as cargo resolves it, against the design.
//!
//! Called by `ci`. Invariant: every law is checked on the graph with all features on, since a law that holds
//! only for the default features does not hold.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::Finding;
use crate::shell::{cargo, read, root};
use crate::test::ADAPTERS;

/// Packages that a crate must never link, directly or through others.
const NEVER: &[(&str, &[&str])] = &[
    ("litepost-core", &["tokio", "rusqlite", "libsqlite3-sys", "litepost", "litepost-relay", "reqwest"]),
    ("litepost", &["tokio", "litepost-relay", "reqwest"]),
    ("litepost-inbox", &["litepost", "litepost-core", "litepost-relay"]),
    ("litepost-relay", &["litepost-cli", "litepost-web", "axum"]),
    ("litepost-web", &["litepost-cli"]),
    ("litepost-torture", &["litepost-relay", "litepost-cli", "litepost-web"]),
];
/// Packages of the workspace that no user runs.
const NOT_PRODUCTION: &[&str] = &["litepost-testkit", "xtask", "quickstart", "outbox-to-inbox"];
/// Packages that must be nowhere: a second TLS provider makes rustls panic, OpenSSL needs the machine's.
const NOWHERE: &[&str] = &["aws-lc-sys", "aws-lc-rs", "openssl-sys"];
/// Packages of which there must be exactly one version: two SQLite libraries corrupt one file.
const ONE_VERSION: &[&str] = &["libsqlite3-sys", "rusqlite", "rustls"];

/// Checks every law; prints what is broken.
pub fn check() -> Result<()> {
    let mut broken = Vec::new();
    let members = members()?;
    for (member, never) in NEVER {
        let graph = tree(&["--package", member, "--edges", "normal"])?;
        let linked = names(&graph);
        broken.extend(never.iter().filter(|name| linked.contains(**name)).map(|name| format!("{member} links {name}")));
    }
    for member in members.iter().filter(|name| !NOT_PRODUCTION.contains(&name.as_str())) {
        let graph = tree(&["--package", member, "--edges", "normal,build"])?;
        let linked = names(&graph);
        if linked.contains("litepost-testkit") {
            broken.push(format!("{member} links litepost-testkit outside its tests"));
        }
    }
    let everything = tree(&["--workspace", "--edges", "normal,build,dev", "--target", "all"])?;
    let all = names(&everything);
    broken.extend(NOWHERE.iter().filter(|name| all.contains(**name)).map(|name| format!("{name} is in the graph")));
    broken.extend(ONE_VERSION.iter().filter_map(|name| several(&everything, name)));
    if root().join(ADAPTERS).is_file() {
        let adapters = read(&mut cargo(&[
            "tree",
            "--manifest-path",
            ADAPTERS,
            "--workspace",
            "--all-features",
            "--prefix",
            "none",
            "--edges",
            "normal,build,dev",
        ]))?;
        broken.extend(several(&adapters, "libsqlite3-sys").map(|law| format!("adapters: {law}")));
        if names(&adapters).contains("rusqlite") {
            broken.push("adapters: rusqlite is in the graph, beside the driver's own SQLite".into());
        }
    }
    for law in &broken {
        println!("{law}");
    }
    if broken.is_empty() {
        println!("{} packages in the graph of {} members, no law broken", all.len(), members.len());
        return Ok(());
    }
    Err(Finding(format!("{} link laws broken", broken.len())).into())
}

/// `name vVERSION …`, one package a line.
fn tree(args: &[&str]) -> Result<String> {
    let mut command = cargo(&["tree", "--locked", "--all-features", "--prefix", "none"]);
    read(command.args(args))
}

/// The workspace's packages.
fn members() -> Result<Vec<String>> {
    let list = tree(&["--workspace", "--depth", "0"])?;
    Ok(names(&list).into_iter().map(ToOwned::to_owned).collect())
}

fn names(tree: &str) -> BTreeSet<&str> {
    tree.lines().filter_map(|line| line.split_whitespace().next()).collect()
}

/// What to say when the graph does not hold exactly one version of a package.
fn several(tree: &str, name: &str) -> Option<String> {
    let packages = tree.lines().filter_map(|line| line.split_once(' '));
    let versions: BTreeSet<&str> = packages
        .filter(|(package, _)| *package == name)
        .map(|(_, rest)| rest.split(' ').next().unwrap_or_default())
        .collect();
    (versions.len() != 1).then(|| format!("{name} must be there once, found: {versions:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_counted_once_each() {
        let tree = "a v1.0.0\nb v0.1.0 (/x/b)\n\na v1.0.0 (*)\n";
        assert_eq!(several(tree, "a"), None);
        assert_eq!(
            several("a v1.0.0\na v2.0.0\n", "a").unwrap(),
            "a must be there once, found: {\"v1.0.0\", \"v2.0.0\"}"
        );
        assert!(several(tree, "c").is_some());
        assert_eq!(names(tree).into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }
}
