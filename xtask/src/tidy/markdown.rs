//! Rules for Markdown: what it points to exists, and every promise has its test.
//!
//! Called by `tidy`. Invariant: a name in backticks that looks like a path of this repository is one.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::rust::File;
use super::{Problem, Source};

/// The page on which every promise stands with its tests.
const GUARANTEES: &str = "docs/guarantees.md";
/// The table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Checks the links, paths and test names of one page.
pub fn check(page: &Source, sources: &[Source], problems: &mut Vec<Problem>) {
    let names: BTreeSet<&str> = sources.iter().flat_map(|source| with_folders(&source.name)).collect();
    let tops: BTreeSet<&str> = names.iter().filter_map(|name| name.split_once('/')).map(|(top, _)| top).collect();
    for (line, text) in prose(&page.text) {
        let mut say = |message: String| problems.push(Problem::new(&page.name, line, message));
        for target in links(text) {
            let path = target.split('#').next().unwrap_or_default();
            let file = if path.is_empty() { page.name.clone() } else { resolve(&page.name, path) };
            if !exists(&file, &names) {
                say(format!("the link to {target} leads nowhere"));
            } else if let Some((_, anchor)) = target.split_once('#')
                && !sources.iter().any(|source| source.name == file && anchors(&source.text).any(|id| id == anchor))
            {
                say(format!("the link to {target} leads to no heading"));
            }
        }
        for span in code_spans(text) {
            let (path, test) = span.split_once("::").map_or((span, None), |(path, test)| (path, Some(test)));
            let top = path.split('/').next().unwrap_or_default();
            let looks_like_path = path.contains('/') && tops.contains(top) && !path.contains([' ', '{', '<', '…']);
            if !looks_like_path {
                continue;
            }
            if !exists(path.trim_end_matches('/'), &names) {
                say(format!("{path} does not exist"));
            } else if let Some(test) = test
                && !has_test(path, test, sources)
            {
                say(format!("{path} has no test named {test}"));
            }
        }
    }
}

/// Every promise, a `###` heading of the guarantees page, names at least one test before the next heading.
pub fn check_guarantees(sources: &[Source], problems: &mut Vec<Problem>) {
    let Some(page) = sources.iter().find(|source| source.name == GUARANTEES) else {
        problems.push(Problem::new(GUARANTEES, 1, "the page is missing"));
        return;
    };
    let mut open: Option<(usize, &str)> = None;
    let mut promises = 0;
    let end = (usize::MAX, "# ");
    for (line, text) in prose(&page.text).chain([end]) {
        if text.starts_with('#') {
            if let Some((line, promise)) = open.take() {
                problems.push(Problem::new(GUARANTEES, line, format!("no test is named for: {promise}")));
            }
            if let Some(promise) = text.strip_prefix("### ") {
                promises += 1;
                open = Some((line, promise));
            }
        } else if code_spans(text).any(|span| span.contains("::") && span.contains('/')) {
            open = None;
        }
    }
    if promises == 0 {
        problems.push(Problem::new(GUARANTEES, 1, "no promise found (a `###` heading each)"));
    }
}

/// Every page of the book stands in its summary.
pub fn check_summary(sources: &[Source], problems: &mut Vec<Problem>) {
    let Some(summary) = sources.iter().find(|source| source.name == SUMMARY) else {
        problems.push(Problem::new(SUMMARY, 1, "the page is missing"));
        return;
    };
    let listed: BTreeSet<String> =
        prose(&summary.text).flat_map(|(_, line)| links(line)).map(|target| resolve(SUMMARY, target)).collect();
    for page in sources.iter().filter(|source| source.is("md") && source.name.starts_with("docs/")) {
        if page.name != SUMMARY && !listed.contains(&page.name) {
            problems.push(Problem::new(&page.name, 1, "this page does not stand in docs/SUMMARY.md"));
        }
    }
}

/// The ids that mdBook and GitHub give the headings of a page.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

/// The lines outside fenced blocks, numbered from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((at + 1, line))
    })
}

/// The targets of `[text](target)` that lie in this repository.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target).filter(|target| {
        let outside = ["http://", "https://", "mailto:"];
        !outside.iter().any(|scheme| target.starts_with(scheme))
    })
}

