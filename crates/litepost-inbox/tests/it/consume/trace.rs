//! What the loop tells a tracer: one span for each message, in its writer's trace, with the handler inside.

use std::collections::VecDeque;
use std::time::Duration;

use litepost_inbox::consume::{Consumer, HandlerError, Message, Source, SourceError, Sqlite};
use litepost_inbox::{Dialect, Inbox, Scope};
use opentelemetry::global;
use opentelemetry::trace::{Status, Tracer as _};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};

/// A source of these messages and then of no more.
struct Few(VecDeque<Message>);

impl Source for Few {
    type Token = ();

    async fn next(&mut self) -> Result<(Message, ()), SourceError> {
        match self.0.pop_front() {
            Some(message) => Ok((message, ())),
            None => std::future::pending().await,
        }
    }

    async fn ack(&mut self, (): ()) -> Result<(), SourceError> {
        Ok(())
    }

    async fn nack(&mut self, (): (), _delay: Duration) -> Result<(), SourceError> {
        Ok(())
    }

    async fn dead_letter(&mut self, (): (), _message: &Message, _reason: &str) -> Result<(), SourceError> {
        Ok(())
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        Ok(())
    }
}

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn message(id: &str) -> Message {
    Message {
        id: Some(id.into()),
        channel: "orders".into(),
        payload: "secret-4242".into(),
        headers: vec![("Traceparent".into(), TRACE.into()), ("other".into(), b"secret-4242".to_vec())],
        attempt: 1,
        ..Message::default()
    }
}

#[tokio::test]
async fn each_message_is_a_span_in_its_writers_trace_with_the_handler_inside() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    global::set_tracer_provider(provider);
    global::set_text_map_propagator(TraceContextPropagator::new());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("consumer.db");
    let inbox = Inbox::new("inbox").unwrap();
    rusqlite::Connection::open(&path).unwrap().execute_batch(&inbox.schema(Dialect::Sqlite)).unwrap();
    let source = Few([message("a"), message("a"), message("bad")].into());
    let database = Sqlite::new(move || rusqlite::Connection::open(&path));
    let mut consumer = Consumer::new(inbox, Scope::new("mail.v1").unwrap(), source, database);
    let stop = tokio::sync::Notify::new();
    let run = consumer.run(stop.notified(), async |_: &mut rusqlite::Transaction<'_>, message: &Message| {
        global::tracer("handler").in_span("inner", |_| ());
        if message.id.as_deref() == Some("bad") {
            stop.notify_one();
            return Err(HandlerError::reject("secret-4242"));
        }
        Ok(())
    });
    tokio::time::timeout(Duration::from_secs(60), run).await.expect("it ends").unwrap();

    let spans = exporter.get_finished_spans().unwrap();
    let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let (claims, inner) = (named("claim mail.v1"), named("inner"));
    assert_eq!((claims.len(), inner.len()), (3, 2), "a duplicate has no handler");
    for claim in &claims {
        assert_eq!(claim.parent_span_id.to_string(), "00f067aa0ba902b7");
        assert_eq!(claim.span_context.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
    }
    assert_eq!(inner[0].parent_span_id, claims[0].span_context.span_id());
    let outcome = |at: usize| {
        let found = claims[at].attributes.iter().find(|attribute| attribute.key.as_str() == "litepost.outcome");
        found.map(|attribute| attribute.value.to_string()).unwrap()
    };
    assert_eq!([outcome(0), outcome(1), outcome(2)], ["handled", "duplicate", "dead_letter"]);
    assert_eq!(claims[2].status, Status::error("dead_letter"));
    assert!(!format!("{spans:?}").contains("secret-4242"));
}
