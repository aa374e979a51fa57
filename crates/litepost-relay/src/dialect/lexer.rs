//! Cuts SQL text into tokens by the rules of one dialect.
//!
//! Called by `translate`. Invariant: the tokens' texts joined are the input, byte for byte.

use super::{Dialect, DialectError, MySqlModes};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// White space.
    Space,
    /// A comment of any form.
    Comment,
    /// A keyword or bare identifier.
    Word,
    /// A quoted identifier.
    Name,
    /// A string literal, dollar-quoted ones included.
    Text,
    /// A number.
    Number,
    /// `?`
    Anonymous,
    /// `?12` or `$12`; the number is what follows the first character.
    Numbered,
    /// `:name`, `@name`, `$name`.
    Named,
    /// `;`
    Semicolon,
    /// Anything else.
    Symbol,
}

/// A piece of SQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind,
    pub(super) text: &'a str,
}

impl Token<'_> {
    /// Whether it is the keyword `word`.
    pub(super) fn is(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text.eq_ignore_ascii_case(word)
    }

    /// Whether it means nothing to the database.
    pub(super) fn is_blank(&self) -> bool {
        matches!(self.kind, Kind::Space | Kind::Comment)
    }
}

/// All tokens of `sql`.
pub(super) fn lex(sql: &str, dialect: Dialect) -> Result<Vec<Token<'_>>, DialectError> {
    if sql.contains('\0') {
        return Err(DialectError::Nul);
    }
    let mut lexer = Lexer { sql, bytes: sql.as_bytes(), dialect, escape_continues: false };
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < sql.len() {
        let (kind, end) = lexer.next(at)?;
        // Ends are always behind an ASCII character or at a boundary found by `char`, so slicing cannot fail.
        let text = sql.get(at..end).unwrap_or("");
        lexer.note(kind, text);
        tokens.push(Token { kind, text });
        at = end.max(at + 1);
    }
    Ok(tokens)
}

struct Lexer<'a> {
    sql: &'a str,
    bytes: &'a [u8],
    dialect: Dialect,
    /// PostgreSQL: an `E'…'` was the last token but white space, and a string on a later line would continue it.
    escape_continues: bool,
}

