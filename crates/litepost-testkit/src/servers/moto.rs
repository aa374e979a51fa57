//! A moto server of the test's own: AWS's services (S3, SQS, SNS here) as far as their clients can tell.
//!
//! Called by tests of what talks to AWS. Invariant: it listens on loopback only and keeps everything in memory; it knows
//! whoever asks until it is told to check.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::{Supervised, answers, consumers, new_folder, on_free_port, wait_until};

/// moto goes through all messages of a queue for each that it takes, gives out or deletes, and counts them several times a
/// message: with thousands of them it stands still. These do the same with what they have at hand. (And of two equal messages at
/// once moto would take both, since it looks for the first one without a lock. A topic's subscriptions it does not count.)
const LAUNCH: &str = "
from threading import Lock
from moto.sns.models import Topic
from moto.sqs.models import Queue

lock = Lock()
own_attributes = Queue.attributes.fget


def replace(kind, name, value):
    assert hasattr(kind, name), name
    setattr(kind, name, value)


def add_message(queue, message):
    with lock:
        if queue.fifo_queue and message.deduplication_id:
            known = queue.__dict__.setdefault('known', {})
            before = known.get(message.deduplication_id)
            if before is not None and message.sent_timestamp - before < 300_000:
                return
            known[message.deduplication_id] = message.sent_timestamp
        queue._messages.append(message)


def delete_message(queue, receipt_handle):
    with lock:
        for at, message in enumerate(queue._messages):
            if message.had_receipt_handle(receipt_handle):
                queue.pending_messages.discard(message)
                del queue._messages[at]
                return


def attributes(queue):
    if 'kept' not in queue.__dict__:
        queue.__dict__['kept'] = own_attributes(queue)
    return queue.__dict__['kept']


for name in ('approximate_number_of_messages', 'approximate_number_of_messages_delayed', \
             'approximate_number_of_messages_not_visible'):
    replace(Queue, name, 0)
replace(Queue, 'add_message', add_message)
replace(Queue, 'delete_message', delete_message)
replace(Queue, 'attributes', property(attributes))
replace(Queue, 'messages', property(lambda queue: (m for m in queue._messages if m.visible and not m.delayed)))
subscriptions = lambda topic: len(topic.sns_backend._get_topic_subscriptions(topic))
setattr(Topic, 'subscriptions_confimed', property(subscriptions, lambda topic, value: None))

from moto.server import main
main()
";

/// A running moto server; it stops when this is dropped or the process ends.
#[derive(Debug)]
pub struct Moto {
    port: u16,
    server: Supervised,
}

controls!(Moto, "TERM");

impl Moto {
    /// The region that the tests use.
    pub const REGION: &str = "eu-west-1";

    /// Starts a new, empty server.
    ///
    /// # Panics
    /// When moto is not installed or does not start: a test must not pass without its server.
    pub fn start() -> Self {
        consumers("moto_server").expect("moto is not installed: run `cargo xtask setup`");
        let python = consumers("python").expect("a Python beside moto").display().to_string();
        on_free_port(|port| {
            let folder = new_folder("litepost-moto-");
            let command = [&python, "-c", LAUNCH, "-H", "127.0.0.1", "-p", &port.to_string()].map(str::to_owned);
            let started = Self { port, server: Supervised::start("TERM", &folder, &command) };
            started.is_up().then_some(started)
        })
    }

    /// The URL of its services.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Makes a bucket, while it lets in everybody.
    ///
    /// # Panics
    /// When the server does not make it.
    pub fn make_bucket(&self, name: &str) {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            let request = format!("PUT /{name} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().expect("an answer from moto");
        assert!(answer.lines().next().is_some_and(|status| status.contains(" 200 ")), "{answer}");
    }

    fn is_up(&self) -> bool {
        wait_until(&self.server, || answers(self.port, b"GET /moto-api/ HTTP/1.0\r\n\r\n"))
    }
}
