//! What the readers of a relay may keep in memory, shared among its files.
//!
//! Made for each file before it is opened. Invariant: a relay of two hundred files keeps no more of their logs than one
//! of eight; what lanes hold of events that are not settled is counted elsewhere (`max_in_flight_bytes`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Chunks that all readers together keep for destinations that are a little behind.
const CACHES_BYTES: usize = 64 << 20;
/// Of these one file has at most, and at least. A chunk is half of it.
const CACHE_BYTES: (usize, usize) = (256 << 10, 8 << 20);
/// SQLite's own default for the pages of a connection, and what is enough for one of very many: KiB.
const PAGES_KIB: (usize, usize) = (256, 2_000);

/// How many files there are.
#[derive(Debug, Default)]
pub(super) struct Shares(AtomicUsize);

/// One file's part. The others have more when it is dropped.
#[derive(Clone, Debug)]
pub(super) struct Share(Arc<Counted>);

#[derive(Debug)]
struct Counted(Arc<Shares>);

impl Shares {
    /// For one more file.
    pub(super) fn one_more(self: &Arc<Self>) -> Share {
        self.0.fetch_add(1, Ordering::Relaxed);
        Share(Arc::new(Counted(Arc::clone(self))))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Share {
    /// Recent chunks that are kept.
    pub(super) fn cache_bytes(&self) -> usize {
        (CACHES_BYTES / self.files()).clamp(CACHE_BYTES.0, CACHE_BYTES.1)
    }

    /// No chunk weighs much more than this.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.cache_bytes() / 2
    }

    /// The pages that each of the file's connections keeps, KiB.
    pub(super) fn pages_kib(&self) -> usize {
        (CACHES_BYTES / 2 / 1_024 / self.files()).clamp(PAGES_KIB.0, PAGES_KIB.1)
    }

    fn files(&self) -> usize {
        self.0.0.0.load(Ordering::Relaxed).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_files_keep_together_what_few_may_keep_and_more_room_comes_back() {
        let all = Arc::new(Shares::default());
        let first = all.one_more();
        assert_eq!((first.cache_bytes(), first.chunk_bytes(), first.pages_kib()), (8 << 20, 4 << 20, 2_000));
        let others: Vec<Share> = (1..200).map(|_| all.one_more()).collect();
        assert!(first.cache_bytes() * 200 <= 72 << 20, "{}", first.cache_bytes());
        assert_eq!(first.pages_kib(), 256);
        drop(others);
        assert_eq!(first.cache_bytes(), 8 << 20);
    }
}
