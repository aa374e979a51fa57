//! What an event is recognised by in a ledger.
//!
//! Used by every destination that keeps one, and by the comparison of a ledger with the log. Invariant: pinned; a ledger
//! written today must be understood in ten years.

use std::fmt::Write as _;

use litepost_core::Event;
use sha2::{Digest as _, Sha256};

/// 128 bits over the event's id, topic and body, each with its length, so that no two differ alike.
pub(crate) fn hash(event: &Event) -> String {
    let mut sha = Sha256::new();
    for part in [event.id.as_bytes(), event.topic.as_bytes(), event.payload.bytes()] {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    sha.finalize().iter().take(16).fold(String::with_capacity(32), |mut hex, byte| {
        // Writing into a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use litepost_core::Seq;

    use super::*;

    #[test]
    fn the_hash_is_pinned() {
        assert_eq!(hash(&Event::new(Seq(1), "id", "orders", "{}")), "ce503e95ded9d9bbc05b6e602c2b28aa");
    }
}
