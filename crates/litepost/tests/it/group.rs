//! Group commit: an answer for every event, after the commit; one bad event harms no other.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use litepost::{Durability, EnqueueError, GroupWriter, NewEvent};
use rusqlite::TransactionBehavior;

use crate::support::{count, file, open};

#[test]
fn every_thread_gets_its_own_answer_after_the_commit() {
    for durability in [Durability::Normal, Durability::Full] {
        let file = file();
        let writer = GroupWriter::open(&file.path, durability).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let writer = writer.clone();
                let path = &file.path;
                scope.spawn(move || {
                    let other = open(path);
                    for n in 0..50 {
                        let id = format!("{thread}-{n}");
                        if n % 10 == 3 {
                            assert_eq!(writer.enqueue(NewEvent::new("", "p")), Err(EnqueueError::BadTopic));
                        }
                        let seq = writer.enqueue(NewEvent::new("t", "p").id(&id)).unwrap().seq().unwrap();
                        let sql = "SELECT id FROM litepost_outbox WHERE seq = ?1";
                        let found: String = other.query_row(sql, [seq.0], |r| r.get(0)).unwrap();
                        assert_eq!(found, id, "acknowledged before it was committed, or to somebody else");
                    }
                });
            }
        });
        assert_eq!(count(&file.path), 800);
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn the_answer_is_a_future_that_needs_no_runtime() {
    let file = file();
    let writer = GroupWriter::open(&file.path, Durability::Normal).unwrap();
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut pending = Box::pin(writer.submit(NewEvent::new("t", "p")));
    let answer = loop {
        match pending.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => break answer,
            Poll::Pending => std::thread::park(),
        }
    };
    assert!(answer.unwrap().seq().is_some());
    let queued: Vec<_> = (0..5000).map(|_| writer.submit(NewEvent::new("t", "p"))).collect();
    drop(writer);
    assert_eq!(count(&file.path), 5001, "what was queued is written before the last handle is gone");
    assert!(queued.into_iter().all(|pending| pending.wait().is_ok()));
}

#[test]
fn a_transaction_that_cannot_begin_fails_its_whole_group_and_the_writer_lives_on() {
    let file = file();
    let writer = GroupWriter::open(&file.path, Durability::Normal).unwrap();
    // A foreign table in place of ours: every INSERT fails, none is lost without an answer.
    let app = open(&file.path);
    let held = rusqlite::Transaction::new_unchecked(&app, TransactionBehavior::Immediate).unwrap();
    let queued: Vec<_> = (0..20).map(|_| writer.submit(NewEvent::new("t", "p"))).collect();
    std::thread::sleep(std::time::Duration::from_millis(100));
    drop(held);
    assert!(queued.into_iter().all(|pending| pending.wait().is_ok()), "a short lock is waited for");
    app.execute_batch("ALTER TABLE litepost_outbox RENAME TO elsewhere").unwrap();
    assert_eq!(writer.enqueue(NewEvent::new("t", "p")), Err(EnqueueError::NotMigrated));
    app.execute_batch("ALTER TABLE elsewhere RENAME TO litepost_outbox").unwrap();
    assert!(writer.enqueue(NewEvent::new("t", "p")).is_ok());
}
