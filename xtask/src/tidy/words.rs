//! What no tracked file may contain: emoji, places on somebody's machine, words about how the work was organised.
//!
//! Called by `tidy` with every text file. Invariant: this file is the only one that may spell the words out.

use super::{Problem, Source};

/// The only file that may contain the words: this one.
const HOME: &str = "xtask/src/tidy/words.rs";
/// Folders of one machine. A path that users see (`/usr/lib/postgresql`, `/etc/systemd`) is another matter.
const MACHINE_PATHS: &[&str] = &["/work/", "/root/", "/home/", "/tmp/", "file:///"];
/// Whole words about the organisation of work.
const WORK_WORDS: &[&str] = &[
    "agent",
    "agents",
    "subagent",
    "ticket",
    "tickets",
    "llm",
    "chatbot",
    "claude",
    "anthropic",
    "openai",
    "copilot",
    "ceo",
];
/// The same, as phrases.
const WORK_PHRASES: &[&str] = &[
    "this session",
    "the session's",
    "previous session",
    "earlier session",
    "developers.md",
    "shared/docs",
    "issue #",
    "as an ai",
];
/// In front of `agent`, these make it a word of the trade.
const TRADE: &[&str] = &["user-", "user_", "user ", "mail ", "rotel-"];

pub fn check(source: &Source, problems: &mut Vec<Problem>) {
    let generated = ["Cargo.lock", "package-lock.json", "LICENSE-APACHE"].iter().any(|end| source.name.ends_with(end));
    if source.name == HOME || generated {
        return;
    }
    for (at, line) in source.text.lines().enumerate() {
        let mut say = |message: String| problems.push(Problem::new(&source.name, at + 1, message));
        if let Some(emoji) = line.chars().find(|&c| is_emoji(c)) {
            say(format!("an emoji (U+{:04X}); say it in words", u32::from(emoji)));
        }
        if let Some(word) = forbidden(&line.to_lowercase()) {
            say(format!("`{word}` means nothing to a reader of the project"));
        }
    }
}

fn is_emoji(c: char) -> bool {
    matches!(u32::from(c), 0x1F000..=0x1FAFF | 0x2600..=0x27BF | 0x2B50..=0x2B55 | 0xFE0F)
}

/// The first forbidden word of a line in lower case.
fn forbidden(line: &str) -> Option<&'static str> {
    let path = MACHINE_PATHS.iter().find(|path| {
        line.match_indices(**path).any(|(at, _)| {
            // Not in the middle of another path (`crates/x/work/` names no machine), and not a user's own in an example.
            let before = &line[..at];
            !before.ends_with(|c: char| c.is_alphanumeric() || "._-}*".contains(c)) && !before.ends_with("--folder ")
        })
    });
    let phrase = || WORK_PHRASES.iter().find(|phrase| line.contains(**phrase));
    let word =
        || WORK_WORDS.iter().find(|word| line.match_indices(**word).any(|(at, _)| is_word(line, at, word.len())));
    let numbered = || {
        let rest = line.split("issue ").skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        rest.then_some(&"issue N")
    };
    path.or_else(phrase).or_else(word).or_else(numbered).copied()
}

fn is_word(line: &str, at: usize, length: usize) -> bool {
    let (before, after) = (&line[..at], &line[at + length..]);
    let part = |c: char| c.is_alphanumeric() || c == '_';
    !before.ends_with(part) && !after.starts_with(part) && !TRADE.iter().any(|word| before.ends_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> usize {
        let mut problems = Vec::new();
        check(&Source { name: "README.md".into(), text: text.into() }, &mut problems);
        problems.len()
    }

    #[test]
    fn words_of_the_trade_pass_and_words_about_the_work_do_not() {
        assert_eq!(
            found("The User-Agent header, an agency, PostgreSQL's session, a known issue, crates/x/work/a.rs"),
            0
        );
        assert_eq!(found("an agent wrote this\nsee ticket 4\nas issue 2 says\nin /tmp/x\nwritten in this session"), 5);
    }

    #[test]
    fn arrows_and_box_drawing_are_no_emoji() {
        assert_eq!(found("a -> b, a \u{2192} b, \u{2500}\u{2502}\u{25b6}"), 0);
        assert_eq!(found("done \u{2705}\n\u{1F680}\n\u{2728}"), 3);
    }
}
