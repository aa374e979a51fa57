//! What a reader keeps, without its thread.

use litepost::connection::{self, Access, Options};
use litepost::schema;

use super::super::share::Shares;
use super::*;

#[test]
fn commits_that_follow_closely_are_read_together_and_none_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outbox.db");
    let outbox = Options::new(Access::ReadWrite).create(true).open(&path).unwrap();
    connection::enable_wal(&outbox).unwrap();
    schema::migrate(&mut Options::new(Access::ReadWrite).open(&path).unwrap()).unwrap();
    let commit = || {
        outbox.execute("INSERT INTO litepost_outbox (topic, payload) VALUES ('t', 'p')", []).unwrap();
    };
    let share = Arc::new(Shares::default()).one_more();
    let (_handle, mut worker) = Reader::prepare(&path, false, &Wakes::new(), share).unwrap();
    let ask = |worker: &mut Worker, after| {
        let (reply, answer) = oneshot::channel();
        worker.read(Seq(after), false, reply);
        answer
    };
    let seqs = |chunk: Arc<Chunk>| chunk.events().iter().map(|event| event.seq.0).collect::<Vec<_>>();
    let until_answered = |worker: &mut Worker, answer: &mut oneshot::Receiver<_>| loop {
        match answer.try_recv() {
            Ok(chunk) => return seqs(Result::expect(chunk, "an answer")),
            Err(_) => worker.wait(),
        }
    };

    let mut first = ask(&mut worker, 0);
    let before = worker.calm_until;
    commit();
    assert_eq!(until_answered(&mut worker, &mut first), [1]);
    assert!(worker.calm_until > before, "others may follow");

    // (Long enough for any machine to come here meanwhile.)
    worker.calm_until = clock::instant() + Duration::from_secs(2);
    let mut second = ask(&mut worker, 1);
    commit();
    worker.wait();
    assert!(second.try_recv().is_err(), "it was not listened for");
    commit();
    assert_eq!(until_answered(&mut worker, &mut second), [2, 3]);
}

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
