//! What is wrong with a configuration: every finding of one run, with the place in the file.
//!
//! Filled by the reader and the checks, shown by the command line (with the source line and a caret) or, one line
//! each, by `Display`. Invariant: no text in here contains a resolved `${VAR}`: places in the file and names only.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Nobody reads more findings than this.
pub(crate) const FINDINGS_MAX: usize = 200;

/// A place in the file, in bytes.
pub type Span = Range<usize>;

/// Whether a finding stops the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can be used, but probably does not do what was meant.
    Warning,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether it stops the start.
    pub severity: Severity,
    /// What is wrong; lower case, no full stop.
    pub message: String,
    /// The key it concerns, from the top: `app.shop.batch_size`.
    pub key: String,
    /// Where in the file.
    pub span: Option<Span>,
    /// What the caret says.
    pub label: String,
    /// A second place, and what it is.
    pub also: Option<(Span, String)>,
    /// What to do next.
    pub hint: Option<String>,
}

impl Problem {
    /// An error about `key`.
    pub fn error(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            message: message.into(),
            key: key.into(),
            span: None,
            label: "here".into(),
            also: None,
            hint: None,
        }
    }

    /// A warning about `key`.
    pub fn warning(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(key, message) }
    }

    /// Says where.
    #[must_use]
    pub fn at(mut self, span: Option<Span>) -> Self {
        self.span = span;
        self
    }

    /// Says what the caret points at.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Points at a second place.
    #[must_use]
    pub fn also(mut self, span: Option<Span>, label: impl Into<String>) -> Self {
        self.also = span.map(|span| (span, label.into()));
        self
    }

    /// Says what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Where a configuration came from, and its text.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// The file; `None` when it was built in code.
    pub path: Option<PathBuf>,
    /// Its text as it stands on disk, `${VAR}` unresolved; [`Source::shown`] is for people.
    pub text: String,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("path", &self.path).field("bytes", &self.text.len()).finish()
    }
}

impl Source {
    /// The file's name for messages.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.as_deref().map_or_else(|| "(configuration built in code)".into(), |p| p.display().to_string())
    }

    /// Line and column of a byte position, both from 1, the column in characters.
    #[must_use]
    pub fn line_column(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at.min(self.text.len())).unwrap_or(&self.text);
        let line_start = before.rfind('\n').map_or(0, |n| n + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

/// Why a configuration was refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        error: std::io::Error,
    },
    /// Neither `litepost.toml` nor `outbox.toml` is there.
    NotFound {
        /// Where was looked.
        folder: PathBuf,
    },
    /// A source of variables failed (`.env`, Doppler): starting without it would start with wrong secrets.
    Variables {
        /// What failed, secrets masked.
        message: String,
        /// What to do next.
        hint: String,
    },
    /// The file says things that cannot be.
    Invalid {
        /// The file and its text.
        source_file: Source,
        /// Everything that was found, warnings included.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { .. } => Some("check the path and the permissions, or name another file with --config".into()),
            Self::NotFound { .. } => Some("make one with `litepost init`, or name the file with --config".into()),
            Self::Variables { hint, .. } => Some(hint.clone()),
            Self::Invalid { .. } => None,
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, error } => write!(f, "cannot read {}: {error}", path.display()),
            Self::NotFound { folder } => {
                write!(f, "no litepost.toml and no outbox.toml in {}", folder.display())
            }
            Self::Variables { message, .. } => f.write_str(message),
            Self::Invalid { source_file, problems } => {
                let errors = problems.iter().filter(|p| p.severity == Severity::Error).count();
                write!(f, "{}: {errors} error{}", source_file.name(), if errors == 1 { "" } else { "s" })?;
                for problem in problems {
                    write!(f, "\n{}", one_line(source_file, problem))?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// A finding as one line: `litepost.toml:4:1: error: app.shop: …`.
#[must_use]
pub fn one_line(source: &Source, problem: &Problem) -> String {
    let place = problem.span.as_ref().map_or_else(String::new, |span| {
        let (line, column) = source.line_column(span.start);
        format!(":{line}:{column}")
    });
    let word = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let hint = problem.hint.as_ref().map_or_else(String::new, |h| format!(" ({h})"));
    format!("{}{place}: {word}: {}{hint}", source.name(), problem.message)
}

/// The folder that relative paths of a configuration file start from; empty for the working folder, so that
/// `shop.db` stays `shop.db` in every message.
#[must_use]
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    path.parent().map(Path::to_path_buf).unwrap_or_default()
}
