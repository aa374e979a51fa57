//! Takes over what sqloutbox left in a file, and what its producers go on pushing: the bridge, driven by the relay.
//!
//! The writer thread owns the [`OldQueue`] and does the moving; a task per file ([`Bridging`]) says when. Invariant:
//! nothing is moved without sqloutbox's lock on the folder, and nothing for which no destination has a use.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use litepost::connection::{self, Access};
use litepost::lanes::LaneStore;
use litepost::sqloutbox::{Bridge, DrainLock, FindingKind, Route, Step, is_present};
use litepost::{StoreError, schema};
use litepost_core::TopicFilter;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::DestinationConfig;
use super::wake::{SAFETY_POLL, Wakes};
use super::writer::WriterHandle;

/// Rows per transaction: a few milliseconds of the write lock, and then a producer gets its turn.
const ROWS: u32 = 250;
/// The log is full, or a lock was not free: not at once again.
const REST: Duration = Duration::from_millis(200);
/// How long it may take until an old producer that comes to a file of ours is noticed. Until then a file without a queue
/// costs a look now and then, and nothing at a commit.
const LOOK_FOR_QUEUE: Duration = Duration::from_secs(2);
/// Old producers commit row by row: a moment later there are several, at no cost to anybody's latency.
const GATHER: Duration = Duration::from_millis(2);

/// The destinations of a file and what they take; changes when the configuration is read again.
#[derive(Clone, Default)]
pub(super) struct Takers(Arc<Mutex<Vec<(String, TopicFilter)>>>);

impl Takers {
    pub(super) fn set(&self, destinations: &[DestinationConfig]) {
        let takers = destinations.iter().map(|d| (d.name.to_string(), d.pipeline.topics.clone())).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = takers;
    }

    fn of(&self, namespace: &str) -> Vec<String> {
        let takers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        takers.iter().filter(|(_, filter)| filter.matches(namespace)).map(|(name, _)| name.clone()).collect()
    }
}

/// sqloutbox's queue in one file, as far as the writer is concerned.
pub(super) struct OldQueue {
    bridge: Bridge,
    path: PathBuf,
    lock: Option<DrainLock>,
}

impl OldQueue {
    /// Looks at the file. One that holds a queue of sqloutbox gets litepost's tables; an error while sqloutbox's own
    /// daemon drains the folder.
    pub(super) fn open(path: &Path, takers: Takers) -> Result<Self, StoreError> {
        let mut lock = None;
        if is_present(&connection::open(path, Access::ReadOnly)?)? {
            lock = Some(DrainLock::shared(folder(path))?);
            schema::migrate(&mut connection::open(path, Access::ReadWrite)?)?;
        }
        let bridge = Bridge::new(move |namespace| {
            let dead_to = takers.of(namespace);
            (!dead_to.is_empty()).then_some(Route { dead_to })
        });
        Ok(Self { bridge, path: path.to_owned(), lock })
    }

    /// Moves the next rows; `None` when there is no queue of sqloutbox in the file.
    pub(super) fn step(&mut self, store: &mut LaneStore) -> Result<Option<Step>, StoreError> {
        if self.lock.is_none() {
            // An old producer may come to a file of ours at any time.
            if !store.has_sqloutbox()? {
                return Ok(None);
            }
            self.lock = Some(DrainLock::shared(folder(&self.path))?);
        }
        store.bridge(&mut self.bridge, ROWS).map(Some)
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What a round came to.
enum Round {
    /// The file has no queue.
    NoQueue,
    /// Nothing is left in it.
    Empty,
    /// The log is full.
    Full,
}

/// Asks the writer to take over, whenever a file with a queue has been written to.
pub(super) struct Bridging {
    writer: WriterHandle,
    path: PathBuf,
    wakes: Arc<Wakes>,
    written: Arc<Notify>,
}

impl Bridging {
    /// Watches nothing yet.
    pub(super) fn new(writer: WriterHandle, path: &Path, wakes: Arc<Wakes>) -> Self {
        Self { writer, path: path.to_owned(), wakes, written: Arc::default() }
    }

    /// Begins to watch the file: most have no queue of sqloutbox, and cost nothing here.
    fn watch(&self) {
        let hint = Arc::clone(&self.written);
        self.wakes.watch(&self.path, move || hint.notify_one());
    }

    /// Takes over until told to stop.
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut told = String::new();
        let mut watched = false;
        while !stop.is_cancelled() {
            let mut queue = true;
            match self.round().await {
                Ok(round) => {
                    told.clear();
                    match round {
                        Round::NoQueue => queue = false,
                        Round::Empty => {}
                        Round::Full => tokio::time::sleep(REST).await,
                    }
                }
                Err(error) => {
                    if told != error {
                        let file = self.path.display();
                        tracing::warn!(%file, %error, "cannot take over sqloutbox's rows; trying again");
                        told = error;
                    }
                    tokio::time::sleep(REST).await;
                }
            }
            if queue && !std::mem::replace(&mut watched, queue) {
                self.watch();
                // What was written before is not told.
                continue;
            }
            let pause = if queue { SAFETY_POLL } else { LOOK_FOR_QUEUE };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.written.notified(), if queue => tokio::time::sleep(GATHER).await,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Takes over what is there.
    pub(super) async fn once(&self) {
        if let Err(error) = self.round().await {
            let file = self.path.display();
            tracing::error!(%file, %error, "cannot take over sqloutbox's rows");
        }
    }

    /// Until nothing is left, or the log is full.
    async fn round(&self) -> Result<Round, String> {
        let mut all = Step::default();
        loop {
            let Some(step) = self.writer.bridge().await? else { return Ok(Round::NoQueue) };
            self.tell(&step);
            all.moved += step.moved;
            all.leftovers += step.leftovers;
            all.dead += step.dead;
            all.receipts += step.receipts;
            if step.full || !step.more {
                let Step { moved, leftovers, dead, receipts, .. } = all;
                let file = self.path.display();
                if moved >= u64::from(ROWS) || leftovers + dead + receipts > 0 {
                    tracing::info!(%file, moved, leftovers, dead, receipts, "took over rows from sqloutbox");
                } else if moved > 0 {
                    tracing::debug!(%file, moved, "took over rows from sqloutbox");
                }
                return Ok(if step.full { Round::Full } else { Round::Empty });
            }
        }
    }

    fn tell(&self, step: &Step) {
        let file = self.path.display();
        for finding in &step.findings {
            if finding.kind == FindingKind::Missing {
                tracing::error!(
                    %file,
                    "{finding}. Its namespace waits; `litepost import --from DIR --accept-missing` goes on behind it"
                );
            } else {
                tracing::warn!(%file, "{finding}");
            }
        }
    }
}
