//! A long run at half of what the machine can do: nothing lost, and nothing that grows.
//!
//! Called by the command. Invariant: what is watched is the first relay, which lives through the whole run; what grows is
//! judged by pure functions of the samples.

use std::path::Path;

use rusqlite::Connection;
use serde::Serialize;

use crate::check::Violation;
use crate::plan::{Pace, Plan};
use crate::run::{Postgres, Run, Setup, Verdict, settled};
use crate::stage::Stage;
use crate::{TortureError, clock, run};

/// How many samples a run has.
const SAMPLES: u64 = 90;
/// What memory may have grown by from the first third behind the warm-up to the last: a part, and what an allocator keeps.
const MEMORY_PERCENT: u64 = 15;
const MEMORY_BYTES: u64 = 4 << 20;
/// In a run shorter than this a relay is still filling what it keeps of the log for destinations that are behind.
const SHORT_MS: u64 = 600_000;
const FILLING_BYTES: u64 = 24 << 20;
/// The same for descriptors: a lane more or less holds a few.
const DESCRIPTORS: u64 = 8;
/// What the -wal never exceeds: a relay shrinks it at 64 MiB, and may be frozen meanwhile.
const WAL_BYTES: u64 = 128 << 20;
/// What the file may hold when everything is delivered and pruned: its tables, receipts, and the dead letters.
const FILE_BYTES: u64 = 2 << 20;
const DEAD_LETTER_BYTES: u64 = 2 << 10;

/// One look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Sample {
    /// Milliseconds after the beginning.
    pub at_ms: u64,
    /// Memory of the first relay (VmRSS), bytes.
    pub memory: u64,
    /// Its open descriptors.
    pub descriptors: u64,
    /// The outbox's -wal, bytes.
    pub wal: u64,
    /// The outbox, bytes.
    pub database: u64,
    /// Events that a destination has not settled.
    pub behind: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Soaked {
    /// What the destinations took together while producers wrote as fast as they could, events per second.
    pub most_per_second: u64,
    /// What they were asked to take.
    pub per_second: u64,
    /// What was seen.
    pub samples: Vec<Sample>,
    /// Pages in use at the end, everything delivered and pruned, bytes.
    pub left: u64,
    /// Dead letters among it.
    pub dead: u64,
    /// The run itself, with what grew among the violations.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// Measures what can be done, and then asks for half of it for `ms`; each sample is told as it is taken.
pub fn soak(
    setup: &Setup,
    seed: u64,
    producers: usize,
    ms: u64,
    mut told: impl FnMut(&Sample),
) -> Result<Soaked, TortureError> {
    let probe = Plan {
        pace: Pace::Full,
        faults: Vec::new(),
        ..Plan::soak(seed, producers, (ms / 30).clamp(3_000, 30_000), Pace::Full)
    };
    let folder = run::folder(setup)?;
    let mut run = begin(setup, &probe, &folder)?;
    run.go(&mut |_, _| {})?;
    let most_per_second = (settled(&run.stage.outbox())? * 1_000 / probe.ms).max(2);
    drop(run);
    // Only as much of it as was to be measured.
    let _ = std::fs::remove_dir_all(&folder);

    let per_second = most_per_second / 2;
    let each = (per_second / producers.max(1) as u64).max(1);
    let plan = Plan::soak(seed, producers, ms, Pace::PerSecond(each));
    let folder = run::folder(setup)?;
    let mut run = begin(setup, &plan, &folder)?;
    let mut samples: Vec<Sample> = Vec::new();
    run.go(&mut |run, now| {
        if now >= samples.len() as u64 * (ms / SAMPLES)
            && let Some(sample) = look(run, now)
        {
            told(&sample);
            samples.push(sample);
        }
    })?;
    let mut verdict = run.judge()?;
    let outbox = Connection::open(verdict.folder.join("outbox.db"))?;
    let number = |sql: &str| outbox.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::unsigned_abs);
    let left = (number("PRAGMA page_count")? - number("PRAGMA freelist_count")?) * number("PRAGMA page_size")?;
    let dead = number("SELECT count(*) FROM litepost_dead")?;
    let filling = if ms < SHORT_MS { FILLING_BYTES } else { 0 };
    verdict.add(grew(&samples, filling).into_iter().chain(kept(left, dead)));
    Ok(Soaked { most_per_second, per_second, samples, left, dead, verdict })
}

/// Without a network: one request for each event would be all that a soak measures.
fn begin<'a>(setup: &'a Setup, plan: &'a Plan, folder: &Path) -> Result<Run<'a>, TortureError> {
    let postgres = match &setup.postgres {
        Postgres::Theirs(url) => Some((url.as_str(), url.as_str())),
        Postgres::None | Postgres::Own => None,
    };
    Run::start(setup, plan, Stage::set(folder, postgres, None)?, None, clock::start())
}

