//! Rules for Rust files: module docs, sizes, `unsafe`, reasons.
//!
//! Called by `tidy`. Invariant: the text is read as tokens, never by searching lines, so a comment or a string
//! that looks like code is not taken for code, and functions inside macros (proptest's) are seen as well.

use std::str::FromStr;

use proc_macro2::{Delimiter, Group, Spacing, TokenStream, TokenTree};

use super::{Problem, Source};

/// Lines a file may have.
const FILE_LINES_MAX: usize = 500;
/// Lines a function may have, from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// What a file's head says when it may exceed both, with a reason behind it.
const SIZE_REASON: &str = "//! Size: ";
/// The modules that may contain `unsafe`. Each says at its top why it must.
const UNSAFE_MODULES: &[&str] =
    &["crates/litepost/src/durable.rs", "crates/litepost/src/fork.rs", "crates/litepost-testkit/src/disk.rs"];

/// A Rust file, read as tokens.
pub struct File<'a> {
    source: &'a Source,
    /// Every function with a body.
    pub functions: Vec<Function>,
    /// Every string literal outside attributes and `#[cfg(test)]` modules.
    pub strings: Vec<Text>,
    unsafes: Vec<usize>,
    allows_without_reason: Vec<usize>,
}

/// A function with a body.
pub struct Function {
    pub name: String,
    pub line: usize,
    pub lines: usize,
}

/// A string literal.
pub struct Text {
    pub line: usize,
    pub value: String,
}

impl<'a> File<'a> {
    pub fn parse(source: &'a Source) -> Result<Self, Problem> {
        let tokens = TokenStream::from_str(&source.text)
            .map_err(|error| Problem::new(&source.name, error.span().start().line, "this is not Rust"))?;
        let mut file = Self {
            source,
            functions: Vec::new(),
            strings: Vec::new(),
            unsafes: Vec::new(),
            allows_without_reason: Vec::new(),
        };
        file.walk(tokens, false);
        Ok(file)
    }

    pub fn name(&self) -> &str {
        &self.source.name
    }

    /// Whether the file is part of what users run: not tests, benches, examples, the test kit or this program.
    pub fn is_production(&self) -> bool {
        let name = self.name();
        name.starts_with("crates/") && name.contains("/src/") && !name.starts_with("crates/litepost-testkit/")
    }

    pub fn check(&self, problems: &mut Vec<Problem>) {
        let mut say = |line: usize, message: String| problems.push(Problem::new(self.name(), line, message));
        let text = &self.source.text;
        if !text.starts_with("//!") {
            say(1, "a module begins with `//!`: its job, its caller, its invariant".into());
        }
        let head = text.lines().take_while(|line| line.starts_with("//!") || line.is_empty());
        if !head.into_iter().any(|line| line.starts_with(SIZE_REASON)) {
            let lines = text.lines().count();
            if lines > FILE_LINES_MAX {
                say(1, format!("{lines} lines, {FILE_LINES_MAX} allowed; split it, or say why not: `{SIZE_REASON}…`"));
            }
            for function in self.functions.iter().filter(|function| function.lines > FUNCTION_LINES_MAX) {
                let (name, lines) = (&function.name, function.lines);
                say(function.line, format!("{name} has {lines} lines, {FUNCTION_LINES_MAX} allowed; split it"));
            }
        }
        if !UNSAFE_MODULES.contains(&self.name()) {
            for line in &self.unsafes {
                say(*line, "`unsafe` outside the modules that may contain it (xtask/src/tidy/rust.rs)".into());
            }
        }
        for line in &self.allows_without_reason {
            say(*line, "`allow` and `expect` need `reason = \"…\"`".into());
        }
    }

