//! Order: which events must leave one after the other, and which lane they belong to.
//!
//! A *line* is a sequence of events that must be delivered in order. A *lane* is a fixed share of the lines,
//! the unit that a relay process leases. The hash that assigns lines to lanes is part of the on-disk
//! contract: it must never change, so it is spelled out here (FNV-1a, 64 bit) and pinned by test vectors.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Event, Seq, TopicFilter};

/// What order a destination keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ordering {
    /// One line per topic: nothing of a topic overtakes a failed event of that topic.
    Strict,
    /// One line per key; events without a key form one line per topic.
    #[default]
    Key,
    /// Every event stands alone.
    None,
}

impl Ordering {
    /// The word stored in the database, and in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Key => "key",
            Self::None => "none",
        }
    }

    /// Reads the word stored in the database.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Strict, Self::Key, Self::None].into_iter().find(|ordering| ordering.as_str() == word)
    }
}

/// The kind of a [`Line`], as stored in `litepost_blocked.line_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LineKind {
    /// All events with this key.
    Key,
    /// All events of this topic (under `key` ordering: those without a key).
    Topic,
    /// One event by itself; the name is its `seq`.
    Event,
}

impl LineKind {
    /// The word stored in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Topic => "topic",
            Self::Event => "event",
        }
    }

    /// Reads the word stored in the database.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "key" => Some(Self::Key),
            "topic" => Some(Self::Topic),
            "event" => Some(Self::Event),
            _ => None,
        }
    }
}

/// A sequence of events that must leave in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line {
    /// What the name names.
    pub kind: LineKind,
    /// The key, the topic, or the seq in decimal.
    pub name: Box<str>,
}

impl Line {
    /// The line that one event forms by itself.
    #[must_use]
    pub fn event(seq: Seq) -> Self {
        Self { kind: LineKind::Event, name: seq.to_string().into_boxed_str() }
    }

    /// The line `event` stands in under `ordering`.
    ///
    /// A scheduled event (`deliver_after`) stands alone: it says itself when it wants to leave, so it neither
    /// waits for its key nor holds it.
    #[must_use]
    pub fn of(event: &Event, ordering: Ordering) -> Self {
        let (kind, name) = Self::parts(event, ordering);
        match kind {
            LineKind::Event => Self::event(event.seq),
            _ => Self { kind, name: name.into() },
        }
    }

    /// The hash that assigns the line to a lane: that of each of its events.
    #[must_use]
    pub fn hash(&self) -> u64 {
        match self.kind {
            LineKind::Event => fnv1a(&self.name.parse::<i64>().unwrap_or(0).to_be_bytes()),
            LineKind::Topic | LineKind::Key => fnv1a(self.name.as_bytes()),
        }
    }

    /// As [`Line::of`], borrowed: the hot path compares and hashes without an allocation. An event that is a line of its own
    /// ([`LineKind::Event`]) has no name here.
    #[must_use]
    pub fn parts(event: &Event, ordering: Ordering) -> (LineKind, &str) {
        match (ordering, &event.key) {
            _ if event.deliver_after.is_some() => (LineKind::Event, ""),
            (Ordering::None, _) => (LineKind::Event, ""),
            (Ordering::Strict, _) | (Ordering::Key, None) => (LineKind::Topic, &event.topic),
            (Ordering::Key, Some(key)) => (LineKind::Key, key),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind.as_str(), self.name)
    }
}

/// A share of a destination's lines: lane `index` of `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lane {
    /// Which one, from 0.
    pub index: u32,
    /// Out of how many; at least 1.
    pub count: u32,
}

impl Lane {
    /// The only lane of a destination that has one.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Whether `event` belongs to this lane under `ordering`, with `priority` topics.
    #[must_use]
    pub fn owns(self, event: &Event, ordering: Ordering, priority: &TopicFilter) -> bool {
        self.count <= 1 || index_of(event, self.count, ordering, priority) == self.index
    }
}

/// How the events of a destination are assigned to lanes: by the hash of their line, modulo the number of lanes. Events
/// of `priority` topics have a lane of their own, the last one, and the others share the rest: whatever waits there holds
/// nothing up here. A line is then a sequence within its lane: order is kept among the events of a key that have priority,
/// and among those that have not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// How many lanes, that of `priority` included.
    pub lanes: u32,
    /// What makes a line.
    pub ordering: Ordering,
    /// Topics with a lane of their own; none when it takes no topic.
    pub priority: TopicFilter,
}

