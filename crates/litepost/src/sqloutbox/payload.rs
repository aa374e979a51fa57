//! sqloutbox's bind values, a JSON array in Python's dialect, as the payload of a statement event.
//!
//! Used by the bridge for every row it moves. Invariant: what can be carried is carried exactly; what cannot becomes a
//! payload that every SQL destination refuses with the reason (an integer beyond 64 bits, a lone surrogate, no array), so
//! that the row ends whole among the dead letters and never blocks or vanishes.

use serde_json::value::RawValue;

/// Whether Python's `json.loads` would make a list of it: what tells a statement's bind values from another payload.
pub(super) fn is_array(payload: &str) -> bool {
    Scanner { text: payload, at: 0 }.elements().is_some()
}

/// The payload of the statement event for `sql` with bind values as `json.dumps` wrote them.
pub(super) fn statement(sql: &str, payload: &str) -> String {
    let mut out = String::with_capacity(sql.len() + payload.len() + 24);
    out.push_str("{\"sql\":");
    // A str always serialises.
    out.push_str(&serde_json::to_string(sql).unwrap_or_default());
    out.push_str(",\"args\":");
    match (Scanner { text: payload, at: 0 }).elements() {
        Some(elements) => {
            out.push('[');
            for (at, element) in elements.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                push(&mut out, element);
            }
            out.push(']');
        }
        // As it is: the destination says what is wrong with it, and the dead letter shows it.
        None => out.push_str(payload),
    }
    out.push('}');
    out
}

/// One bind value. Numbers keep their digits, texts their escapes.
fn push(out: &mut String, element: &str) {
    match element {
        // The three words of Python's dialect that JSON does not have.
        "NaN" => out.push_str("{\"$float\":\"nan\"}"),
        "Infinity" => out.push_str("{\"$float\":\"inf\"}"),
        "-Infinity" => out.push_str("{\"$float\":\"-inf\"}"),
        // A list or a dict is a document for a JSON column; it must not be mistaken for a tagged value.
        _ if element.starts_with(['[', '{']) && serde_json::from_str::<&RawValue>(element).is_ok() => {
            out.push_str("{\"$json\":");
            out.push_str(element);
            out.push('}');
        }
        _ => out.push_str(element),
    }
}

/// Cuts a JSON array into its elements, without judging them.
struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    /// The elements; `None` when the text is no array.
    fn elements(&mut self) -> Option<Vec<&'a str>> {
        let mut found = Vec::new();
        self.blanks();
        if !self.take(b'[') {
            return None;
        }
        self.blanks();
        if !self.take(b']') {
            loop {
                self.blanks();
                found.push(self.element()?);
                self.blanks();
                if self.take(b']') {
                    break;
                }
                if !self.take(b',') {
                    return None;
                }
            }
        }
        self.blanks();
        (self.at == self.text.len()).then_some(found)
    }

    fn element(&mut self) -> Option<&'a str> {
        let from = self.at;
        match self.peek()? {
            b'"' => self.string()?,
            b'[' | b'{' => self.nested()?,
            _ => {
                while !matches!(self.peek(), None | Some(b',' | b']' | b' ' | b'\t' | b'\n' | b'\r')) {
                    self.at += 1;
                }
            }
        }
        // The ends are ASCII, so this is never in the middle of a character.
        self.text.get(from..self.at).filter(|element| !element.is_empty())
    }

    fn string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(());
                }
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
    }

    fn nested(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use litepost_core::statement::{Args, Statement, Value};

    use super::*;

    fn args(payload: &str) -> Result<Args, String> {
        Statement::parse(&statement("INSERT \"x\"", payload)).map(|s| s.args).map_err(|error| error.to_string())
    }

    #[test]
    fn pythons_dialect_comes_out_exactly() {
        let all = r#" [1, -9223372036854775808, 1.5, 1e+16, NaN, Infinity, -Infinity, true, false, null, "gr\u00fcn \ud83d\ude00 ]\",", [1, {"a": "]"}], {"$blob": "x"}] "#;
        let Ok(Args::Positional(found)) = args(all) else { panic!("{:?}", args(all)) };
        assert!(matches!(found[4], Value::Real(nan) if nan.is_nan()));
        let expected = [
            Value::Integer(1),
            Value::Integer(i64::MIN),
            Value::Real(1.5),
            Value::Real(1e16),
            found[4].clone(),
            Value::Real(f64::INFINITY),
            Value::Real(f64::NEG_INFINITY),
            Value::Bool(true),
            Value::Bool(false),
            Value::Null,
            Value::Text("grün \u{1f600} ]\",".into()),
            Value::Json(r#"[1, {"a": "]"}]"#.into()),
            Value::Json(r#"{"$blob": "x"}"#.into()),
        ];
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(at == 4 || found == expected, "{found:?} is not {expected:?}");
        }
        assert_eq!(found.len(), expected.len());
        assert_eq!(args("[]"), Ok(Args::Positional(Vec::new())));
    }

    #[test]
    fn what_cannot_be_carried_is_refused_where_it_is_delivered() {
        assert!(args("[1180591620717411303424]").unwrap_err().contains("does not fit 64 bits"));
        assert!(args(r#"["\ud800"]"#).is_err());
        assert!(args("[[NaN]]").is_err());
        for broken in ["", "[", "[1", "[1,", "[1,]", "[1 2]", "[1]]", "x", "[\"a]", "[{]", "[\"\\"] {
            assert!(args(broken).is_err(), "{broken:?}");
            assert!(!is_array(broken) || broken == "[{]", "{broken:?}");
        }
        assert!(!is_array("{\"a\":1}") && is_array("[1]"));
    }
}
