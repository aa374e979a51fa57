//! Hears of commits to outbox files, for programs that follow a log without delivering it.
//!
//! Used by `litepost tail --follow`. Invariant: a hint only; whoever follows looks for himself, and looks again when no
//! hint comes.

use std::path::PathBuf;
use std::sync::Arc;

use super::bell::{Bell, Heard, Told};
use super::reader::{LOOK_AGAIN, LOOK_ON};
use super::wake::{SAFETY_POLL, Wakes};
use crate::clock;

/// Waits for commits of other connections to some outbox files.
pub struct Commits {
    bell: Bell,
    /// Ends with the watch.
    _wakes: Wakes,
    _alive: Option<Arc<()>>,
}

impl Commits {
    /// Watches the folders of these databases. Where the system offers no watch, every wait lasts half a second.
    #[must_use]
    pub fn watch(databases: &[PathBuf]) -> Self {
        let wakes = Wakes::new();
        if let [only] = databases {
            let (bell, alive) = wakes.bell(only);
            return Self { bell, _wakes: wakes, _alive: Some(alive) };
        }
        let told = Arc::<Told>::default();
        for database in databases {
            let told = Arc::clone(&told);
            wakes.watch(database, move || told.written());
        }
        Self { bell: Bell::Told(told), _wakes: wakes, _alive: None }
    }

    /// Waits for a write, half a second at most, and then calls `look`: again, after a moment, as long as it finds
    /// nothing, since a write to the -wal is heard of before its commit can be seen. Whether it has found something.
    pub fn wait<E>(&mut self, mut look: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
        let mut again = if self.bell.wait(SAFETY_POLL) == Heard::Written { 0 } else { LOOK_AGAIN.len() };
        let until = clock::instant() + LOOK_ON;
        loop {
            if look()? {
                return Ok(true);
            }
            if again == 0 && clock::instant() < until {
                std::hint::spin_loop();
                continue;
            }
            let Some(pause) = LOOK_AGAIN.get(again) else { return Ok(false) };
            again = if self.bell.wait(*pause) == Heard::Written { 0 } else { again + 1 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_to_any_of_the_files_is_heard_and_looked_for_again() {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<PathBuf> = ["a.db", "b.db"].map(|name| folder.path().join(name)).to_vec();
        for watched in [&files[..1], &files[..]] {
            let mut commits = Commits::watch(watched);
            for file in watched {
                std::fs::write(file, "x").unwrap();
                let mut looks = 0;
                // What was written is not there at the first look, nor at the second.
                let mut look = || -> Result<bool, std::convert::Infallible> {
                    looks += 1;
                    Ok(looks == 3)
                };
                let found = std::iter::repeat_with(|| commits.wait(&mut look).unwrap()).take(3).any(|found| found);
                assert!(found, "{}", file.display());
            }
        }
    }

    #[test]
    fn an_error_of_the_look_is_the_answer() {
        let folder = tempfile::tempdir().unwrap();
        let mut commits = Commits::watch(&[folder.path().join("a.db")]);
        assert_eq!(commits.wait(|| Err::<bool, _>("gone")), Err("gone"));
    }
}
