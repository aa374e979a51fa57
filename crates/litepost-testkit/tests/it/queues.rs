//! The brokers that queue: up, killed, up again on the same port, frozen and thawed.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use litepost_testkit::servers::{Kafka, Mosquitto, RabbitMq};

/// What the server sends back to `greeting` within a moment; `None` when nothing comes.
fn answer(port: u16, greeting: &[u8], wait: Duration) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(wait)).unwrap();
    stream.write_all(greeting).ok()?;
    let mut answer = vec![0; 64];
    let length = stream.read(&mut answer).ok()?;
    answer.truncate(length);
    (length > 0).then_some(answer)
}

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(500);

/// `pause` and `resume` for one server, seen from outside.
fn freezes(port: u16, greeting: &[u8], pause: impl Fn(), resume: impl Fn()) {
    assert!(answer(port, greeting, LONG).is_some(), "it answers");
    pause();
    assert_eq!(answer(port, greeting, SHORT), None, "a frozen server answers nothing");
    resume();
    assert!(answer(port, greeting, LONG).is_some(), "it answers again");
}

/// A killed process lets go of its socket with its last thread.
fn refuses(port: u16) {
    let refused = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        TcpStream::connect(("127.0.0.1", port)).is_err()
    });
    assert!(refused, "something still listens");
}

/// AMQP 0-9-1's protocol header; the server begins with `connection.start`.
const AMQP: &[u8] = b"AMQP\x00\x00\x09\x01";
/// MQTT 5 CONNECT with a clean start, no client id and no properties.
const MQTT: &[u8] = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x0a\x00\x00\x00";
/// Kafka's `ApiVersions` request, version 0.
const KAFKA: &[u8] = b"\x00\x00\x00\x0c\x00\x12\x00\x00\x00\x00\x00\x01\x00\x02it";

#[test]
fn rabbitmq_starts_stops_and_freezes() {
    let mut server = RabbitMq::start();
    freezes(server.port(), AMQP, || server.pause(), || server.resume());
    server.kill();
    refuses(server.port());
    server.start_again();
    server.stop();
    refuses(server.port());
    server.start_again();
    assert!(answer(server.port(), AMQP, LONG).is_some());
}

#[test]
fn mosquitto_starts_stops_and_freezes() {
    let mut server = Mosquitto::start();
    freezes(server.port(), MQTT, || server.pause(), || server.resume());
    server.kill();
    refuses(server.port());
    server.start_again();
    server.stop();
    server.start_again();
    assert!(answer(server.port(), MQTT, LONG).is_some());
}

#[test]
fn kafka_starts_stops_and_freezes() {
    let mut server = Kafka::start();
    freezes(server.port(), KAFKA, || server.pause(), || server.resume());
    server.kill();
    refuses(server.port());
    server.start_again();
    server.stop();
    server.start_again();
    assert!(answer(server.port(), KAFKA, LONG).is_some());
}
