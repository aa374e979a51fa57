//! Traces and metrics, from the real program to a receiver on OpenTelemetry's own types, and through a real collector.

use std::process::Stdio;

use litepost_testkit::collector::{Collector, Data, Metric, Number, Span, text};
use litepost_testkit::servers::Rotel;
use serde_json::Value;

use crate::daemon::until;
use crate::support::Place;

const CONFIG: &str = "[app.shop]\ndatabase = 'shop.db'\n[app.shop.sink.audit]\ntype = 'file'\n\
    connection = { path = 'events.jsonl' }\n";
/// What must never be sent: a payload, a header, a key.
const SECRETS: [&str; 3] = ["payload-4242", "header-4242", "key-4242"];
const PRODUCER: i32 = 4;
const CONSUMER: i32 = 5;

fn shop() -> Place {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    place.good(&["migrate", "--database", "shop.db"]);
    place
}

/// Runs the command with variables; its stdout, when it ends well.
fn with(place: &Place, variables: &[(&str, &str)], arguments: &[&str]) -> String {
    let answer = place.command(arguments).envs(variables.iter().copied()).output().unwrap();
    assert!(answer.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&answer.stderr));
    String::from_utf8(answer.stdout).unwrap()
}

fn enqueue<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["enqueue", "--database", "shop.db", "--topic", "orders", "--payload", "payload-4242"][..], more].concat()
}

fn delivered(place: &Place) -> Vec<Value> {
    let lines = std::fs::read_to_string(place.path("events.jsonl")).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn span<'a>(spans: &'a [(String, Span)], name: &str) -> &'a Span {
    let found: Vec<_> = spans.iter().filter(|(_, span)| span.name == name).collect();
    assert_eq!(found.len(), 1, "{name} in {:?}", spans.iter().map(|(_, span)| &span.name).collect::<Vec<_>>());
    assert_eq!(found[0].0, "litepost");
    &found[0].1
}

/// A consumer, which knows nothing but what was delivered: the event's id, and what its command was told of the trace.
fn consumed(place: &Place, send: &[(&str, &str)]) -> (String, String) {
    let event = delivered(place).remove(0);
    let (id, carried) = (event["id"].as_str().unwrap(), event["headers"]["traceparent"].as_str().unwrap());
    let ddl = place.good(&["inbox", "schema", "--dialect", "sqlite"]);
    rusqlite::Connection::open(place.path("consumer.db")).unwrap().execute_batch(&ddl).unwrap();
    let claim =
        ["inbox", "claim", "--url", "sqlite:consumer.db", "--scope", "mail.v1", "--id", id, "--traceparent", carried];
    let inner = with(place, send, &[&claim[..], &["--", "sh", "-c", "echo $TRACEPARENT"]].concat());
    (id.to_owned(), inner)
}

#[test]
fn a_real_collector_takes_the_trace_and_the_figures_and_hands_them_on() {
    let (behind, place) = (Collector::start(), shop());
    let collector = Rotel::start(&behind.url());
    let url = collector.url();
    let send = [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str())];
    with(&place, &send, &enqueue(&["--key", "key-4242", "--header", "secret=header-4242"]));
    with(&place, &send, &["run", "--until-idle"]);
    let (_, inner) = consumed(&place, &send);
    until("the collector has handed it on", || {
        let received = behind.received();
        received.spans.len() == 3 && figure(&received.metrics, "messaging.client.sent.messages") == Some(1.0)
    });
    let received = behind.received();
    let [enqueued, delivery, claimed] =
        ["enqueue orders", "deliver shop.audit", "claim mail.v1"].map(|name| span(&received.spans, name));
    for later in [delivery, claimed] {
        assert_eq!((&later.trace_id, &later.parent_span_id), (&enqueued.trace_id, &enqueued.span_id));
    }
    // What it has told in words is the trace that the consumer goes on with.
    let (told, trace) = (collector.told(), &inner[3..35]);
    assert_eq!(told.matches(&format!("Trace ID       : {trace}")).count(), 3, "{told}");
    assert!(SECRETS.iter().all(|secret| !told.contains(secret)), "{told}");
}

