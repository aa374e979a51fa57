//! Redis Streams: a consumer of a group, with XREADGROUP and XACK.
//!
//! Called by the loop. Invariant: an entry leaves the group's pending list only by XACK, or together with its dead
//! letter in one transaction. What this consumer left pending before is taken first, then what others have left idle,
//! then what is new.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamClaimReply, StreamId, StreamPendingCountReply, StreamReadReply};
use redis::{AsyncConnectionConfig, Client, FromRedisValue, RedisError, Value, cmd, pipe};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};

use super::failure::SourceError;
use super::message::Message;
use super::source::Source;

/// The longest wait for an answer beyond what the command itself waits.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Where entries come from, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStreamsOptions {
    /// The key of the stream.
    pub stream: String,
    /// The group; it is made, from the stream's beginning, when it is not there.
    pub group: String,
    /// This consumer's name in the group. A process that comes back under its name finds what it left pending.
    pub consumer: String,
    /// The stream that dead letters are added to: the stream's name and `:dead` unless set.
    pub dead_letters: String,
    /// How long an entry of another consumer must have been idle before it is taken over. One minute unless set; it
    /// must be longer than the longest handler takes.
    pub idle: Duration,
    /// How many entries are received in advance; 16 unless set.
    pub prefetch: usize,
}

impl RedisStreamsOptions {
    /// The options with their defaults.
    pub fn new(stream: impl Into<String>, group: impl Into<String>, consumer: impl Into<String>) -> Self {
        let stream = stream.into();
        Self {
            dead_letters: format!("{stream}:dead"),
            stream,
            group: group.into(),
            consumer: consumer.into(),
            idle: Duration::from_secs(60),
            prefetch: 16,
        }
    }
}

/// A consumer group of a stream as a source.
pub struct RedisStreams {
    client: Client,
    options: RedisStreamsOptions,
    connection: Option<MultiplexedConnection>,
    /// Entries to hand out; with each, whether it is new (an old one's deliveries must be asked for).
    ready: VecDeque<(StreamId, bool)>,
    /// Entries that were returned, and when they are due.
    delayed: Vec<(Instant, String)>,
    /// When to look for idle entries next.
    look: Option<Instant>,
}

impl std::fmt::Debug for RedisStreams {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The client knows the password.
        out.debug_struct("RedisStreams").field("options", &self.options).finish_non_exhaustive()
    }
}

impl RedisStreams {
    /// A source with a connection of its own.
    pub fn new(client: Client, options: RedisStreamsOptions) -> Self {
        Self { client, options, connection: None, ready: VecDeque::new(), delayed: Vec::new(), look: None }
    }

    /// Runs a command on the connection; an error of the connection makes the next call connect anew.
    async fn ask<T: FromRedisValue>(&mut self, doing: &'static str, command: &redis::Cmd) -> Result<T, SourceError> {
        self.ask_for(doing, command, Duration::ZERO).await
    }

    /// The same for a command that itself waits.
    async fn ask_for<T: FromRedisValue>(
        &mut self,
        doing: &'static str,
        command: &redis::Cmd,
        waits: Duration,
    ) -> Result<T, SourceError> {
        let Some(connection) = &mut self.connection else { return Err(SourceError::new(doing, "not connected")) };
        let answered = timeout(waits + ANSWER_MAX, command.query_async(connection)).await;
        self.answered(doing, answered)
    }

    /// An answer, or why there is none: then the connection may be gone.
    fn answered<T>(
        &mut self,
        doing: &'static str,
        answered: Result<Result<T, RedisError>, Elapsed>,
    ) -> Result<T, SourceError> {
        match answered {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => {
                if is_lost(&error) {
                    self.connection = None;
                }
                Err(SourceError::new(doing, error))
            }
            Err(_) => {
                self.connection = None;
                Err(SourceError::new(doing, "no answer"))
            }
        }
    }

