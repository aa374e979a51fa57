//! MQTT 5 and 3.1.1 on Mosquitto, consumed by paho-mqtt.

use std::process::Command;

use litepost::NewEvent;
use litepost_relay::relay::Drained;
use litepost_testkit::conformance::{
    Desk, Duplicates, Harness, MIB, Received, Target, Traits, WRONG_PASSWORD, consume_with, judge,
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
    /// 3.1.1, where a message has a topic and a body and nothing beside.
    old: bool,
    _folder: TempDir,
}

pub(crate) fn at_least_once() -> MqttHarness {
    start(1)
}

pub(crate) fn exactly_once() -> MqttHarness {
    start(2)
}

pub(crate) fn version_3_1_1() -> MqttHarness {
    MqttHarness { old: true, ..start(1) }
}

pub(crate) fn version_3_1_1_exactly_once() -> MqttHarness {
    MqttHarness { old: true, ..start(2) }
}

fn start(qos: u8) -> MqttHarness {
    let folder = tempfile::tempdir().unwrap();
    let file = passwords(folder.path());
    let server =
        Mosquitto::start_with(&format!("allow_anonymous false\npassword_file {file}\nmax_packet_size 2097152"));
    script(&server, "subscribe", "ready/#");
    MqttHarness { server, qos, old: false, _folder: folder }
}

/// A file that lets [`USER`] in.
fn passwords(folder: &std::path::Path) -> String {
    let file = folder.join("passwords").display().to_string();
    let made = Command::new("mosquitto_passwd").args(["-b", "-c", &file, USER, PASSWORD]).status().unwrap();
    assert!(made.success());
    file
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
            large: MIB,
            too_large: 3 << 20,
            headers: !self.old,
        }
    }

    fn port(&self) -> u16 {
        self.server.port()
    }

    fn connection(&self, port: u16, target: Target) -> String {
        // There are no topics to make in MQTT: one that nobody subscribes to is what comes nearest to a missing one.
        let topic = if target == Target::Missing { "missing" } else { "ready" };
        let password = if target == Target::WrongCredentials { WRONG_PASSWORD } else { PASSWORD };
        let keys = if self.old {
            format!("topic = \"{topic}/{{id}}/{{key}}\", version = \"3.1.1\", packet_bytes_max = 2097152")
        } else {
            format!("topic = \"{topic}/{{key}}\", no_subscriber = \"hold\"")
        };
        format!(
            "{{ url = \"mqtt://127.0.0.1:{port}\", {keys}, qos = {}, format = \"raw\", user = \"{USER}\", \
             password = \"{password}\" }}",
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
    retained("topic = \"state/{key}\"");
    retained("topic = \"state/{key}\", version = \"3.1.1\", format = \"json\", qos = 2");
}

fn retained(keys: &str) {
    let server = start(1).server;
    let connection = |retain: bool| {
        format!(
            "{{ url = \"{}\", {keys}, retain = {retain}, user = \"{USER}\", password = \"{PASSWORD}\" }}",
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
    let kept = script(&server, "consume", "state/#");
    let mut payloads: Vec<String> = kept.iter().map(|message| payload(&message.body)).collect();
    payloads.sort_unstable();
    assert_eq!(payloads, ["2", "3"], "the last of each topic");
}

/// The body, or the payload within its JSON.
fn payload(body: &[u8]) -> String {
    let parsed: serde_json::Value = serde_json::from_slice(body).unwrap();
    parsed.get("payload").unwrap_or(&parsed).to_string()
}

#[test]
fn over_tls_the_certificate_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = super::certificate(folder.path());
    let passwords = passwords(folder.path());
    let keys = format!("allow_anonymous false\npassword_file {passwords}\ncertfile {cert}\nkeyfile {key}");
    let server = Mosquitto::start_with(&keys);
    let with = |password: &str| {
        format!("url = \"mqtts://localhost:{}\", user = \"{USER}\", password = \"{password}\"", server.port())
    };
    let connection = with(PASSWORD);
    let mut desk = Desk::new("mqtt", "", &format!("{{ {connection} }}"));
    desk.write_many(20, 4);
    assert!(!desk.drain().drained_everything(), "nobody knows this certificate");
    desk.configure("mqtt", "", &format!("{{ {}, tls_root_cert = \"{cert}\" }}", with(WRONG_PASSWORD)));
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
    assert!(error.to_lowercase().contains("auth") && !error.contains(WRONG_PASSWORD), "{error}");
    desk.configure("mqtt", "", &format!("{{ {connection}, tls_root_cert = \"{cert}\" }}"));
    desk.drain_everything();
    assert_eq!(desk.delivered(), 20);
    let old = format!("{connection}, version = \"3.1.1\", format = \"json\"");
    desk.write_many(20, 4);
    desk.configure("mqtt", "", &format!("{{ {old} }}"));
    assert!(!desk.drain().drained_everything(), "nor does 3.1.1");
    desk.configure("mqtt", "", &format!("{{ {old}, tls_root_cert = \"{cert}\" }}"));
    desk.drain_everything();
    assert_eq!(desk.delivered(), 40);
}

#[test]
fn cloudevents_are_read_by_the_sdk() {
    let started = |version: &'static str| {
        move || {
            let harness = start(1);
            let port = harness.server.port();
            let connection = format!(
                "url = \"{}\", version = \"{version}\", user = \"{USER}\", password = \"{PASSWORD}\", \
                 topic = \"ready/{{seq}}\", retain = true",
                harness.server.url()
            );
            (harness, connection, format!("mqtt://{USER}:{PASSWORD}@127.0.0.1:{port}"))
        }
    };
    super::cloudevents::check("mqtt", started("5"));
    super::cloudevents::check_structured("mqtt", started("3.1.1"));
}

/// What a busy machine does to a relay with a short lease: it gives its lanes up when it cannot show that it lives, and what was
/// under way then comes again, with QoS 2 as with any other.
#[test]
fn a_relay_that_is_held_up_for_longer_than_its_lease_sends_again_and_loses_nothing() {
    for (lease, again) in [("1s", true), ("20s", false)] {
        let mut harness = version_3_1_1_exactly_once();
        let mut desk = Desk::new("mqtt", "batch_size = 200", &harness.connection(harness.port(), Target::Ready));
        let path = desk.path("litepost.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let line = text.lines().find(|line| line.starts_with("lease = ")).unwrap();
        std::fs::write(&path, text.replace(line, &format!("lease = \"{lease}\""))).unwrap();
        desk.write_many(6_000, 40);
        let relay = desk.start();
        desk.until("it delivers", |desk| desk.delivered() > 0);
        // Nobody can write a sign of life meanwhile.
        desk.outbox().execute_batch("BEGIN IMMEDIATE").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2_500));
        desk.outbox().execute_batch("COMMIT").unwrap();
        desk.until_settled();
        relay.stop();
        let received = harness.consume(Target::Ready);
        judge(desk.sent(), &received, Duplicates::Allowed).unwrap();
        assert_eq!(received.len() > desk.sent().len(), again, "lease {lease}: {} arrived", received.len());
    }
}
