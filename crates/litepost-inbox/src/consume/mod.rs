//! The loop around a claim: receive, begin, claim, handle, commit, and only then acknowledge.
//!
//! Called by consumers. A [`Source`] is a broker's subscription, a [`Database`] the consumer's own database;
//! [`Consumer::run`] puts the steps in the one order that loses nothing and repeats no effect. Invariant: a message is
//! acknowledged only after the transaction that claimed it has committed, or after another one was found to have.
//!
//! ```no_run
//! # #[cfg(all(feature = "nats", feature = "tokio-postgres"))] {
//! use litepost_inbox::consume::{Consumer, HandlerError, Message, Nats, Postgres};
//! use litepost_inbox::{Inbox, Scope};
//!
//! # async fn consume(
//! #     subscription: async_nats::jetstream::consumer::PullConsumer,
//! #     context: async_nats::jetstream::Context,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let source = Nats::new(context, subscription);
//! let database = Postgres::new(|| async {
//!     let (client, connection) = tokio_postgres::connect("host=localhost", tokio_postgres::NoTls).await?;
//!     tokio::spawn(connection);
//!     Ok(client)
//! });
//! let stop = async { drop(tokio::signal::ctrl_c().await) };
//! let mut consumer = Consumer::new(Inbox::new("inbox")?, Scope::new("billing.v1")?, source, database);
//! consumer
//!     .run(stop, async |tx: &mut tokio_postgres::Transaction<'_>, message: &Message| {
//!         tx.execute("INSERT INTO bills (payload) VALUES ($1)", &[&&message.payload[..]]).await?;
//!         Ok::<(), HandlerError>(())
//!     })
//!     .await?;
//! # Ok(()) }
//! # }
//! ```
//!
//! # What becomes of a failure
//!
//! | what failed | what happens |
//! |---|---|
//! | the database, retryably (serialization, deadlock, busy) | the transaction again, in place, up to [`Policy::retries_max`] times; then as a failed handler |
//! | the connection to the database | connect anew with growing pauses, then the transaction again; the claim tells whether the commit had landed |
//! | the handler | roll back; back to the broker with a growing delay; a dead letter after [`Policy::attempts_max`] attempts |
//! | the handler, with [`HandlerError::Reject`] | roll back; a dead letter at once |
//! | the message has no usable id | a dead letter at once |
//! | no attempt of [`Policy::attempts_max`] has ended, as the broker counts deliveries, or [`Attempts`] | a dead letter, unhandled: the message ends its handlers |
//! | the claim, not retryably (no table, no privilege) | back to the broker; [`Consumer::run`] ends with the error |
//! | the acknowledgement | a warning; the message comes again, is a duplicate, and is acknowledged then |

mod attempts;
mod database;
mod failure;
mod message;
mod policy;
mod run;
mod source;
mod trace;

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "amqp")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis_streams;

pub use attempts::Attempts;
#[cfg(feature = "mysql")]
pub use database::MySql;
#[cfg(feature = "tokio-postgres")]
pub use database::Postgres;
#[cfg(feature = "rusqlite")]
pub use database::Sqlite;
pub use database::{Database, Promise};
pub use failure::{ConsumeError, HandlerError, SourceError};
#[cfg(feature = "kafka")]
pub use kafka::{Kafka, kafka_config};
pub use message::{ID_HEADER, Message};
#[cfg(feature = "nats")]
pub use nats::Nats;
pub use policy::Policy;
#[cfg(feature = "amqp")]
pub use rabbitmq::RabbitMq;
#[cfg(feature = "redis")]
pub use redis_streams::{RedisStreams, RedisStreamsOptions};
pub use run::{Consumer, Summary};
pub use source::Source;
