//! MQTT 3.1.1: a connection, and publishing a batch over it.
//!
//! Called by the factory for `version = "3.1.1"`. Invariant: as with 5, a connection that breaks stays broken, and delivered
//! is what the broker has acknowledged. There are no reasons here: a broker that does not want a message may acknowledge it
//! all the same or end the connection (MQTT 3.1.1, 3.3.5), and nobody can tell the difference from outside.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use litepost_core::{Event, Ordering, Outcome, Rejection, Unavailable, UnavailableKind};
use rumqttc_v4::{
    AsyncClient, ConnectReturnCode, ConnectionError, Event as Incoming, EventLoop, MqttOptions, Packet, PublishNotice,
    PublishOptions, PublishResult, QoS, SessionMode, StateError, TlsConfiguration, Transport,
};
use secrecy::ExposeSecret as _;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::connection::{client_id, shown, tls};
use super::publish::{CAUSE_MAX, GOODBYE_MAX};
use super::{PACKET_MAX, Settings};
use crate::sink::{Batch, Sink, SinkContext};
use crate::sinks::lines::side_by_side;
use crate::sinks::message::Mapping;

/// One connection.
pub(super) struct Mqtt3Sink {
    settings: Arc<Settings>,
    client: AsyncClient,
    trouble: watch::Receiver<Option<Unavailable>>,
    driver: AbortOnDropHandle<()>,
    mapping: Mapping,
    ordering: Ordering,
}

/// Connects and waits for the broker's CONNACK.
pub(super) async fn connect(
    settings: Arc<Settings>,
    mapping: Mapping,
    context: &SinkContext,
) -> Result<Mqtt3Sink, Unavailable> {
    let options = options(&settings, context)?;
    let (client, mut events) = AsyncClient::builder(options).capacity(settings.width.window).build();
    match tokio::time::timeout(settings.connect_timeout, greeting(&mut events)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(unavailable(&shown(&settings), &error)),
        Err(_) => {
            let message = format!("{}: no CONNACK within {:?}", shown(&settings), settings.connect_timeout);
            return Err(Unavailable::new(UnavailableKind::Timeout, message));
        }
    }
    let (sender, trouble) = watch::channel(None);
    let shown = shown(&settings);
    let driver = AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            if let Err(error) = events.poll().await {
                sender.send_replace(Some(unavailable(&shown, &error)));
                return;
            }
        }
    }));
    Ok(Mqtt3Sink { settings, client, trouble, driver, mapping, ordering: context.ordering })
}

async fn greeting(events: &mut EventLoop) -> Result<(), ConnectionError> {
    loop {
        if let Incoming::Incoming(Packet::ConnAck(_)) = events.poll().await? {
            return Ok(());
        }
    }
}

fn options(settings: &Settings, context: &SinkContext) -> Result<MqttOptions, Unavailable> {
    let mut options = MqttOptions::new(client_id(settings, context), (settings.host.clone(), settings.port));
    options.set_session_mode(SessionMode::Clean);
    options.set_keep_alive(settings.keep_alive_s);
    options.set_max_packet_size(PACKET_MAX, PACKET_MAX);
    options.set_inflight(u16::try_from(settings.width.window).unwrap_or(u16::MAX));
    if let Some((user, password)) = &settings.user {
        options.set_credentials(user.clone(), password.expose_secret().as_bytes().to_vec());
    }
    if settings.tls {
        options.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(Arc::new(tls(settings)?))));
    }
    Ok(options)
}

impl Mqtt3Sink {
    /// Hands one event to the client.
    async fn publish(&self, event: &Event) -> Result<PublishNotice, Outcome> {
        let topic = self.settings.topic.render(event).map_err(Outcome::Rejected)?;
        let (body, _) = self.mapping.body(event);
        // The fixed header with the longest length there is, the topic's length, the packet identifier.
        let size = 5 + 2 + topic.len() + 2 + body.len();
        let most = self.settings.packet_bytes_max;
        if size > most {
            let text = format!("a packet of {size} bytes, {most} are allowed");
            return Err(Outcome::Rejected(Rejection::never("0x95", text)));
        }
        let qos = if self.settings.exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        let options = PublishOptions::new(qos).retain(self.settings.retain);
        match self.client.publish_tracked(topic, body, options).await {
            Ok(notice) => Ok(notice),
            Err(_) => Err(Outcome::Unavailable(self.broken().await)),
        }
    }

    async fn acknowledged(&self, notice: PublishNotice) -> Outcome {
        match notice.wait_async().await {
            Ok(PublishResult::Qos1(_) | PublishResult::Qos2Completed(_)) => Outcome::Delivered,
            Ok(PublishResult::Qos0Flushed) | Err(_) => Outcome::Unavailable(self.broken().await),
        }
    }

    /// Why the connection has ended.
    async fn broken(&self) -> Unavailable {
        let mut trouble = self.trouble.clone();
        let known = tokio::time::timeout(CAUSE_MAX, trouble.wait_for(Option::is_some)).await;
        known.ok().and_then(Result::ok).and_then(|trouble| trouble.clone()).unwrap_or_else(|| {
            Unavailable::new(UnavailableKind::Connect, format!("{}: the connection has ended", shown(&self.settings)))
        })
    }
}

impl Sink for Mqtt3Sink {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            let this = &*self;
            let begin = |at: usize| async move {
                let notice = this.publish(&batch.events[at]).await?;
                Ok(this.acknowledged(notice))
            };
            side_by_side(batch, this.ordering, this.settings.width, begin).await
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _ = self.client.disconnect().await;
            let _ = tokio::time::timeout(GOODBYE_MAX, &mut self.driver).await;
        })
    }
}

fn unavailable(shown: &str, error: &ConnectionError) -> Unavailable {
    let kind = match error {
        ConnectionError::ConnectionRefused(code) => match code {
            ConnectReturnCode::BadUserNamePassword
            | ConnectReturnCode::NotAuthorized
            | ConnectReturnCode::BadClientId => UnavailableKind::Denied,
            ConnectReturnCode::ServiceUnavailable => UnavailableKind::Busy,
            _ => UnavailableKind::Server,
        },
        ConnectionError::NetworkTimeout
        | ConnectionError::FlushTimeout
        | ConnectionError::MqttState(StateError::AwaitPingResp) => UnavailableKind::Timeout,
        _ => UnavailableKind::Connect,
    };
    Unavailable::new(kind, format!("{shown}: {error}"))
}
