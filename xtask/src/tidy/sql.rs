//! SQL stands in a `.sql` file or beside its one caller: never twice.
//!
//! Called by `tidy` with every Rust file. Invariant: only what users run is looked at; tests may repeat SQL.

use std::collections::BTreeMap;

use super::Problem;
use super::rust::File;

/// Shorter statements are words of the language (`BEGIN IMMEDIATE`), not knowledge that could diverge.
const LENGTH_MIN: usize = 40;
/// How statements that carry knowledge begin.
const BEGINNINGS: &[&str] = &["SELECT ", "INSERT ", "UPDATE ", "DELETE ", "WITH ", "CREATE ", "ALTER ", "REPLACE "];

/// Every statement found so far, and where it stands.
#[derive(Default)]
pub struct Statements {
    places: BTreeMap<String, Vec<(String, usize)>>,
}

impl Statements {
    pub fn add(&mut self, file: &File<'_>) {
        if !file.is_production() {
            return;
        }
        for text in &file.strings {
            let statement = text.value.split_whitespace().collect::<Vec<_>>().join(" ");
            if statement.len() >= LENGTH_MIN && BEGINNINGS.iter().any(|word| statement.starts_with(word)) {
                self.places.entry(statement).or_default().push((file.name().to_owned(), text.line));
            }
        }
    }

    pub fn check(&self, problems: &mut Vec<Problem>) {
        for places in self.places.values() {
            let Some(((first, at), others)) = places.split_first() else { continue };
            for (file, line) in others {
                problems.push(Problem::new(file, *line, format!("the same SQL stands at {first}:{at}; keep it once")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Source;
    use super::*;

    fn duplicates(files: &[(&str, &str)]) -> Vec<String> {
        let mut statements = Statements::default();
        for (name, text) in files {
            let source = Source { name: (*name).into(), text: (*text).into() };
            statements.add(&File::parse(&source).unwrap_or_else(|problem| panic!("{problem}")));
        }
        let mut problems = Vec::new();
        statements.check(&mut problems);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_same_statement_twice_is_found_whatever_its_layout() {
        let one = "const A: &str = \"SELECT seq FROM litepost_outbox WHERE seq > ?1\";";
        let two = "fn b() { q(\"SELECT seq\\n  FROM litepost_outbox\\n WHERE seq > ?1\") }";
        let found = duplicates(&[("crates/x/src/a.rs", one), ("crates/x/src/b.rs", two)]);
        assert_eq!(found, ["crates/x/src/b.rs:1: the same SQL stands at crates/x/src/a.rs:1; keep it once"]);
        assert!(duplicates(&[("crates/x/src/a.rs", one), ("crates/x/tests/it/b.rs", two)]).is_empty());
        assert!(duplicates(&[("crates/x/src/a.rs", "fn a() { b(\"COMMIT\"); b(\"COMMIT\") }")]).is_empty());
    }
}
