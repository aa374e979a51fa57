//! The loop: one message at a time, in the order that loses nothing and repeats no effect.
//!
//! Called by [`Consumer::run`]. Invariant: `Source::ack` follows a commit of this loop, or a claim that was answered
//! `Duplicate`; every other end of a message is a negative acknowledgement or a dead letter.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::sleep;

use super::attempts::Attempts;
use super::database::Database;
use super::failure::{ConsumeError, HandlerError};
use super::message::Message;
use super::policy::Policy;
use super::source::Source;
use super::trace::Handling;
use crate::claim::Claim;
use crate::error::InboxError;
use crate::ident::{MessageId, Scope};
use crate::inbox::Inbox;

/// How many failed messages are remembered, for brokers that do not count deliveries.
const FAILED_MAX: usize = 10_000;

/// What a consumer has done since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Summary {
    /// Messages that were handled and committed.
    pub handled: u64,
    /// Messages that had been handled before.
    pub duplicates: u64,
    /// Transactions that were run again in place.
    pub retries: u64,
    /// Messages that went back to the broker.
    pub returned: u64,
    /// Messages that became dead letters.
    pub dead_letters: u64,
}

/// A consumer of one source into one database.
#[derive(Debug)]
pub struct Consumer<S, D> {
    inbox: Inbox,
    scope: Scope,
    source: S,
    database: D,
    policy: Policy,
    summary: Summary,
    /// Failed attempts by message id.
    failed: HashMap<String, u32>,
    /// Where attempts are counted beyond this process.
    attempts: Option<Attempts>,
}

/// The caller's wish to stop. It can be asked again after it was ready.
struct Stop<'f, F> {
    asked: Pin<&'f mut F>,
    seen: bool,
}

