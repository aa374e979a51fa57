//! A receiver of OpenTelemetry data over HTTP (OTLP), on the official types: keeps the spans and metrics it got.
//!
//! Called by tests of telemetry: sent to directly, and behind a real collector ([`crate::servers::Rotel`]). Invariant: what
//! cannot be decoded by the official types is answered with 400 and kept as refused.

use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
pub use opentelemetry_proto::tonic::metrics::v1::{Metric, metric::Data, number_data_point::Value as Number};
use opentelemetry_proto::tonic::resource::v1::Resource;
pub use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// What was received.
#[derive(Debug, Default)]
pub struct Received {
    /// Spans, each with the name of the service that sent it.
    pub spans: Vec<(String, Span)>,
    /// Metrics, as often as they were sent.
    pub metrics: Vec<Metric>,
    /// Every body as it came, headers of the request before it.
    pub raw: Vec<u8>,
    /// Bodies that are no such requests.
    pub refused: usize,
}

/// The collector.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    received: Arc<Mutex<Received>>,
    _runtime: Runtime,
}

impl Collector {
    /// Starts one on a free port.
    ///
    /// # Panics
    ///
    /// When this machine gives no port or no thread: there is nothing to test with then.
    #[must_use]
    #[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let received = Arc::new(Mutex::new(Received::default()));
        let routes = Router::new().route("/v1/traces", post(traces)).route("/v1/metrics", post(metrics));
        let routes = routes.with_state(Arc::clone(&received));
        let socket = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = socket.local_addr().unwrap();
        runtime.spawn(async move { axum::serve(socket, routes).await });
        Self { address, received, _runtime: runtime }
    }

    /// For `OTEL_EXPORTER_OTLP_ENDPOINT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was received so far.
    pub fn received(&self) -> MutexGuard<'_, Received> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Shared = State<Arc<Mutex<Received>>>;

/// Decodes a body, which must say what it is.
fn decoded<T: prost::Message + Default>(received: &mut Received, headers: &HeaderMap, body: &Bytes) -> Option<T> {
    received.raw.extend_from_slice(format!("{headers:?}\n").as_bytes());
    received.raw.extend_from_slice(body);
    let right = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/x-protobuf");
    let packed = headers.get(header::CONTENT_ENCODING).is_some_and(|how| how == "gzip");
    let plain = if packed { unpacked(body) } else { Some(body.clone()) };
    let request = plain.filter(|_| right).and_then(|body| T::decode(body).ok());
    received.refused += usize::from(request.is_none());
    request
}

fn unpacked(body: &Bytes) -> Option<Bytes> {
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut plain).ok()?;
    Some(plain.into())
}

async fn traces(State(shared): Shared, headers: HeaderMap, body: Bytes) -> StatusCode {
    let mut received = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(request) = decoded::<ExportTraceServiceRequest>(&mut received, &headers, &body) else {
        return StatusCode::BAD_REQUEST;
    };
    for group in request.resource_spans {
        let service = service(group.resource.as_ref());
        let spans = group.scope_spans.into_iter().flat_map(|scope| scope.spans);
        received.spans.extend(spans.map(|span| (service.clone(), span)));
    }
    StatusCode::OK
}

async fn metrics(State(shared): Shared, headers: HeaderMap, body: Bytes) -> StatusCode {
    let mut received = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(request) = decoded::<ExportMetricsServiceRequest>(&mut received, &headers, &body) else {
        return StatusCode::BAD_REQUEST;
    };
    let groups = request.resource_metrics.into_iter().flat_map(|group| group.scope_metrics);
    received.metrics.extend(groups.flat_map(|scope| scope.metrics));
    StatusCode::OK
}

fn service(resource: Option<&Resource>) -> String {
    resource.and_then(|resource| text(&resource.attributes, "service.name")).unwrap_or_default()
}

/// An attribute as text.
#[must_use]
pub fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match &found.value {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => Some(text.clone()),
        Some(AnyValue { value: Some(Value::IntValue(number)) }) => Some(number.to_string()),
        _ => None,
    }
}
