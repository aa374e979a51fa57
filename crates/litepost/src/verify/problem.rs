//! What verify finds, in words, and what to do about each.
//!
//! Invariant: every finding has a next step that exists.

use std::fmt;

use litepost_core::Seq;
use serde::Serialize;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Problem {
    /// SQLite's integrity check reports damage.
    Damaged {
        /// SQLite's words.
        report: String,
    },
    /// Events are missing from the middle of the log.
    Hole {
        /// The first missing position.
        first: Seq,
        /// The last missing position.
        last: Seq,
    },
    /// Events were removed before this lane had settled them.
    PrunedTooFar {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
        /// What the lane still needs.
        needed: Seq,
        /// The oldest event there is.
        oldest: Seq,
    },
    /// The cursor stands beyond the end of the log: the file was restored, or its newest events are gone.
    BehindCursor {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
        /// Where the cursor stands.
        acked: Seq,
        /// Where the log ends.
        newest: Seq,
    },
    /// The cursor has passed another number of events than the counters account for.
    NotConserved {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
        /// Events the cursor has passed.
        passed: i64,
        /// Events accounted for: delivered, dead, expired, skipped, unrouted and waiting.
        accounted: i64,
    },
    /// There are fewer or more dead letters than the counters say.
    DeadLettersDiffer {
        /// The destination.
        destination: String,
        /// By the counters.
        counted: i64,
        /// In `litepost_dead`.
        found: i64,
    },
    /// The topics of a destination together do not have what its lanes have.
    TopicsDiffer {
        /// The destination.
        destination: String,
        /// In which book.
        book: Book,
        /// By the lanes.
        lanes: i64,
        /// By the topics.
        topics: i64,
    },
    /// There are fewer or more dead letters of a topic than were counted.
    TopicLettersDiffer {
        /// The destination.
        destination: String,
        /// The topic.
        topic: String,
        /// By the books.
        counted: i64,
        /// In `litepost_dead`.
        found: i64,
    },
    /// More of a topic is delivered or a dead letter than was ever appended.
    TopicOverdrawn {
        /// The destination.
        destination: String,
        /// The topic.
        topic: String,
        /// Delivered and dead letters.
        settled: i64,
        /// Appended, and looked at again after a rewind.
        appended: i64,
    },
    /// What a receipt says the log held is not what it holds.
    ReceiptDiffers {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
        /// The first position of the receipt.
        first: Seq,
        /// The last one.
        last: Seq,
    },
    /// A receipt speaks of events that the log never had.
    ReceiptBeyondLog {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
        /// The last position of the receipt.
        last: Seq,
        /// Where the log ends.
        newest: Seq,
    },
    /// A receipt of sqloutbox's that was brought over does not hold what it says, or holds what another one does.
    ImportedReceiptDiffers {
        /// The namespace.
        namespace: String,
        /// The first of sqloutbox's numbers in it.
        first: Seq,
        /// The last one.
        last: Seq,
    },
    /// A row waits in sqloutbox's queue for which a receipt says that sqloutbox has delivered it.
    DeliveredWaits {
        /// The namespace.
        namespace: String,
        /// sqloutbox's number.
        seq: Seq,
    },
    /// More events are said to wait in a blocked line than the log holds of it.
    LineDiffers {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
        /// The line.
        line: String,
        /// By `litepost_blocked`.
        waiting: i64,
        /// In the log.
        found: i64,
    },
    /// A dead letter names a position at which another event stands.
    DeadLetterStray {
        /// The dead letter.
        dead_id: i64,
        /// The position.
        seq: Seq,
    },
    /// A version of a key is not above the one before it in the log.
    VersionTwice {
        /// The topic.
        topic: String,
        /// The key.
        key: String,
        /// The version.
        version: i64,
        /// The later event.
        seq: Seq,
    },
    /// The file does not remember that a version was taken, so it could be taken again.
    VersionForgotten {
        /// The topic.
        topic: String,
        /// The key.
        key: String,
        /// The version.
        version: i64,
        /// The event that has it.
        seq: Seq,
    },
    /// A guard, an index or a table of the schema is gone.
    SchemaMissing {
        /// Its name.
        object: String,
    },
    /// A guard of the log is not the one that litepost made.
    GuardDiffers {
        /// Its name.
        object: String,
    },
    /// A destination's own ledger and this file do not agree.
    Ledger {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
        /// What was found.
        found: LedgerProblem,
    },
    /// A value that litepost did not write.
    Unreadable {
        /// Where.
        place: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { report } => write!(f, "SQLite reports damage: {report}"),
            Self::Hole { first, last } if first == last => write!(f, "event {first} is missing from the log"),
            Self::Hole { first, last } => write!(f, "events {first} to {last} are missing from the log"),
            Self::PrunedTooFar { destination, lane, needed, oldest } => write!(
                f,
                "{destination} lane {lane} still needs event {needed}, but the oldest one in the log is {oldest}"
            ),
            Self::BehindCursor { destination, lane, acked, newest } => write!(
                f,
                "{destination} lane {lane} has settled event {acked}, but the log ends at {newest}: was the file restored?"
            ),
            Self::NotConserved { destination, lane, passed, accounted } => write!(
                f,
                "{destination} lane {lane}: the cursor has passed {passed} events, {accounted} are accounted for"
            ),
            Self::DeadLettersDiffer { destination, counted, found } => {
                write!(f, "{destination}: {counted} dead letters were counted, {found} are there")
            }
            Self::TopicsDiffer { destination, book, lanes, topics } => {
                write!(f, "{destination}: its lanes count {lanes} {book}, its topics together {topics}")
            }
            Self::TopicLettersDiffer { destination, topic, counted, found } => {
                write!(f, "{destination}, topic {topic:?}: {counted} dead letters were counted, {found} are there")
            }
            Self::TopicOverdrawn { destination, topic, settled, appended } => write!(
                f,
                "{destination}, topic {topic:?}: {settled} events are delivered or dead letters, {appended} were appended"
            ),
            Self::ReceiptDiffers { destination, lane, first, last } => write!(
                f,
                "{destination} lane {lane}: events {first} to {last} are not what they were when they were delivered"
            ),
            Self::ReceiptBeyondLog { destination, lane, last, newest } => write!(
                f,
                "{destination} lane {lane} has a receipt for event {last}, but the log ends at {newest}: was the file restored?"
            ),
            Self::ImportedReceiptDiffers { namespace, first, last } => write!(
                f,
                "the receipt of sqloutbox's rows {first} to {last} of {namespace:?} is not as it was brought over"
            ),
            Self::DeliveredWaits { namespace, seq } => write!(
                f,
                "sqloutbox's row {seq} of {namespace:?} waits in its queue, and a receipt says that it was delivered: was the \
                 file put together from two?"
            ),
            Self::LineDiffers { destination, lane, line, waiting, found } => write!(
                f,
                "{destination} lane {lane}: {waiting} events are said to wait in {line}, the log holds {found} of it"
            ),
            Self::DeadLetterStray { dead_id, seq } => {
                write!(f, "dead letter {dead_id} was event {seq}, but another event stands there now")
            }
            Self::VersionTwice { topic, key, version, seq } => write!(
                f,
                "event {seq} is version {version} of topic {topic:?}, key {key:?}, which had that version already, or a later one"
            ),
            Self::VersionForgotten { topic, key, version, seq } => write!(
                f,
                "event {seq} is version {version} of topic {topic:?}, key {key:?}; the file does not remember it, so it could be \
                 taken again"
            ),
            Self::SchemaMissing { object } => write!(f, "{object} is missing from the schema"),
            Self::GuardDiffers { object } => write!(f, "{object} is not the guard that litepost made"),
            Self::Ledger { destination, lane, found } => write!(f, "{destination} lane {lane}: {found}"),
            Self::Unreadable { place } => write!(f, "{place} holds a value that litepost did not write"),
        }
    }
}

