//! Where ids are made: event ids (UUID version 7, RFC 9562) and the random identity of a relay process.

use litepost_core::Millis;
use uuid::{NoContext, Timestamp, Uuid};

/// A new event id: ordered by time to the millisecond, 74 random bits.
///
/// The random bits come from the kernel each time and not from a buffer in this process, since a buffer would be
/// copied by `fork()` and give two processes the same ids.
pub(crate) fn event_id(now: Millis) -> String {
    let ms = u64::try_from(now.0).unwrap_or(0);
    let nanos = u32::try_from(ms % 1000).unwrap_or(0) * 1_000_000;
    Uuid::new_v7(Timestamp::from_unix(NoContext, ms / 1000, nanos)).to_string()
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
    use super::*;

    #[test]
    fn an_event_id_is_a_uuid_version_7_of_its_time() {
        let id: Uuid = event_id(Millis(1_700_000_000_123)).parse().unwrap();
        assert_eq!(id.get_version_num(), 7);
        assert_eq!(id.get_timestamp().unwrap().to_unix(), (1_700_000_000, 123_000_000));
        assert_ne!(event_id(Millis(0)), event_id(Millis(0)));
    }
}