    /// Old entries, those excepted that wait for their delay.
    fn keep(&mut self, entries: Vec<StreamId>) {
        let delayed = &self.delayed;
        let entries = entries.into_iter().filter(|entry| !delayed.iter().any(|(_, id)| *id == entry.id));
        self.ready.extend(entries.map(|entry| (entry, false)));
    }

    async fn connect(&mut self) -> Result<(), SourceError> {
        if self.connection.is_some() {
            return Ok(());
        }
        let failed = |e| SourceError::new("connecting to Redis", e);
        // A read may block for as long as `idle`; the commands bring their own limit.
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(Some(ANSWER_MAX));
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
        self.connection = Some(connection);
        let mut create = cmd("XGROUP");
        create.arg("CREATE").arg(&self.options.stream).arg(&self.options.group).arg("0").arg("MKSTREAM");
        let doing = "making the group in Redis";
        let connection = self.connection.as_mut().ok_or_else(|| SourceError::new(doing, "not connected"))?;
        match timeout(ANSWER_MAX, create.query_async::<()>(connection)).await {
            Ok(Err(error)) if error.code() == Some("BUSYGROUP") => {}
            made => self.answered(doing, made).inspect_err(|_| self.connection = None)?,
        }
        self.ready.clear();
        self.look = None;
        // Everything that is pending for this name, in order. What waits for its delay stays where it is.
        let mut after = "0".to_owned();
        loop {
            let entries = self.read(&after, Duration::ZERO).await?;
            let Some(last) = entries.last() else { return Ok(()) };
            after.clone_from(&last.id);
            self.keep(entries);
        }
    }

    /// Reads entries after `after` (`>`: new ones), waiting up to `wait` for them.
    async fn read(&mut self, after: &str, wait: Duration) -> Result<Vec<StreamId>, SourceError> {
        let mut command = cmd("XREADGROUP");
        command.arg("GROUP").arg(&self.options.group).arg(&self.options.consumer);
        command.arg("COUNT").arg(self.options.prefetch.max(1));
        if !wait.is_zero() {
            command.arg("BLOCK").arg(millis(wait));
        }
        command.arg("STREAMS").arg(&self.options.stream).arg(after);
        let reply: Option<StreamReadReply> = self.ask_for("reading from Redis", &command, wait).await?;
        Ok(reply.into_iter().flat_map(|reply| reply.keys).flat_map(|key| key.ids).collect())
    }

    /// Takes over what other consumers have left.
    async fn take_idle(&mut self) -> Result<(), SourceError> {
        let mut start = "0-0".to_owned();
        loop {
            let mut command = cmd("XAUTOCLAIM");
            command.arg(&self.options.stream).arg(&self.options.group).arg(&self.options.consumer);
            command.arg(millis(self.options.idle)).arg(&start).arg("COUNT").arg(100);
            let reply: StreamAutoClaimReply = self.ask("taking over idle entries in Redis", &command).await?;
            self.keep(reply.claimed);
            if reply.next_stream_id == "0-0" {
                return Ok(());
            }
            start = reply.next_stream_id;
        }
    }

    /// Takes a returned entry again that is due: for Redis a new delivery.
    async fn take_due(&mut self) -> Result<(), SourceError> {
        let now = Instant::now();
        let Some(at) = self.delayed.iter().position(|(due, _)| *due <= now) else { return Ok(()) };
        let mut command = cmd("XCLAIM");
        command.arg(&self.options.stream).arg(&self.options.group).arg(&self.options.consumer);
        command.arg(0).arg(&self.delayed[at].1);
        let reply: StreamClaimReply = self.ask("taking an entry again in Redis", &command).await?;
        self.delayed.swap_remove(at);
        self.ready.extend(reply.ids.into_iter().map(|entry| (entry, false)));
        Ok(())
    }

