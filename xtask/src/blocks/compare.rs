//! Output as a page shows it, and output as it came: the same but for what differs from run to run.
//!
//! Called by the runner next door. Invariant: what is let through is named here: ids, times, addresses, the width of
//! columns, and what the page itself leaves out with `…`.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

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
    numbered(&PATTERNS.iter().fold(ends, |text, (pattern, word)| pattern.replace_all(&text, *word).into_owned()))
}

/// The text with the ids of traces and spans numbered as they come: which of them are the same stays.
fn numbered(text: &str) -> String {
    static IDS: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\b([0-9a-f]{32}|[0-9a-f]{16})\b").ok());
    let Some(ids) = IDS.as_ref() else { return text.to_owned() };
    let mut seen: Vec<String> = Vec::new();
    let number = |found: &regex::Captures<'_>| {
        let at = seen.iter().position(|id| *id == found[0]).unwrap_or_else(|| {
            seen.push(found[0].to_owned());
            seen.len() - 1
        });
        format!("HEX-{at}")
    };
    ids.replace_all(text, number).into_owned()
}

/// The text as JSON values, one after another; `None` when it is anything else.
fn values(text: &str) -> Option<Vec<Value>> {
    let begins = text.trim_start().starts_with(['{', '[']);
    begins.then(|| serde_json::Deserializer::from_str(text).into_iter().collect::<Result<_, _>>().ok()).flatten()
}

/// Whether two values are the same but for what differs from run to run: whatever the spaces and the order of keys.
fn alike(shown: &Value, came: &Value) -> bool {
    match (shown, came) {
        (Value::Object(shown), Value::Object(came)) => {
            let found = |(key, value): (&String, &Value)| came.get(key).is_some_and(|other| alike(value, other));
            shown.len() == came.len() && shown.iter().all(found)
        }
        (Value::Array(shown), Value::Array(came)) => {
            shown.len() == came.len() && shown.iter().zip(came).all(|(shown, came)| alike(shown, came))
        }
        // Numbers through the same patterns: among them are times.
        _ => {
            std::mem::discriminant(shown) == std::mem::discriminant(came)
                && normal(&shown.to_string()) == normal(&came.to_string())
        }
    }
}

/// Whether the page tells what came. JSON is compared as JSON. In other text a line that is only `…` stands for any lines, `…` in a line for any of its text.
pub fn same(shown: &str, came: &str) -> bool {
    if let (Some(shown), Some(came)) = (values(shown), values(came)) {
        return shown.len() == came.len() && shown.iter().zip(&came).all(|(shown, came)| alike(shown, came));
    }
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

impl Exchange {
    /// The exit code that the page states, in a comment behind the command: `# exit code 1`. Without one it is 0.
    pub fn code(&self) -> i32 {
        static STATED: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"# exit code (\d+)\s*$").ok());
        let stated = STATED.as_ref().and_then(|stated| stated.captures(&self.command));
        stated.and_then(|stated| stated[1].parse().ok()).unwrap_or(0)
    }
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
    fn ids_of_spans_may_differ_and_which_are_the_same_may_not() {
        let (trace, other) = ("0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736");
        let (span, parent) = ("b7ad6b7169203331", "00f067aa0ba902b7");
        let text = |trace: &str, span: &str, parent: &str| format!("trace {trace}\nid {span}\nparent {parent}\n");
        assert!(same(&text(trace, span, parent), &text(other, parent, span)));
        assert!(!same(&text(trace, span, parent), &text(trace, span, span)));
        assert!(!same(&text(trace, span, span), &text(trace, span, parent)));
    }

    #[test]
    fn what_the_page_leaves_out_may_be_anything() {
        assert!(same("a\n…\nz\n", "a\nb\nc\nz\n"));
        assert!(same("a\n…\n", "a\n"));
        assert!(same("pid … lives\n", "pid 17 lives\n"));
        assert!(!same("pid … lives\n", "pid 17\nlives\n"));
    }

    #[test]
    fn json_is_compared_as_json() {
        let shown =
            "{\n  \"id\": \"0193b6a0-7b1c-7d3e-9f00-aabbccddeeff\",\n  \"at\": 1764504000000, \"n\": [1, {}]\n}\n";
        let came = "{\"at\":1764504999999,\"n\":[1,{}],\"id\":\"0193b6a0-7b1c-7d3e-9f00-000000000000\"}\n";
        assert!(same(shown, came));
        assert!(same("{}\n[1]\n", "{} [1]"));
        for other in ["{\"n\":1}", "{\"n\":\"2\"}", "{\"n\":2,\"m\":2}", "{}", "{\"n\":2} {}", "n 2", "{\"n\":null}"] {
            assert!(!same("{\"n\": 2}\n", other), "{other}");
        }
        assert!(same("{\"n\": …}\n", "{\"n\": 5}\n"), "what is left out is text");
    }

    #[test]
    fn a_command_may_state_its_exit_code() {
        let code = |command: &str| Exchange { command: command.to_owned(), output: String::new() }.code();
        assert_eq!(
            [code("a"), code("a  # exit code 1"), code("a # exit code 17 "), code("a # exit code 1 or 2")],
            [0, 1, 17, 0]
        );
    }

    #[test]
    fn a_console_block_is_commands_with_their_output() {
        let seen = exchanges("$ a \\\n   b\nout\n$ c\n").unwrap();
        let expected = [("a \\\n   b", "out\n"), ("c", "")];
        assert_eq!(seen.iter().map(|e| (e.command.as_str(), e.output.as_str())).collect::<Vec<_>>(), expected);
        assert_eq!(exchanges("out\n$ c\n"), None);
    }
}