    fn walk(&mut self, tokens: TokenStream, in_tests: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut tests_follow = false;
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Punct(mark) if mark.as_char() == '#' => {
                    if let Some((attribute, length)) = attribute(&tokens[at..]) {
                        tests_follow |= self.attribute(attribute);
                        at += length;
                        continue;
                    }
                }
                TokenTree::Ident(word) if word == "fn" => self.function(&tokens[at..]),
                TokenTree::Ident(word) if word == "unsafe" => self.unsafes.push(word.span().start().line),
                TokenTree::Literal(literal) if !in_tests => {
                    if let Some(value) = string_value(&literal.to_string()) {
                        self.strings.push(Text { line: literal.span().start().line, value });
                    }
                }
                TokenTree::Punct(mark) if mark.as_char() == ';' => tests_follow = false,
                TokenTree::Group(group) => {
                    self.walk(group.stream(), in_tests || tests_follow);
                    tests_follow &= group.delimiter() != Delimiter::Brace;
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// Looks at an attribute; true when it is `#[cfg(test)]` or `#[test]`.
    fn attribute(&mut self, attribute: &Group) -> bool {
        let tokens: Vec<TokenTree> = attribute.stream().into_iter().collect();
        let (Some(TokenTree::Ident(name)), arguments) = (tokens.first(), tokens.get(1)) else { return false };
        let words = |group: &Group| group.stream().into_iter().map(|token| token.to_string()).collect::<Vec<_>>();
        match (name.to_string().as_str(), arguments) {
            ("allow" | "expect", Some(TokenTree::Group(group))) => {
                if !words(group).iter().any(|word| word == "reason") {
                    self.allows_without_reason.push(name.span().start().line);
                }
                false
            }
            ("cfg", Some(TokenTree::Group(group))) => words(group).first().is_some_and(|word| word == "test"),
            ("test", None) => true,
            _ => false,
        }
    }

    /// Notes the function at the head of `tokens`, if it has a name and a body.
    fn function(&mut self, tokens: &[TokenTree]) {
        let [_, TokenTree::Ident(name), rest @ ..] = tokens else { return };
        let line = tokens[0].span().start().line;
        for token in rest {
            match token {
                TokenTree::Punct(mark) if mark.as_char() == ';' && mark.spacing() == Spacing::Alone => return,
                TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => {
                    let lines = body.span_close().start().line - line + 1;
                    self.functions.push(Function { name: name.to_string(), line, lines });
                    return;
                }
                _ => {}
            }
        }
    }
}

/// The `[…]` of an attribute at the head of `tokens`, and how many tokens it takes.
fn attribute(tokens: &[TokenTree]) -> Option<(&Group, usize)> {
    match tokens {
        [_, TokenTree::Group(group), ..] if group.delimiter() == Delimiter::Bracket => Some((group, 2)),
        [_, TokenTree::Punct(not), TokenTree::Group(group), ..]
            if not.as_char() == '!' && group.delimiter() == Delimiter::Bracket =>
        {
            Some((group, 3))
        }
        _ => None,
    }
}

/// What a string literal stands for; `None` for numbers, characters and bytes.
fn string_value(literal: &str) -> Option<String> {
    if let Some(raw) = literal.strip_prefix('r') {
        return Some(raw.trim_matches('#').strip_prefix('"')?.strip_suffix('"')?.to_owned());
    }
    let inner = literal.strip_prefix('"')?.strip_suffix('"')?;
    let mut value = String::with_capacity(inner.len());
    let mut chars = inner.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, if c == '\\' { chars.next() } else { None }) {
            (_, Some('\n')) => while chars.next_if(|c| c.is_whitespace()).is_some() {},
            (_, Some('n')) => value.push('\n'),
            (_, Some('t')) => value.push('\t'),
            (_, Some(escaped)) => value.push(escaped),
            (c, None) => value.push(c),
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let source = Source { name: "crates/x/src/a.rs".into(), text: text.into() };
        let mut problems = Vec::new();
        File::parse(&source).unwrap_or_else(|problem| panic!("{problem}")).check(&mut problems);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_module_begins_with_its_docs() {
        assert!(problems("//! Job.\nfn a() {}\n").is_empty());
        assert_eq!(problems("use x;\n").len(), 1);
        assert!(problems("/// Not a module's.\nfn a() {}\n")[0].starts_with("crates/x/src/a.rs:1: a module begins"));
    }

    #[test]
    fn sizes_are_limited_unless_a_reason_is_given() {
        let long_function = format!("fn long() {{\n{}}}\n", "x();\n".repeat(FUNCTION_LINES_MAX - 2));
        assert!(problems(&format!("//! Job.\n{long_function}")).is_empty());
        let too_long = long_function.replacen("x();", "x();\ny();", 1);
        assert!(problems(&format!("//! Job.\n{too_long}"))[0].contains(":2: long has 71 lines"));
        assert!(problems(&format!("//! Job.\nproptest! {{\n{too_long}}}"))[0].contains("long has 71"));
        assert!(problems(&format!("//! Job.\n//!\n//! Size: one table.\n{too_long}")).is_empty());
        let long_file = format!("//! Job.\n{}", "// x\n".repeat(FILE_LINES_MAX));
        assert!(problems(&long_file)[0].contains("501 lines, 500 allowed"));
    }

    #[test]
    fn unsafe_code_is_found_and_talk_of_it_is_not() {
        assert!(problems("//! Job, not unsafe.\n// unsafe\nconst X: &str = \"unsafe\";\n").is_empty());
        assert!(problems("//! Job.\nfn a() { m!(unsafe { b() }) }\n")[0].contains(":2: `unsafe` outside"));
    }

    #[test]
    fn an_allowance_has_a_reason() {
        assert!(
            problems("//! Job.\n#![allow(x, reason = \"y\")]\n#[expect(y, reason = \"z\")]\nfn a() {}\n").is_empty()
        );
        assert_eq!(problems("//! Job.\n#![allow(x)]\nfn a() { #[expect(y)] b() }\n").len(), 2);
    }

    #[test]
    fn strings_are_read_as_the_program_sees_them() {
        let text = "//! Job.\n#[doc = \"no\"]\nconst A: &str = \"SELECT \\\n   1\";\nconst B: &str = r#\"say \"x\"\"#;\n\
                    #[cfg(test)]\nmod tests { const C: &str = \"no\"; }\nconst D: u8 = b'x';\nconst E: &str = \"e\";\n";
        let source = Source { name: "crates/x/src/a.rs".into(), text: text.into() };
        let file = File::parse(&source).unwrap_or_else(|problem| panic!("{problem}"));
        let found: Vec<&str> = file.strings.iter().map(|text| text.value.as_str()).collect();
        assert_eq!(found, ["SELECT 1", "say \"x\"", "e"]);
    }
}