impl Lexer<'_> {
    fn peek(&self, at: usize) -> u8 {
        self.bytes.get(at).copied().unwrap_or(0)
    }

    fn is_postgres(&self) -> bool {
        self.dialect == Dialect::Postgres
    }

    fn modes(&self) -> Option<MySqlModes> {
        match self.dialect {
            Dialect::MySql(modes) => Some(modes),
            _ => None,
        }
    }

    fn next(&self, at: usize) -> Result<(Kind, usize), DialectError> {
        let c = self.peek(at);
        match c {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => Ok((Kind::Space, self.run(at, is_space))),
            b'-' if self.peek(at + 1) == b'-' && self.dashes_are_comment(at) => Ok((Kind::Comment, self.line_end(at))),
            b'#' if self.modes().is_some() => Ok((Kind::Comment, self.line_end(at))),
            b'/' if self.peek(at + 1) == b'*' => self.block_comment(at),
            b'\'' => Ok((Kind::Text, self.quoted(at, at, b'\'', self.string_has_escapes(), "string")?)),
            b'"' => match self.modes() {
                Some(modes) if !modes.ansi_quotes => {
                    Ok((Kind::Text, self.quoted(at, at, b'"', !modes.no_backslash_escapes, "string")?))
                }
                _ => Ok((Kind::Name, self.quoted(at, at, b'"', false, "quoted name")?)),
            },
            b'`' if !self.is_postgres() => Ok((Kind::Name, self.quoted(at, at, b'`', false, "quoted name")?)),
            b'[' if self.dialect == Dialect::Sqlite => match self.find(at, b"]") {
                Some(end) => Ok((Kind::Name, end)),
                None => Err(self.unterminated("quoted name", at)),
            },
            b';' => Ok((Kind::Semicolon, at + 1)),
            b'?' => Ok(self.question(at)),
            b'$' => self.dollar(at),
            b':' => Ok(self.colon(at)),
            b'@' => Ok(self.at_sign(at)),
            b'0'..=b'9' => Ok((Kind::Number, self.number(at))),
            b'.' if self.peek(at + 1).is_ascii_digit() => Ok((Kind::Number, self.number(at))),
            _ if is_name_start(c) => self.word(at),
            _ => Ok((Kind::Symbol, at + 1)),
        }
    }

    /// Remembers what PostgreSQL's string continuation depends on.
    fn note(&mut self, kind: Kind, text: &str) {
        match kind {
            Kind::Text => {
                self.escape_continues = self.is_postgres() && (self.escape_continues || is_escape_string(text));
            }
            Kind::Space | Kind::Comment => {}
            _ => self.escape_continues = false,
        }
    }

    /// Whether a plain `'…'` here treats backslashes as escapes.
    fn string_has_escapes(&self) -> bool {
        match self.dialect {
            Dialect::Sqlite => false,
            Dialect::Postgres => self.escape_continues,
            Dialect::MySql(modes) => !modes.no_backslash_escapes,
        }
    }

    /// MySQL wants white space or the end after `--`; elsewhere two dashes are enough.
    fn dashes_are_comment(&self, at: usize) -> bool {
        self.modes().is_none() || self.bytes.get(at + 2).is_none_or(|&c| c <= b' ')
    }

    fn run(&self, at: usize, belongs: impl Fn(u8) -> bool) -> usize {
        self.bytes.iter().skip(at).position(|&c| !belongs(c)).map_or(self.bytes.len(), |n| at + n)
    }

    fn line_end(&self, at: usize) -> usize {
        self.run(at, |c| c != b'\n')
    }

    /// Where the text behind the first `needle` after `at` begins.
    fn find(&self, at: usize, needle: &[u8]) -> Option<usize> {
        let tail = self.bytes.get(at..)?;
        tail.windows(needle.len()).position(|window| window == needle).map(|n| at + n + needle.len())
    }

    fn unterminated(&self, what: &'static str, at: usize) -> DialectError {
        let at = self.sql.get(..at).map_or(0, |before| before.chars().count()) + 1;
        DialectError::Unterminated { what, at }
    }

    fn block_comment(&self, at: usize) -> Result<(Kind, usize), DialectError> {
        if self.modes().is_some()
            && (self.peek(at + 2) == b'!' || (self.peek(at + 2) == b'M' && self.peek(at + 3) == b'!'))
        {
            return Err(DialectError::Refused {
                verb: "/*! */".into(),
                dialect: self.dialect.name(),
                why: "the server executes it or not by its version; write the statement without it",
            });
        }
        if !self.is_postgres() {
            let end = self.find(at + 2, b"*/").ok_or_else(|| self.unterminated("comment", at))?;
            return Ok((Kind::Comment, end));
        }
        let (mut depth, mut pos) = (1_usize, at + 2);
        while depth > 0 {
            match (self.bytes.get(pos), self.peek(pos + 1)) {
                (None, _) => return Err(self.unterminated("comment", at)),
                (Some(b'/'), b'*') => (depth, pos) = (depth + 1, pos + 2),
                (Some(b'*'), b'/') => (depth, pos) = (depth - 1, pos + 2),
                _ => pos += 1,
            }
        }
        Ok((Kind::Comment, pos))
    }

    /// Where the literal whose opening quote stands at `open` ends. A doubled quote is part of it.
    fn quoted(
        &self,
        start: usize,
        open: usize,
        quote: u8,
        escapes: bool,
        what: &'static str,
    ) -> Result<usize, DialectError> {
        let mut pos = open + 1;
        loop {
            match self.bytes.get(pos) {
                None => return Err(self.unterminated(what, start)),
                Some(b'\\') if escapes => pos += 2,
                Some(&c) if c == quote && self.peek(pos + 1) == quote => pos += 2,
                Some(&c) if c == quote => return Ok(pos + 1),
                Some(_) => pos += 1,
            }
        }
    }

    fn question(&self, at: usize) -> (Kind, usize) {
        if self.is_postgres() && matches!(self.peek(at + 1), b'|' | b'&') {
            return (Kind::Symbol, at + 2);
        }
        if self.is_postgres() && self.peek(at + 1) == b'?' {
            return (Kind::Symbol, at + 2);
        }
        match self.run(at + 1, |c| c.is_ascii_digit()) {
            end if end > at + 1 => (Kind::Numbered, end),
            end => (Kind::Anonymous, end),
        }
    }

    fn dollar(&self, at: usize) -> Result<(Kind, usize), DialectError> {
        let digits = self.run(at + 1, |c| c.is_ascii_digit());
        if digits > at + 1 {
            return Ok((Kind::Numbered, digits));
        }
        let name = self.run(at + 1, |c| is_name_part(c) && c != b'$');
        if self.is_postgres() && self.peek(name) == b'$' {
            let tag = self.bytes.get(at..=name).unwrap_or(b"$$");
            let end = self.find(name + 1, tag).ok_or_else(|| self.unterminated("dollar-quoted string", at))?;
            return Ok((Kind::Text, end));
        }
        Ok(if name > at + 1 { (Kind::Named, name) } else { (Kind::Symbol, at + 1) })
    }

    fn colon(&self, at: usize) -> (Kind, usize) {
        if self.is_postgres() && self.peek(at + 1) == b':' {
            return (Kind::Symbol, at + 2);
        }
        self.named(at)
    }

    fn at_sign(&self, at: usize) -> (Kind, usize) {
        if self.modes().is_some() && self.peek(at + 1) == b'@' {
            return (Kind::Symbol, self.run(at + 2, is_name_part));
        }
        self.named(at)
    }

    fn named(&self, at: usize) -> (Kind, usize) {
        let first = self.peek(at + 1);
        let starts = is_name_start(first) || (self.dialect == Dialect::Sqlite && first.is_ascii_digit());
        if starts { (Kind::Named, self.run(at + 1, is_name_part)) } else { (Kind::Symbol, at + 1) }
    }

    fn number(&self, at: usize) -> usize {
        let mut pos = at;
        loop {
            let c = self.peek(pos);
            let signed = matches!(c, b'e' | b'E')
                && matches!(self.peek(pos + 1), b'+' | b'-')
                && self.peek(pos + 2).is_ascii_digit()
                && !matches!(self.peek(at + 1), b'x' | b'X');
            match c {
                _ if signed => pos += 2,
                b'.' | b'_' => pos += 1,
                c if c.is_ascii_alphanumeric() => pos += 1,
                _ => return pos,
            }
        }
    }

    fn word(&self, at: usize) -> Result<(Kind, usize), DialectError> {
        let end = self.run(at, is_name_part);
        let escape = self.is_postgres() && end == at + 1 && matches!(self.peek(at), b'e' | b'E');
        if escape && self.peek(end) == b'\'' {
            return Ok((Kind::Text, self.quoted(at, end, b'\'', true, "string")?));
        }
        Ok((Kind::Word, end))
    }
}

fn is_escape_string(text: &str) -> bool {
    text.starts_with(['e', 'E'])
}

fn is_space(c: u8) -> bool {
    matches!(c, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

fn is_name_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || c == b'_' || c >= 0x80
}

fn is_name_part(c: u8) -> bool {
    is_name_start(c) || c.is_ascii_digit() || c == b'$'
}
