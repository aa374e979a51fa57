//! What a reader keeps, without its thread.

use litepost::connection::{self, Access, Options};
use litepost::schema;

use super::super::share::Shares;
use super::*;

#[test]
fn what_is_kept_has_a_bound_in_bytes_and_in_chunks_and_goes_when_nobody_asks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let mut outbox = Options::new(Access::ReadWrite).create(true).open(&path).unwrap();
    connection::enable_wal(&outbox).unwrap();
    schema::migrate(&mut outbox).unwrap();
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 110) \
         INSERT INTO litepost_outbox (topic, payload) SELECT 't', printf('%.*c', iif(i > 100, 100000, 10), 'x') FROM n";
    outbox.execute(sql, []).unwrap();
    let all = Arc::new(Shares::default());
    let shares: Vec<Share> = (0..200).map(|_| all.one_more()).collect();
    let (_handle, mut worker) = Reader::prepare(&path, false, &Wakes::new(), shares[0].clone()).unwrap();
    let mut read = |after| {
        worker.chunk_events = 1;
        worker.read_log(Seq(after)).unwrap().unwrap();
        (worker.cache.len(), worker.cache_bytes)
    };
    assert_eq!((0..100).map(&mut read).last().unwrap().0, CACHE_CHUNKS_MAX);
    assert!((100..110).map(read).last().unwrap().1 <= shares[0].cache_bytes());
    worker.chunk_events = 10;
    let large = worker.read_log(Seq(100)).unwrap().unwrap();
    assert!((1..=2).contains(&large.events().len()), "{}", large.events().len());
    worker.heard(Heard::Nothing);
    assert!(worker.cache.is_empty());
}
