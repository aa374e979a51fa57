//! NATS JetStream, on a real server, consumed by nats-py.

use litepost::NewEvent;
use litepost_relay::relay::Drained;
use litepost_testkit::conformance::{
    Desk, Duplicates, Harness, MIB, Received, Target, Traits, WRONG_PASSWORD, consume_with, judge,
};
use litepost_testkit::servers::Nats;
use litepost_testkit::tls::Certificate;

const CONSUMER: &str = include_str!("nats.py");
const READY: &str = "READY";
const MISSING: &str = "MISSING";

/// A server with the stream `READY`.
pub(crate) struct NatsHarness {
    server: Nats,
}

pub(crate) fn harness() -> NatsHarness {
    let server = Nats::start();
    make_stream(&server.url(), READY, "ready.>");
    NatsHarness { server }
}

/// Makes a stream with nats-py.
fn make_stream(url: &str, name: &str, subjects: &str) {
    manage(url, &format!("await js.add_stream(name={name:?}, subjects=[{subjects:?}])"));
}

/// Runs a line of Python with nats-py: `js` is the JetStream context.
fn manage(url: &str, line: &str) {
    let script = format!(
        "
import asyncio, sys, nats
async def main(url):
    client = await nats.connect(url)
    js = client.jetstream()
    {line}
    await client.close()
asyncio.run(main(*sys.argv[1:]))"
    );
    consume_with(&script, &[url]);
}

impl Harness for NatsHarness {
    fn traits(&self) -> Traits {
        Traits {
            kind: "nats",
            in_flight: "batch_size = 100",
            // Within the stream's duplicate window.
            duplicates: Duplicates::Never,
            large: MIB,
            too_large: 3 << 20,
            headers: true,
        }
    }

    fn port(&self) -> u16 {
        self.server.port()
    }

    fn connection(&self, port: u16, target: Target) -> String {
        let (stream, subject) = match target {
            Target::Missing => (MISSING, "missing"),
            Target::Ready | Target::WrongCredentials => (READY, "ready"),
        };
        let password = if target == Target::WrongCredentials { WRONG_PASSWORD } else { Nats::PASSWORD };
        format!(
            "{{ url = \"nats://127.0.0.1:{port}\", stream = \"{stream}\", subject = \"{subject}.{{key}}\", \
             format = \"raw\", user = \"{}\", password = \"{password}\" }}",
            Nats::USER
        )
    }

    fn make_missing(&mut self) {
        make_stream(&self.server.url(), MISSING, "missing.>");
    }

    fn consume(&mut self, target: Target) -> Vec<Received> {
        let stream = if target == Target::Missing { MISSING } else { READY };
        consume_with(CONSUMER, &[&self.server.url(), stream])
    }

