//! A page of Markdown as the steps that a test takes through it.
//!
//! Called by the runner next door. Invariant: no code block is passed over: each becomes a step, also one that has no
//! language or stands in a list.

use std::ops::Range;

use anyhow::{Result, bail};
use pulldown_cmark::{CodeBlockKind, Event, Parser, Tag, TagEnd};

/// What a comment directly above a block says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `<!-- not run: REASON -->`
    NotRun(String),
    /// `<!-- run by PATH::TEST -->`
    RunBy(String),
    /// `<!-- include PATH -->`: the block is that file, which `cargo xtask docs` sees to.
    Include(String),
    /// `<!-- stands below: TEXT -->`: what a fragment of a configuration needs above it.
    Below(String),
    /// `<!-- runs until stopped; ready: COMMAND -->`: it stays in the background from then on.
    Stays(String),
}

/// A code block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// The first word behind the fence, without what stands behind a comma; empty for none.
    pub language: String,
    /// The second word: a file's name.
    pub file: Option<String>,
    pub text: String,
    /// Where the text stands in the page.
    pub place: Range<usize>,
    pub marks: Vec<Mark>,
}

/// What is to be done, in the page's order.
#[derive(Debug, PartialEq, Eq)]
pub enum Kind {
    /// `<!-- servers: NAME NAME -->`
    Servers(Vec<String>),
    /// `<!-- run: COMMANDS -->`: what a reader has done already, or sees no sense in.
    Hidden(String),
    Block(Block),
}

/// A step, and the line of the page where it stands.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    pub line: usize,
    pub kind: Kind,
}

/// Reads a page.
pub fn steps(page: &str) -> Result<Vec<Step>> {
    let mut steps = Vec::new();
    let mut marks = Vec::new();
    let mut open: Option<(Step, bool)> = None;
    let mut html: Option<(usize, String)> = None;
    let line_of = |at: usize| page[..at].matches('\n').count() + 1;
    for (event, range) in Parser::new(page).into_offset_iter() {
        let line = line_of(range.start);
        match event {
            Event::Start(Tag::CodeBlock(kind)) => {
                let info = match kind {
                    CodeBlockKind::Fenced(info) => info.to_string(),
                    CodeBlockKind::Indented => String::new(),
                };
                let block = block(&info, std::mem::take(&mut marks));
                open = Some((Step { line, kind: Kind::Block(block) }, false));
            }
            Event::Text(text) => {
                if let Some((Step { kind: Kind::Block(block), .. }, begun)) = &mut open {
                    block.text.push_str(&text);
                    let start = if *begun { block.place.start } else { range.start };
                    block.place = start..range.end;
                    *begun = true;
                } else {
                    unused(&mut marks, line)?;
                }
            }
            Event::End(TagEnd::CodeBlock) => steps.extend(open.take().map(|(step, _)| step)),
            Event::Start(Tag::HtmlBlock) => html = Some((line, String::new())),
            Event::Html(piece) => html.get_or_insert_with(|| (line, String::new())).1.push_str(&piece),
            Event::End(TagEnd::HtmlBlock) => {
                let (line, html) = html.take().unwrap_or_default();
                comments(&html, line, &mut steps, &mut marks)?;
            }
            _ => {}
        }
    }
    unused(&mut marks, line_of(page.len()))?;
    Ok(steps)
}

fn block(info: &str, marks: Vec<Mark>) -> Block {
    let mut words = info.split_whitespace();
    let language = words.next().unwrap_or_default().split(',').next().unwrap_or_default().to_owned();
    Block { language, file: words.next().map(ToOwned::to_owned), text: String::new(), place: 0..0, marks }
}

/// A mark that stands above no block says something to nobody.
fn unused(marks: &mut Vec<Mark>, line: usize) -> Result<()> {
    if let Some(mark) = marks.pop() {
        bail!("no code block follows {mark:?}, above line {line}");
    }
    Ok(())
}

/// The comments of a piece of HTML that say something to the runner.
fn comments(html: &str, line: usize, steps: &mut Vec<Step>, marks: &mut Vec<Mark>) -> Result<()> {
    for comment in html.split("<!--").skip(1) {
        let Some((text, _)) = comment.split_once("-->") else { bail!("line {line}: a comment that does not end") };
        let text = text.trim();
        let said = |word: &str| text.strip_prefix(word).map(|rest| rest.trim().to_owned());
        if let Some(names) = said("servers:") {
            let names = names.split_whitespace().map(ToOwned::to_owned).collect();
            steps.push(Step { line, kind: Kind::Servers(names) });
        } else if let Some(commands) = said("run:") {
            steps.push(Step { line, kind: Kind::Hidden(commands) });
        } else if let Some(reason) = said("not run:") {
            if reason.is_empty() {
                bail!("line {line}: why is it not run?");
            }
            marks.push(Mark::NotRun(reason));
        } else if let Some(test) = said("run by ") {
            marks.push(Mark::RunBy(test));
        } else if let Some(path) = said("include ") {
            marks.push(Mark::Include(path));
        } else if let Some(above) = said("stands below:") {
            marks.push(Mark::Below(above));
        } else if let Some(ready) = said("runs until stopped; ready:") {
            marks.push(Mark::Stays(ready));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_comments_become_steps_in_their_order() {
        let page = "# T\n\n<!-- servers: nats redis -->\n<!-- run:\nexport A=1\n-->\n\ntext\n\n<!-- not run: no account -->\n```sh\na\nb\n```\n\n1. one\n\n   ```toml litepost.toml\n   x = 1\n   ```\n\n```rust,ignore\nc\n```\n\n    indented\n";
        let steps = steps(page).unwrap();
        assert_eq!(steps[0].kind, Kind::Servers(vec!["nats".into(), "redis".into()]));
        assert_eq!(steps[1], Step { line: 4, kind: Kind::Hidden("export A=1".into()) });
        let blocks: Vec<&Block> = steps
            .iter()
            .filter_map(|step| match &step.kind {
                Kind::Block(block) => Some(block),
                _ => None,
            })
            .collect();
        let seen: Vec<_> =
            blocks.iter().map(|block| (block.language.as_str(), block.file.as_deref(), block.text.as_str())).collect();
        let expected = [
            ("sh", None, "a\nb\n"),
            ("toml", Some("litepost.toml"), "x = 1\n"),
            ("rust", None, "c\n"),
            ("", None, "indented\n"),
        ];
        assert_eq!(seen, expected);
        assert_eq!(blocks[0].marks, [Mark::NotRun("no account".into())]);
        assert_eq!(&page[blocks[0].place.clone()], "a\nb\n");
        assert!(blocks[1].marks.is_empty());
    }

    #[test]
    fn a_mark_without_a_block_or_a_reason_is_an_error() {
        assert!(steps("<!-- not run: x -->\n\ntext\n").is_err());
        assert!(steps("<!-- not run: x -->\n").is_err());
        assert!(steps("<!-- not run: -->\n```sh\na\n```\n").is_err());
    }
}