impl<F: Future<Output = ()>> Future for Stop<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.seen = self.seen || self.asked.as_mut().poll(context).is_ready();
        if self.seen { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// How an attempt at a message failed.
enum Trouble {
    /// The transaction may be run again.
    Retry(InboxError),
    /// The connection is gone.
    Lost(InboxError),
    /// The handler failed, or the database refused what it wrote.
    Failed(String),
    /// The message will never be handled.
    Reject(String),
    /// No message can be.
    Fatal(ConsumeError),
}

/// What becomes of a message.
enum Verdict {
    Handled,
    Duplicate,
    Return(Duration),
    DeadLetter(String),
    Fatal(ConsumeError),
}

impl Verdict {
    /// In a word, and whether that is well.
    fn told(&self) -> (&'static str, bool) {
        match self {
            Self::Handled => ("handled", true),
            Self::Duplicate => ("duplicate", true),
            Self::Return(_) => ("returned", false),
            Self::DeadLetter(_) => ("dead_letter", false),
            Self::Fatal(_) => ("failed", false),
        }
    }
}

impl<S: Source, D: Database> Consumer<S, D> {
    /// A consumer with the default [`Policy`].
    pub fn new(inbox: Inbox, scope: Scope, source: S, database: D) -> Self {
        Self {
            inbox,
            scope,
            source,
            database,
            policy: Policy::default(),
            summary: Summary::default(),
            failed: HashMap::new(),
            attempts: None,
        }
    }

    /// The same with attempts counted in a table of the database, for brokers that do not count deliveries. It costs a
    /// transaction for each failure, and for each message that may have been delivered before.
    #[must_use]
    pub fn attempts(mut self, attempts: Attempts) -> Self {
        self.attempts = Some(attempts);
        self
    }

    /// The same with another policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// What has been done so far.
    pub fn summary(&self) -> Summary {
        self.summary
    }

    /// Consumes until `stop` is ready: a cancellation token's `cancelled()`, a signal.
    ///
    /// A message that is being handled then is handled to its end, committed and acknowledged; what was received in
    /// advance goes back to the broker. Dropping the future instead is like a crash: safe, and the broker waits for its
    /// own timeout.
    ///
    /// In `tokio::spawn` the handler is an `async fn` or an `async move` closure that owns what it uses: of one that
    /// borrows, the compiler cannot show that its future is `Send` (rust-lang/rust#100013). With SQLite the future is not
    /// `Send`, and blocks: give it a thread of its own.
    pub async fn run<H, E>(&mut self, stop: impl Future<Output = ()>, mut handler: H) -> Result<Summary, ConsumeError>
    where
        H: for<'a, 't, 'm> AsyncFnMut(&'a mut D::Tx<'t>, &'m Message) -> Result<(), E>,
        E: Into<HandlerError>,
    {
        let mut stop = Stop { asked: pin!(stop), seen: false };
        let mut troubles = 0;
        let ended = loop {
            let received = tokio::select! {
                biased;
                () = &mut stop => break Ok(()),
                received = self.source.next() => received,
            };
            match received {
                Ok((message, token)) => {
                    troubles = 0;
                    if let Err(error) = self.settle(&message, token, &mut handler, &mut stop).await {
                        break Err(error);
                    }
                }
                Err(error) => {
                    let pause = self.policy.pause_before(troubles);
                    tracing::warn!(%error, ?pause, "the broker did not deliver; trying again");
                    troubles += 1;
                    tokio::select! { () = &mut stop => break Ok(()), () = sleep(pause) => {} }
                }
            }
        };
        if let Err(error) = self.source.close().await {
            tracing::warn!(%error, "the source was not closed in good order; its messages come again");
        }
        ended.map(|()| self.summary)
    }

    /// Handles one message and tells the broker.
    async fn settle<H, E>(
        &mut self,
        message: &Message,
        token: S::Token,
        handler: &mut H,
        stop: &mut Stop<'_, impl Future<Output = ()>>,
    ) -> Result<(), ConsumeError>
    where
        H: for<'a, 't, 'm> AsyncFnMut(&'a mut D::Tx<'t>, &'m Message) -> Result<(), E>,
        E: Into<HandlerError>,
    {
        let mut counted = None;
        let handling = Handling::of(&self.scope, message);
        let verdict = handling.around(self.judge(message, handler, stop, &mut counted)).await;
        let (outcome, well) = verdict.told();
        handling.end(outcome, well);
        let id = message.id.as_deref().unwrap_or_default();
        let ends = matches!(verdict, Verdict::Handled | Verdict::Duplicate | Verdict::DeadLetter(_));
        let mut fatal = None;
        let told = match verdict {
            Verdict::Handled | Verdict::Duplicate => {
                let count = if matches!(verdict, Verdict::Handled) {
                    &mut self.summary.handled
                } else {
                    &mut self.summary.duplicates
                };
                *count += 1;
                self.source.ack(token).await
            }
            Verdict::DeadLetter(reason) => {
                tracing::warn!(id, reason, channel = message.channel, "the message becomes a dead letter");
                let told = self.source.dead_letter(token, message, &reason).await;
                if told.is_ok() {
                    self.summary.dead_letters += 1;
                }
                told
            }
            Verdict::Return(delay) => {
                self.summary.returned += 1;
                // A source may have to wait out the delay itself.
                tokio::select! { () = stop => Ok(()), told = self.source.nack(token, delay) => told }
            }
            Verdict::Fatal(error) => {
                fatal = Some(error);
                self.source.nack(token, Duration::ZERO).await
            }
        };
        if ends && told.is_ok() && (self.failed.remove(id).is_some() || counted.is_some()) {
            self.forget(id).await;
        }
        if let Err(error) = told {
            tracing::warn!(id, %error, "the broker was not told about the message; it comes again");
        }
        fatal.map_or(Ok(()), Err)
    }

    /// Runs the message's transaction until there is a verdict.
    async fn judge<H, E>(
        &mut self,
        message: &Message,
        handler: &mut H,
        stop: &mut Stop<'_, impl Future<Output = ()>>,
        counted: &mut Option<u32>,
    ) -> Verdict
    where
        H: for<'a, 't, 'm> AsyncFnMut(&'a mut D::Tx<'t>, &'m Message) -> Result<(), E>,
        E: Into<HandlerError>,
    {
        let id = match message.id.as_deref().map(MessageId::new) {
            Some(Ok(id)) => id,
            Some(Err(error)) => return Verdict::DeadLetter(error.to_string()),
            None => return Verdict::DeadLetter("the message has no id".into()),
        };
        let (mut retries, mut losses) = (0, 0);
        loop {
            let pause = match self.counted_attempt(&id, message, counted, handler).await {
                Ok(Claim::First) => return Verdict::Handled,
                Ok(Claim::Duplicate) => return Verdict::Duplicate,
                Err(Trouble::Reject(reason)) => return Verdict::DeadLetter(reason),
                Err(Trouble::Fatal(error)) => return Verdict::Fatal(error),
                Err(Trouble::Failed(reason)) => return self.failed(&id, message, reason, counted).await,
                Err(Trouble::Retry(error)) if retries >= self.policy.retries_max => {
                    return self.failed(&id, message, error.to_string(), counted).await;
                }
                Err(Trouble::Retry(error)) => {
                    tracing::debug!(%id, %error, "the transaction is run again");
                    retries += 1;
                    self.policy.pause_before(retries - 1)
                }
                Err(Trouble::Lost(error)) => {
                    self.database.disconnect();
                    losses += 1;
                    let pause = self.policy.pause_before(losses - 1);
                    tracing::warn!(%id, %error, ?pause, "the database is out of reach; connecting anew");
                    pause
                }
            };
            self.summary.retries += 1;
            tokio::select! {
                () = &mut *stop => return Verdict::Return(Duration::ZERO),
                () = sleep(pause) => {}
            }
        }
    }

    /// The verdict about a message whose handler failed.
    async fn failed(
        &mut self,
        id: &MessageId,
        message: &Message,
        reason: String,
        counted: &mut Option<u32>,
    ) -> Verdict {
        if counted.is_none() {
            *counted = self.count(id).await.unwrap_or_else(|_| {
                tracing::warn!(%id, "the attempt could not be counted in the database");
                None
            });
        }
        if self.failed.len() >= FAILED_MAX && !self.failed.contains_key(id.as_str()) {
            self.failed.clear();
        }
        let count = self.failed.entry(id.as_str().to_owned()).or_default();
        *count = count.saturating_add(1).max(message.attempt).max(counted.unwrap_or_default());
        if *count >= self.policy.attempts_max {
            return Verdict::DeadLetter(reason);
        }
        let delay = self.policy.delay_after(*count);
        tracing::warn!(%id, attempt = *count, ?delay, reason, "the message failed and comes again");
        Verdict::Return(delay)
    }

    /// An attempt that is counted before it begins when its broker does not count and it may not be the first.
    async fn counted_attempt<H, E>(
        &mut self,
        id: &MessageId,
        message: &Message,
        counted: &mut Option<u32>,
        handler: &mut H,
    ) -> Result<Claim, Trouble>
    where
        H: for<'a, 't, 'm> AsyncFnMut(&'a mut D::Tx<'t>, &'m Message) -> Result<(), E>,
        E: Into<HandlerError>,
    {
        if message.suspect && counted.is_none() {
            *counted = self.count(id).await?;
        }
        let number = message.attempt.max(counted.unwrap_or_default());
        self.attempt(id, message, number, handler).await
    }

    /// Counts an attempt in the database, if it has a table for that.
    async fn count(&mut self, id: &MessageId) -> Result<Option<u32>, Trouble> {
        let Some(attempts) = &self.attempts else { return Ok(None) };
        self.database.connect().await.map_err(connect_trouble)?;
        let mut tx = self.database.begin().await.map_err(own_trouble)?;
        let count = D::count(&mut tx, attempts, &self.scope, id).await.map_err(own_trouble)?;
        D::commit(tx).await.map_err(own_trouble)?;
        Ok(Some(count))
    }

    /// Forgets the attempts at a message that is done with. What cannot be forgotten now expires.
    async fn forget(&mut self, id: &str) {
        let (Some(attempts), Ok(id)) = (&self.attempts, MessageId::new(id)) else { return };
        let forgotten = async {
            let mut tx = self.database.begin().await?;
            D::forget(&mut tx, attempts, &self.scope, &id).await?;
            D::commit(tx).await
        };
        if let Err(error) = forgotten.await {
            tracing::debug!(%id, %error, "the attempts stay in the table until they expire");
        }
    }

    /// One transaction: begin, claim, handle, commit.
    async fn attempt<H, E>(
        &mut self,
        id: &MessageId,
        message: &Message,
        number: u32,
        handler: &mut H,
    ) -> Result<Claim, Trouble>
    where
        H: for<'a, 't, 'm> AsyncFnMut(&'a mut D::Tx<'t>, &'m Message) -> Result<(), E>,
        E: Into<HandlerError>,
    {
        self.database.connect().await.map_err(connect_trouble)?;
        let claims = self.database.claims(&self.inbox).await.map_err(own_trouble)?;
        let mut tx = self.database.begin().await.map_err(own_trouble)?;
        if D::claim(&mut tx, &claims, &self.inbox, &self.scope, id).await.map_err(own_trouble)? == Claim::Duplicate {
            // The marker is another transaction's, committed: what becomes of this one does not matter.
            let _ = D::rollback(tx).await;
            return Ok(Claim::Duplicate);
        }
        if number > self.policy.attempts_max {
            let _ = D::rollback(tx).await;
            return Err(Trouble::Reject(format!("this is delivery {number}, and no attempt came to an end")));
        }
        match handler(&mut tx, message).await {
            Ok(()) => D::commit(tx).await.map_err(commit_trouble)?,
            Err(error) => {
                // An error here says that the connection is gone; the next begin will find out.
                let _ = D::rollback(tx).await;
                return Err(handler_trouble(error.into()));
            }
        }
        Ok(Claim::First)
    }
}

