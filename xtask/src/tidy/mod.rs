//! The house rules that no compiler checks, as code.
//!
//! Called by `ci` and `cargo xtask tidy`. Invariant: a rule is a pure function from texts to problems, tested
//! here on small inputs; only this file reads the repository.

mod markdown;
mod rust;
mod sql;
mod words;

use std::fmt;

use anyhow::Result;

use crate::shell::{files, root};
use crate::{Finding, docs};

/// A rule that is broken, and where.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    pub file: String,
    pub line: usize,
    pub message: String,
}

impl Problem {
    pub fn new(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// A file with its text; `name` is relative to the repository's root.
pub struct Source {
    pub name: String,
    pub text: String,
}

impl Source {
    /// Whether the file's name ends in `.rs`, `.md`, ….
    pub fn is(&self, extension: &str) -> bool {
        self.name.rsplit_once('.').is_some_and(|(_, end)| end == extension)
    }
}

/// Checks the whole repository and prints what is wrong.
pub fn run() -> Result<()> {
    let sources = sources()?;
    let mut problems = Vec::new();
    let mut statements = sql::Statements::default();
    for source in &sources {
        words::check(source, &mut problems);
        if source.is("rs") {
            match rust::File::parse(source) {
                Ok(file) => {
                    file.check(&mut problems);
                    statements.add(&file);
                }
                Err(problem) => problems.push(problem),
            }
        } else if source.is("md") {
            markdown::check(source, &sources, &mut problems);
        }
    }
    statements.check(&mut problems);
    markdown::check_guarantees(&sources, &mut problems);
    markdown::check_summary(&sources, &mut problems);
    docs::check_includes(&sources, &mut problems);
    problems.sort();
    for problem in &problems {
        println!("{problem}");
    }
    if problems.is_empty() {
        println!("{} files, no house rule broken", sources.len());
        return Ok(());
    }
    Err(Finding(format!("{} house rules broken", problems.len())).into())
}

/// Every text file. Pictures and other binaries are left out.
pub fn sources() -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for name in files()? {
        // A picture has no text to check, but pages point to it.
        let text = String::from_utf8(std::fs::read(root().join(&name))?).unwrap_or_default();
        sources.push(Source { name, text });
    }
    Ok(sources)
}
