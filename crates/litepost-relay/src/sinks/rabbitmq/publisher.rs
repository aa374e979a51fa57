//! Publishes windows of a batch on one channel and sorts what comes back: confirms, returned messages, closed channels.
//!
//! Made by the factory, driven by the relay. Invariants: an event is delivered only when the broker has confirmed it
//! and has not returned it; a channel that the broker closes costs only the event that it closed it for.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{Channel, Confirmation, ErrorKind};
use litepost_core::{Ordering, Outcome, Rejection, Unavailable, UnavailableKind};

use super::outgoing::{Outgoing, outgoing};
use super::{HEADERS, Settings, Unroutable};
use crate::sink::{Batch, Sink, SinkContext};
use crate::sinks::message::Mapping;
use crate::sinks::windows::Windows;

/// Most events of one window: what the broker and the client hold unconfirmed.
const WINDOW_MAX: usize = 1_000;

/// A connection and its channel in confirm mode.
pub(super) struct Publisher {
    settings: Arc<Settings>,
    connection: lapin::Connection,
    channel: Channel,
    mapping: Mapping,
    ordering: Ordering,
}

/// Why a window did not get all its answers.
enum Broken {
    /// The broker has closed the channel for one of the window's events; the connection lives.
    Channel(lapin::Error),
    /// The connection is gone.
    Connection(Unavailable),
}

/// A message that came back: the broker's code and text.
type Returned = (u16, String);

impl Publisher {
    pub(super) async fn open(
        settings: Arc<Settings>,
        connection: lapin::Connection,
        context: &SinkContext,
    ) -> Result<Self, Unavailable> {
        let channel = channel(&connection).await.map_err(|e| settings.unavailable(&e))?;
        let mapping = Mapping {
            body: settings.body,
            origin: Arc::clone(&context.origin),
            headers: settings.headers.clone(),
            rules: &HEADERS,
            compression: settings.compression,
        };
        Ok(Self { settings, connection, channel, mapping, ordering: context.ordering })
    }

    async fn all(&mut self, batch: &Batch) -> Vec<Outcome> {
        let mut lines = Windows::new(&batch.events, self.ordering, self.settings.per_key_in_flight);
        // Exchanges that turned out to be missing, with what the broker said.
        let mut missing: HashMap<String, Rejection> = HashMap::new();
        let mut one_by_one = false;
        loop {
            let window = lines.window(if one_by_one { 1 } else { WINDOW_MAX });
            if window.is_empty() {
                return lines.outcomes();
            }
            let sent = self.prepare(batch, &window, &missing, &mut lines);
            match self.publish(&sent, &mut lines).await {
                Ok(()) => {}
                Err(Broken::Connection(trouble)) => {
                    for (at, _) in sent.iter().filter(|(at, _)| !lines.is_settled(*at)).collect::<Vec<_>>() {
                        lines.settle(*at, Outcome::Unavailable(trouble.clone()));
                    }
                    return lines.outcomes();
                }
                Err(Broken::Channel(error)) => {
                    // Which event it was is only certain when there was no other.
                    if let [(at, message)] = sent.as_slice() {
                        let outcome = self.closed_for(&error);
                        if let (404, Outcome::Rejected(rejection)) = (code(&error), &outcome) {
                            missing.insert(message.exchange.to_string(), rejection.clone());
                        }
                        lines.settle(*at, outcome);
                    }
                    one_by_one = sent.len() > 1;
                    match channel(&self.connection).await {
                        Ok(channel) => self.channel = channel,
                        Err(error) => {
                            let trouble = Outcome::Unavailable(self.settings.unavailable(&error));
                            lines.window(1).into_iter().for_each(|at| lines.settle(at, trouble.clone()));
                            return lines.outcomes();
                        }
                    }
                }
            }
        }
    }

    /// The messages of a window; events that cannot be messages have their outcome at once.
    fn prepare(
        &self,
        batch: &Batch,
        window: &[usize],
        missing: &HashMap<String, Rejection>,
        lines: &mut Windows,
    ) -> Vec<(usize, Outgoing)> {
        let mut sent = Vec::with_capacity(window.len());
        for &at in window {
            match outgoing(&self.settings, &self.mapping, &batch.events[at]) {
                Ok(message) => match missing.get(message.exchange.as_str()) {
                    Some(rejection) => lines.settle(at, Outcome::Rejected(rejection.clone())),
                    None => sent.push((at, message)),
                },
                Err(rejection) => lines.settle(at, Outcome::Rejected(rejection)),
            }
        }
        sent
    }