/// What stands between single backticks.
fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// A link relative to its page, as a path from the root.
fn resolve(page: &str, target: &str) -> String {
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::RootDir => path.clear(),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path.display().to_string()
}

/// A file's name, and those of the folders it lies in.
fn with_folders(name: &str) -> impl Iterator<Item = &str> {
    std::iter::once(name).chain(name.match_indices('/').map(|(at, _)| &name[..at]))
}

/// Whether a file, a folder, or with `*` a pattern, names something tracked. The root itself is the empty name.
fn exists(path: &str, names: &BTreeSet<&str>) -> bool {
    let Some((head, tail)) = path.split_once('*') else { return path.is_empty() || names.contains(path) };
    let tail = tail.rsplit('*').next().unwrap_or_default();
    names.iter().any(|name| name.strip_prefix(head).is_some_and(|rest| rest.ends_with(tail)))
}

/// Whether the file defines the function whose name ends `test` (`tests::name` or `name`).
fn has_test(path: &str, test: &str, sources: &[Source]) -> bool {
    let Some(source) = sources.iter().find(|source| source.name == path) else { return false };
    let name = test.rsplit("::").next().unwrap_or(test);
    if source.is("py") {
        return source.text.lines().any(|line| line.trim_start().starts_with(&format!("def {name}(")));
    }
    File::parse(source).is_ok_and(|file| file.functions.iter().any(|function| function.name == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, text: &str) -> Source {
        Source { name: name.into(), text: text.into() }
    }

    fn problems(page: &str) -> Vec<String> {
        let sources = [
            source(GUARANTEES, page),
            source(
                "crates/x/tests/it/a.rs",
                "//! Tests.\n#[test]\nfn kept() {}\nproptest! { #[test] fn inside(x in 0..1) {} }\n",
            ),
            source("docs/words.md", "# W\n## A: `b_c` of d-e\n"),
            source(SUMMARY, "[g](guarantees.md)\n- [w](words.md)\n"),
        ];
        let mut problems = Vec::new();
        check(&sources[0], &sources, &mut problems);
        check_guarantees(&sources, &mut problems);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_a_page_names_exists() {
        assert!(problems("### P\n`crates/x/tests/it/a.rs::kept`, `crates/x/tests/it/a.rs::inside`").is_empty());
        let fine = "`crates/x/`, `crates/*/tests`, [w](words.md#a-b_c-of-d-e), [p](#p), [o](https://x), `a/b`, `crates/<name>`\n```\n`crates/no`\n```";
        assert!(problems(&format!("### P\n`crates/x/tests/it/a.rs::kept`\n{fine}")).is_empty());
        assert_eq!(
            problems("### P\n`crates/x/tests/it/a.rs::gone`")[0],
            "docs/guarantees.md:2: crates/x/tests/it/a.rs has no test named gone"
        );
        assert!(problems("### P\n`crates/y/a.rs::x`")[0].contains("crates/y/a.rs does not exist"));
        assert!(problems("### P\n`crates/x/tests/it/a.rs::kept` [w](word.md)")[0].contains("leads nowhere"));
        assert!(problems("### P\n`crates/x/tests/it/a.rs::kept` [w](words.md#b)")[0].contains("leads to no heading"));
        assert!(problems("### P\n`crates/x/tests/it/a.rs::kept` [w](#q)")[0].contains("leads to no heading"));
    }

    #[test]
    fn every_page_stands_in_the_summary() {
        let sources =
            [source(SUMMARY, "- [a](how-to/a.md)\n"), source("docs/how-to/a.md", ""), source("docs/b.md", "")];
        let mut problems = Vec::new();
        check_summary(&sources, &mut problems);
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["docs/b.md:1: this page does not stand in docs/SUMMARY.md"]);
    }

    #[test]
    fn every_promise_names_a_test() {
        assert!(
            problems("### P\n`crates/x/tests/it/a.rs::kept`\n### Q\nnothing\n## R")[0]
                .contains(":3: no test is named for: Q")
        );
        assert!(problems("### P\nnothing")[0].contains("no test is named for: P"));
        assert!(problems("# Only a title")[0].contains("no promise"));
    }
}