    /// How often an entry was delivered. New ones need no question.
    async fn deliveries(&mut self, entry: &StreamId) -> Result<u32, SourceError> {
        let mut command = cmd("XPENDING");
        command.arg(&self.options.stream).arg(&self.options.group).arg(&entry.id).arg(&entry.id).arg(1);
        let reply: StreamPendingCountReply = self.ask("counting deliveries in Redis", &command).await?;
        Ok(reply.ids.first().map_or(1, |pending| u32::try_from(pending.times_delivered).unwrap_or(u32::MAX)))
    }

    /// How long a read may block: until the next entry is due, or it is time to look for idle ones.
    fn wait(&self) -> Duration {
        let now = Instant::now();
        let due = self.delayed.iter().map(|(due, _)| *due).chain(self.look).min();
        due.map_or(self.options.idle, |due| due.saturating_duration_since(now)).max(Duration::from_millis(1))
    }

    fn message(&self, entry: &StreamId, attempt: u32) -> Message {
        let mut fields: HashMap<&String, Vec<u8>> =
            entry.map.iter().map(|(name, value)| (name, bytes(value))).collect();
        let payload = fields.remove(&"payload".to_owned()).unwrap_or_default();
        let headers = fields.into_iter().map(|(name, value)| (name.clone(), value)).collect();
        let channel = self.options.stream.clone();
        Message { channel, payload: payload.into(), headers, attempt, ..Message::default() }.identified()
    }
}

fn bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::BulkString(bytes) => bytes.clone(),
        Value::SimpleString(text) => text.clone().into_bytes(),
        _ => Vec::new(),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn is_lost(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_io_error() || error.is_timeout()
}

impl Source for RedisStreams {
    type Token = StreamId;

    async fn next(&mut self) -> Result<(Message, StreamId), SourceError> {
        loop {
            self.connect().await?;
            self.take_due().await?;
            if self.look.is_none_or(|look| look <= Instant::now()) {
                self.look = Some(Instant::now() + self.options.idle);
                self.take_idle().await?;
            }
            if self.ready.is_empty() {
                let wait = self.wait();
                let entries = self.read(">", wait).await?;
                self.ready.extend(entries.into_iter().map(|entry| (entry, true)));
            }
            if let Some((entry, new)) = self.ready.front().cloned() {
                // The entry stays in front until the question is answered: this future may be dropped meanwhile.
                let attempt = if new { 1 } else { self.deliveries(&entry).await? };
                self.ready.pop_front();
                return Ok((self.message(&entry, attempt), entry));
            }
        }
    }

    async fn ack(&mut self, token: StreamId) -> Result<(), SourceError> {
        self.connect().await?;
        let mut command = cmd("XACK");
        command.arg(&self.options.stream).arg(&self.options.group).arg(&token.id);
        self.ask("acknowledging to Redis", &command).await
    }

    async fn nack(&mut self, token: StreamId, delay: Duration) -> Result<(), SourceError> {
        self.delayed.push((Instant::now() + delay, token.id));
        Ok(())
    }

    async fn dead_letter(&mut self, token: StreamId, message: &Message, reason: &str) -> Result<(), SourceError> {
        self.connect().await?;
        let (stream, group) = (self.options.stream.clone(), self.options.group.clone());
        let mut add = cmd("XADD");
        add.arg(&self.options.dead_letters).arg("*").arg("payload").arg(&message.payload[..]);
        for (name, value) in &message.headers {
            add.arg(name).arg(value);
        }
        add.arg("litepost-dead-letter-reason").arg(reason).arg("litepost-dead-letter-entry").arg(&token.id);
        let mut both = pipe();
        both.atomic().add_command(add).ignore().xack(stream, group, &[token.id]).ignore();
        let doing = "adding a dead letter in Redis";
        let connection = self.connection.as_mut().ok_or_else(|| SourceError::new(doing, "not connected"))?;
        let answered = timeout(ANSWER_MAX, both.query_async::<()>(connection)).await;
        self.answered(doing, answered)
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        // What was read and not handled stays pending under this consumer's name, or is taken over when it has idled.
        self.connection = None;
        self.ready.clear();
        Ok(())
    }
}
