//! Two transactions and one message: who waits, who gets what.

use std::sync::Arc;

use litepost_inbox::{Claim, InboxError};
use tokio::sync::Barrier;
use tokio_postgres::IsolationLevel;

use super::{LEVELS, begin, connect, inbox, pid, quoted, until_blocked};
use crate::{id, scope};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Holder {
    Commits,
    RollsBack,
}

/// One transaction holds the marker, another claims it and waits; then the holder ends.
async fn claim_against_a_holder(level: IsolationLevel, holder_does: Holder) -> Result<Claim, InboxError> {
    let inbox = inbox().await;
    let (mut holder, mut waiter) = (connect().await, connect().await);
    let waiting = pid(&waiter).await;
    let held = begin(&mut holder, level).await;
    assert_eq!(inbox.claim(&held, &scope(), &id("m")).await.unwrap(), Claim::First);
    let second = inbox.clone();
    let claim = tokio::spawn(async move {
        let tx = begin(&mut waiter, level).await;
        let claim = second.claim(&tx, &scope(), &id("m")).await;
        tx.commit().await.unwrap();
        // A retry of the whole transaction, as a caller does after a retryable error.
        let tx = begin(&mut waiter, level).await;
        assert_eq!(second.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::Duplicate);
        claim
    });
    until_blocked(waiting).await;
    assert!(!claim.is_finished());
    match holder_does {
        Holder::Commits => held.commit().await.unwrap(),
        Holder::RollsBack => held.rollback().await.unwrap(),
    }
    claim.await.unwrap()
}

#[tokio::test]
async fn waits_for_an_uncommitted_holder_then_duplicate_when_it_commits() {
    let claim = claim_against_a_holder(IsolationLevel::ReadCommitted, Holder::Commits).await;
    assert_eq!(claim.unwrap(), Claim::Duplicate);
}

#[tokio::test]
async fn under_stricter_levels_the_conflict_is_40001_and_a_retry_gets_duplicate() {
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let error = claim_against_a_holder(level, Holder::Commits).await.unwrap_err();
        assert_eq!(error.sqlstate(), Some("40001"), "{level:?}");
        assert!(error.is_retryable());
        assert!(!error.is_disconnected());
    }
}

#[tokio::test]
async fn waits_for_an_uncommitted_holder_then_first_when_it_rolls_back() {
    for level in LEVELS {
        assert_eq!(claim_against_a_holder(level, Holder::RollsBack).await.unwrap(), Claim::First, "{level:?}");
    }
}