    fn kill(&mut self) {
        self.server.kill();
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

/// A key's events at a stream that is full for the second of them and not for the third: what arrived, in order.
fn past_a_full_stream(per_key_in_flight: usize) -> Vec<String> {
    let server = Nats::start();
    let connection = format!(
        "{{ url = \"{}\", stream = \"FULL\", subject = \"full.{{key}}\", per_key_in_flight = {per_key_in_flight} }}",
        server.url()
    );
    let discard = "from nats.js.api import DiscardPolicy as D";
    let full = "max_bytes=12000, discard=D.NEW";
    manage(&server.url(), &format!("{discard}; await js.add_stream(name='FULL', subjects=['full.>'], {full})"));
    let mut harness = NatsHarness { server };
    let mut desk = Desk::new("nats", "", &connection);
    for size in [9_000, 9_000, 10] {
        desk.write(NewEvent::new("orders", vec![b'x'; size]), Some("k"), &[]);
    }
    let relay = desk.start();
    desk.until("the stream is full", |desk| {
        desk.text("SELECT coalesce(max(state_error), '') FROM litepost_cursor").contains("maximum bytes exceeded")
    });
    let read = |harness: &mut NatsHarness| consume_with(CONSUMER, &[&harness.server.url(), "FULL"]);
    let mut arrived = read(&mut harness);
    manage(&harness.server.url(), "await js.purge_stream('FULL')");
    desk.until_settled();
    relay.stop();
    arrived.extend(read(&mut harness));
    let mut ids: Vec<String> = Vec::new();
    for message in arrived {
        if !ids.contains(&message.id) {
            ids.push(message.id);
        }
    }
    ids
}

#[test]
fn a_refused_event_is_not_overtaken_by_the_next_of_its_key() {
    assert_eq!(past_a_full_stream(1), ["e-000000", "e-000001", "e-000002"]);
    // What the setting's description warns of.
    assert_eq!(past_a_full_stream(8), ["e-000000", "e-000002", "e-000001"]);
}

#[test]
fn a_subject_of_another_stream_waits_and_nothing_is_called_delivered() {
    let mut harness = harness();
    make_stream(&harness.server.url(), "OTHER", "other.>");
    let connection = format!(
        "{{ url = \"{}\", stream = \"{READY}\", subject = \"{{header.to|ready}}.{{key}}\" }}",
        harness.server.url()
    );
    let mut desk = Desk::new("nats", "", &connection);
    for (to, key) in [("other", "a"), ("nowhere", "b")] {
        let id = desk.write(NewEvent::new("orders", "1").header("to", to), Some(key), b"1");
        desk.unsend(&id);
    }
    desk.write(NewEvent::new("orders", "2"), Some("c"), b"2");
    desk.drain();
    let codes = "SELECT group_concat(error_code) FROM (SELECT error_code FROM litepost_blocked ORDER BY first_seq)";
    assert_eq!(desk.text(codes), "10060,no_stream");
    assert_eq!((desk.delivered(), desk.dead()), (1, 0));
    judge(desk.sent(), &harness.consume(Target::Ready), Duplicates::Never).unwrap();
}

#[test]
fn a_stream_is_made_when_that_is_wanted() {
    let mut harness = NatsHarness { server: Nats::start() };
    let connection = harness.connection(harness.port(), Target::Ready).replace('}', ", create_stream = true }");
    let connection = connection.replace("{key, create_stream = true }", "{key}");
    let mut desk = Desk::new("nats", "", &connection);
    desk.write_many(20, 3);
    desk.drain_everything();
    judge(desk.sent(), &harness.consume(Target::Ready), Duplicates::Never).unwrap();
}

/// Delivers to a server with these lines in its configuration and these keys in the connection.
fn deliver_with(lines: &str, scheme: &str, keys: &str) -> Drained {
    let server = Nats::start_with(lines);
    let connection =
        format!("{{ url = \"{scheme}://127.0.0.1:{}\", stream = \"S\", create_stream = true, {keys} }}", server.port());
    let mut desk = Desk::new("nats", "timeout = \"5s\"", &connection);
    desk.write_many(10, 2);
    desk.drain().lanes.swap_remove(0).drained
}

#[test]
fn tokens_nkeys_and_certificates() {
    let token = "authorization { token: \"t0ken\" }";
    assert_eq!(deliver_with(token, "nats", "token = \"t0ken\""), Drained::Everything);
    let Drained::Unavailable { error } = deliver_with(token, "nats", "token = \"wrong-t0ken\"") else { panic!() };
    assert!(error.contains("authorization violation") && !error.contains("wrong-t0ken"), "{error}");

    let nkey = "authorization { users: [ { nkey: UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4 } ] }";
    let seed = "nkey_secret = \"SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY\"";
    assert_eq!(deliver_with(nkey, "nats", seed), Drained::Everything);

    let certificate = Certificate::new();
    let (cert, key) = (certificate.cert(), certificate.key());
    let tls = format!("tls {{ cert_file: {cert:?}, key_file: {key:?} }}");
    assert_eq!(deliver_with(&tls, "tls", &format!("tls_root_cert = {cert:?}")), Drained::Everything);
    assert!(
        matches!(deliver_with(&tls, "tls", "tls_required = true"), Drained::Unavailable { .. }),
        "nobody trusts it"
    );

    let both = format!("{tls}\nauthorization {{ user: u, password: s3cret-in-tls }}");
    let trusted = |password: &str| {
        deliver_with(&both, "tls", &format!("tls_root_cert = {cert:?}, user = \"u\", password = \"{password}\""))
    };
    assert_eq!(trusted("s3cret-in-tls"), Drained::Everything);
    let Drained::Unavailable { error } = trusted(WRONG_PASSWORD) else { panic!() };
    assert!(error.contains("authorization violation") && !error.contains(WRONG_PASSWORD), "{error}");
}

#[test]
fn a_user_without_the_permission_is_told_and_costs_no_event_an_attempt() {
    let lines =
        "authorization { users: [ { user: u, password: p, permissions: { publish: [\"$JS.>\", \"_INBOX.>\"] } } ] }";
    let drained = deliver_with(lines, "nats", "user = \"u\", password = \"p\"");
    let Drained::Unavailable { error } = drained else { panic!("{drained:?}") };
    assert!(error.to_lowercase().contains("permissions violation"), "{error}");
}

#[test]
fn cloudevents_are_read_by_the_sdk() {
    super::cloudevents::check("nats", || {
        let server = Nats::start();
        make_stream(&server.url(), READY, "ready.>");
        let url = server.url();
        let connection = format!("url = \"{url}\", stream = \"{READY}\", subject = \"ready.x\"");
        (server, connection, url)
    });
}
