//! Failures and findings as people read them: one sentence, the line of the file with a caret, and a hint.
//!
//! Called by `main` and `check`. Invariant: everything goes to stderr, with colours on a terminal only.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};

use litepost_relay::config::{ConfigError, Problem, Severity, Source};
use miette::{GraphicalReportHandler, GraphicalTheme, LabeledSpan, NamedSource};

use crate::failure::Failure;

/// Shows a failure.
pub(crate) fn failure(failure: &Failure) {
    match failure {
        Failure::Finding | Failure::BrokenPipe => {}
        Failure::User { message, hint } | Failure::Unexpected { message, hint } => error(message, hint),
        Failure::Config(config) | Failure::Deployment(config) => match &**config {
            ConfigError::Invalid { source_file, problems } => {
                findings(source_file, problems);
                let count = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
                let noun = if count == 1 { "error" } else { "errors" };
                say(&format!("{count} {noun} in {}", source_file.name()));
            }
            other => error(&other.to_string(), &other.hint().unwrap_or_default()),
        },
    }
}

/// Shows one error without a place.
pub(crate) fn error(message: &str, hint: &str) {
    say(&plain("error", message, Some(hint)));
}

/// Shows findings of a configuration, each with its line.
pub(crate) fn findings(source: &Source, problems: &[Problem]) {
    let file = NamedSource::new(source.name(), source.shown());
    for problem in problems {
        say(&render(source, &file, problem, std::io::stderr().is_terminal()));
    }
}

/// One line on stderr.
pub(crate) fn say(text: &str) {
    // stderr may be closed; there is nowhere else to complain.
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end());
}

fn plain(word: &str, message: &str, hint: Option<&str>) -> String {
    let mut text = format!("{word}: {message}");
    if let Some(hint) = hint.filter(|hint| !hint.is_empty()) {
        // Writing into a String cannot fail.
        let _ = write!(text, "\n  hint: {hint}");
    }
    text
}

/// A longer line of the file is not shown.
const LINE_BYTES_MAX: usize = 500;

/// The longest of the lines that would be shown: the one with the place, and its neighbours.
fn longest_line(source: &Source, span: &std::ops::Range<usize>) -> usize {
    let (before, after) = source.text.split_at_checked(span.start).unwrap_or((&source.text, ""));
    let above = before.rsplit('\n').take(2).map(str::len);
    let below = after.split('\n').take(2).map(str::len);
    above.chain(below).max().unwrap_or(0)
}

/// A finding as text.
fn render(source: &Source, file: &NamedSource<String>, problem: &Problem, colours: bool) -> String {
    let word = match problem.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    let Some(span) = &problem.span else {
        let message = format!("{}: {}", source.name(), problem.message);
        return format!("{}\n", plain(word, &message, problem.hint.as_deref()));
    };
    if longest_line(source, span) > LINE_BYTES_MAX {
        return format!("{}\n", litepost_relay::config::one_line(source, problem));
    }
    let diagnostic = Shown { problem, span: span.clone(), file };
    let mut text = String::new();
    let handler =
        GraphicalReportHandler::new_themed(theme(colours)).with_width(100).with_wrap_lines(false).with_links(false);
    if handler.render_report(&mut text, &diagnostic).is_err() {
        return format!("{}\n", litepost_relay::config::one_line(source, problem));
    }
    let mut text =
        text.trim_start_matches('\n').replacen("  error ", "error: ", 1).replacen("  warning ", "warning: ", 1);
    if let Some(hint) = &problem.hint {
        let _ = writeln!(text, "  hint: {hint}");
    }
    text
}

fn theme(colours: bool) -> GraphicalTheme {
    let mut theme = if colours { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    theme.characters.error = "error".into();
    theme.characters.warning = "warning".into();
    theme
}

/// A finding as miette wants it.
#[derive(Debug)]
struct Shown<'a> {
    problem: &'a Problem,
    span: std::ops::Range<usize>,
    file: &'a NamedSource<String>,
}

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.problem.message)
    }
}

impl std::error::Error for Shown<'_> {}

impl miette::Diagnostic for Shown<'_> {
    fn severity(&self) -> Option<miette::Severity> {
        Some(match self.problem.severity {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
        })
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        Some(self.file)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let label =
            |text: &str, span: &std::ops::Range<usize>| LabeledSpan::new(Some(text.to_owned()), span.start, span.len());
        let first = LabeledSpan::new_primary_with_span(Some(self.problem.label.clone()), self.span.clone());
        let second = self.problem.also.as_ref().map(|(span, text)| label(text, span));
        Some(Box::new(std::iter::once(first).chain(second)))
    }
}
