//! From a statement event to what is sent: checked, in the target's dialect, its values in order.
//!
//! Called by the SQL sinks before anything is sent. Invariant: a planned statement has exactly one value per parameter,
//! and what cannot be a statement is rejected here for good, with the reason.

use std::collections::HashMap;
use std::sync::Arc;

use litepost_core::statement::Args;
use litepost_core::{Rejection, Statement, Value};

use crate::dialect::{Arguments, Dialect, Injected, Translated, inject, own_table, translate};

/// Texts remembered before the memory is emptied. Programs have tens; a program that writes values into its SQL has
/// as many as events.
const TEXTS_MAX: usize = 1_024;
/// Longer texts are not remembered.
const TEXT_BYTES_MAX: usize = 16 * 1_024;

/// A statement ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    /// Its text; the same text is the same `Arc` as long as it is remembered.
    pub(crate) text: Arc<Translated>,
    /// One value per parameter.
    pub(crate) values: Vec<Value>,
}

/// Plans events for one dialect.
#[derive(Debug)]
pub(crate) struct Planner {
    dialect: Dialect,
    texts: HashMap<String, Arc<Translated>>,
    /// Texts that carry a number, by the text without it; with the table, and `None` for what inserts nothing.
    numbered: HashMap<String, (String, Option<Arc<Translated>>)>,
}

impl Planner {
    pub(crate) fn new(dialect: Dialect) -> Self {
        Self { dialect, texts: HashMap::new(), numbered: HashMap::new() }
    }

    /// The statement in the target's dialect, or why it can never be one.
    pub(crate) fn plan(&mut self, statement: Statement) -> Result<Planned, Rejection> {
        let Statement { sql, args } = statement;
        let (text, mut values) = match args {
            Args::Positional(values) => (self.text(&sql, "", &Arguments::Positional(values.len()))?, values),
            Args::Named(named) => {
                let names: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
                let shape = names.join("\u{1f}");
                let text = self.text(&sql, &shape, &Arguments::Named(names))?;
                (text, named.into_iter().map(|(_, value)| value).collect())
            }
        };
        // Most statements take their values as they stand.
        if !text.order.iter().enumerate().all(|(at, &from)| at == from) || text.order.len() != values.len() {
            values = text.order.iter().filter_map(|&from| values.get(from).cloned()).collect();
        }
        Ok(Planned { text, values })
    }

    /// The text of `planned` with two more parameters, origin and number, when it inserts into `table`; `None` when it
    /// inserts nothing.
    pub(crate) fn numbered(&mut self, planned: &Planned, table: &str) -> Result<Option<Arc<Translated>>, Rejection> {
        let sql = &planned.text.sql;
        if let Some((_, text)) = self.numbered.get(sql).filter(|(known, _)| known == table) {
            return Ok(text.clone());
        }
        let injected = inject(sql, planned.values.len(), table, self.dialect).map_err(|why| {
            let message = format!(
                "the statement cannot carry outbox_seq: {why}; change it, or set dedupe = \"ledger\" for the table {table}: \
                 the ledger takes any SQL"
            );
            Rejection::never("unsupported_stmt", message)
        })?;
        let text = match injected {
            Injected::Insert(sql) => Some(Arc::new(Translated { sql, insert: None, ..(*planned.text).clone() })),
            Injected::Other => None,
        };
        if sql.len() <= TEXT_BYTES_MAX {
            if self.numbered.len() >= TEXTS_MAX {
                self.numbered.clear();
            }
            self.numbered.insert(sql.clone(), (table.to_owned(), text.clone()));
        }
        Ok(text)
    }

    fn text(&mut self, sql: &str, shape: &str, arguments: &Arguments<'_>) -> Result<Arc<Translated>, Rejection> {
        let named = matches!(arguments, Arguments::Named(_));
        let long;
        let key = if named {
            long = format!("{shape}\u{1e}{sql}");
            &long
        } else {
            sql
        };
        if let Some(text) = self.texts.get(key)
            && (named || matches!(arguments, Arguments::Positional(n) if expected(text) == *n))
        {
            return Ok(Arc::clone(text));
        }
        if let Some(own) = own_table(sql, self.dialect) {
            let message = format!("the statement names {own}, which is the relay's own; no event may touch it");
            return Err(Rejection::never("unsupported_stmt", message));
        }
        let text = translate(sql, arguments, self.dialect)
            .map(Arc::new)
            .map_err(|e| Rejection::never("unsupported_stmt", e.to_string()))?;
        if key.len() <= TEXT_BYTES_MAX {
            if self.texts.len() >= TEXTS_MAX {
                self.texts.clear();
            }
            self.texts.insert(key.to_owned(), Arc::clone(&text));
        }
        Ok(text)
    }
}

/// How many values a remembered text was made for. A text with unused values is made anew each time.
fn expected(text: &Translated) -> usize {
    text.order.iter().max().map_or(0, |largest| largest + 1)
}