/// The marker is committed, but the snapshot is older: a duplicate that cannot be seen is a conflict.
#[tokio::test]
async fn a_marker_newer_than_the_snapshot_is_40001() {
    let inbox = inbox().await;
    let (mut old, mut new) = (connect().await, connect().await);
    for level in [IsolationLevel::RepeatableRead, IsolationLevel::Serializable] {
        let message = id(&format!("{level:?}"));
        let stale = begin(&mut old, level).await;
        stale.query_one("SELECT count(*) FROM pg_class", &[]).await.unwrap();
        let tx = begin(&mut new, level).await;
        assert_eq!(inbox.claim(&tx, &scope(), &message).await.unwrap(), Claim::First);
        tx.commit().await.unwrap();
        let error = inbox.claim(&stale, &scope(), &message).await.unwrap_err();
        assert_eq!(error.sqlstate(), Some("40001"));
        stale.rollback().await.unwrap();
        let retry = begin(&mut old, level).await;
        assert_eq!(inbox.claim(&retry, &scope(), &message).await.unwrap(), Claim::Duplicate);
        retry.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn crossed_claims_are_40p01_for_one_and_the_other_goes_on() {
    let inbox = inbox().await;
    for level in LEVELS {
        let (mut a, mut b) = (connect().await, connect().await);
        let blocked = pid(&a).await;
        let meet = Arc::new(Barrier::new(2));
        let (meet_a, inbox_a) = (Arc::clone(&meet), inbox.clone());
        let first = tokio::spawn(async move {
            let tx = begin(&mut a, level).await;
            assert_eq!(inbox_a.claim(&tx, &scope(), &id("x")).await.unwrap(), Claim::First);
            meet_a.wait().await;
            let claim = inbox_a.claim(&tx, &scope(), &id("y")).await;
            tx.rollback().await.unwrap();
            claim
        });
        let tx = begin(&mut b, level).await;
        assert_eq!(inbox.claim(&tx, &scope(), &id("y")).await.unwrap(), Claim::First);
        meet.wait().await;
        until_blocked(blocked).await;
        let second = inbox.claim(&tx, &scope(), &id("x")).await;
        tx.rollback().await.unwrap();
        let first = first.await.unwrap();
        let (failed, went_on) = if first.is_err() { (first, second) } else { (second, first) };
        let error = failed.unwrap_err();
        assert_eq!(error.sqlstate(), Some("40P01"), "{level:?}");
        assert!(error.is_retryable());
        assert_eq!(went_on.unwrap(), Claim::First, "{level:?}");
    }
}

#[tokio::test]
async fn a_claim_that_meets_an_uncommitted_cleanup_waits_then_is_first() {
    for level in LEVELS {
        let inbox = inbox().await;
        let (mut cleaner, mut claimer) = (connect().await, connect().await);
        let insert = format!("INSERT INTO {} VALUES ('{}', 'm', now() - interval '30 days')", quoted(&inbox), scope());
        cleaner.batch_execute(&insert).await.unwrap();
        let waiting = pid(&claimer).await;
        let cleanup = cleaner.transaction().await.unwrap();
        cleanup.execute(&format!("DELETE FROM {}", quoted(&inbox)), &[]).await.unwrap();
        let second = inbox.clone();
        let claim = tokio::spawn(async move {
            let tx = begin(&mut claimer, level).await;
            let claim = second.claim(&tx, &scope(), &id("m")).await;
            tx.commit().await.unwrap();
            claim
        });
        until_blocked(waiting).await;
        cleanup.commit().await.unwrap();
        assert_eq!(claim.await.unwrap().unwrap(), Claim::First, "{level:?}");
    }
}

/// At every level, with retries as callers do them, one of 64 handles the message.
#[tokio::test(flavor = "multi_thread")]
async fn of_64_concurrent_claimers_one_is_first() {
    for level in LEVELS {
        let inbox = inbox().await;
        let gate = Arc::new(Barrier::new(64));
        let mut claimers = Vec::new();
        for _ in 0..64 {
            let (inbox, gate, mut client) = (inbox.clone(), Arc::clone(&gate), connect().await);
            claimers.push(tokio::spawn(async move {
                gate.wait().await;
                loop {
                    let tx = begin(&mut client, level).await;
                    match inbox.claim(&tx, &scope(), &id("m")).await {
                        Ok(claim) => {
                            tx.commit().await.unwrap();
                            return claim;
                        }
                        Err(error) => assert!(error.is_retryable(), "{error}"),
                    }
                }
            }));
        }
        let mut firsts = 0;
        for claimer in claimers {
            firsts += usize::from(claimer.await.unwrap().is_first());
        }
        assert_eq!(firsts, 1, "{level:?}");
    }
}

/// The server cuts the connection: before the commit nothing stays, after it the effect is there once.
#[tokio::test]
async fn a_cut_connection_is_told_apart_and_the_claim_knows_what_landed() {
    let inbox = inbox().await;
    let mut doomed = connect().await;
    let killer = connect().await;
    let victim = pid(&doomed).await;
    let tx = doomed.transaction().await.unwrap();
    assert_eq!(inbox.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::First);
    killer.execute("SELECT pg_terminate_backend($1)", &[&victim]).await.unwrap();
    let error = loop {
        if let Err(error) = inbox.claim(&tx, &scope(), &id("n")).await {
            break error;
        }
    };
    assert!(error.is_disconnected(), "{error:?}");
    assert!(!error.is_retryable(), "on this connection nothing can be retried");
    let mut fresh = connect().await;
    let tx = fresh.transaction().await.unwrap();
    assert_eq!(inbox.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::First);
    tx.commit().await.unwrap();
    let tx = fresh.transaction().await.unwrap();
    assert_eq!(inbox.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::Duplicate);
}
