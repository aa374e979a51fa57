//! How lanes ask the reader, and what they are told about the log.
//!
//! Used by lanes and by the reader's thread. Invariant: whoever knows a log that is there no more gets an error, and never rows
//! of another one.

use std::sync::Arc;
use std::sync::mpsc;

use litepost::lanes::Wish;
use litepost_core::{Chunk, EventRef, Seq};
use tokio::sync::{oneshot, watch};

use super::ReadError;
use crate::relay::bell::Ring;

/// Which outbox this is: an operator can make a file a new incarnation at any time.
#[derive(Clone, Debug)]
pub(in crate::relay) struct Identity {
    pub(in crate::relay) origin: Arc<str>,
    pub(in crate::relay) epoch: i64,
    /// How often the log was found to be another one while this reader had it.
    pub(in crate::relay) era: u64,
}

pub(super) enum Message {
    Read { after: Seq, fresh: bool, era: u64, reply: oneshot::Sender<Result<Arc<Chunk>, ReadError>> },
    Fetch { seqs: Vec<Seq>, era: u64, reply: oneshot::Sender<Result<Vec<EventRef>, ReadError>> },
    Head { reply: oneshot::Sender<Result<Seq, ReadError>> },
    Sync { reply: oneshot::Sender<Result<(), ReadError>> },
    Identity { reply: oneshot::Sender<Result<Identity, ReadError>> },
    Stop,
}

/// How lanes ask the reader. Cheap to clone.
#[derive(Clone)]
pub(in crate::relay) struct ReaderHandle {
    pub(super) messages: mpsc::Sender<Message>,
    pub(super) ring: Ring,
    pub(super) wishes: watch::Receiver<Vec<Wish>>,
    pub(super) era: u64,
}

impl ReaderHandle {
    /// The same for whoever knows the log of that identity: nothing is answered any more when it is another one.
    pub(in crate::relay) fn of(&self, identity: &Identity) -> Self {
        Self { era: identity.era, ..self.clone() }
    }

    /// The log behind `after`, as soon as there is something. `fresh`: not from memory, when waiting for company.
    pub(in crate::relay) async fn read(&self, after: Seq, fresh: bool) -> Result<Arc<Chunk>, ReadError> {
        let era = self.era;
        self.ask(|reply| Message::Read { after, fresh, era, reply }).await
    }

    /// These rows, or the first few of them when they are large.
    pub(in crate::relay) async fn fetch(&self, seqs: Vec<Seq>) -> Result<Vec<EventRef>, ReadError> {
        let era = self.era;
        self.ask(|reply| Message::Fetch { seqs, era, reply }).await
    }

    /// The newest position.
    pub(in crate::relay) async fn head(&self) -> Result<Seq, ReadError> {
        self.ask(|reply| Message::Head { reply }).await
    }

    /// Waits until an operator asks for a lane.
    pub(in crate::relay) async fn wanted(&self, destination: &str, lane: u32) {
        let mut wishes = self.wishes.clone();
        let ours = |wish: &Wish| *wish.destination == *destination && wish.lane == lane;
        if wishes.wait_for(|wishes| wishes.iter().any(ours)).await.is_err() {
            // The reader is gone, and with it everything else here.
            std::future::pending::<()>().await;
        }
    }

    /// Which outbox this is, as the file says now.
    pub(in crate::relay) async fn identity(&self) -> Result<Identity, ReadError> {
        self.ask(|reply| Message::Identity { reply }).await
    }

    /// Makes what is committed in the file survive a power cut.
    pub(in crate::relay) async fn sync(&self) -> Result<(), ReadError> {
        self.ask(|reply| Message::Sync { reply }).await
    }

    async fn ask<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<Result<T, ReadError>>) -> Message,
    ) -> Result<T, ReadError> {
        let (reply, answer) = oneshot::channel();
        let gone = || "the reader has stopped".to_owned();
        self.messages.send(message(reply)).map_err(|_| gone())?;
        self.ring.ring();
        answer.await.map_err(|_| gone())?
    }
}
