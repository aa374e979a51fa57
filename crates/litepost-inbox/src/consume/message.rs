//! A message as a handler sees it, the same for every broker.
//!
//! Made by sources. Invariant: the id is litepost's, as the relay's destinations send it, unless the source was told
//! to take another header.

use bytes::Bytes;

/// The header in which litepost's destinations send the event's id, in every transport.
pub const ID_HEADER: &str = "litepost-id";

/// A received message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// The message id, if the message carries one: what the claim is made with.
    pub id: Option<String>,
    /// Where it came from: subject, topic, routing key or stream.
    pub channel: String,
    /// The body, byte for byte.
    pub payload: Bytes,
    /// Headers (in Redis, the entry's other fields), in the broker's order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// Which delivery of this message it is, as far as the broker counts them; the first is 1.
    pub attempt: u32,
    /// The broker does not count deliveries, and this may be one more of a message that was delivered before: with
    /// [`super::Attempts`] the loop counts it before the handler begins.
    pub suspect: bool,
}

impl Message {
    /// A header's value as text. Names are compared without regard to case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let value = self.headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value)?;
        std::str::from_utf8(value).ok()
    }

    /// Takes the id from litepost's header.
    #[must_use]
    pub fn identified(mut self) -> Self {
        self.id = self.header(ID_HEADER).map(str::to_owned);
        self
    }
}
