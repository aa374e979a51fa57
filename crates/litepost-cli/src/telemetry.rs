//! OpenTelemetry: spans of what this program does, and its metrics, sent to the collector that the environment names.
//!
//! Started by the commands that make spans. Invariants: without a collector nothing is started and nothing is sent; a
//! collector that does not answer holds a command up for a moment at its end, and never a delivery; no span holds a payload.

use litepost_relay::relay::trace;
use opentelemetry::global::{self, BoxedSpan};
use opentelemetry::metrics::Meter;
use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};

use crate::failure::Failure;

/// The collector, for all signals or for one: the names of the standard.
const ENDPOINTS: [&str; 3] =
    ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"];

/// What is sent while this lives; the rest goes out when it is dropped.
#[derive(Default)]
pub(crate) struct Telemetry {
    #[cfg(feature = "otlp")]
    providers: otlp::Providers,
}

fn said(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

impl Telemetry {
    /// Starts what the environment asks for.
    pub(crate) fn start() -> Result<Self, Failure> {
        let off = said("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        if off || ENDPOINTS.into_iter().all(|name| said(name).is_none()) {
            return Ok(Self::default());
        }
        #[cfg(feature = "otlp")]
        return Ok(Self { providers: otlp::Providers::start()? });
        #[cfg(not(feature = "otlp"))]
        {
            tracing::warn!("this program was built without OpenTelemetry (feature otlp): nothing is sent");
            Ok(Self::default())
        }
    }

    /// What metrics go through; `None` when nobody collects them.
    #[allow(clippy::unused_self, reason = "without the feature there is none")]
    pub(crate) fn meter(&self) -> Option<Meter> {
        #[cfg(feature = "otlp")]
        return self.providers.meter();
        #[cfg(not(feature = "otlp"))]
        None
    }

    /// A span that ends with [`Underway::end`]. It belongs to the trace of `parent` (a traceparent), else to that of the
    /// variable `TRACEPARENT`, else it begins one.
    #[allow(clippy::unused_self, reason = "without telemetry that was started there are no spans")]
    pub(crate) fn span(
        &self,
        name: String,
        kind: SpanKind,
        parent: Option<&str>,
        attributes: impl IntoIterator<Item = KeyValue>,
    ) -> Underway {
        let outer = said("TRACEPARENT");
        let parent = parent.or(outer.as_deref()).and_then(|text| trace::remote(text.trim()));
        let context = parent.map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent));
        let tracer = global::tracer("litepost");
        let builder = tracer.span_builder(name).with_kind(kind).with_attributes(attributes);
        Underway(builder.start_with_context(&tracer, &context))
    }
}

/// A span under way.
pub(crate) struct Underway(BoxedSpan);

impl Underway {
    /// What carries the trace on; `None` when there is no trace.
    pub(crate) fn traceparent(&self) -> Option<String> {
        let context = self.0.span_context();
        context.is_valid().then(|| trace::traceparent(context))
    }

    /// It is done, or has failed. Why is not said: a message may repeat what was to be written.
    pub(crate) fn end<T>(mut self, done: &Result<T, Failure>, outcome: impl Into<opentelemetry::StringValue>) {
        if done.is_err() {
            self.0.set_status(Status::error("failed"));
        } else {
            self.0.set_attribute(KeyValue::new("litepost.outcome", outcome.into()));
        }
        self.0.end();
    }
}

#[cfg(feature = "otlp")]
mod otlp {
    //! The exporters.

    use std::time::Duration;

    use opentelemetry::KeyValue;
    use opentelemetry::global;
    use opentelemetry::metrics::{Meter, MeterProvider as _};
    use opentelemetry_otlp::{ExporterBuildError, MetricExporter, SpanExporter};
    use opentelemetry_sdk::Resource;
    use opentelemetry_sdk::metrics::SdkMeterProvider;
    use opentelemetry_sdk::trace::SdkTracerProvider;

    use super::said;
    use crate::failure::Failure;

    /// What the last spans and figures may cost a command at its end.
    const LAST_WORDS: Duration = Duration::from_secs(3);

    /// What sends.
    #[derive(Default)]
    pub(super) struct Providers {
        traces: Option<SdkTracerProvider>,
        metrics: Option<SdkMeterProvider>,
    }

    impl Providers {
        pub(super) fn start() -> Result<Self, Failure> {
            if let Some(protocol) = said("OTEL_EXPORTER_OTLP_PROTOCOL").filter(|name| name != "http/protobuf") {
                return Err(Failure::user(
                    format!("OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}: litepost speaks http/protobuf"),
                    "name the collector's HTTP port (4318 as a rule), and leave the variable out",
                ));
            }
            let wanted = |signal: &str| {
                let exporter = said(&format!("OTEL_{signal}_EXPORTER")).is_none_or(|name| name == "otlp");
                let names = ["OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")];
                exporter && names.iter().any(|name| said(name).is_some())
            };
            let traces = wanted("TRACES").then(traces).transpose().map_err(|error| fault(&error))?;
            let metrics = wanted("METRICS").then(metrics).transpose().map_err(|error| fault(&error))?;
            Ok(Self { traces, metrics })
        }

        pub(super) fn meter(&self) -> Option<Meter> {
            self.metrics.as_ref().map(|metrics| metrics.meter("litepost"))
        }
    }

    impl Drop for Providers {
        fn drop(&mut self) {
            // A collector that is gone has been told of in the log.
            if let Some(traces) = self.traces.take() {
                let _ = traces.shutdown_with_timeout(LAST_WORDS);
            }
            if let Some(metrics) = self.metrics.take() {
                let _ = metrics.shutdown_with_timeout(LAST_WORDS);
            }
        }
    }

    fn resource() -> Resource {
        let builder = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        match said("OTEL_SERVICE_NAME") {
            Some(_) => builder.build(),
            None => builder.with_service_name("litepost").build(),
        }
    }

    fn traces() -> Result<SdkTracerProvider, ExporterBuildError> {
        let exporter = SpanExporter::builder().with_http().build()?;
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build();
        global::set_tracer_provider(provider.clone());
        litepost_relay::relay::trace::install();
        Ok(provider)
    }

    fn metrics() -> Result<SdkMeterProvider, ExporterBuildError> {
        let exporter = MetricExporter::builder().with_http().build()?;
        let provider = SdkMeterProvider::builder().with_periodic_exporter(exporter).with_resource(resource()).build();
        Ok(provider)
    }

    fn fault(error: &ExporterBuildError) -> Failure {
        Failure::user(
            format!("nothing can be sent to the collector of OTEL_EXPORTER_OTLP_ENDPOINT: {error}"),
            "it is a URL such as http://127.0.0.1:4318",
        )
    }
}
