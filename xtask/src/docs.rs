//! `cargo xtask docs`: texts that are made from code, so that they cannot fall behind it.
//!
//! Called by people after a change, and by `ci` and `tidy`, which only compare. Two kinds: programs included in
//! a page (a line `<!-- include PATH -->` above a fenced block), and whatever the binary writes about itself.
//! Invariant: `check` changes nothing.

use std::process::Command;

use anyhow::{Context, Result};

use crate::Finding;
use crate::shell::{cargo, root, run as sh};
use crate::tidy::{Problem, Source};

/// Options of `cargo xtask docs`.
#[derive(clap::Args)]
pub struct Args {
    /// Only say what is out of date
    #[arg(long)]
    check: bool,
}

/// The marker of an included file.
const INCLUDE: &str = "<!-- include ";

/// Writes what is out of date, or only says so.
pub fn run(args: &Args) -> Result<()> {
    if args.check {
        return check();
    }
    for page in crate::tidy::sources()?.iter().filter(|source| source.is("md")) {
        let fresh = with_includes(&page.text, read_file)?;
        if fresh != page.text {
            std::fs::write(root().join(&page.name), fresh)?;
            println!("{} written anew", page.name);
        }
    }
    sh(generated().env("LITEPOST_UPDATE", "1"))
}

/// The test that compares what the code writes about itself (the reference of the configuration, its JSON Schema)
/// with the files; told to, it writes them.
fn generated() -> Command {
    // With every feature: the pages name every destination that the code has.
    cargo(&["test", "--quiet", "--package", "litepost-cli", "--all-features", "--test", "it", "generated"])
}

/// An error when anything generated is out of date.
pub fn check() -> Result<()> {
    let mut problems = Vec::new();
    check_includes(&crate::tidy::sources()?, &mut problems);
    for problem in &problems {
        println!("{problem}");
    }
    if !problems.is_empty() {
        return Err(Finding("run `cargo xtask docs`".into()).into());
    }
    sh(&mut generated())
}

/// Compares the included programs of every page with their files.
pub fn check_includes(sources: &[Source], problems: &mut Vec<Problem>) {
    for page in sources.iter().filter(|source| source.is("md")) {
        match with_includes(&page.text, read_file) {
            Ok(fresh) if fresh == page.text => {}
            Ok(_) => problems.push(Problem::new(&page.name, 1, "an included file has changed; run `cargo xtask docs`")),
            Err(error) => problems.push(Problem::new(&page.name, 1, format!("{error:#}"))),
        }
    }
}

fn read_file(name: &str) -> Result<String> {
    std::fs::read_to_string(root().join(name)).with_context(|| format!("cannot include {name}"))
}

/// The page with the fenced block below each marker made anew. Leading comments (`//!`, `#`, `--`) that only say
/// what the file is are left out: the page says it already.
fn with_includes(page: &str, read: impl Fn(&str) -> Result<String>) -> Result<String> {
    let mut fresh = String::with_capacity(page.len());
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        fresh.push_str(line);
        fresh.push('\n');
        let Some(name) = line.strip_prefix(INCLUDE).and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        let fence = lines
            .next()
            .filter(|line| line.starts_with("```"))
            .with_context(|| format!("no fenced block below {line}"))?;
        lines.by_ref().find(|line| *line == "```").with_context(|| format!("the block of {name} does not end"))?;
        fresh.extend([fence, "\n", &body(&read(name)?), "```\n"]);
    }
    Ok(fresh)
}

/// A file without the comment at its head and the blank line behind that.
fn body(text: &str) -> String {
    let comment = |line: &&str| line.starts_with("//!") || line.starts_with("# ") || line.starts_with("-- ");
    let head = text.lines().take_while(comment).count();
    let mut body: String =
        text.lines().skip(head).skip_while(|line| line.is_empty()).fold(String::new(), |mut all, line| {
            all.push_str(line);
            all.push('\n');
            all
        });
    body.truncate(body.trim_end().len());
    body.push('\n');
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_replaced_by_its_file_without_the_head_comment() {
        let page = "# T\n\n<!-- include a.py -->\n```python\nold\n```\n\nend\n";
        let file = |_: &str| Ok("# What it is.\n\nnew()\n# kept\n\n".to_owned());
        let fresh = with_includes(page, file).unwrap();
        assert_eq!(fresh, "# T\n\n<!-- include a.py -->\n```python\nnew()\n# kept\n```\n\nend\n");
        assert_eq!(with_includes(&fresh, file).unwrap(), fresh);
    }

    #[test]
    fn a_marker_without_a_block_is_an_error() {
        let error = with_includes("<!-- include a.py -->\ntext\n", |_| Ok(String::new())).unwrap_err();
        assert_eq!(error.to_string(), "no fenced block below <!-- include a.py -->");
    }
}
