//! What the listener shows of the configuration: the outbox files, and its text without secrets.
//!
//! Held by the listener, replaced by who reads the configuration again. Invariant: a file keeps its number for as long as
//! the process lives, since pages and scripts name files by it; one that is not delivered from any more keeps its number
//! and has no destinations.

use std::sync::{Arc, PoisonError, RwLock};

use crate::state::Source;

/// The files and the text, shared by its clones.
#[derive(Clone, Debug)]
pub struct Shown(Arc<RwLock<View>>);

#[derive(Debug)]
struct View {
    sources: Arc<[Source]>,
    config: Arc<str>,
}

impl Shown {
    /// What is shown from the start.
    #[must_use]
    pub fn new(sources: Vec<Source>, config: &str) -> Self {
        Self(Arc::new(RwLock::new(View { sources: sources.into(), config: config.into() })))
    }

    /// What is shown from now on.
    pub fn replace(&self, sources: Vec<Source>, config: &str) {
        let mut view = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let gone = |known: &Source| Source {
            path: known.path.clone(),
            destinations: Vec::new(),
            routing: Arc::new([]),
            freshness_ms: Arc::new([]),
        };
        let mut kept: Vec<Source> = view.sources.iter().map(gone).collect();
        for source in sources {
            match kept.iter_mut().find(|known| known.path == source.path) {
                Some(known) => *known = source,
                None => kept.push(source),
            }
        }
        *view = View { sources: kept.into(), config: config.into() };
    }

    pub(crate) fn sources(&self) -> Arc<[Source]> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner).sources)
    }

    pub(crate) fn config(&self) -> Arc<str> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner).config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_number_whatever_comes_and_goes() {
        let source = |path: &str| Source {
            path: path.into(),
            destinations: vec!["a.b".into()],
            routing: Arc::new([]),
            freshness_ms: Arc::new([]),
        };
        let shown = Shown::new(vec![source("one"), source("two")], "old");
        shown.replace(vec![source("three"), source("two")], "new");
        let paths = |shown: &Shown| -> Vec<(String, usize)> {
            let sources = shown.sources();
            sources.iter().map(|s| (s.path.display().to_string(), s.destinations.len())).collect()
        };
        assert_eq!(paths(&shown), [("one".into(), 0), ("two".into(), 1), ("three".into(), 1)]);
        assert_eq!(&*shown.config(), "new");
        shown.replace(vec![source("one")], "newer");
        assert_eq!(paths(&shown), [("one".into(), 1), ("two".into(), 0), ("three".into(), 0)]);
    }
}
