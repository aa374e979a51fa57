//! Every sink that delivers events to a broker, through one suite: a line each.

use litepost_testkit::conformance;

conformance!(http, crate::brokers::http::harness);
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
        delivers keeps_key_order_with_64_in_flight keeps_bytes_exactly keeps_headers_exactly server_restarted
        connection_cut_mid_batch server_paused_and_resumed slow_server credentials_wrong message_too_large
        acknowledgement_lost shutdown_mid_batch);
}
#[cfg(feature = "kafka")]
mod kafka {
    // All but `server_restarted`: the broker that the tests have keeps nothing over a restart. What the sink does then
    // stands in `brokers/kafka.rs`.
    litepost_testkit::conformance!(@cases crate::brokers::kafka::harness;
        delivers keeps_key_order_with_64_in_flight keeps_bytes_exactly keeps_headers_exactly connection_cut_mid_batch
        server_paused_and_resumed slow_server credentials_wrong topic_missing message_too_large acknowledgement_lost
        shutdown_mid_batch);
}
