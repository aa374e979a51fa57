//! A producer of librdkafka: made, asked which topics there are, and let go without blocking anybody.
//!
//! Called by the sink. Invariant: what librdkafka complains of is kept, so that an outage can say why.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use litepost_core::{Rejection, Unavailable, UnavailableKind};
use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;
use rdkafka::producer::{FutureProducer, Producer as _, PurgeConfig};

use super::{Settings, errors};

/// librdkafka's own events: the last complaint.
#[derive(Clone, Default)]
pub(super) struct Complaints(Arc<Mutex<Option<(RDKafkaErrorCode, String)>>>);

impl ClientContext for Complaints {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // What matters comes as an error or a delivery report; this is for who debugs the connection.
        tracing::debug!(?level, facility, message, "librdkafka");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else { return };
        // That no broker is left is the consequence of what was said before.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if code != RDKafkaErrorCode::AllBrokersDown || last.is_none() {
            *last = Some((code, reason.to_owned()));
        }
    }
}

/// An idempotent producer and the topics that it has found.
pub(super) struct Producer {
    settings: Arc<Settings>,
    inner: Option<FutureProducer<Complaints>>,
    complaints: Complaints,
    topics: HashSet<String>,
}

impl Producer {
    /// Makes one and waits until a broker has answered.
    pub(super) async fn connect(settings: Arc<Settings>) -> Result<Self, Unavailable> {
        let complaints = Complaints::default();
        let inner = FutureProducer::from_config_and_context(&settings.config, complaints.clone()).map_err(|e| {
            let text = format!("{}: {}", settings.shown, errors::without_values(&e));
            Unavailable::new(UnavailableKind::Connect, text)
        })?;
        let producer = Self { settings, inner: Some(inner), complaints, topics: HashSet::new() };
        let timeout = producer.settings.connect_timeout;
        let answered = producer.blocking(move |inner| inner.client().fetch_cluster_id(timeout).is_some()).await;
        if answered == Some(true) {
            return Ok(producer);
        }
        Err(producer.unavailable(UnavailableKind::Timeout, &format!("no broker has answered within {timeout:?}")))
    }

    /// The client itself.
    pub(super) fn inner(&self) -> &FutureProducer<Complaints> {
        self.inner.as_ref().expect("a producer is there until it is dropped")
    }

    /// Asks for a topic that was not seen before: producing to one that is not there would only fail half a minute later.
    pub(super) async fn find(&mut self, topic: &str) -> Result<Option<Rejection>, Unavailable> {
        if self.topics.contains(topic) {
            return Ok(None);
        }
        let (name, timeout) = (topic.to_owned(), self.settings.connect_timeout);
        let asked = self.blocking(move |inner| {
            let metadata = inner.client().fetch_metadata(Some(&name), timeout)?;
            Ok::<_, KafkaError>(metadata.topics().iter().find(|t| t.name() == name).map(MetadataTopic::error))
        });
        let error = match asked.await {
            Some(Ok(Some(None))) => {
                self.topics.insert(topic.to_owned());
                return Ok(None);
            }
            Some(Ok(Some(Some(error)))) => RDKafkaErrorCode::from(error),
            Some(Ok(None)) => RDKafkaErrorCode::UnknownTopicOrPartition,
            Some(Err(error)) => {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
                return Err(self.unavailable(errors::kind(code), &errors::told(code)));
            }
            None => return Err(self.unavailable(UnavailableKind::Server, "the client has ended")),
        };
        match errors::classify(error) {
            errors::Class::Event(rejection) => Ok(Some(Rejection {
                message: format!("{}: topic {topic:?}: {}", self.settings.shown, rejection.message),
                ..rejection
            })),
            errors::Class::Destination(kind) => Err(self.unavailable(kind, &errors::told(error))),
            errors::Class::Unsent => Ok(Some(Rejection::hold(errors::code(error), errors::told(error)))),
        }
    }

    /// Looks again at what was found.
    pub(super) fn forget_topics(&mut self) {
        self.topics.clear();
    }

    /// Whether librdkafka has stopped it for good.
    pub(super) fn is_fatal(&self) -> bool {
        self.inner().client().fatal_error().is_some()
    }

    /// Takes everything back that has no answer: nothing of it leaves later, behind our back.
    pub(super) fn take_back(&self) {
        self.inner().purge(PurgeConfig::default().queue().inflight());
    }

    /// An outage, with what librdkafka has last complained of.
    pub(super) fn unavailable(&self, kind: UnavailableKind, text: &str) -> Unavailable {
        let last = self.complaints.last();
        let (kind, text) = match last {
            Some((code, reason)) => {
                let worse = errors::kind(code);
                let kind = if worse == UnavailableKind::Denied { worse } else { kind };
                (kind, format!("{text}: {reason}"))
            }
            None => (kind, text.to_owned()),
        };
        Unavailable::new(kind, format!("{}: {text}", self.settings.shown))
    }

    /// Runs what blocks on a thread for that; `None` when it could not end.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        run: impl FnOnce(&FutureProducer<Complaints>) -> T + Send + 'static,
    ) -> Option<T> {
        let inner = self.inner().clone();
        tokio::task::spawn_blocking(move || run(&inner)).await.ok()
    }
}

impl Complaints {
    fn last(&self) -> Option<(RDKafkaErrorCode, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        inner.purge(PurgeConfig::default().queue().inflight());
        // Ending waits for librdkafka's threads: half a second when a broker does not answer.
        let end = move || drop(inner);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(end)),
            Err(_) => end(),
        }
    }
}

/// How long a purge may take until its reports are there.
pub(super) const PURGE_MAX: Duration = Duration::from_secs(2);
