//! Output as a page shows it, and output as it came: the same but for what differs from run to run.
//!
//! Called by the runner next door. Invariant: what is let through is named here: ids, times, addresses, the width of
//! columns, and what the page itself leaves out with `…`.

use std::sync::LazyLock;

use regex::Regex;

/// What differs from run to run, and the word that stands for it.
const VARIES: &[(&str, &str)] = &[
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "ID"),
    (r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:\d{2})?", "TIME"),
    (r"\b1[6-9]\d{11}\b", "TIME"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\b\d+(\.\d+)? ?(ms|µs|s)\b", "DURATION"),
    (r"\b\d+(\.\d+)? ?([KM]iB|[kM]B|bytes|B)\b", "SIZE"),
    // Columns are as wide as their widest value.
    (r"[ \t]+", " "),
    (r"[─┄╌]+", "─"),
    (r"-{3,}", "---"),
    (r" +\n", "\n"),
];

static PATTERNS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let compiled = VARIES.iter().filter_map(|(pattern, word)| Some((Regex::new(pattern).ok()?, *word)));
    compiled.collect()
});

/// The text without what differs from run to run.
fn normal(text: &str) -> String {
    let ends = text.trim_end().to_owned() + "\n";
    PATTERNS.iter().fold(ends, |text, (pattern, word)| pattern.replace_all(&text, *word).into_owned())
}

/// Whether the page tells what came. A line that is only `…` stands for any lines, `…` in a line for any of its text.
pub fn same(shown: &str, came: &str) -> bool {
    let mut pattern = String::from("(?s)^");
    for line in normal(shown).lines() {
        if line.trim() == "…" {
            pattern.push_str("(?:.*\n)?");
        } else {
            let parts: Vec<String> = line.split('…').map(regex::escape).collect();
            pattern.push_str(&parts.join("[^\n]*"));
            pattern.push('\n');
        }
    }
    pattern.push('$');
    Regex::new(&pattern).is_ok_and(|pattern| pattern.is_match(&normal(came)))
}

/// A command of a `console` block, and what the page says comes of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Exchange {
    pub command: String,
    pub output: String,
}

/// `$ command` with its output behind it; a line that ends in a backslash goes on in the next one.
pub fn exchanges(text: &str) -> Option<Vec<Exchange>> {
    let mut all: Vec<Exchange> = Vec::new();
    let mut goes_on = false;
    for line in text.lines() {
        let last = all.last_mut();
        if goes_on {
            let command = &mut last?.command;
            command.push('\n');
            command.push_str(line);
            goes_on = line.ends_with('\\');
        } else if let Some(command) = line.strip_prefix("$ ") {
            all.push(Exchange { command: command.to_owned(), output: String::new() });
            goes_on = line.ends_with('\\');
        } else {
            let output = &mut last?.output;
            output.push_str(line);
            output.push('\n');
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_times_may_differ_and_nothing_else() {
        let shown = "1  019a-x  0193b6a0-7b1c-7d3e-9f00-aabbccddeeff  2026-11-30T12:00:00Z  12ms\n";
        let came = "1 019a-x 0193b6a0-7b1c-7d3e-9f00-000000000000   2027-01-01 00:00:00   7 ms\n\n";
        assert!(same(shown, came));
        assert!(!same("delivered 3\n", "delivered 4\n"));
        assert!(!same("a\n", "a\nb\n"));
        assert!(!same("a\nb\n", "a\n"));
    }

    #[test]
    fn what_the_page_leaves_out_may_be_anything() {
        assert!(same("a\n…\nz\n", "a\nb\nc\nz\n"));
        assert!(same("a\n…\n", "a\n"));
        assert!(same("pid … lives\n", "pid 17 lives\n"));
        assert!(!same("pid … lives\n", "pid 17\nlives\n"));
    }

    #[test]
    fn a_console_block_is_commands_with_their_output() {
        let seen = exchanges("$ a \\\n   b\nout\n$ c\n").unwrap();
        let expected = [("a \\\n   b", "out\n"), ("c", "")];
        assert_eq!(seen.iter().map(|e| (e.command.as_str(), e.output.as_str())).collect::<Vec<_>>(), expected);
        assert_eq!(exchanges("out\n$ c\n"), None);
    }
}
