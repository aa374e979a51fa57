//! Whether the exchange, or the queue behind the default exchange, is there, and what is weaker than the promise.
//!
//! Called by `litepost check --connect`. Invariant: everything is declared passively, which makes nothing.

use lapin::options::{ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ErrorKind, ExchangeKind};
use litepost_core::Unavailable;

use super::{Settings, Unroutable};
use crate::inspect::Finding;

/// Looks.
pub(super) async fn look(
    settings: &Settings,
    connection: &Connection,
    topics: &[String],
) -> Result<Vec<Finding>, Unavailable> {
    let failed = |error: lapin::Error| settings.unavailable(&error);
    let channel = connection.create_channel().await.map_err(failed)?;
    channel.confirm_select(ConfirmSelectOptions::default()).await.map_err(failed)?;
    let mut found = vec![Finding::found("publisher confirms")];
    match &settings.exchange {
        None => queues(settings, connection, topics, &mut found).await?,
        Some(template) => {
            let names = template.names(topics);
            if names.is_empty() {
                found.push(Finding::found("exchanges by template: whether they are there is seen with an event"));
            }
            for name in names {
                exchange(settings, connection, &name, &mut found).await?;
            }
        }
    }
    if !settings.persistent {
        found.push(Finding::weaker(
            "persistent = false: a restart of the broker loses what it has confirmed",
            "leave persistent out",
        ));
    }
    if settings.per_key_in_flight > 1 {
        let message = format!(
            "per_key_in_flight = {}: behind a message that a queue refuses, later ones of its key may arrive first",
            settings.per_key_in_flight
        );
        found.push(Finding::weaker(message, "leave per_key_in_flight out"));
    }
    Ok(found)
}

/// The default exchange routes to the queue of the routing key's name.
async fn queues(
    settings: &Settings,
    connection: &Connection,
    topics: &[String],
    found: &mut Vec<Finding>,
) -> Result<(), Unavailable> {
    let names = settings.routing_key.names(topics);
    if names.is_empty() {
        found.push(Finding::found("queues by template: whether they are there is seen with an event"));
    }
    for name in names {
        let channel = connection.create_channel().await.map_err(|e| settings.unavailable(&e))?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        match channel.queue_declare(name.as_str().into(), options, FieldTable::default()).await {
            Ok(queue) => {
                let (waiting, consumers) = (queue.message_count(), queue.consumer_count());
                found.push(Finding::found(format!("the queue {name}: messages {waiting}, consumers {consumers}")));
                close(&channel).await;
            }
            Err(error) => found.push(absent(settings, &error, "queue", &name)?),
        }
    }
    Ok(())
}

async fn exchange(
    settings: &Settings,
    connection: &Connection,
    name: &str,
    found: &mut Vec<Finding>,
) -> Result<(), Unavailable> {
    let channel = connection.create_channel().await.map_err(|e| settings.unavailable(&e))?;
    let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    // The broker looks at the name alone.
    match channel.exchange_declare(name.into(), ExchangeKind::Direct, options, FieldTable::default()).await {
        Ok(()) => {
            let message = format!("the exchange {name}; which queues are bound to it AMQP does not tell");
            found.push(Finding::found(message));
            close(&channel).await;
        }
        Err(error) => found.push(absent(settings, &error, "exchange", name)?),
    }
    Ok(())
}

async fn close(channel: &Channel) {
    let _ = channel.close(200, "OK".into()).await;
}

/// What the broker says of a name that is not there, or is not for this user.
fn absent(settings: &Settings, error: &lapin::Error, what: &str, name: &str) -> Result<Finding, Unavailable> {
    let code = match error.kind() {
        ErrorKind::ProtocolError(e) => e.get_id(),
        _ => 0,
    };
    match code {
        404 => {
            let fate = if what == "queue" && settings.unroutable == Unroutable::Retry {
                "events for it become dead letters"
            } else {
                "events for it wait until there is one"
            };
            Ok(Finding::broken(format!("there is no {what} {name}: {fate}"), format!("declare the {what}")))
        }
        403 => Ok(Finding::broken(settings.tell(error), "give the user permission to configure or write it")),
        _ => Err(settings.unavailable(error)),
    }
}