/// The first relay and the files now; nothing when it cannot be seen in this moment.
fn look(run: &mut Run<'_>, at_ms: u64) -> Option<Sample> {
    let pid = run.first_relay()?;
    let outbox = run.stage.outbox();
    let size = |end: &str| std::fs::metadata(format!("{}{end}", outbox.display())).map_or(0, |meta| meta.len());
    let (settled, head) = (settled(&outbox).ok()?, head(&outbox).ok()?);
    Some(Sample {
        at_ms,
        memory: resident(pid)?,
        descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64,
        wal: size("-wal"),
        database: size(""),
        behind: head.saturating_sub(settled),
    })
}

fn resident(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

fn head(outbox: &Path) -> rusqlite::Result<u64> {
    let outbox = Connection::open(outbox)?;
    outbox.query_row("SELECT coalesce(max(seq), 0) FROM litepost_outbox", [], |row| row.get(0)).map(i64::unsigned_abs)
}

/// What grew, of what must not: the first sixth is warm-up, then the last third is held against the first.
fn grew(samples: &[Sample], filling: u64) -> Vec<Violation> {
    let warm = samples.get(samples.len() / 6..).unwrap_or_default();
    let third = warm.len() / 3;
    let (Some(first), Some(last)) = (warm.get(..third.max(1)), warm.get(warm.len().saturating_sub(third.max(1))..))
    else {
        return vec![Violation::Books { problem: "nothing was seen of the first relay".to_owned() }];
    };
    let compare = |what: &str, of: fn(&Sample) -> u64, percent: u64, more: u64| {
        let (before, after) = (median(first, of), median(last, of));
        let (what, most) = (what.to_owned(), before + before * percent / 100 + more);
        (after > most).then_some(Violation::Grew { what, before, after, most })
    };
    let wal = samples.iter().map(|sample| sample.wal).max().unwrap_or(0);
    [
        compare("memory", |s| s.memory, MEMORY_PERCENT, MEMORY_BYTES + filling),
        compare("descriptors", |s| s.descriptors, 0, DESCRIPTORS),
        (wal > WAL_BYTES).then(|| Violation::Grew { what: "wal".to_owned(), before: 0, after: wal, most: WAL_BYTES }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Whether more is left of what was delivered than there is reason for.
fn kept(left: u64, dead: u64) -> Option<Violation> {
    let most = FILE_BYTES + dead * DEAD_LETTER_BYTES;
    (left > most).then(|| Violation::Grew { what: "database".to_owned(), before: 0, after: left, most })
}

fn median(samples: &[Sample], of: fn(&Sample) -> u64) -> u64 {
    let mut all: Vec<u64> = samples.iter().map(of).collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn samples(change: impl Fn(u64, &mut Sample)) -> Vec<Sample> {
        let one = |n| {
            let mut sample = Sample { memory: 30 * MIB, descriptors: 40, wal: 5 * MIB, ..Sample::default() };
            change(n, &mut sample);
            sample
        };
        (0..SAMPLES).map(one).collect()
    }

    fn what(found: &[Violation]) -> Vec<&str> {
        let names = found.iter().map(|violation| match violation {
            Violation::Grew { what, .. } => what.as_str(),
            _ => "books",
        });
        names.collect()
    }

    #[test]
    fn what_grows_is_named_and_what_only_swings_is_not() {
        assert_eq!(grew(&samples(|_, _| {}), 0), []);
        assert_eq!(grew(&samples(|n, s| s.memory += n % 7 * MIB), 0), [], "it comes and goes");
        assert_eq!(grew(&samples(|n, s| s.memory += n.min(15) * 9 * MIB), 0), [], "the warm-up may grow");
        assert_eq!(what(&grew(&samples(|n, s| s.memory += n * MIB / 5), 0)), ["memory"]);
        assert_eq!(
            grew(&samples(|n, s| s.memory += n * MIB / 5), FILLING_BYTES),
            [],
            "a short run may still be filling"
        );
        assert_eq!(what(&grew(&samples(|n, s| s.descriptors += n / 5), 0)), ["descriptors"]);
        assert_eq!(what(&grew(&samples(|n, s| s.wal += if n == 50 { 200 * MIB } else { 0 }), 0)), ["wal"]);
        assert_eq!(what(&grew(&[], 0)), ["books"], "a run that saw nothing proves nothing");
    }

    #[test]
    fn what_is_left_has_a_reason() {
        assert_eq!(kept(2 * MIB, 0), None);
        assert_eq!(kept(2 * MIB + (2 << 10), 1), None);
        assert_eq!(what(kept(2 * MIB + 1, 0).as_slice()), ["database"]);
    }
}
