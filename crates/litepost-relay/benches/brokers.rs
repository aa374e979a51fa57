//! Drains a backlog into each broker, beside a loop written by hand on the same client library with the same window, in one
//! run: `cargo bench -p litepost-relay --bench brokers [-- --events 50000] [NAME]`.
//!
//! Both read the same kind of outbox file, send the same messages (the loop sends the same headers too), wait for every
//! acknowledgement and save a cursor. The loop has none of the rest: no retries, no order after a failure, no breaker, no
//! leases, no sync of what it has read. One function a sink: [`BROKERS`] lists them.

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

#[cfg(feature = "kafka")]
#[path = "brokers/kafka.rs"]
mod kafka;
#[cfg(feature = "mqtt")]
#[path = "brokers/mqtt.rs"]
mod mqtt;
#[cfg(feature = "amqp")]
#[path = "brokers/rabbitmq.rs"]
mod rabbitmq;

use std::future;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use litepost::connection::{Access, Options};
use litepost::schema;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Relay;
use rusqlite::{Connection, params};
use tokio::runtime::Runtime;

const PAYLOAD_BYTES: i64 = 256;
const KEYS: i64 = 10_000;
/// Messages that wait for their acknowledgements at once, for both.
const WINDOW: i64 = 1_000;
const ROUNDS: usize = 3;

/// A name, and what measures it with so many events.
type Broker = (&'static str, fn(&Bench));

static BROKERS: &[Broker] = &[
    ("http", webhooks::bench),
    #[cfg(feature = "nats")]
    ("nats", nats::bench),
    #[cfg(feature = "redis")]
    ("redis", redis_streams::bench),
    #[cfg(feature = "amqp")]
    ("rabbitmq", rabbitmq::bench),
    #[cfg(feature = "mqtt")]
    ("mqtt", mqtt::bench),
    #[cfg(feature = "kafka")]
    ("kafka", kafka::bench),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let given = args.iter().skip_while(|arg| *arg != "--events").nth(1);
    let quick = args.iter().any(|arg| arg == "--quick");
    let events = given.map_or(if quick { 5_000 } else { 50_000 }, |n| n.parse().unwrap());
    let bench = Bench { events, runtime: Runtime::new().unwrap() };
    let named = |name: &str| args.iter().any(|arg| arg == name);
    let all = !BROKERS.iter().any(|(name, _)| named(name));
    println!("{:<30} {:>16} {:>16} {:>8}", "events/s, medians of 3", "litepost", "by hand", "ratio");
    for (name, run) in BROKERS {
        if all || named(name) {
            run(&bench);
        }
    }
}

/// What every bench needs.
struct Bench {
    events: i64,
    runtime: Runtime,
}

/// An outbox with a backlog, in a folder of its own.
struct Backlog {
    folder: tempfile::TempDir,
}

/// One row, as a loop by hand reads it.
struct Row {
    seq: i64,
    id: String,
    topic: String,
    key: String,
    kind: String,
    payload: Vec<u8>,
    created_at: i64,
}

impl Bench {
    /// Measures both in turn and prints the medians. `hand` gets a backlog and delivers it.
    fn compare(&self, name: &str, config: &dyn Fn(usize) -> String, hand: &dyn Fn(&Backlog, usize)) {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let backlog = Backlog::new(self.events);
            theirs.push(timed(|| hand(&backlog, 2 * round)));
            let backlog = Backlog::new(self.events);
            backlog.configure(&config(2 * round + 1));
            ours.push(timed(|| {
                let config = Config::load(&backlog.path("litepost.toml"), Purpose::Deliver).unwrap();
                let relay = Relay::new(config.relay());
                let report = self.runtime.block_on(relay.run_until_idle(future::pending()));
                assert_eq!(report.delivered(), self.events, "{report:?}");
            }));
        }
        let rate = |times: &mut Vec<Duration>| {
            times.sort_unstable();
            #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
            let events = self.events as f64;
            events / times[ROUNDS / 2].as_secs_f64()
        };
        let (ours, theirs) = (rate(&mut ours), rate(&mut theirs));
        println!("{name:<30} {ours:>16.0} {theirs:>16.0} {:>8.2}", ours / theirs);
    }
}

