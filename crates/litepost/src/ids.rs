//! Where ids are made: event ids (UUID version 7, RFC 9562) and the random identity of a relay process.

use std::cell::RefCell;

use litepost_core::Millis;
use uuid::{Builder, NoContext, Timestamp, Uuid};

use crate::fork;

/// Random bytes of one id.
const RANDOM_BYTES: usize = 10;
/// How many ids are drawn from the kernel at once.
const DRAWN: usize = 32;

/// Random bytes of this thread that no id has had yet.
struct Drawn {
    generation: Option<u64>,
    bytes: [[u8; RANDOM_BYTES]; DRAWN],
    left: usize,
}

thread_local! {
    static RANDOM: RefCell<Drawn> =
        const { RefCell::new(Drawn { generation: None, bytes: [[0; RANDOM_BYTES]; DRAWN], left: 0 }) };
}

/// A new event id: ordered by time to the millisecond, 74 random bits.
pub(crate) fn event_id(now: Millis) -> String {
    let ms = u64::try_from(now.0).unwrap_or(0);
    if let Some(random) = fork::generation().and_then(random) {
        return Builder::from_unix_timestamp_millis(ms, &random).into_uuid().to_string();
    }
    let nanos = u32::try_from(ms % 1000).unwrap_or(0) * 1_000_000;
    Uuid::new_v7(Timestamp::from_unix(NoContext, ms / 1000, nanos)).to_string()
}

/// Random bytes from the kernel, drawn for many ids at once: a system call for each would be a fifth of an enqueue.
/// What was drawn before a fork is thrown away, since the other process has it, too. `None` when the kernel has none or
/// the thread is about to end.
fn random(generation: u64) -> Option<[u8; RANDOM_BYTES]> {
    let take = |drawn: &RefCell<Drawn>| {
        let mut drawn = drawn.borrow_mut();
        if drawn.left == 0 || drawn.generation != Some(generation) {
            drawn.left = 0;
            getrandom::fill(drawn.bytes.as_flattened_mut()).ok()?;
            (drawn.left, drawn.generation) = (DRAWN, Some(generation));
        }
        drawn.left -= 1;
        let at = drawn.left;
        Some(drawn.bytes[at])
    };
    RANDOM.try_with(take).ok().flatten()
}

/// A random identity for a relay process: what `litepost_cursor.owner` holds. Never a host name, which two
/// processes can share.
#[must_use]
pub fn random_identity() -> String {
    let id = event_id(crate::clock::wall());
    id.replace('-', "")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn an_event_id_is_a_uuid_version_7_of_its_time() {
        let id: Uuid = event_id(Millis(1_700_000_000_123)).parse().unwrap();
        assert_eq!(id.get_version_num(), 7);
        assert_eq!(id.get_timestamp().unwrap().to_unix(), (1_700_000_000, 123_000_000));
        assert_ne!(event_id(Millis(0)), event_id(Millis(0)));
    }

    #[test]
    fn no_random_bytes_are_used_twice_not_even_after_a_fork() {
        let mut seen: HashSet<_> = (0..100).map(|_| random(7).unwrap()).collect();
        assert_eq!(seen.len(), 100);
        // What the parent has left, and what its child draws: a fork copies the thread's state as it is here.
        let left = RANDOM.with(|drawn| drawn.borrow().bytes);
        assert!((0..100).all(|_| seen.insert(random(8).unwrap())));
        let after = RANDOM.with(|drawn| drawn.borrow().bytes);
        assert!(left.iter().all(|bytes| !after.contains(bytes)));
        let threads: Vec<_> =
            (0..8).map(|_| std::thread::spawn(|| (0..1_000).map(|_| event_id(Millis(5))).collect())).collect();
        let ids: Vec<Vec<String>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ids.iter().flatten().collect::<HashSet<_>>().len(), 8_000);
    }
}