/// An error of the loop's own statements: no fault of the message.
fn own_trouble(error: InboxError) -> Trouble {
    match error {
        error if error.is_disconnected() => Trouble::Lost(error),
        error if error.is_retryable() => Trouble::Retry(error),
        error => Trouble::Fatal(ConsumeError::Claim(error)),
    }
}

/// A deferred constraint fails in the commit: that is a fault of what the handler wrote.
fn commit_trouble(error: InboxError) -> Trouble {
    match own_trouble(error) {
        Trouble::Fatal(error) => Trouble::Failed(error.to_string()),
        other => other,
    }
}

fn handler_trouble(error: HandlerError) -> Trouble {
    match error {
        HandlerError::Database(error) => commit_trouble(error),
        HandlerError::Failed(error) => Trouble::Failed(error.to_string()),
        HandlerError::Reject(error) => Trouble::Reject(error.to_string()),
    }
}

/// A server that is down or starting comes back; one that lets nobody in needs its operator.
fn connect_trouble(error: InboxError) -> Trouble {
    /// PostgreSQL's and MySQL's SQLSTATE classes: invalid authorization, unknown database.
    const REFUSED: [&str; 3] = ["28", "3D", "42"];
    let refused = error.sqlstate().is_some_and(|state| REFUSED.iter().any(|class| state.starts_with(class)));
    if refused { Trouble::Fatal(ConsumeError::Connect(error)) } else { Trouble::Lost(error) }
}
