//! NATS JetStream: publishes with awaited acknowledgements.

use async_nats::ConnectOptions;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, stream};
use litepost_testkit::servers::Nats;

use super::{Backlog, Bench, save, window};

pub(super) fn bench(bench: &Bench) {
    let server = Nats::start();
    let url = format!("nats://127.0.0.1:{}", server.port());
    let stream_of = |round: i64| format!("S{round}");
    let config = |per_key: i64| {
        let url = url.clone();
        move |round: i64| {
            format!(
                "type = \"nats\"\nconnection = {{ url = \"{url}\", user = \"{}\", password = \"{}\", \
                 stream = \"{}\", subject = \"s{round}.{{key}}\", create_stream = true, per_key_in_flight = {per_key} }}",
                Nats::USER,
                Nats::PASSWORD,
                stream_of(round)
            )
        }
    };
    let hand = |first: i64| {
        let url = url.clone();
        move |backlog: &Backlog, round: i64| bench.runtime.block_on(by_hand(&url, backlog, first + round))
    };
    bench.compare("nats", &config(1), &hand(0));
    let shifted = config(8);
    // (Streams that no run above has made.)
    bench.compare("nats, per_key_in_flight = 8", &|round| shifted(round + 100), &hand(100));
}

async fn by_hand(url: &str, backlog: &Backlog, round: i64) {
    let options = ConnectOptions::new().user_and_password(Nats::USER.into(), Nats::PASSWORD.into());
    let context = jetstream::new(options.connect(url).await.unwrap());
    let name = format!("S{round}");
    let subjects = vec![format!("s{round}.*")];
    context.create_stream(stream::Config { name: name.clone(), subjects, ..stream::Config::default() }).await.unwrap();
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
