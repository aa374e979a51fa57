//! MQTT 5 on Mosquitto, consumed by paho-mqtt.

use std::process::Command;

use litepost::NewEvent;
use litepost_testkit::conformance::{
    Desk, Duplicates, Harness, Received, Target, Traits, WRONG_PASSWORD, consume_with,
};
use litepost_testkit::servers::Mosquitto;
use tempfile::TempDir;

const SCRIPT: &str = include_str!("mqtt.py");
const USER: &str = "relay";
const PASSWORD: &str = "a-pass-word";

/// A broker that knows one user, and a subscriber whose messages it keeps.
pub(crate) struct MqttHarness {
    server: Mosquitto,
    qos: u8,
    _folder: TempDir,
}

pub(crate) fn at_least_once() -> MqttHarness {
    start(1)
}

pub(crate) fn exactly_once() -> MqttHarness {
    start(2)
}

fn start(qos: u8) -> MqttHarness {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("passwords").display().to_string();
    let made = Command::new("mosquitto_passwd").args(["-b", "-c", &file, USER, PASSWORD]).status().unwrap();
    assert!(made.success());
    let server =
        Mosquitto::start_with(&format!("allow_anonymous false\npassword_file {file}\nmax_packet_size 2097152"));
    script(&server, "subscribe", "ready/#");
    MqttHarness { server, qos, _folder: folder }
}

fn script(server: &Mosquitto, what: &str, topics: &str) -> Vec<Received> {
    consume_with(SCRIPT, &[&server.port().to_string(), USER, PASSWORD, what, topics])
}

impl Harness for MqttHarness {
    fn traits(&self) -> Traits {
        Traits {
            kind: "mqtt",
            in_flight: "batch_size = 200\nconcurrency = 4",
            duplicates: Duplicates::Allowed,
            too_large: 3 << 20,
            headers: true,
        }
    }

    fn port(&self) -> u16 {
        self.server.port()
    }

    fn connection(&self, port: u16, target: Target) -> String {
        // There are no topics to make in MQTT: one that nobody subscribes to is what comes nearest to a missing one.
        let topic = if target == Target::Missing { "missing" } else { "ready" };
        let password = if target == Target::WrongCredentials { WRONG_PASSWORD } else { PASSWORD };
        format!(
            "{{ url = \"mqtt://127.0.0.1:{port}\", topic = \"{topic}/{{key}}\", qos = {}, no_subscriber = \"hold\", \
             format = \"raw\", user = \"{USER}\", password = \"{password}\" }}",
            self.qos
        )
    }

    fn make_missing(&mut self) {
        script(&self.server, "subscribe", "missing/#");
    }

    fn consume(&mut self, target: Target) -> Vec<Received> {
        script(&self.server, "consume", if target == Target::Missing { "missing/#" } else { "ready/#" })
    }

    /// In good order: killed, Mosquitto forgets what it has confirmed, whatever the client does.
    fn kill(&mut self) {
        self.server.stop();
    }

    fn start_again(&mut self) {
        self.server.start_again();
    }

    fn pause(&mut self) {
        self.server.pause();
    }

    fn resume(&mut self) {
        self.server.resume();
    }
}

#[test]
fn a_retained_message_waits_for_its_subscriber() {
    let server = start(1).server;
    let connection = |retain: bool| {
        format!(
            "{{ url = \"{}\", topic = \"state/{{key}}\", retain = {retain}, user = \"{USER}\", password = \"{PASSWORD}\" }}",
            server.url()
        )
    };
    let mut desk = Desk::new("mqtt", "", &connection(false));
    desk.write(NewEvent::new("orders", "unkept"), Some("a"), b"unkept");
    desk.drain_everything();
    desk.configure("mqtt", "", &connection(true));
    for (key, body) in [("b", "1"), ("b", "2"), ("c", "3")] {
        desk.write(NewEvent::new("orders", body), Some(key), body.as_bytes());
    }
    desk.drain_everything();
    assert_eq!(desk.delivered(), 4);
    script(&server, "subscribe", "state/#");
    let mut bodies: Vec<Vec<u8>> = script(&server, "consume", "state/#").into_iter().map(|m| m.body).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, [b"2", b"3"], "the last of each topic");
}

#[test]
fn over_tls_the_certificate_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = super::certificate(folder.path());
    let server = Mosquitto::start_with(&format!("allow_anonymous true\ncertfile {cert}\nkeyfile {key}"));
    let url = format!("mqtts://localhost:{}", server.port());
    let mut desk = Desk::new("mqtt", "", &format!("{{ url = \"{url}\" }}"));
    desk.write_many(20, 4);
    assert!(!desk.drain().drained_everything(), "nobody knows this certificate");
    desk.configure("mqtt", "", &format!("{{ url = \"{url}\", tls_root_cert = \"{cert}\" }}"));
    desk.drain_everything();
    assert_eq!(desk.delivered(), 20);
}

#[test]
fn cloudevents_are_read_by_the_sdk() {
    super::cloudevents::check("mqtt", || {
        let harness = start(1);
        let port = harness.server.port();
        let connection = format!(
            "url = \"{}\", user = \"{USER}\", password = \"{PASSWORD}\", topic = \"ready/{{seq}}\", retain = true",
            harness.server.url()
        );
        (harness, connection, format!("mqtt://{USER}:{PASSWORD}@127.0.0.1:{port}"))
    });
}
