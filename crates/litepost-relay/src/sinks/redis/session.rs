//! A connection that has claimed its lane: what the server remembers, compared with the log and with what it has
//! confirmed before.
//!
//! Called by the factory. Invariant: a session exists only for a server whose memory fits ours, unless the configuration
//! says that it may be less; everything else is an error that says what is gone and what can be done.

use std::collections::{BTreeSet, HashMap};

use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{Event, FormerLanes, Seq, Unavailable, UnavailableKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value, cmd};

use super::{OnLoss, Settings};
use crate::clock;
use crate::inspect::Finding;
use crate::sink::SinkContext;

/// Beginning of the keys that hold positions.
pub(super) const STATE: &str = "litepost:";
/// An event added out of order is forgotten when it is settled and this old: its settlement in the outbox file takes a
/// moment, and the server cannot tell whether it is through.
const REMEMBER_MS: i64 = 86_400_000;
/// Largest value that a server takes unless it is configured otherwise, bytes.
const BULK_BYTES: usize = 512 << 20;

const OPEN: &str = include_str!("open.lua");
const DELIVER: &str = include_str!("deliver.lua");
const FORMER: &str = include_str!("former.lua");

/// What lanes of earlier splits have added.
#[derive(Default)]
pub(super) struct Former {
    pub(super) lanes: Vec<FormerLanes>,
    pub(super) alone: BTreeSet<Seq>,
}

impl Former {
    /// Whether one of them has added the event.
    pub(super) fn added(&self, event: &Event, order: DeliveryOrder) -> bool {
        let in_order = order == DeliveryOrder::InOrder && self.lanes.iter().any(|lanes| lanes.covers(event));
        in_order || self.alone.contains(&event.seq)
    }
}

/// What a sink works with.
pub(super) struct Session {
    pub(super) connection: MultiplexedConnection,
    /// Key of the lane's state.
    pub(super) state: String,
    /// Hash of the script that delivers, which the server has loaded.
    pub(super) script: String,
    /// The last position added in order.
    pub(super) reached: i64,
    /// Added out of order by this lane.
    pub(super) alone: BTreeSet<Seq>,
    /// What lanes of earlier splits have added.
    pub(super) former: Former,
    /// Largest value that the server takes, bytes.
    pub(super) bulk_bytes: usize,
}

async fn connect(settings: &Settings) -> Result<MultiplexedConnection, Unavailable> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(settings.connect_timeout))
        .set_response_timeout(Some(settings.timeout));
    let connecting = settings.client.expose().get_multiplexed_async_connection_with_config(&config).await;
    connecting.map_err(|e| unavailable(&settings.shown, &e))
}

/// Looks at the server's settings and writes nothing.
pub(super) async fn look(settings: &Settings) -> Result<Vec<Finding>, Unavailable> {
    let mut connection = connect(settings).await?;
    cmd("PING").query_async::<String>(&mut connection).await.map_err(|e| unavailable(&settings.shown, &e))?;
    let mut found = Vec::new();
    let shown = &settings.shown;
    if setting(&mut connection, "appendonly").await.as_deref() == Some("no") {
        let message =
            format!("{shown} runs with appendonly no: a restart loses what it has confirmed since its last snapshot");
        found.push(Finding::weaker(message, "set appendonly yes, and appendfsync always for no loss at all"));
    } else if let Some(when) = setting(&mut connection, "appendfsync").await.filter(|when| when != "always") {
        let message = format!("{shown} runs with appendfsync {when}: a power cut may undo what it has confirmed last");
        found.push(Finding::weaker(message, "set appendfsync always, or accept it"));
    }
    if let Some(policy) = setting(&mut connection, "maxmemory-policy").await.filter(|p| p.starts_with("allkeys")) {
        let message = format!("{shown} runs with maxmemory-policy {policy}: whole streams may be evicted");
        found.push(Finding::weaker(message, "set maxmemory-policy noeviction"));
    }
    Ok(found)
}

/// A setting of the server, when it tells.
async fn setting(connection: &mut MultiplexedConnection, name: &str) -> Option<String> {
    let answer = cmd("CONFIG").arg("GET").arg(name).query_async::<HashMap<String, String>>(connection).await;
    answer.ok()?.into_values().next()
}

