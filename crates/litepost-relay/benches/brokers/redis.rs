//! Redis Streams: pipelined XADDs.

use litepost_testkit::servers::Redis;

use super::{Backlog, Bench, save, window};

pub(super) fn bench(bench: &Bench) {
    let server = Redis::start();
    let url = server.url();
    let config = |round: i64| {
        format!("type = \"redis\"\nconnection = {{ url = \"{url}\", stream = \"s{round}\", format = \"raw\" }}")
    };
    let hand = |backlog: &Backlog, round: i64| bench.runtime.block_on(by_hand(&url, backlog, round));
    bench.compare("redis", &config, &hand);
}

async fn by_hand(url: &str, backlog: &Backlog, round: i64) {
    let mut connection = ::redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
    let stream = format!("s{round}");
    let outbox = backlog.open();
    let mut after = 0;
    loop {
        let rows = window(&outbox, after);
        let Some(last) = rows.last() else { return };
        after = last.seq;
        let mut pipeline = ::redis::Pipeline::with_capacity(rows.len());
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
