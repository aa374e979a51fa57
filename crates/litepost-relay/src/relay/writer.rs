//! Writes what the lanes of one file decide, and keeps the file in order.
//!
//! One thread per outbox file owns the process's only writing connection, the [`LaneStore`]. Settlements that are
//! waiting together are committed together. In between it deletes what nobody needs any more and moves the WAL into the
//! database, so that producers need not. Invariant: a settlement is never dropped. A locked file, a full disk, a
//! failing one: it is tried again, and said so, until it is written or the relay is told to stop.

use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use litepost::StoreError;
use litepost::lanes::{Acquire, Beat, CursorRow, LaneStore, Lease, LeaseClaim, Retention, Settled, Split, Start, Wish};
use litepost::sqloutbox::Step;
use litepost_core::Millis;
use litepost_core::pipeline::{LaneState, Settlement};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::bridge::OldQueue;
use super::reader::explain;
use super::wal::Wal;
use crate::clock;

/// How often the WAL is looked at while it is written to.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often an idle file is looked at.
const IDLE_EVERY: Duration = Duration::from_secs(1);
/// Transactions of pruning in one round.
const PRUNE_BATCHES: u32 = 20;
/// Events that one round puts into a lane's receipts: as many as it may prune.
const RECEIPT_ROWS: u32 = 500 * PRUNE_BATCHES;
/// Receipts are written and events pruned at least this often, however few were settled.
const KEEP_HOUSE_EVERY_MS: i64 = 2_000;
/// The same while nothing is settled and the last round found nothing to do: events grow old without it, too.
const KEEP_HOUSE_IDLE_EVERY_MS: i64 = 10_000;
/// What is left to do when the relay stops may take this long.
const LAST_ROUNDS_MS: i64 = 300;
/// Between two attempts to write a settlement.
const RETRY_EVERY: Duration = Duration::from_millis(200);

/// Why a request failed, for people.
pub(super) type WriteError = String;

type Reply<T> = oneshot::Sender<Result<T, WriteError>>;

enum Message {
    Settle { lease: Lease, settlement: Settlement, reply: Reply<Settled> },
    Register { destination: String, split: Split, start: Start, ledger: bool, reply: Reply<()> },
    Acquire { destination: String, lane: u32, claim: LeaseClaim, observed: Option<Beat>, reply: Reply<Acquire> },
    Load { destination: String, lane: u32, reply: Reply<(LaneState, CursorRow)> },
    Renew { lease: Lease, reply: Reply<bool> },
    Release { lease: Lease, reply: Reply<bool> },
    Lapse { wish: Wish, reply: Reply<bool> },
    Share { destination: String, lane: u32, claim: LeaseClaim, reply: Reply<bool> },
    Health { lease: Lease, state: &'static str, error: Option<String> },
    Bridge { reply: Reply<Option<Step>> },
    Stop,
}

/// How lanes ask the writer. Cheap to clone.
#[derive(Clone)]
pub(super) struct WriterHandle {
    messages: mpsc::Sender<Message>,
}

impl WriterHandle {
    pub(super) async fn settle(&self, lease: Lease, settlement: Settlement) -> Result<Settled, WriteError> {
        self.ask(|reply| Message::Settle { lease, settlement, reply }).await
    }

    pub(super) async fn register(
        &self,
        destination: &str,
        split: Split,
        start: Start,
        ledger: bool,
    ) -> Result<(), WriteError> {
        let destination = destination.to_owned();
        self.ask(|reply| Message::Register { destination, split, start, ledger, reply }).await
    }

    pub(super) async fn acquire(
        &self,
        destination: &str,
        lane: u32,
        claim: LeaseClaim,
        observed: Option<Beat>,
    ) -> Result<Acquire, WriteError> {
        let destination = destination.to_owned();
        self.ask(|reply| Message::Acquire { destination, lane, claim, observed, reply }).await
    }

    pub(super) async fn load(&self, destination: &str, lane: u32) -> Result<(LaneState, CursorRow), WriteError> {
        let destination = destination.to_owned();
        self.ask(|reply| Message::Load { destination, lane, reply }).await
    }

    pub(super) async fn renew(&self, lease: Lease) -> Result<bool, WriteError> {
        self.ask(|reply| Message::Renew { lease, reply }).await
    }

    pub(super) async fn release(&self, lease: Lease) -> Result<bool, WriteError> {
        self.ask(|reply| Message::Release { lease, reply }).await
    }

    pub(super) async fn lapse(&self, wish: Wish) -> Result<bool, WriteError> {
        self.ask(|reply| Message::Lapse { wish, reply }).await
    }

    /// Asks the relay that has most lanes for this one, if it is its turn to be given away. True when it is asked for.
    pub(super) async fn ask_for_share(
        &self,
        destination: &str,
        lane: u32,
        claim: LeaseClaim,
    ) -> Result<bool, WriteError> {
        let destination = destination.to_owned();
        self.ask(|reply| Message::Share { destination, lane, claim, reply }).await
    }

