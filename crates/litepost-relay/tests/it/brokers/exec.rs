//! A program as a destination, in Python, with a transport of its own: redis-py to a real Redis, read by another client.

use litepost_testkit::conformance::{
    Duplicates, Harness, MIB, Received, Target, Traits, WRONG_PASSWORD, consume_with, python,
};
use litepost_testkit::servers::Redis;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/brokers/exec.py");
const CONSUMER: &str = include_str!("redis.py");

/// The server that the program adds to.
pub(crate) struct ExecHarness {
    server: Redis,
}

pub(crate) fn harness() -> ExecHarness {
    ExecHarness { server: Redis::start() }
}

fn stream(target: Target) -> &'static str {
    if target == Target::Missing { "missing" } else { "ready" }
}

impl Harness for ExecHarness {
    fn traits(&self) -> Traits {
        Traits {
            kind: "exec",
            in_flight: "batch_size = 100",
            duplicates: Duplicates::Allowed,
            large: MIB,
            too_large: 3 << 20,
            // The program is handed them as JSON, whatever they hold; none is a header on a wire.
            headers: false,
        }
    }

    fn port(&self) -> u16 {
        self.server.port()
    }

    fn connection(&self, port: u16, target: Target) -> String {
        let (stream, create) = (stream(target), target != Target::Missing);
        let password = if target == Target::WrongCredentials { WRONG_PASSWORD } else { Redis::PASSWORD };
        let options =
            format!("{{ port = {port}, password = \"{password}\", stream = \"{stream}\", create = {create} }}");
        // (-P: a file beside the program is named like the library that it imports.)
        format!("{{ command = [{:?}, \"-P\", {PROGRAM:?}], options = {options} }}", python().display().to_string())
    }

    fn make_missing(&mut self) {
        const RUN: &str =
            "import sys, redis; redis.Redis.from_url(sys.argv[1]).xgroup_create('missing', 'workers', '$', True)";
        consume_with(RUN, &[&self.server.url()]);
    }

    fn consume(&mut self, target: Target) -> Vec<Received> {
        consume_with(CONSUMER, &[&self.server.url(), stream(target)])
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