/// Connects and claims the lane.
pub(super) async fn open(settings: &Settings, context: &SinkContext) -> Result<Session, Unavailable> {
    let failed = |e: RedisError| unavailable(&settings.shown, &e);
    let mut connection = connect(settings).await?;
    let script = cmd("SCRIPT").arg("LOAD").arg(DELIVER).query_async(&mut connection).await.map_err(failed)?;
    let state = state_of(context, context.generation, context.lane.index);
    let answer: Vec<String> = cmd("EVAL")
        .arg(OPEN)
        .arg(1)
        .arg(&state)
        .arg(context.token)
        .arg(context.acked)
        .arg(clock::wall().0)
        .arg(REMEMBER_MS)
        .arg(u8::from(context.confirmed > 0 && settings.on_loss == OnLoss::Stop))
        .query_async(&mut connection)
        .await
        .map_err(failed)?;
    let [word, first, rest @ ..] = &answer[..] else { return Err(strange(settings, &answer)) };
    if word == "FENCED" {
        return Err(fenced(context, first));
    }
    if word == "LOST" {
        return Err(lost(settings, context, &state, None));
    }
    let [id, events @ ..] = rest else { return Err(strange(settings, &answer)) };
    let reached: i64 = first.parse().map_err(|_| strange(settings, &answer))?;
    let events: HashMap<i64, &str> =
        events.chunks_exact(2).filter_map(|pair| Some((pair[0].parse().ok()?, pair[1].as_str()))).collect();
    if reached < context.confirmed {
        let trouble = lost(settings, context, &state, Some(reached));
        if settings.on_loss == OnLoss::Stop {
            return Err(trouble);
        }
        tracing::warn!(destination = %context.destination, "going on without what is lost: {}", trouble.message);
    }
    let newest = events.iter().max_by_key(|(seq, _)| **seq).map(|(seq, id)| (*seq, *id));
    let known = (!id.is_empty()).then_some((reached, id.as_str()));
    for (seq, id) in known.into_iter().chain(newest) {
        is_the_log_s(settings, context, seq, id).await?;
    }
    let alone = events.keys().copied().map(Seq).collect();
    let former = former(settings, context, &mut connection).await?;
    let bulk_bytes = bulk_bytes(&mut connection).await;
    Ok(Session { connection, state, script, reached, alone, former, bulk_bytes })
}

/// Key of a lane's state.
fn state_of(context: &SinkContext, generation: i64, lane: u32) -> String {
    format!("{STATE}{}:{}:{}:{generation}:{lane}", context.destination, context.origin, context.epoch)
}

/// Takes the lanes of earlier splits, so that whoever held them adds nothing more, and learns how far they are.
async fn former(
    settings: &Settings,
    context: &SinkContext,
    connection: &mut MultiplexedConnection,
) -> Result<Former, Unavailable> {
    let mut all = Former::default();
    for before in context.former.iter() {
        let mut marks = Vec::with_capacity(before.split.lanes as usize);
        for lane in 0..before.split.lanes {
            let answer: Vec<String> = cmd("EVAL")
                .arg(FORMER)
                .arg(1)
                .arg(state_of(context, before.generation, lane))
                .arg(context.token)
                .arg(context.settled_by_all)
                .arg(clock::wall().0)
                .arg(REMEMBER_MS)
                .query_async(connection)
                .await
                .map_err(|e: RedisError| unavailable(&settings.shown, &e))?;
            let [reached, id, events @ ..] = &answer[..] else { return Err(strange(settings, &answer)) };
            let reached: i64 = reached.parse().map_err(|_| strange(settings, &answer))?;
            if before.counts && reached > context.acked && !id.is_empty() {
                is_the_log_s(settings, context, reached, id).await?;
            }
            marks.push(Seq(reached));
            if before.counts {
                all.alone.extend(events.chunks_exact(2).filter_map(|pair| pair[0].parse().ok().map(Seq)));
            }
        }
        if before.counts {
            all.lanes.push(FormerLanes::new(before.split.clone(), marks));
        }
    }
    Ok(all)
}

/// A server that remembers less than it has confirmed has lost events: a failover to a replica that was behind, a
/// restored snapshot, a flush.
fn lost(settings: &Settings, context: &SinkContext, state: &str, remembered: Option<i64>) -> Unavailable {
    let remembers = remembered.map_or("no position at all".into(), |reached| format!("position {reached}"));
    Unavailable::new(
        UnavailableKind::Denied,
        format!(
            "{}: the server has lost data: it has confirmed events up to position {} and now remembers {remembers} ({state}). \
             A failover, a restored snapshot or a flush does that, and so does another server in its place. Bring its data \
             back, or set on_loss = \"continue\" to go on behind what was confirmed",
            settings.shown, context.confirmed
        ),
    )
}