impl Split {
    /// Which lane `event` belongs to.
    #[must_use]
    pub fn lane_of(&self, event: &Event) -> u32 {
        index_of(event, self.lanes, self.ordering, &self.priority)
    }

    /// The lane of the priority topics, if there are any.
    #[must_use]
    pub fn priority_lane(&self) -> Option<u32> {
        (!self.priority.is_empty()).then(|| self.lanes.saturating_sub(1))
    }

    /// The lane of a line that is not one of the priority lane's.
    #[must_use]
    pub fn shared_lane_of(&self, line: &Line) -> u32 {
        share(line.hash(), self.lanes - u32::from(!self.priority.is_empty() && self.lanes > 0))
    }
}

impl From<u32> for Split {
    /// With an order by key, and no priorities.
    fn from(lanes: u32) -> Self {
        Self { lanes, ordering: Ordering::Key, priority: TopicFilter::default() }
    }
}

fn index_of(event: &Event, lanes: u32, ordering: Ordering, priority: &TopicFilter) -> u32 {
    if priority.is_empty() {
        return share(line_hash(event, ordering), lanes);
    }
    let last = lanes.saturating_sub(1);
    if priority.matches(&event.topic) { last } else { share(line_hash(event, ordering), last) }
}

fn share(hash: u64, lanes: u32) -> u32 {
    u32::try_from(hash % u64::from(lanes.max(1))).unwrap_or(0)
}

/// The stable hash that assigns an event's line to a lane and to a slot within it.
#[must_use]
pub fn line_hash(event: &Event, ordering: Ordering) -> u64 {
    let (kind, name) = Line::parts(event, ordering);
    match kind {
        // Spread by position: consecutive events go to different lanes.
        LineKind::Event => fnv1a(&event.seq.0.to_be_bytes()),
        LineKind::Topic | LineKind::Key => fnv1a(name.as_bytes()),
    }
}

/// FNV-1a, 64 bit (Fowler, Noll, Vo; draft-eastlake-fnv).
fn fnv1a(bytes: &[u8]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    bytes.iter().fold(OFFSET, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published FNV-1a vectors: an outbox file written today must find its lanes again in ten years.
    #[test]
    fn the_lane_hash_is_pinned() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_line_hashes_as_its_events_do() {
        let mut event = Event::new(Seq(7), "id", "orders", "{}");
        for key in [None, Some("501".into())] {
            event.key = key;
            for ordering in [Ordering::Strict, Ordering::Key, Ordering::None] {
                assert_eq!(Line::of(&event, ordering).hash(), line_hash(&event, ordering));
            }
        }
    }

    #[test]
    fn priority_topics_have_the_last_lane_for_themselves() {
        let mut event = Event::new(Seq(7), "id", "orders", "{}");
        let plain = Split::from(3);
        let split = Split { lanes: 4, priority: TopicFilter::parse(["alarms.*"]).unwrap(), ..3.into() };
        assert_eq!((plain.priority_lane(), split.priority_lane()), (None, Some(3)));
        for key in (0..50).map(|n| format!("k{n}")) {
            event.key = Some(key.into());
            event.topic = "orders".into();
            assert_eq!(split.lane_of(&event), plain.lane_of(&event), "the others are where they would be without");
            assert_eq!(split.shared_lane_of(&Line::of(&event, Ordering::Key)), plain.lane_of(&event));
            event.topic = "alarms.fire".into();
            assert_eq!(split.lane_of(&event), 3);
            let owners = (0..4).filter(|&index| Lane { index, count: 4 }.owns(&event, Ordering::Key, &split.priority));
            assert_eq!(owners.collect::<Vec<_>>(), [3]);
        }
        event.deliver_after = Some(crate::Millis(1));
        assert_eq!(split.lane_of(&event), 3, "a scheduled one, too");
    }

    #[test]
    fn a_scheduled_event_stands_alone_and_a_keyless_one_stands_in_its_topic() {
        let mut event = Event::new(Seq(7), "id", "orders", "{}");
        assert_eq!(Line::of(&event, Ordering::Key).to_string(), "topic \"orders\"");
        event.key = Some("501".into());
        assert_eq!(Line::of(&event, Ordering::Key).to_string(), "key \"501\"");
        assert_eq!(Line::of(&event, Ordering::Strict).to_string(), "topic \"orders\"");
        assert_eq!(Line::of(&event, Ordering::None).to_string(), "event \"7\"");
        event.deliver_after = Some(crate::Millis(1));
        assert_eq!(Line::of(&event, Ordering::Strict).to_string(), "event \"7\"");
    }
}
