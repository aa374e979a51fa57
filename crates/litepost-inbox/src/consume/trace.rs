//! A span for each message that is handled, in the trace of whoever wrote it.
//!
//! Called by the loop. With the feature `opentelemetry` the span is a child of what the message's headers name, read by the
//! process's own propagator, and the handler runs inside it; without, nothing is done. Invariant: a span tells which message
//! and how it ended, and nothing of what it says.

#[cfg(not(feature = "opentelemetry"))]
pub(super) use without::Handling;

#[cfg(feature = "opentelemetry")]
pub(super) use with::Handling;

#[cfg(not(feature = "opentelemetry"))]
mod without {
    use crate::consume::Message;
    use crate::ident::Scope;

    /// Nothing.
    pub(in crate::consume) struct Handling;

    impl Handling {
        pub(in crate::consume) fn of(_scope: &Scope, _message: &Message) -> Self {
            Self
        }

        pub(in crate::consume) async fn around<T>(&self, work: impl Future<Output = T>) -> T {
            work.await
        }

        #[allow(clippy::unused_self, reason = "with the feature there is something to end")]
        pub(in crate::consume) fn end(self, _outcome: &'static str, _well: bool) {}
    }
}

#[cfg(feature = "opentelemetry")]
mod with {
    use std::future::poll_fn;
    use std::pin::pin;

    use opentelemetry::propagation::Extractor;
    use opentelemetry::trace::{SpanKind, Status, TraceContextExt as _, Tracer as _};
    use opentelemetry::{Context, KeyValue, global};

    use crate::consume::Message;
    use crate::ident::Scope;

    /// A message that is being handled.
    pub(in crate::consume) struct Handling(Context);

    /// The message's headers, for the propagator.
    struct Headers<'a>(&'a Message);

    impl Extractor for Headers<'_> {
        fn get(&self, key: &str) -> Option<&str> {
            self.0.header(key)
        }

        fn keys(&self) -> Vec<&str> {
            self.0.headers.iter().map(|(name, _)| name.as_str()).collect()
        }
    }

    impl Handling {
        pub(in crate::consume) fn of(scope: &Scope, message: &Message) -> Self {
            let parent = global::get_text_map_propagator(|propagator| propagator.extract(&Headers(message)));
            let tracer = global::tracer("litepost-inbox");
            let builder = tracer.span_builder(format!("claim {scope}")).with_kind(SpanKind::Consumer);
            let builder = builder.with_attributes([
                KeyValue::new("messaging.operation.name", "claim"),
                KeyValue::new("messaging.operation.type", "process"),
                KeyValue::new("messaging.destination.name", message.channel.clone()),
                KeyValue::new("messaging.message.id", message.id.clone().unwrap_or_default()),
                KeyValue::new("litepost.attempt", i64::from(message.attempt)),
            ]);
            let span = builder.start_with_context(&tracer, &parent);
            Self(parent.with_span(span))
        }

        /// Runs the work with the span as its context: what the handler traces is a part of it.
        pub(in crate::consume) async fn around<T>(&self, work: impl Future<Output = T>) -> T {
            let mut work = pin!(work);
            poll_fn(|waker| {
                let _inside = self.0.clone().attach();
                work.as_mut().poll(waker)
            })
            .await
        }

        pub(in crate::consume) fn end(self, outcome: &'static str, well: bool) {
            let span = self.0.span();
            span.set_attribute(KeyValue::new("litepost.outcome", outcome));
            if !well {
                span.set_status(Status::error(outcome));
            }
            span.end();
        }
    }
}