impl Problem {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Damaged { .. } => {
                "stop every program that uses the file and restore a backup, or save what can be read with `sqlite3 FILE \
                 .recover`; see https://sqlite.org/howtocorrupt.html"
            }
            Self::Hole { .. } | Self::PrunedTooFar { .. } => {
                "the events were deleted around the guards: find out by whom, and write them again from the business rows; \
                 the destinations stop before the hole"
            }
            Self::BehindCursor { .. } | Self::ReceiptBeyondLog { .. } => {
                "bring the right file back; or go on with this one: `litepost adopt` makes it a new incarnation that is \
                 delivered from its cursors on, `litepost fast-forward` takes what it holds for delivered"
            }
            Self::NotConserved { .. }
            | Self::DeadLettersDiffer { .. }
            | Self::LineDiffers { .. }
            | Self::TopicsDiffer { .. }
            | Self::TopicLettersDiffer { .. }
            | Self::TopicOverdrawn { .. } => {
                "litepost's state tables were changed by hand: restore a backup, or compare the destination with the log"
            }
            Self::ImportedReceiptDiffers { .. } => {
                "litepost's state tables were changed by hand: restore a backup; nothing is delivered by these receipts"
            }
            Self::DeliveredWaits { .. } => {
                "the relay will deliver it, perhaps again: take the row out of outbox_queue if the destination has it"
            }
            Self::ReceiptDiffers { .. } => {
                "events were changed around the guards, or the file is damaged: compare them with the destination, and \
                 restore a backup"
            }
            Self::VersionTwice { .. } => {
                "the events were written around the guards, or two files were put together: compare them with the aggregate"
            }
            Self::VersionForgotten { .. } => {
                "litepost_version was changed by hand: put back what is missing, with the highest version of each key in the log"
            }
            Self::DeadLetterStray { .. } => "the file was restored or put together from two: compare it with a backup",
            Self::SchemaMissing { .. } | Self::GuardDiffers { .. } => {
                "nothing protects the log as long as it is so: put it back as `litepost schema` prints it"
            }
            Self::Ledger { found, .. } => found.hint(),
            Self::Unreadable { .. } => "litepost's state tables are written by litepost only: restore a backup",
        }
    }
}

