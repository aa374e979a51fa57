//! Connecting to an MQTT broker, and the task that keeps the connection going.
//!
//! Called by the factory for each connection. Invariant: a connection that breaks stays broken; the client's own
//! reconnect would send what it had queued behind what a new sink has sent meanwhile.

use std::sync::Arc;

use litepost_core::{Unavailable, UnavailableKind};
use rumqttc::mqttbytes::v5::{ConnAck, ConnectReturnCode, DisconnectReasonCode, Packet};
use rumqttc::{
    AsyncClient, ConnectionError, Event, EventLoop, MqttOptions, SessionMode, StateError, TlsConfiguration, Transport,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use secrecy::ExposeSecret as _;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{NoSubscriber, Settings};
use crate::inspect::Finding;
use crate::sink::SinkContext;

/// A client, what the broker allows, and why its connection ended.
pub(super) struct Connected {
    pub(super) client: AsyncClient,
    /// The largest packet that the broker takes, bytes.
    pub(super) packet_bytes_max: usize,
    pub(super) trouble: watch::Receiver<Option<Unavailable>>,
    pub(super) driver: AbortOnDropHandle<()>,
}

/// Connects and waits for the broker's CONNACK.
pub(super) async fn connect(settings: &Settings, context: &SinkContext) -> Result<Connected, Unavailable> {
    let (client, mut events) =
        AsyncClient::builder(options(settings, context)?).capacity(settings.width.window).build();
    let acknowledged = tokio::time::timeout(settings.connect_timeout, greeting(&mut events)).await;
    let connack = match acknowledged {
        Ok(Ok(connack)) => connack,
        Ok(Err(error)) => return Err(unavailable(settings, &error)),
        Err(_) => {
            let message = format!("{}: no CONNACK within {:?}", shown(settings), settings.connect_timeout);
            return Err(Unavailable::new(UnavailableKind::Timeout, message));
        }
    };
    let limits = connack.properties;
    if limits.as_ref().and_then(|p| p.max_qos).is_some_and(|qos| qos < u8::from(settings.exactly_once) + 1) {
        let message = format!("{}: the broker does not offer this qos; lower it", shown(settings));
        return Err(Unavailable::new(UnavailableKind::Server, message));
    }
    if settings.retain && limits.as_ref().and_then(|p| p.retain_available) == Some(0) {
        let message = format!("{}: the broker keeps no retained messages; set retain = false", shown(settings));
        return Err(Unavailable::new(UnavailableKind::Server, message));
    }
    let packet_max = limits.and_then(|p| p.max_packet_size).and_then(|max| usize::try_from(max).ok());
    let packet_bytes_max = packet_max.unwrap_or(usize::MAX).min(settings.packet_bytes_max);
    let (sender, trouble) = watch::channel(None);
    let tell = Teller(shown(settings));
    let driver = tokio::spawn(async move {
        loop {
            if let Err(error) = events.poll().await {
                sender.send_replace(Some(tell.unavailable(&error)));
                return;
            }
        }
    });
    Ok(Connected { client, packet_bytes_max, trouble, driver: AbortOnDropHandle::new(driver) })
}

/// Connects, and says what the broker confirms and what is weaker than the promise. Topics need not be there: an MQTT
/// broker makes them as they are published to.
pub(super) async fn look(settings: &Settings, context: &SinkContext) -> Result<Vec<Finding>, Unavailable> {
    let connected = connect(settings, context).await?;
    let _ = connected.client.disconnect().await;
    let word = if settings.exactly_once { "PUBCOMP (qos 2)" } else { "PUBACK (qos 1)" };
    let mut found = vec![Finding::found(format!("confirmations by {word}; topics are made by publishing"))];
    match (settings.no_subscriber, settings.exactly_once) {
        (NoSubscriber::Accept, _) => found.push(Finding::weaker(
            "no_subscriber = \"accept\": an event that nobody subscribes to at that moment counts as delivered",
            "set no_subscriber = \"hold\" with qos 1, or have every consumer keep a session with the broker",
        )),
        (NoSubscriber::Hold, true) => found.push(Finding::weaker(
            "no_subscriber = \"hold\" with qos 2: brokers that do not tell of missing subscribers there (Mosquitto) drop the event",
            "use qos 1: consumers recognise events by litepost-id",
        )),
        (NoSubscriber::Hold, false) => {}
    }
    if settings.width.depth > 1 {
        found.push(Finding::weaker(
            format!("per_key_in_flight = {}: behind a message that the broker refuses, later ones of its key may arrive first", settings.width.depth),
            "leave per_key_in_flight out",
        ));
    }
    Ok(found)
}

async fn greeting(events: &mut EventLoop) -> Result<ConnAck, ConnectionError> {
    loop {
        if let Event::Incoming(Packet::ConnAck(connack)) = events.poll().await? {
            return Ok(connack);
        }
    }
}

/// Who connects, to the broker.
pub(super) fn client_id(settings: &Settings, context: &SinkContext) -> String {
    let prefix = settings.client_id.clone().unwrap_or_else(|| {
        let origin: String = context.origin.chars().take(12).collect();
        format!("litepost-{origin}-{}", settings.destination)
    });
    format!("{prefix}-{}-{}", context.lane.index, context.slot)
}

fn options(settings: &Settings, context: &SinkContext) -> Result<MqttOptions, Unavailable> {
    let id = client_id(settings, context);
    let mut options = MqttOptions::new(id, (settings.host.clone(), settings.port));
    options.set_session_mode(SessionMode::Clean);
    options.set_keep_alive(settings.keep_alive_s);
    if let Some((user, password)) = &settings.user {
        options.set_credentials(user.clone(), password.expose_secret().as_bytes().to_vec());
    }
    if settings.tls {
        options.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(Arc::new(tls(settings)?))));
    }
    Ok(options)
}