    /// Shows the destination's state in the file. Nobody waits for it.
    pub(super) fn health(&self, lease: Lease, state: &'static str, error: Option<String>) {
        let _ = self.messages.send(Message::Health { lease, state, error });
    }

    /// Takes over the next rows that sqloutbox left in the file; `None` when there is no queue of it.
    pub(super) async fn bridge(&self) -> Result<Option<Step>, WriteError> {
        self.ask(|reply| Message::Bridge { reply }).await
    }

    async fn ask<T>(&self, message: impl FnOnce(Reply<T>) -> Message) -> Result<T, WriteError> {
        let (reply, answer) = oneshot::channel();
        let gone = || "the writer has stopped".to_owned();
        self.messages.send(message(reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

/// The thread, and the way to end it.
pub(super) struct Writer {
    handle: WriterHandle,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Opens the store and starts the thread. `give_up`: settlements that cannot be written are no longer tried again.
    pub(super) fn start(
        path: &Path,
        keep: Retention,
        bridge: OldQueue,
        cleanup_every: i64,
        pages_kib: usize,
        give_up: CancellationToken,
    ) -> Result<Self, StoreError> {
        let mut store = LaneStore::open(path)?;
        store.keep_pages(pages_kib)?;
        // A copy must not deliver what its original delivers; a restored file must not deliver twice by accident.
        store.claim_file(path)?;
        let (messages, inbox) = mpsc::channel();
        let worker = Worker {
            store,
            inbox,
            keep,
            bridge,
            cleanup_every,
            settled: 0,
            house_at: Millis(0),
            house_rests_until: Millis(0),
            give_up,
            wal: Wal::of(path),
        };
        let thread = std::thread::Builder::new().name("litepost-write".into()).spawn(move || worker.run());
        let thread =
            thread.map_err(|error| StoreError::CannotOpen { path: path.to_owned(), reason: error.to_string() })?;
        Ok(Self { handle: WriterHandle { messages }, thread: Some(thread) })
    }

    pub(super) fn handle(&self) -> WriterHandle {
        self.handle.clone()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.handle.messages.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Pending {
    lease: Lease,
    settlement: Settlement,
    reply: Reply<Settled>,
}

struct Worker {
    store: LaneStore,
    inbox: Receiver<Message>,
    keep: Retention,
    bridge: OldQueue,
    /// Events settled that make a round of housekeeping due before its time.
    cleanup_every: i64,
    /// Events settled since the last round.
    settled: i64,
    house_at: Millis,
    /// Rounds follow one another no faster.
    house_rests_until: Millis,
    give_up: CancellationToken,
    wal: Wal,
}

impl Worker {
    fn run(mut self) {
        let mut pause = LOOK_EVERY;
        let mut upkeep_at = clock::mono();
        loop {
            let now = clock::mono();
            if now >= upkeep_at {
                pause = if self.upkeep() { LOOK_EVERY } else { IDLE_EVERY };
                upkeep_at = clock::mono().plus(i64::try_from(pause.as_millis()).unwrap_or(1_000));
            }
            let wait = u64::try_from(upkeep_at.since(clock::mono())).unwrap_or(0);
            match self.inbox.recv_timeout(Duration::from_millis(wait)) {
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return self.last_rounds(),
                Ok(Message::Settle { lease, settlement, reply }) => {
                    if pause == IDLE_EVERY {
                        upkeep_at = upkeep_at.min(clock::mono().plus(100));
                    }
                    if self.settle(Pending { lease, settlement, reply }) {
                        return self.last_rounds();
                    }
                    // Whoever writes waits for both in one go.
                    if self.house_is_due() && clock::mono() >= self.house_rests_until {
                        upkeep_at = clock::mono();
                    }
                }
                Ok(other) => self.answer(other),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Commits this settlement and all that are waiting behind it. True when told to stop.
    fn settle(&mut self, first: Pending) -> bool {
        let mut batch = vec![first];
        let mut next = None;
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Settle { lease, settlement, reply } => batch.push(Pending { lease, settlement, reply }),
                other => {
                    next = Some(other);
                    break;
                }
            }
        }
        self.commit(batch);
        match next {
            Some(Message::Stop) => true,
            Some(message) => {
                self.answer(message);
                false
            }
            None => false,
        }
    }

    fn commit(&mut self, batch: Vec<Pending>) {
        let mut told = false;
        loop {
            let items: Vec<_> = batch.iter().map(|p| (&p.lease, &p.settlement)).collect();
            match self.store.settle(&items, clock::wall()) {
                Ok(outcomes) => {
                    self.settled += batch.iter().map(|pending| pending.settlement.added.total()).sum::<i64>();
                    self.house_at = self.house_at.min(clock::mono().plus(KEEP_HOUSE_EVERY_MS));
                    for (pending, outcome) in batch.into_iter().zip(outcomes) {
                        let _ = pending.reply.send(Ok(outcome));
                    }
                    return;
                }
                Err(error) if passes(&error) && !self.give_up.is_cancelled() => {
                    if !told {
                        tracing::warn!(error = %explain(&error), "cannot save what was delivered; trying again");
                        told = true;
                    }
                    std::thread::sleep(RETRY_EVERY);
                }
                // One item cannot be written: it must not hold up the others.
                Err(_) if batch.len() > 1 => {
                    for pending in batch {
                        self.commit(vec![pending]);
                    }
                    return;
                }
                Err(error) => {
                    let why = explain(&error);
                    for pending in batch {
                        let _ = pending.reply.send(Err(why.clone()));
                    }
                    return;
                }
            }
        }
    }

    fn answer(&mut self, message: Message) {
        let store = &mut self.store;
        match message {
            Message::Settle { lease, settlement, reply } => self.commit(vec![Pending { lease, settlement, reply }]),
            Message::Register { destination, split, start, ledger, reply } => {
                let registered = store.register(&destination, split, start);
                respond(reply, registered.and_then(|()| store.note_ledger(&destination, ledger)));
            }
            Message::Acquire { destination, lane, claim, observed, reply } => {
                respond(reply, store.acquire(&destination, lane, &claim, observed.as_ref()));
            }
            Message::Load { destination, lane, reply } => respond(reply, store.load(&destination, lane)),
            Message::Renew { lease, reply } => respond(reply, store.renew(&lease)),
            Message::Release { lease, reply } => respond(reply, store.release(&lease)),
            Message::Lapse { wish, reply } => respond(reply, store.lapse(&wish)),
            Message::Share { destination, lane, claim, reply } => {
                respond(reply, store.ask_for_share(&destination, lane, &claim));
            }
            Message::Health { lease, state, error } => {
                if let Err(error) = store.set_health(&lease, state, error.as_deref(), clock::wall()) {
                    tracing::debug!(error = %explain(&error), "cannot show the destination's state");
                }
            }
            Message::Bridge { reply } => respond(reply, self.bridge.step(store)),
            Message::Stop => {}
        }
    }

    /// Keeps house and moves the WAL. True when there was something to do.
    fn upkeep(&mut self) -> bool {
        let more = self.keep_house_if_due();
        self.wal.look(&mut self.store) || more
    }

    fn house_is_due(&self) -> bool {
        self.settled >= self.cleanup_every || clock::mono() >= self.house_at
    }

    fn keep_house_if_due(&mut self) -> bool {
        if !self.house_is_due() {
            return false;
        }
        let now = clock::mono();
        let settled = std::mem::take(&mut self.settled);
        let more = self.keep_house();
        self.house_rests_until = clock::mono().plus(i64::try_from(LOOK_EVERY.as_millis()).unwrap_or(100));
        self.house_at = match (more, settled) {
            (true, _) => now,
            (false, 0) => now.plus(KEEP_HOUSE_IDLE_EVERY_MS),
            (false, _) => now.plus(KEEP_HOUSE_EVERY_MS),
        };
        more
    }

    /// Receipts first, since only what has one is pruned. True when there is more to do.
    fn keep_house(&mut self) -> bool {
        let unwritten = match self.keep.retain_receipts_ms {
            None => 0,
            Some(keep_ms) => match self.store.write_receipts(keep_ms, clock::wall(), RECEIPT_ROWS) {
                Ok(lanes) => lanes,
                Err(error) => {
                    tracing::debug!(error = %explain(&error), "receipts cannot be written");
                    0
                }
            },
        };
        self.prune() || unwritten > 0
    }

    /// A relay that runs now and then and drains must not leave its housekeeping to the next for ever.
    fn last_rounds(&mut self) {
        let until = clock::mono().plus(LAST_ROUNDS_MS);
        while self.keep_house() && clock::mono() < until {}
    }

    fn prune(&mut self) -> bool {
        let mut any = false;
        for _ in 0..PRUNE_BATCHES {
            match self.store.prune_some(self.keep, clock::wall()) {
                Ok(pruned) if pruned.rows == 0 => break,
                Ok(_) => {
                    any = true;
                    // Producers are waiting for the lock: let one in.
                    std::thread::yield_now();
                }
                Err(error) => {
                    tracing::debug!(error = %explain(&error), "pruning failed");
                    break;
                }
            }
        }
        any
    }
}

/// Whether the error may go away by itself, or when an operator makes room.
fn passes(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Busy { .. } | StoreError::DiskFull { .. } | StoreError::ReadOnly { .. } | StoreError::Io { .. }
    )
}

fn respond<T>(reply: Reply<T>, result: Result<T, StoreError>) {
    let _ = reply.send(result.map_err(|error| explain(&error)));
}