/// One of the numbers that lanes and topics both count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Book {
    /// Delivered events.
    Delivered,
    /// Dead letters, expired and skipped ones included.
    DeadLetters,
    /// Dead letters that were purged.
    Purged,
}

impl fmt::Display for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delivered => "delivered events",
            Self::DeadLetters => "dead letters",
            Self::Purged => "purged letters",
        })
    }
}

/// How a SQL destination's ledger and an outbox file can disagree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "ledger", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LedgerProblem {
    /// The ledger could not be read.
    Unreachable {
        /// What the destination said.
        error: String,
    },
    /// The destination has applied more than the log holds.
    LogBehind {
        /// The ledger's position.
        applied: Seq,
        /// Where the log ends.
        newest: Seq,
    },
    /// Another event stands where the destination applied one.
    AnotherEvent {
        /// The position.
        seq: Seq,
    },
    /// The ledger knows a newer lease than this file: a copy of it is at work.
    NewerLease {
        /// In the ledger.
        remote: i64,
        /// In this file.
        here: i64,
    },
}

impl fmt::Display for LedgerProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable { error } => write!(f, "the ledger cannot be read: {error}"),
            Self::LogBehind { applied, newest } => {
                write!(
                    f,
                    "the destination has applied event {applied}, but the log ends at {newest}: was the file restored?"
                )
            }
            Self::AnotherEvent { seq } => {
                write!(
                    f,
                    "the destination has applied another event than the one at {seq}: was the file restored or copied?"
                )
            }
            Self::NewerLease { remote, here } => {
                write!(
                    f,
                    "the destination knows lease {remote}, this file {here}: a copy of the file is at work, or this is one"
                )
            }
        }
    }
}

impl LedgerProblem {
    fn hint(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "check the destination and its connection; without --remote it is not asked",
            Self::LogBehind { .. } | Self::AnotherEvent { .. } => {
                "bring the right file back; or go on with this one: `litepost adopt` makes it a new incarnation that is \
                 delivered from its cursors on, `litepost fast-forward` takes what it holds for delivered"
            }
            Self::NewerLease { .. } => {
                "stop the relay of the other file; if this one is to go on, make it a new incarnation with `litepost adopt`"
            }
        }
    }
}