/// What the server remembers must stand in the log as it was added.
async fn is_the_log_s(settings: &Settings, context: &SinkContext, seq: i64, id: &str) -> Result<(), Unavailable> {
    if !context.log.is_available() {
        return Ok(());
    }
    let found = match context.log.event(Seq(seq)).await {
        Ok(Some(event)) if *event.id == *id => return Ok(()),
        // What is settled may be pruned.
        Ok(None) if seq <= context.acked => return Ok(()),
        Ok(Some(_)) => "the log holds another event there",
        Ok(None) => "the log does not reach that far",
        Err(e) => return Err(Unavailable::new(UnavailableKind::Server, format!("the log cannot be read: {e}"))),
    };
    Err(Unavailable::new(
        UnavailableKind::Denied,
        format!(
            "{}: the server says that position {seq} of this outbox (origin {}, epoch {}) was added, but {found}: the \
             outbox file was restored from a backup or copied. Nothing is added and nothing skipped. Either bring the right \
             file back, or adopt this one as a new incarnation (its epoch grows and it is delivered from its cursor on)",
            settings.shown, context.origin, context.epoch
        ),
    ))
}

/// Servers that do not tell have the default, as a rule.
async fn bulk_bytes(connection: &mut MultiplexedConnection) -> usize {
    let mut ask = cmd("CONFIG");
    ask.arg("GET").arg("proto-max-bulk-len");
    let answer = ask.query_async::<HashMap<String, usize>>(connection).await;
    answer.ok().and_then(|found| found.into_values().next()).unwrap_or(BULK_BYTES)
}

/// Behind what was added: waits for the replicas, when that is wanted.
pub(super) fn push_wait(settings: &Settings, pipeline: &mut Pipeline) {
    if settings.replicas > 0 {
        // Half the time for an answer: that this one takes too long must still be said.
        pipeline.cmd("WAIT").arg(settings.replicas).arg((settings.timeout / 2).as_millis().to_string());
    }
}

/// Takes the answer to [`push_wait`] off the replies.
pub(super) fn take_wait(settings: &Settings, replies: &mut Vec<Value>) -> Result<(), Unavailable> {
    let Settings { replicas, shown, .. } = settings;
    if *replicas == 0 {
        return Ok(());
    }
    let have = match replies.pop() {
        Some(Value::Int(have)) if have >= i64::from(*replicas) => return Ok(()),
        Some(Value::Int(have)) => have.to_string(),
        other => format!("an unknown number ({other:.80?})"),
    };
    let message = format!("{shown}: {have} of {replicas} replicas have the batch; it is sent again");
    Err(Unavailable::new(UnavailableKind::Server, message))
}

/// Another relay holds the lane.
pub(super) fn fenced(context: &SinkContext, token: &str) -> Unavailable {
    let (lane, ours) = (context.lane.index, context.token);
    let message = format!("another relay has taken over lane {lane} (its token is {token}, ours {ours})");
    Unavailable::new(UnavailableKind::Fenced, message)
}

fn strange(settings: &Settings, answer: &[String]) -> Unavailable {
    let message = format!("{}: the lane's state is not as litepost has left it: {answer:.80?}", settings.shown);
    Unavailable::new(UnavailableKind::Server, message)
}

/// Why the server cannot be used.
pub(super) fn unavailable(shown: &str, error: &RedisError) -> Unavailable {
    let kind = match error.kind() {
        _ if error.is_timeout() => UnavailableKind::Timeout,
        ErrorKind::AuthenticationFailed | ErrorKind::Server(ServerErrorKind::NoPerm) => UnavailableKind::Denied,
        ErrorKind::Io => UnavailableKind::Connect,
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::ReadOnly
            | ServerErrorKind::MasterDown
            | ServerErrorKind::NoScript,
        ) => UnavailableKind::Busy,
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => UnavailableKind::Denied,
        _ if error.is_connection_dropped() => UnavailableKind::Connect,
        _ => UnavailableKind::Server,
    };
    Unavailable::new(kind, format!("{shown}: {error}"))
}