    /// Publishes and waits for every answer.
    async fn publish(&self, sent: &[(usize, Outgoing)], lines: &mut Windows) -> Result<(), Broken> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        // Each is queued when it is first polled, in this order; together they are written without a pause.
        let published = join_all(sent.iter().map(|(_, m)| {
            let (exchange, routing_key) = (m.exchange.clone(), m.routing_key.clone());
            self.channel.basic_publish(exchange, routing_key, options, &m.body, m.properties.clone())
        }));
        let confirmed = join_all(published.await.into_iter().map(|published| async move { published?.await })).await;
        let mut returned: HashMap<String, Returned> = HashMap::new();
        let mut confirmations = Vec::with_capacity(confirmed.len());
        let mut failed: Option<lapin::Error> = None;
        for answer in confirmed {
            let (acked, message) = match answer {
                Ok(confirmation) => (Some(confirmation.is_ack()), taken(confirmation)),
                Err(error) => {
                    // The broker's own words are worth more than "the channel is closed".
                    if failed.is_none() || matches!(error.kind(), ErrorKind::ProtocolError(_)) {
                        failed = Some(error);
                    }
                    (None, None)
                }
            };
            returned.extend(message);
            confirmations.push(acked);
        }
        for ((at, message), acked) in sent.iter().zip(confirmations) {
            let id = message.properties.message_id().as_ref().map_or("", |id| id.as_str());
            match (returned.get(id), acked) {
                (Some(returned), _) => lines.settle(*at, self.unroutable(message, returned)),
                (None, Some(true)) => lines.settle(*at, Outcome::Delivered),
                (None, Some(false)) => lines.settle(*at, self.refused(message)),
                (None, None) => {}
            }
        }
        match failed {
            None => Ok(()),
            Some(error) if self.connection.status().connected() => Err(Broken::Channel(error)),
            Some(error) => Err(Broken::Connection(self.settings.unavailable(&error))),
        }
    }

    /// `basic.return`: no queue is bound for it (312), or none can take it.
    fn unroutable(&self, message: &Outgoing, (code, text): &Returned) -> Outcome {
        let text = format!(
            "{}: {text}: no queue takes routing key {:?} of exchange {:?}; bind one",
            self.settings.shown,
            message.routing_key.as_str(),
            message.exchange.as_str()
        );
        Outcome::Rejected(match self.settings.unroutable {
            Unroutable::Hold => Rejection::hold(code.to_string(), text),
            Unroutable::Retry => Rejection::new(code.to_string(), text),
        })
    }

    /// `basic.nack`: a queue is full and refuses, or could not store it. The event is not at fault.
    fn refused(&self, message: &Outgoing) -> Outcome {
        let text = format!(
            "{}: a queue behind exchange {:?}, routing key {:?} did not take the message (full, or out of order itself)",
            self.settings.shown,
            message.exchange.as_str(),
            message.routing_key.as_str()
        );
        Outcome::Unavailable(Unavailable::new(UnavailableKind::Busy, text))
    }

    /// The broker has closed the channel, and this event alone was under way.
    fn closed_for(&self, error: &lapin::Error) -> Outcome {
        let (code, text) = (code(error), self.settings.tell(error));
        match code {
            403 => Outcome::Unavailable(Unavailable::new(UnavailableKind::Denied, text)),
            404 => Outcome::Rejected(Rejection::hold("404", text)),
            406 if text.contains("message size") => Outcome::Rejected(Rejection::never("406", text)),
            0 => Outcome::Unavailable(self.settings.unavailable(error)),
            code => Outcome::Rejected(Rejection::new(code.to_string(), text)),
        }
    }
}

impl Sink for Publisher {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(self.all(batch))
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let _ = self.connection.close(200, "OK".into()).await;
        })
    }
}

/// A new channel in confirm mode.
async fn channel(connection: &lapin::Connection) -> Result<Channel, lapin::Error> {
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    Ok(channel)
}

/// The id of the message that this confirm brought back, and why. The client hands a returned message to whichever
/// confirm it settles next, and an acknowledgement of several settles them in any order: only the id says whose it is.
/// (All of them have come once every confirm of the window has: the broker sends the return before the confirm.)
fn taken(confirmation: Confirmation) -> Option<(String, Returned)> {
    let message = confirmation.take_message()?;
    let id = message.delivery.properties.message_id().as_ref()?.to_string();
    Some((id, (message.reply_code, message.reply_text.to_string())))
}

/// The broker's code; 0 when the error is the client's own.
fn code(error: &lapin::Error) -> u16 {
    match error.kind() {
        ErrorKind::ProtocolError(e) => e.get_id(),
        _ => 0,
    }
}
