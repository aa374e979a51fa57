//! What an operator does to a lane in between: skips, pauses, resumes; politely or by force.

use std::collections::BTreeMap;

use litepost_core::pipeline::{BlockedState, Decisions, LaneState};
use litepost_core::{Event, Seq};

use crate::chance::Chance;

/// One deed.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    Skip(Vec<Seq>),
    PauseTopic(&'static str),
    PauseKey(&'static str),
    ResumeAll,
}

impl Deed {
    pub(crate) fn draw(chance: &mut Chance, log: &[Event]) -> Self {
        match chance.below(5) {
            0 | 1 => {
                let some = 1 + chance.below(3);
                let draw = |_| Seq(1 + i64::try_from(chance.below(log.len() as u64)).unwrap_or(0));
                Self::Skip((0..some).map(draw).collect())
            }
            2 => Self::PauseTopic(chance.pick::<&'static str>(&["orders", "pay.in"])),
            3 => Self::PauseKey(chance.pick::<&'static str>(&["a", "b"])),
            _ => Self::ResumeAll,
        }
    }

    /// What the deed writes to the file, as the library does.
    pub(crate) fn write(&self, lane: &mut LaneState) {
        let decisions = &mut lane.decisions;
        match self {
            Self::Skip(seqs) => decisions.skips.extend(seqs),
            Self::PauseTopic(topic) => {
                decisions.paused_topics.insert((*topic).into());
            }
            Self::PauseKey(key) => {
                decisions.paused_keys.insert((*key).into());
            }
            Self::ResumeAll => {
                decisions.paused_topics.clear();
                decisions.paused_keys.clear();
                let paused = |code: &Option<String>| code.as_deref() == Some(Decisions::PAUSED);
                let held: BTreeMap<_, _> = std::mem::take(&mut lane.blocked);
                lane.blocked = held
                    .into_iter()
                    .map(|(line, mut row)| {
                        if row.state == BlockedState::Held && paused(&row.error_code) {
                            row.state = BlockedState::Releasing;
                            row.error_code = None;
                        }
                        (line, row)
                    })
                    .collect();
            }
        }
    }
}
