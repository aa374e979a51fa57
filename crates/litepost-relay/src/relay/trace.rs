//! Spans of deliveries, as OpenTelemetry has them: each event's is a child of the span that its `traceparent` header names,
//! so a trace goes on across the outbox.
//!
//! Called around every delivery. Invariants: without [`install`] a delivery costs one look at a variable, and an event
//! without `traceparent` never costs more; a span says which event went where and how that ended, and never holds a payload,
//! a header, a key, or a destination's own words (they may repeat any of it).

use std::borrow::Cow;
use std::sync::OnceLock;

use litepost_core::{Event, EventRef, Outcome, UnavailableKind};
use opentelemetry::global::{self, BoxedSpan, BoxedTracer};
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt as _, TraceFlags, TraceId, TraceState,
    Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use serde::Deserialize;

static TRACER: OnceLock<BoxedTracer> = OnceLock::new();

/// From now on deliveries make spans, through the tracer provider that is the process's own at this moment.
pub fn install() {
    let _ = TRACER.set(global::tracer("litepost"));
}

/// What the header `traceparent` says (W3C Trace Context), as the context of who wrote it.
#[must_use]
pub fn remote(traceparent: &str) -> Option<SpanContext> {
    let mut parts = traceparent.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, len: usize| {
        text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let wellformed = hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
    // A later version may say more behind it; this one may not, and ff is none.
    if !wellformed || version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()? & TraceFlags::SAMPLED.to_u8());
    let context = SpanContext::new(trace, span, flags, true, TraceState::NONE);
    context.is_valid().then_some(context)
}

/// A context as the header `traceparent`.
#[must_use]
pub fn traceparent(context: &SpanContext) -> String {
    let flags = context.trace_flags() & TraceFlags::SAMPLED;
    format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id())
}

/// The one header that is of interest here.
#[derive(Deserialize)]
struct Headers<'a> {
    #[serde(borrow)]
    traceparent: Option<Cow<'a, str>>,
}

fn parent(event: &Event) -> Option<SpanContext> {
    let headers = event.headers.as_deref().filter(|headers| headers.contains("traceparent"))?;
    remote(serde_json::from_str::<Headers<'_>>(headers).ok()?.traceparent?.trim())
}

/// The spans of a delivery under way, each with the place of its event.
pub(super) struct Spans(Vec<(usize, BoxedSpan)>);

/// A delivery leaves.
pub(super) fn leaves(destination: &str, events: &[EventRef]) -> Spans {
    let Some(tracer) = TRACER.get() else { return Spans(Vec::new()) };
    let span = |(place, event): (usize, &EventRef)| {
        let context = Context::new().with_remote_span_context(parent(event)?);
        let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
        let builder = tracer.span_builder(format!("deliver {destination}")).with_kind(SpanKind::Producer);
        let builder = builder.with_attributes([
            KeyValue::new("messaging.system", "litepost"),
            KeyValue::new("messaging.operation.name", "deliver"),
            KeyValue::new("messaging.operation.type", "send"),
            KeyValue::new("messaging.destination.name", event.topic.to_string()),
            KeyValue::new("messaging.message.id", event.id.to_string()),
            KeyValue::new("messaging.batch.message_count", count),
            KeyValue::new("litepost.destination", destination.to_owned()),
            KeyValue::new("litepost.seq", event.seq.0),
        ]);
        Some((place, builder.start_with_context(tracer, &context)))
    };
    Spans(events.iter().enumerate().filter_map(span).collect())
}

impl Spans {
    /// Its outcomes are known.
    pub(super) fn end(self, outcomes: &[Outcome]) {
        for (place, mut span) in self.0 {
            let (outcome, error) = match outcomes.get(place) {
                Some(Outcome::Delivered) => ("delivered", None),
                Some(Outcome::Rejected(rejection)) => ("rejected", Some(rejection.code.clone())),
                Some(Outcome::Unavailable(trouble)) => ("unavailable", Some(kind(trouble.kind).to_owned())),
                Some(Outcome::Deferred) => ("deferred", None),
                None => ("unavailable", Some("no outcome".to_owned())),
            };
            span.set_attribute(KeyValue::new("litepost.outcome", outcome));
            if let Some(error) = error {
                span.set_attribute(KeyValue::new("error.type", error));
                span.set_status(Status::error(outcome));
            }
            span.end();
        }
    }
}

const fn kind(kind: UnavailableKind) -> &'static str {
    match kind {
        UnavailableKind::Connect => "connect",
        UnavailableKind::Timeout => "timeout",
        UnavailableKind::Throttled => "throttled",
        UnavailableKind::Busy => "busy",
        UnavailableKind::Server => "server",
        UnavailableKind::Denied => "denied",
        UnavailableKind::Fenced => "fenced",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written_as_the_standard_says() {
        assert_eq!(traceparent(&remote(GOOD).unwrap()), GOOD);
        let unsampled = remote("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00").unwrap();
        assert!(!unsampled.is_sampled() && unsampled.is_remote());
        // A later version says more, of which the beginning can be read; flags that are not known are left out.
        let later = remote("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff-more").unwrap();
        assert_eq!(traceparent(&later), GOOD);
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473\u{e9}-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(remote(bad), None, "{bad}");
        }
    }

    #[test]
    fn headers_of_any_shape_cost_at_most_the_span() {
        let event = |headers: Option<&str>| {
            let mut event = Event::new(litepost_core::Seq(1), "id", "orders", "{}");
            event.headers = headers.map(Into::into);
            event
        };
        assert!(parent(&event(Some(&format!("{{\"a\":[{{}}],\"traceparent\":\" {GOOD}\"}}")))).is_some());
        for bad in [None, Some("{}"), Some("{\"traceparent\":7}"), Some("{\"traceparent\":null}"), Some("traceparent")]
        {
            assert!(parent(&event(bad)).is_none(), "{bad:?}");
        }
    }
}