fn timed(run: impl FnOnce()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

impl Backlog {
    fn new(events: i64) -> Self {
        let backlog = Self { folder: tempfile::tempdir_in(".").unwrap() };
        let mut outbox = Options::new(Access::ReadWrite).create(true).open(backlog.path("shop.db")).unwrap();
        outbox.query_row("PRAGMA journal_mode = wal", [], |_| Ok(())).unwrap();
        schema::migrate(&mut outbox).unwrap();
        outbox
            .execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
                 INSERT INTO litepost_outbox (topic, key, type, payload) \
                 SELECT 'orders', i % ?3, 'OrderCreated', printf('%.*c', ?2, 'x') FROM n",
                params![events, PAYLOAD_BYTES, KEYS],
            )
            .unwrap();
        outbox.execute_batch("CREATE TABLE by_hand (seq INTEGER NOT NULL); INSERT INTO by_hand VALUES (0)").unwrap();
        outbox.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        backlog
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A sink `out` with these lines in its table.
    fn configure(&self, sink: &str) {
        let text = format!(
            "[app.shop]\ndatabase = \"shop.db\"\nretain = \"never\"\n[app.shop.sink.out]\nbatch_size = {WINDOW}\n{sink}\n"
        );
        std::fs::write(self.path("litepost.toml"), text).unwrap();
    }

    fn open(&self) -> Connection {
        let outbox = Connection::open(self.path("shop.db")).unwrap();
        outbox.pragma_update(None, "synchronous", "NORMAL").unwrap();
        outbox
    }
}

/// The next window of the log, as a loop by hand reads it.
fn window(outbox: &Connection, after: i64) -> Vec<Row> {
    let sql = "SELECT seq, id, topic, key, type, CAST(payload AS BLOB), created_at FROM litepost_outbox \
               WHERE seq > ?1 ORDER BY seq LIMIT ?2";
    let mut statement = outbox.prepare_cached(sql).unwrap();
    let rows = statement.query_map(params![after, WINDOW], |row| {
        Ok(Row {
            seq: row.get(0)?,
            id: row.get(1)?,
            topic: row.get(2)?,
            key: row.get(3)?,
            kind: row.get(4)?,
            payload: row.get(5)?,
            created_at: row.get(6)?,
        })
    });
    rows.unwrap().map(Result::unwrap).collect()
}

impl Row {
    /// The headers that the relay sends too.
    fn headers(&self) -> [(&'static str, String); 7] {
        [
            ("litepost-id", self.id.clone()),
            ("litepost-seq", self.seq.to_string()),
            ("litepost-topic", self.topic.clone()),
            ("litepost-key", self.key.clone()),
            ("litepost-type", self.kind.clone()),
            ("litepost-created-at", self.created_at.to_string()),
            ("content-type", "text/plain; charset=utf-8".into()),
        ]
    }
}

fn save(outbox: &Connection, seq: i64) {
    outbox.prepare_cached("UPDATE by_hand SET seq = ?1").unwrap().execute([seq]).unwrap();
}

mod webhooks {
    //! Webhooks: one POST an event, over connections that stay open.

    use std::time::Duration;

    use futures_util::{StreamExt as _, stream};
    use litepost_testkit::http::HttpServer;
    use reqwest::Client;
    use reqwest::redirect::Policy;

    use super::{Backlog, Bench, Row, save, window};

    /// Requests under way at once, for both.
    const PARALLEL: usize = 64;

    pub(super) fn bench(bench: &Bench) {
        let server = HttpServer::start();
        let url = server.url("/ready");
        let config = |_: usize| {
            format!(
                "type = \"http\"\nconnection = {{ url = \"{url}\", format = \"raw\", parallel = {PARALLEL}, \
                 allow_private_addresses = true }}"
            )
        };
        let hand = |backlog: &Backlog, _: usize| bench.runtime.block_on(by_hand(&url, backlog));
        bench.compare("http", &config, &hand);
    }

    async fn by_hand(url: &str, backlog: &Backlog) {
        // Both use the provider that the relay installs.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().redirect(Policy::none()).timeout(Duration::from_secs(10)).build().unwrap();
        let outbox = backlog.open();
        let mut after = 0;
        loop {
            let rows = window(&outbox, after);
            let Some(last) = rows.last() else { return };
            after = last.seq;
            let mut answers =
                stream::iter(rows.into_iter().map(|row| post(&client, url, row))).buffer_unordered(PARALLEL);
            while let Some(status) = answers.next().await {
                assert!(status.is_success(), "{status}");
            }
            save(&outbox, after);
        }
    }

    async fn post(client: &Client, url: &str, row: Row) -> reqwest::StatusCode {
        let mut request = client.post(url).header("webhook-id", &row.id).header("idempotency-key", &row.id);
        for (name, value) in row.headers() {
            request = request.header(name, value);
        }
        request = request.header("webhook-timestamp", row.created_at / 1_000);
        let response = request.body(row.payload).send().await.unwrap();
        let status = response.status();
        response.bytes().await.unwrap();
        status
    }
}

#[cfg(feature = "nats")]
mod nats {
    //! NATS JetStream: publishes with awaited acknowledgements.

    use async_nats::ConnectOptions;
    use async_nats::jetstream::message::PublishMessage;
    use async_nats::jetstream::{self, stream};
    use litepost_testkit::servers::Nats;

    use super::{Backlog, Bench, save, window};

    pub(super) fn bench(bench: &Bench) {
        let server = Nats::start();
        let url = format!("nats://127.0.0.1:{}", server.port());
        let stream_of = |round: usize| format!("S{round}");
        let config = |per_key: usize| {
            let url = url.clone();
            move |round: usize| {
                format!(
                    "type = \"nats\"\nconnection = {{ url = \"{url}\", user = \"{}\", password = \"{}\", \
                     stream = \"{}\", subject = \"s{round}.{{key}}\", create_stream = true, per_key_in_flight = {per_key} }}",
                    Nats::USER,
                    Nats::PASSWORD,
                    stream_of(round)
                )
            }
        };
        let hand = |first: usize| {
            let url = url.clone();
            move |backlog: &Backlog, round: usize| bench.runtime.block_on(by_hand(&url, backlog, first + round))
        };
        bench.compare("nats", &config(1), &hand(0));
        let shifted = config(8);
        bench.compare("nats, per_key_in_flight = 8", &|round| shifted(round + 100), &hand(100));
    }

    async fn by_hand(url: &str, backlog: &Backlog, round: usize) {
        let options = ConnectOptions::new().user_and_password(Nats::USER.into(), Nats::PASSWORD.into());
        let context = jetstream::new(options.connect(url).await.unwrap());
        let name = format!("S{round}");
        let subjects = vec![format!("s{round}.*")];
        context
            .create_stream(stream::Config { name: name.clone(), subjects, ..stream::Config::default() })
            .await
            .unwrap();
        let outbox = backlog.open();
        let mut after = 0;
        loop {
            let rows = window(&outbox, after);
            let Some(last) = rows.last() else { return };
            after = last.seq;
            let mut acknowledgements = Vec::with_capacity(rows.len());
            for row in rows {
                let mut message = PublishMessage::build().message_id(&row.id).expected_stream(&name);
                for (header, value) in row.headers() {
                    message = message.header(header, value.as_str());
                }
                let subject = format!("s{round}.{}", row.key);
                let message = message.payload(row.payload.into());
                acknowledgements.push(context.send_publish(subject, message).await.unwrap());
            }
            for acknowledgement in acknowledgements {
                acknowledgement.await.unwrap();
            }
            save(&outbox, after);
        }
    }
}

#[cfg(feature = "redis")]
mod redis_streams {
    //! Redis Streams: pipelined XADDs.

    use litepost_testkit::servers::Redis;

    use super::{Backlog, Bench, save, window};

    pub(super) fn bench(bench: &Bench) {
        let server = Redis::start();
        let url = server.url();
        let config = |round: usize| {
            format!("type = \"redis\"\nconnection = {{ url = \"{url}\", stream = \"s{round}\", format = \"raw\" }}")
        };
        let hand = |backlog: &Backlog, round: usize| bench.runtime.block_on(by_hand(&url, backlog, round));
        bench.compare("redis", &config, &hand);
    }

    async fn by_hand(url: &str, backlog: &Backlog, round: usize) {
        let mut connection = redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
        let stream = format!("s{round}");
        let outbox = backlog.open();
        let mut after = 0;
        loop {
            let rows = window(&outbox, after);
            let Some(last) = rows.last() else { return };
            after = last.seq;
            let mut pipeline = redis::Pipeline::with_capacity(rows.len());
            for row in &rows {
                let add = pipeline.cmd("XADD").arg(&stream).arg(format!("{}-0", row.seq));
                for (header, value) in row.headers() {
                    add.arg(header).arg(value);
                }
                add.arg("payload").arg(&row.payload).ignore();
            }
            let () = pipeline.query_async(&mut connection).await.unwrap();
            save(&outbox, after);
        }
    }
}
