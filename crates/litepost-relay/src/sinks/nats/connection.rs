//! Connecting to NATS, and seeing to the stream.
//!
//! Called by the factory for each connection. Invariant: a connection that breaks stays broken. The client's own
//! reconnect would send what it had queued on a new connection, behind our back and perhaps behind what a new sink has
//! sent meanwhile; the relay makes a new sink instead.

use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerError};
use litepost_core::{Unavailable, UnavailableKind};
use secrecy::ExposeSecret as _;
use tokio::sync::watch;

use super::{Credentials, Settings};
use crate::inspect::Finding;
use crate::sinks::template::Template;

/// An address where nobody listens: what the client may reconnect to.
const NOWHERE: &str = "nats://127.0.0.1:0";

/// A client, its stream context, and what the server has complained of.
pub(super) struct Connected {
    pub(super) context: jetstream::Context,
    pub(super) trouble: watch::Receiver<Option<Unavailable>>,
}

/// Connects, sees that the stream is there, and makes it when that is wanted.
pub(super) async fn connect(settings: &Settings) -> Result<Connected, Unavailable> {
    let connected = client(settings).await?;
    see_to_stream(settings, &connected.context).await?;
    Ok(connected)
}

/// Looks at the stream and makes nothing.
pub(super) async fn look(settings: &Settings) -> Result<Vec<Finding>, Unavailable> {
    let connected = client(settings).await?;
    let name = &settings.stream;
    let stream = match connected.context.get_stream(name).await {
        Ok(stream) => stream,
        Err(error) if !is_missing(&error) => return Err(unavailable(settings, UnavailableKind::Server, &error)),
        Err(_) if settings.create_stream => return Ok(vec![Finding::creates(format!("the stream {name}"))]),
        Err(_) => {
            let hint = "create it, or set connection.create_stream = true";
            return Ok(vec![Finding::broken(format!("there is no stream {name}"), hint)]);
        }
    };
    let config = &stream.cached_info().config;
    let mut found = Vec::new();
    if config.no_ack {
        let message = format!("the stream {name} acknowledges nothing (no_ack): no event would ever be confirmed");
        found.push(Finding::broken(message, "edit the stream: no_ack off"));
    }
    if config.storage == StorageType::Memory {
        let message =
            format!("the stream {name} is kept in memory: a restart of its servers loses what they confirmed");
        found.push(Finding::weaker(message, "use a stream with file storage"));
    }
    Ok(found)
}

async fn client(settings: &Settings) -> Result<Connected, Unavailable> {
    crate::sinks::tls::ensure_provider();
    let (sender, trouble) = watch::channel(None);
    let shown = settings.shown.clone();
    let options = options(settings).await?.event_callback(move |event| {
        if let Some(trouble) = complaint(&event, &shown) {
            // The first says most: what follows is its consequence.
            sender.send_if_modified(|known| {
                let first = known.is_none();
                known.get_or_insert(trouble);
                first
            });
        }
        async {}
    });
    let client = options.connect(&settings.servers[..]).await.map_err(|e| {
        let kind = match e.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => UnavailableKind::Denied,
            ConnectErrorKind::TimedOut => UnavailableKind::Timeout,
            _ => UnavailableKind::Connect,
        };
        unavailable(settings, kind, &e)
    })?;
    client.set_server_pool(NOWHERE).await.map_err(|e| unavailable(settings, UnavailableKind::Connect, &e))?;
    let context = jetstream::ContextBuilder::new()
        .timeout(settings.ack_timeout)
        .ack_timeout(settings.ack_timeout)
        .max_ack_inflight(super::WINDOW_MAX)
        .backpressure_on_inflight(true)
        .build(client);
    Ok(Connected { context, trouble })
}

