//! Moves the WAL of one file into its database, so that producers need not.
//!
//! Asked by the writer between settlements. Invariant: nobody waits for the moving itself; and what it brings about, that
//! the next writer begins the WAL anew and syncs it with the write lock held, is seldom, and the relay's to pay: a WAL is
//! moved when it is worth it, and not because a moment has passed.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use litepost::StoreError;
use litepost::lanes::{CheckpointResult, LaneStore, Mode};
use litepost_core::Millis;

use super::reader::explain;
use crate::clock;

/// Frames that are worth it: fewer than the thousand at which a connection with SQLite's own settings does it inside its
/// commit, however fast it writes between two looks.
const FRAMES_MIN: i64 = 700;
/// Beyond this size the -wal is shrunk at the next chance.
const BYTES_MAX: u64 = 64 << 20;
/// Time between two attempts to shrink it.
const SHRINK_EVERY_MS: i64 = 1_000;

pub(super) struct Wal {
    path: PathBuf,
    /// The -wal's size and time of change at the last look.
    seen: Option<(u64, SystemTime)>,
    /// Frames were left behind: a reader stood in the way.
    left: bool,
    shrink_at: Millis,
    pinned: bool,
}

impl Wal {
    pub(super) fn of(database: &Path) -> Self {
        let mut path = database.as_os_str().to_owned();
        path.push("-wal");
        Self { path: PathBuf::from(path), seen: None, left: false, shrink_at: Millis(0), pinned: false }
    }

    /// Moves what is worth it. Whether the WAL has changed since the last look, so that the next should come soon.
    pub(super) fn look(&mut self, store: &mut LaneStore) -> bool {
        // A look at the file's metadata opens nothing.
        let Ok(metadata) = std::fs::metadata(&self.path) else { return false };
        let Ok(changed) = metadata.modified() else { return false };
        let seen = Some((metadata.len(), changed));
        if metadata.len() == 0 || (self.seen == seen && !self.left) {
            return false;
        }
        self.seen = seen;
        let now = clock::mono();
        let shrink = metadata.len() > BYTES_MAX && now >= self.shrink_at;
        if shrink {
            self.shrink_at = now.plus(SHRINK_EVERY_MS);
            self.shrink(store, metadata.len());
        } else {
            self.move_if_worth_it(store);
        }
        true
    }

    fn move_if_worth_it(&mut self, store: &mut LaneStore) {
        if let Err(error) = self.try_to_move(store) {
            tracing::debug!(error = %explain(&error), "checkpoint failed");
        }
    }

    fn try_to_move(&mut self, store: &mut LaneStore) -> Result<(), StoreError> {
        let before = store.wal()?;
        if before.wal_frames - before.moved < FRAMES_MIN {
            self.left = false;
            return Ok(());
        }
        let result = store.checkpoint(Mode::Passive)?;
        self.moved(result);
        // Asked again, since who has written meanwhile has nothing to begin anew.
        let after = store.wal()?;
        if after.wal_frames > 0 && after.moved == after.wal_frames { store.begin_wal_anew() } else { Ok(()) }
    }

    fn shrink(&mut self, store: &mut LaneStore, bytes: u64) {
        match store.checkpoint(Mode::Truncate) {
            Ok(result) => {
                self.moved(result);
                if result.busy && !self.pinned {
                    let megabytes = bytes >> 20;
                    tracing::warn!(
                        megabytes,
                        "the -wal cannot shrink: a long transaction in another connection pins it"
                    );
                }
                self.pinned = result.busy;
            }
            Err(error) => tracing::debug!(error = %explain(&error), "checkpoint failed"),
        }
    }

    fn moved(&mut self, result: CheckpointResult) {
        self.left = result.wal_frames - result.moved >= FRAMES_MIN;
    }
}

#[cfg(test)]
mod tests {
    use litepost::connection::{self, Access, Options};
    use litepost::schema;

    use super::*;

    #[test]
    fn a_few_frames_stay_where_they_are_and_many_are_moved_and_the_wal_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("shop.db");
        let mut app = Options::new(Access::ReadWrite).create(true).open(&database).unwrap();
        connection::enable_wal(&app).unwrap();
        schema::migrate(&mut app).unwrap();
        app.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        let (mut store, mut wal) = (LaneStore::open(&database).unwrap(), Wal::of(&database));
        assert!(!wal.look(&mut store), "nothing was written");
        let write = |times: i64| {
            for _ in 0..times {
                app.execute("INSERT INTO litepost_outbox (topic, payload) VALUES ('t', 'p')", []).unwrap();
            }
        };
        write(FRAMES_MIN / 2);
        assert!(wal.look(&mut store), "it was written to: the next look comes soon");
        let few = store.wal().unwrap();
        assert!(few.wal_frames >= FRAMES_MIN / 2 && few.moved == 0, "{few:?}");
        assert!(!wal.look(&mut store), "what is not worth it is left, and not looked at again");
        write(FRAMES_MIN);
        assert!(wal.look(&mut store));
        let begun = store.wal().unwrap();
        assert!(begun.wal_frames < few.wal_frames, "{begun:?}");
    }
}