#[test]
fn one_trace_from_enqueue_over_delivery_to_the_claim() {
    let (collector, place) = (Collector::start(), shop());
    let url = collector.url();
    let send = [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str())];
    with(&place, &send, &enqueue(&["--key", "key-4242", "--header", "secret=header-4242"]));
    with(&place, &send, &["run", "--until-idle"]);
    let (id, inner) = consumed(&place, &send);

    let received = collector.received();
    assert_eq!((received.spans.len(), received.refused), (3, 0));
    let enqueued = span(&received.spans, "enqueue orders");
    let delivery = span(&received.spans, "deliver shop.audit");
    let claimed = span(&received.spans, "claim mail.v1");
    assert!(enqueued.parent_span_id.is_empty());
    for later in [delivery, claimed] {
        assert_eq!(later.trace_id, enqueued.trace_id);
        assert_eq!(later.parent_span_id, enqueued.span_id);
        assert!(later.start_time_unix_nano <= later.end_time_unix_nano);
    }
    assert_eq!((delivery.kind, claimed.kind), (PRODUCER, CONSUMER));
    for (name, value) in [
        ("messaging.system", "litepost"),
        ("messaging.destination.name", "orders"),
        ("messaging.message.id", id.as_str()),
        ("litepost.destination", "shop.audit"),
        ("litepost.seq", "1"),
        ("litepost.outcome", "delivered"),
    ] {
        assert_eq!(text(&delivery.attributes, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(text(&claimed.attributes, "litepost.outcome").as_deref(), Some("first"));
    let trace = u128::from_be_bytes(claimed.trace_id.clone().try_into().unwrap());
    let own = u64::from_be_bytes(claimed.span_id.clone().try_into().unwrap());
    let expected = format!("00-{trace:032x}-{own:016x}-01\n");
    assert_eq!(inner, expected, "what runs behind the claim goes on with its trace");
    let raw = String::from_utf8_lossy(&received.raw);
    assert!(raw.contains("shop.audit") && SECRETS.iter().all(|secret| !raw.contains(secret)), "{raw}");
}

#[test]
fn a_failed_delivery_says_its_kind_and_not_its_words() {
    let (collector, place) = (Collector::start(), shop());
    let url = collector.url();
    let send = [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str())];
    place.write("taken", "no folder");
    place.write("litepost.toml", CONFIG.replace("events.jsonl", "taken/key-4242.jsonl"));
    with(&place, &send, &enqueue(&[]));
    let answer = place.command(&["run", "--until-idle"]).envs(send).output().unwrap();
    assert_eq!(answer.status.code(), Some(1));
    let received = collector.received();
    let failed = received.spans.iter().find(|(_, span)| span.name == "deliver shop.audit");
    if let Some((_, failed)) = failed {
        assert_eq!(text(&failed.attributes, "litepost.outcome").as_deref(), Some("unavailable"));
        assert_eq!(failed.status.as_ref().map(|status| status.code), Some(2));
    }
    let raw = String::from_utf8_lossy(&received.raw);
    assert!(SECRETS.iter().all(|secret| !raw.contains(secret)), "{raw}");
}

#[test]
fn a_trace_of_the_caller_goes_on_with_and_without_a_collector() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let (collector, place) = (Collector::start(), shop());
    let url = collector.url();
    let send = [("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str()), ("TRACEPARENT", TRACE)];
    with(&place, &send, &enqueue(&[]));
    with(&place, &[("TRACEPARENT", TRACE)], &enqueue(&[]));
    // What the caller says stays; what is not sampled makes no span.
    let unsampled = TRACE.replace("-01", "-00");
    with(&place, &send[..1], &enqueue(&["--header", &format!("traceparent={unsampled}")]));
    with(&place, &[], &enqueue(&[]));
    with(&place, &send[..1], &["run", "--until-idle"]);
    let carried: Vec<Value> = delivered(&place).iter().map(|event| event["headers"]["traceparent"].clone()).collect();
    let received = collector.received();
    let enqueued = span(&received.spans, "enqueue orders");
    assert_eq!(enqueued.parent_span_id, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
    assert_ne!(carried[0], TRACE, "the event belongs to the span that wrote it");
    assert!(carried[0].as_str().unwrap().starts_with(&TRACE[..36]));
    assert_eq!((&carried[1], &carried[2], &carried[3]), (&TRACE.into(), &unsampled.into(), &Value::Null));
    let deliveries = received.spans.iter().filter(|(_, span)| span.name == "deliver shop.audit").count();
    assert_eq!(deliveries, 2, "one for each event of a sampled trace");
}

/// The figure of a metric at the destination; of several, that of what was delivered.
fn figure(metrics: &[Metric], name: &str) -> Option<f64> {
    let found = metrics.iter().rev().find(|metric| metric.name == name)?;
    let points = match found.data.as_ref()? {
        Data::Sum(sum) => &sum.data_points,
        Data::Gauge(gauge) => &gauge.data_points,
        _ => return None,
    };
    let point = points.iter().find(|point| {
        let of = |name: &str| text(&point.attributes, name);
        of("destination").as_deref() == Some("shop.audit") && of("outcome").is_none_or(|outcome| outcome == "delivered")
    })?;
    match point.value? {
        Number::AsDouble(number) => Some(number),
        #[allow(clippy::cast_precision_loss, reason = "small counts")]
        Number::AsInt(number) => Some(number as f64),
    }
}

#[test]
fn the_figures_of_metrics_reach_the_collector_without_a_listener() {
    let (collector, place) = (Collector::start(), shop());
    let url = collector.url();
    with(&place, &[], &enqueue(&[]));
    let mut relay = place.command(&["run"]);
    relay.env("OTEL_EXPORTER_OTLP_ENDPOINT", &url).env("OTEL_METRIC_EXPORT_INTERVAL", "100");
    let mut relay = relay.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the figures have come", || {
        let received = collector.received();
        figure(&received.metrics, "messaging.client.sent.messages") == Some(1.0)
            && figure(&received.metrics, "litepost_pending_events") == Some(0.0)
            && figure(&received.metrics, "litepost_events") == Some(1.0)
    });
    relay.kill().unwrap();
    relay.wait().unwrap();
    let received = collector.received();
    assert_eq!(received.refused, 0);
    let took = received.metrics.iter().rev().find(|metric| metric.name == "litepost_commit_to_ack").unwrap();
    let Some(Data::Histogram(spread)) = &took.data else { panic!("{took:?}") };
    assert_eq!((took.unit.as_str(), spread.data_points[0].count), ("s", 1));
    assert!(spread.data_points[0].explicit_bounds.contains(&0.0001), "the buckets of /metrics");
}

#[test]
fn a_collector_that_is_away_holds_nothing_up_and_a_bad_one_is_told() {
    let place = shop();
    // Nobody listens on port 9, and nobody may.
    let away = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")];
    with(&place, &away, &enqueue(&[]));
    with(&place, &away, &["run", "--until-idle"]);
    assert_eq!(delivered(&place).len(), 1);
    let grpc = [away[0], ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
    let answer = place.command(&["run", "--until-idle"]).envs(grpc).output().unwrap();
    let told = String::from_utf8(answer.stderr).unwrap();
    assert!(answer.status.code() == Some(1) && told.contains("litepost speaks http/protobuf"), "{told}");
    let off = [grpc[0], grpc[1], ("OTEL_SDK_DISABLED", "true")];
    with(&place, &off, &["run", "--until-idle"]);
}
