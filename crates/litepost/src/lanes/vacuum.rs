//! Gives pages that pruning has freed back to the file system, when somebody asks for it.
//!
//! Called by `litepost prune --vacuum`. Invariant: works in small steps, each a transaction of its own, so that producers
//! get in between; whether a file can shrink at all was decided when it was made, and is not changed here.

use super::LaneStore;
use crate::connection;
use crate::error::{Doing as _, StoreError};

const DOING: &str = "giving free pages back";

/// Pages moved in one transaction: half a megabyte at SQLite's usual page size.
const STEP_PAGES: u32 = 128;

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vacuumed {
    /// Whether the file can shrink in steps (`auto_vacuum = INCREMENTAL`). Others shrink by `VACUUM` only.
    pub can_shrink: bool,
    /// Bytes given back.
    pub freed_bytes: i64,
    /// Bytes of free pages that are still in the file.
    pub free_bytes: i64,
}

impl LaneStore {
    /// Gives free pages back until none is left, and moves the result into the file.
    pub fn vacuum(&mut self) -> Result<Vacuumed, StoreError> {
        let page = self.pragma("page_size")?;
        // 2 is INCREMENTAL; with 1 (FULL) every commit has shrunk the file already.
        let can_shrink = self.pragma("auto_vacuum")? == 2;
        let before = self.pragma("freelist_count")?;
        let mut left = before;
        let step = format!("PRAGMA main.incremental_vacuum({STEP_PAGES})");
        while can_shrink && left > 0 {
            let mut statement = self.connection.prepare_cached(&step).doing(DOING)?;
            // A page is moved per step.
            let mut rows = statement.query([]).doing(DOING)?;
            while rows.next().doing(DOING)?.is_some() {}
            drop(rows);
            drop(statement);
            let now = self.pragma("freelist_count")?;
            if now >= left {
                break;
            }
            left = now;
            std::thread::yield_now();
        }
        if left < before && connection::journal_mode(&self.connection)? == "wal" {
            self.checkpoint(super::Mode::Truncate)?;
        }
        Ok(Vacuumed { can_shrink, freed_bytes: (before - left) * page, free_bytes: left * page })
    }

    fn pragma(&self, name: &str) -> Result<i64, StoreError> {
        self.connection.query_row(&format!("PRAGMA main.{name}"), [], |row| row.get(0)).doing(DOING)
    }
}