async fn options(settings: &Settings) -> Result<ConnectOptions, Unavailable> {
    let mut options = ConnectOptions::new()
        .name(format!("litepost {}", settings.destination))
        .connection_timeout(settings.connect_timeout)
        // One round over the servers; 0 would mean no limit.
        .max_reconnects(settings.servers.len())
        .ignore_discovered_servers()
        .require_tls(settings.tls_required);
    if let Some(path) = &settings.tls_root_cert {
        options = options.add_root_certificates(path.clone());
    }
    if let Some((cert, key)) = &settings.tls_client {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    Ok(match &settings.credentials {
        Credentials::None => options,
        Credentials::Password(user, password) => {
            options.user_and_password(user.clone(), password.expose_secret().to_owned())
        }
        Credentials::Token(token) => options.token(token.expose_secret().to_owned()),
        Credentials::Nkey(seed) => options.nkey(seed.expose_secret().to_owned()),
        Credentials::File(path) => options.credentials_file(path).await.map_err(|e| {
            let message = format!("the credentials in {} cannot be read: {e}", path.display());
            Unavailable::new(UnavailableKind::Denied, message)
        })?,
    })
}

/// What an event of the connection means for what is under way.
fn complaint(event: &Event, shown: &str) -> Option<Unavailable> {
    let (kind, message) = match event {
        Event::Disconnected | Event::Closed => {
            (UnavailableKind::Connect, format!("{shown}: the connection has been closed"))
        }
        Event::ServerError(ServerError::AuthorizationViolation) => {
            (UnavailableKind::Denied, format!("{shown}: authorization violation"))
        }
        Event::ServerError(ServerError::Other(text)) if text.to_lowercase().contains("permissions violation") => {
            (UnavailableKind::Denied, format!("{shown}: {text}"))
        }
        _ => return None,
    };
    Some(Unavailable::new(kind, message))
}

fn is_missing(error: &jetstream::context::GetStreamError) -> bool {
    matches!(error.kind(), jetstream::context::GetStreamErrorKind::JetStream(e)
        if e.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

async fn see_to_stream(settings: &Settings, context: &jetstream::Context) -> Result<(), Unavailable> {
    let Err(error) = context.get_stream(&settings.stream).await else { return Ok(()) };
    if !is_missing(&error) {
        return Err(unavailable(settings, UnavailableKind::Server, &error));
    }
    if !settings.create_stream {
        let message = format!(
            "{}: there is no stream {:?}; create it, or let the relay do so with create_stream = true",
            settings.shown, settings.stream
        );
        return Err(Unavailable::new(UnavailableKind::Server, message));
    }
    let config =
        Config { name: settings.stream.clone(), subjects: vec![wildcard(&settings.subject)], ..Config::default() };
    context.get_or_create_stream(config).await.map_err(|e| unavailable(settings, UnavailableKind::Server, &e))?;
    Ok(())
}

/// The subjects that a template can have: a token with a value in it is any token.
fn wildcard(subject: &Template) -> String {
    // A control character stands in no subject, so it marks the values.
    const MARK: &str = "\u{1}";
    let tokens = subject.with_every_value(MARK);
    let tokens: Vec<&str> = tokens.split('.').map(|token| if token.contains(MARK) { "*" } else { token }).collect();
    tokens.join(".")
}

/// Why the destination cannot be used, with the causes.
pub(super) fn unavailable(
    settings: &Settings,
    kind: UnavailableKind,
    error: &(dyn std::error::Error + 'static),
) -> Unavailable {
    let mut message = format!("{}: {error}", settings.shown);
    let mut cause = error.source();
    while let Some(inner) = cause {
        let text = inner.to_string();
        if !message.ends_with(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        cause = inner.source();
    }
    Unavailable::new(kind, message)
}

/// Says good-bye: what was published is flushed by then, since every acknowledgement was awaited.
pub(super) async fn close(client: &Client) {
    let _ = client.drain().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_names_the_subjects_of_its_stream() {
        for (template, subjects) in [("{topic}", "*"), ("a.b", "a.b"), ("a.x-{key}.{type|t}.z", "a.*.*.z")] {
            let template = Template::compile(template, &super::super::SUBJECT).unwrap();
            assert_eq!(wildcard(&template), subjects);
        }
    }
}
