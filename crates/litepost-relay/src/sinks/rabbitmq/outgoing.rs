//! An event as an AMQP message: where it goes, its properties, its headers.
//!
//! Called by the publisher for each event. Invariant: what does not fit AMQP's limits is a rejection, never cut and
//! never a panic of the client; no header of an event can send it elsewhere.

use std::collections::BTreeMap;

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use litepost_core::{Event, Rejection};

use super::Settings;
use crate::sinks::message::Mapping;

/// All headers travel in one frame; a frame has 131,072 bytes unless the broker wants less.
const HEADERS_BYTES_MAX: usize = 120_000;
/// RabbitMQ's sender-selected distribution: these headers name further queues.
const ROUTING_HEADERS: [&str; 2] = ["CC", "BCC"];

/// One message.
pub(super) struct Outgoing {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: Bytes,
}

/// The message for this event.
pub(super) fn outgoing(settings: &Settings, mapping: &Mapping, event: &Event) -> Result<Outgoing, Rejection> {
    let exchange = match &settings.exchange {
        Some(template) => template.render(event)?,
        None => String::new(),
    };
    let routing_key = settings.routing_key.render(event)?;
    let message = mapping.message(event)?;
    let mut headers = BTreeMap::new();
    let mut size = 0;
    for (name, value) in message.headers {
        if ROUTING_HEADERS.contains(&&*name) {
            continue;
        }
        size += name.len() + value.len() + 6;
        headers.insert(short("header's name", name.into_owned())?, AMQPValue::LongString(value.into_owned().into()));
    }
    if size > HEADERS_BYTES_MAX {
        let message = format!("the headers have {size} bytes, {HEADERS_BYTES_MAX} fit into a frame");
        return Err(Rejection::never("header", message));
    }
    let mut properties = BasicProperties::default()
        .with_message_id(short("id", event.id.to_string())?)
        .with_content_type(message.content_type.into())
        .with_delivery_mode(if settings.persistent { 2 } else { 1 })
        .with_app_id("litepost".into())
        .with_headers(FieldTable::from(headers));
    if let Some(coding) = message.content_encoding {
        properties = properties.with_content_encoding(coding.into());
    }
    if !event.kind.is_empty() {
        properties = properties.with_type(short("type", event.kind.to_string())?);
    }
    if let Ok(seconds) = u64::try_from(event.created_at.0.div_euclid(1_000)) {
        properties = properties.with_timestamp(seconds);
    }
    Ok(Outgoing {
        exchange: short("exchange", exchange)?,
        routing_key: short("routing key", routing_key)?,
        properties,
        body: message.body,
    })
}

fn short(what: &str, text: String) -> Result<ShortString, Rejection> {
    let length = text.len();
    ShortString::try_new(text)
        .map_err(|_| Rejection::never("too_long", format!("the event's {what} has {length} bytes, AMQP allows 255")))
}
