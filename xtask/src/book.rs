//! `cargo xtask book`: makes the mdBook of the documentation, and follows every link in it.
//!
//! Called by people and by `ci`. Invariant: what is checked is what a reader gets: the HTML, with the anchors that mdBook
//! has given the headings. Links to elsewhere are not asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result};
use regex::Regex;

use crate::shell::{command, has, run, target};
use crate::{Finding, setup};

/// Pages that repeat others, or are shown at any address.
const NOT_READ: [&str; 3] = ["404.html", "print.html", "toc.html"];

/// Makes the book in `target/book` and checks it.
pub fn book() -> Result<()> {
    let program = if has("mdbook") { PathBuf::from("mdbook") } else { setup::venv("mdbook")?.join("mdbook") };
    let book = target().join("book");
    if book.exists() {
        std::fs::remove_dir_all(&book)?;
    }
    run(command(program, &["build", "docs", "--dest-dir"]).arg(&book))?;
    let (checked, broken) = follow(&book)?;
    println!("{checked} links, {} lead nowhere", broken.len());
    for line in &broken {
        println!("  {line}");
    }
    if broken.is_empty() && checked > 0 {
        Ok(())
    } else {
        Err(Finding("a link of the book leads nowhere".into()).into())
    }
}

/// Follows every link of the pages in `book`: how many there are, and those that lead nowhere.
fn follow(book: &Path) -> Result<(usize, BTreeSet<String>)> {
    let mut pages = BTreeMap::new();
    read(book, book, &mut pages)?;
    let (mut checked, mut broken) = (0, BTreeSet::new());
    for (page, text) in &pages {
        if NOT_READ.contains(&page.to_string_lossy().as_ref()) {
            continue;
        }
        for link in matches(&LINKS, text) {
            if link.contains(':') {
                continue;
            }
            checked += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = if path.is_empty() { page.clone() } else { resolved(page, path) };
            let there = match pages.get(&file) {
                Some(text) => anchor.is_empty() || matches(&IDS, text).any(|id| id == anchor),
                None => book.join(&file).is_file(),
            };
            if !there {
                broken.insert(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok((checked, broken))
}

static LINKS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r#"(?:href|src)="([^"]*)""#).ok());
static IDS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r#"id="([^"]*)""#).ok());

fn matches<'a>(pattern: &'static LazyLock<Option<Regex>>, text: &'a str) -> impl Iterator<Item = &'a str> {
    let found = pattern.iter().flat_map(move |pattern| pattern.captures_iter(text));
    found.filter_map(|found| Some(found.get(1)?.as_str()))
}

/// The HTML pages below `folder`, by their path in the book.
fn read(book: &Path, folder: &Path, pages: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read(book, &path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "html") {
            let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            pages.insert(path.strip_prefix(book)?.to_owned(), text);
        }
    }
    Ok(())
}

/// Where a link of `page` leads.
fn resolved(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_no_page_and_one_to_no_heading_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        std::fs::create_dir(folder.path().join("a")).unwrap();
        write(
            "a/b.html",
            r##"<h1 id="x"><a href="#x"><a href="../c.html#y"><a href="../c.html#z"><img src="../d.png">"##,
        );
        write("c.html", r#"<h1 id="y"><a href="https://example.org/none"><a href="a/none.html">"#);
        write("print.html", r#"<a href="none.html">"#);
        let (checked, broken) = follow(folder.path()).unwrap();
        assert_eq!(checked, 5);
        let expected = ["a/b.html: ../c.html#z", "a/b.html: ../d.png", "c.html: a/none.html"];
        assert_eq!(broken.into_iter().collect::<Vec<_>>(), expected);
    }
}
