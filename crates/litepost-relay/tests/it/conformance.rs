//! Every sink that delivers events to a broker, through one suite: a line each.

use litepost_relay::sinks;
use litepost_testkit::conformance;

#[test]
fn every_sink_of_events_is_in_the_suite() {
    // These have no server that could be killed or away.
    const OUTSIDE: [&str; 3] = ["stdout", "file", "blackhole"];
    let lines = include_str!("conformance.rs");
    for kind in sinks::registry().iter().filter(|kind| !kind.statements && !OUTSIDE.contains(&kind.name)) {
        let harnesses = if kind.name == "webhook" { "http" } else { kind.name };
        assert!(lines.contains(&format!("crate::brokers::{harnesses}::")), "{} has no line", kind.name);
    }
}

conformance!(http, crate::brokers::http::harness);
mod exec {
    // All but `compresses_large_bodies`: a program is handed payloads as they are, and what it compresses is its own.
    litepost_testkit::conformance!(@cases crate::brokers::exec::harness;
        delivers keeps_key_order_with_64_in_flight keeps_bytes_exactly keeps_headers_exactly
        hostile_values_arrive_or_are_refused encrypts_payloads_and_puts_large_ones_into_a_store
        server_restarted connection_cut_mid_batch server_paused_and_resumed slow_server credentials_wrong topic_missing
        message_too_large acknowledgement_lost shutdown_mid_batch);
}
#[cfg(feature = "nats")]
conformance!(nats, crate::brokers::nats::harness);
#[cfg(feature = "redis")]
conformance!(redis, crate::brokers::redis::harness);
#[cfg(feature = "amqp")]
conformance!(rabbitmq, crate::brokers::rabbitmq::harness);
#[cfg(feature = "mqtt")]
conformance!(mqtt, crate::brokers::mqtt::at_least_once);
#[cfg(feature = "mqtt")]
mod mqtt_qos_2 {
    // All but `topic_missing`: with QoS 2, Mosquitto does not say that a message had no subscriber.
    litepost_testkit::conformance!(@cases crate::brokers::mqtt::exactly_once;
        delivers keeps_key_order_with_64_in_flight keeps_bytes_exactly keeps_headers_exactly
        hostile_values_arrive_or_are_refused compresses_large_bodies
        encrypts_payloads_and_puts_large_ones_into_a_store server_restarted connection_cut_mid_batch server_paused_and_resumed slow_server credentials_wrong
        message_too_large acknowledgement_lost shutdown_mid_batch);
}
#[cfg(feature = "mqtt")]
mod mqtt_3_1_1 {
    // Neither `topic_missing` (no broker says that a message had no subscriber) nor `compresses_large_bodies` (nothing could
    // tell of it).
    litepost_testkit::conformance!(@cases crate::brokers::mqtt::version_3_1_1;
        delivers keeps_key_order_with_64_in_flight keeps_bytes_exactly keeps_headers_exactly
        hostile_values_arrive_or_are_refused encrypts_payloads_and_puts_large_ones_into_a_store server_restarted
        connection_cut_mid_batch server_paused_and_resumed slow_server credentials_wrong message_too_large
        acknowledgement_lost shutdown_mid_batch);
}
#[cfg(feature = "mqtt")]
mod mqtt_3_1_1_qos_2 {
    // As with QoS 1.
    litepost_testkit::conformance!(@cases crate::brokers::mqtt::version_3_1_1_exactly_once;
        delivers keeps_key_order_with_64_in_flight keeps_bytes_exactly keeps_headers_exactly
        hostile_values_arrive_or_are_refused encrypts_payloads_and_puts_large_ones_into_a_store server_restarted
        connection_cut_mid_batch server_paused_and_resumed slow_server credentials_wrong message_too_large
        acknowledgement_lost shutdown_mid_batch);
}
#[cfg(feature = "kafka")]
mod kafka {
    // All but `compresses_large_bodies`: Kafka compresses batches, in a way of its own. (What becomes of a broker that comes
    // back empty stands in `brokers/kafka.rs`.)
    litepost_testkit::conformance!(@cases crate::brokers::kafka::durable; server_restarted);
    litepost_testkit::conformance!(@cases crate::brokers::kafka::harness;
        delivers keeps_key_order_with_64_in_flight keeps_bytes_exactly keeps_headers_exactly
        hostile_values_arrive_or_are_refused encrypts_payloads_and_puts_large_ones_into_a_store
        connection_cut_mid_batch server_paused_and_resumed slow_server credentials_wrong topic_missing message_too_large acknowledgement_lost
        shutdown_mid_batch);
}
#[cfg(feature = "aws")]
conformance!(sqs_fifo, crate::brokers::sqs::fifo);
#[cfg(feature = "aws")]
mod sqs_standard {
    // The cases that groups and deduplication ids, which a standard queue has not, could make a difference in.
    litepost_testkit::conformance!(@cases crate::brokers::sqs::standard;
        delivers keeps_bytes_exactly keeps_headers_exactly acknowledgement_lost shutdown_mid_batch);
}
#[cfg(feature = "aws")]
conformance!(sns_fifo, crate::brokers::sns::fifo);
#[cfg(feature = "aws")]
mod sns_standard {
    // As with the queue.
    litepost_testkit::conformance!(@cases crate::brokers::sns::standard;
        delivers keeps_bytes_exactly keeps_headers_exactly acknowledgement_lost shutdown_mid_batch);
}