/// The certificates that are trusted, and the client's own.
pub(super) fn tls(settings: &Settings) -> Result<ClientConfig, Unavailable> {
    crate::sinks::tls::ensure_provider();
    let failed = |message: String| Unavailable::new(UnavailableKind::Connect, message);
    let mut roots = RootCertStore::empty();
    if let Some(path) = &settings.tls_root_cert {
        let (added, _) = roots.add_parsable_certificates(certificates(path)?);
        if added == 0 {
            return Err(failed(format!("{} holds no certificate", path.display())));
        }
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let config = ClientConfig::builder().with_root_certificates(roots);
    let Some((cert, key)) = &settings.tls_client else { return Ok(config.with_no_client_auth()) };
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| failed(format!("{}: {e}", key.display())))?;
    config.with_client_auth_cert(certificates(cert)?, private).map_err(|e| failed(format!("{}: {e}", cert.display())))
}

fn certificates(path: &std::path::Path) -> Result<Vec<CertificateDer<'static>>, Unavailable> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| Unavailable::new(UnavailableKind::Connect, format!("{} cannot be read: {e}", path.display())))
}

/// The broker as people may see it.
pub(super) fn shown(settings: &Settings) -> String {
    format!("mqtt {}:{}", settings.host, settings.port)
}

fn unavailable(settings: &Settings, error: &ConnectionError) -> Unavailable {
    Teller(shown(settings)).unavailable(error)
}

/// Tells of errors of the connection, with the broker's name.
struct Teller(String);

impl Teller {
    fn unavailable(&self, error: &ConnectionError) -> Unavailable {
        let kind = match error {
            ConnectionError::ConnectionRefused(code)
            | ConnectionError::MqttState(StateError::ConnFail { reason: code }) => refused(*code),
            ConnectionError::Timeout(_) | ConnectionError::MqttState(StateError::AwaitPingResp) => {
                UnavailableKind::Timeout
            }
            ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. }) => match reason_code {
                DisconnectReasonCode::NotAuthorized => UnavailableKind::Denied,
                DisconnectReasonCode::QuotaExceeded | DisconnectReasonCode::MessageRateTooHigh => {
                    UnavailableKind::Throttled
                }
                _ => UnavailableKind::Server,
            },
            _ => UnavailableKind::Connect,
        };
        Unavailable::new(kind, format!("{}: {error}", self.0))
    }
}

fn refused(code: ConnectReturnCode) -> UnavailableKind {
    use ConnectReturnCode as Code;
    match code {
        Code::BadUserNamePassword
        | Code::NotAuthorized
        | Code::Banned
        | Code::BadAuthenticationMethod
        | Code::BadClientId
        | Code::ClientIdentifierNotValid => UnavailableKind::Denied,
        Code::QuotaExceeded | Code::ConnectionRateExceeded => UnavailableKind::Throttled,
        Code::ServerBusy => UnavailableKind::Busy,
        _ => UnavailableKind::Server,
    }
}
