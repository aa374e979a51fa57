//! The options: protected markers, stored results, payload digests.

use litepost_inbox::{Answer, Claim, Cleaner, InboxError, InboxOptions};

use super::{LEVELS, begin, connect, inbox, inbox_with, quoted};
use crate::{NO_HORIZON, digest, hours, id, scope};

async fn old_marker(table: &str) {
    let insert = format!(
        "INSERT INTO {table} (scope, message_id, processed_at) VALUES ('{}', 'm', now() - interval '30 days')",
        scope()
    );
    connect().await.batch_execute(&insert).await.unwrap();
}

#[tokio::test]
async fn a_protected_duplicate_cannot_be_cleaned_until_its_transaction_ends() {
    let protecting = inbox_with(InboxOptions { protect_duplicates: true, ..InboxOptions::default() }).await;
    let plain = inbox().await;
    for level in LEVELS {
        for (inbox, kept) in [(&protecting, 1), (&plain, 0)] {
            old_marker(&quoted(inbox)).await;
            let (mut consumer, mut cleaning) = (connect().await, connect().await);
            let tx = begin(&mut consumer, level).await;
            assert_eq!(inbox.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::Duplicate);
            let mut cleaner = Cleaner::new(inbox, hours(24), NO_HORIZON).unwrap();
            assert_eq!(cleaner.run(&mut cleaning).await.unwrap().deleted, 1 - kept, "{level:?} kept {kept}");
            tx.commit().await.unwrap();
            assert_eq!(cleaner.run(&mut cleaning).await.unwrap().deleted, kept);
        }
    }
}

#[tokio::test]
async fn protecting_duplicates_do_not_wait_for_each_other() {
    let inbox = inbox_with(InboxOptions { protect_duplicates: true, ..InboxOptions::default() }).await;
    old_marker(&quoted(&inbox)).await;
    let (mut a, mut b) = (connect().await, connect().await);
    let (tx_a, tx_b) = (a.transaction().await.unwrap(), b.transaction().await.unwrap());
    assert_eq!(inbox.claim(&tx_a, &scope(), &id("m")).await.unwrap(), Claim::Duplicate);
    assert_eq!(inbox.claim(&tx_b, &scope(), &id("m")).await.unwrap(), Claim::Duplicate);
}

#[tokio::test]
async fn a_duplicate_is_answered_what_the_first_recorded() {
    let inbox = inbox_with(InboxOptions { results: true, ..InboxOptions::default() }).await;
    let mut client = connect().await;
    let tx = client.transaction().await.unwrap();
    assert_eq!(inbox.claim_or_answer(&tx, &scope(), &id("m"), None).await.unwrap(), Answer::First);
    assert_eq!(inbox.claim_or_answer(&tx, &scope(), &id("m"), None).await.unwrap(), Answer::Duplicate(None));
    inbox.record(&tx, &scope(), &id("m"), b"receipt \0 7").await.unwrap();
    tx.commit().await.unwrap();
    let tx = client.transaction().await.unwrap();
    let answer = inbox.claim_or_answer(&tx, &scope(), &id("m"), None).await.unwrap();
    assert_eq!(answer, Answer::Duplicate(Some(b"receipt \0 7".to_vec())));
    let error = inbox.record(&tx, &scope(), &id("never claimed"), b"x").await.unwrap_err();
    assert!(matches!(error, InboxError::NotClaimed { .. }));
}

#[tokio::test]
async fn one_id_with_two_contents_is_an_alarm() {
    let inbox = inbox_with(InboxOptions { digests: true, results: true, ..InboxOptions::default() }).await;
    let mut client = connect().await;
    let tx = client.transaction().await.unwrap();
    assert_eq!(inbox.claim_payload(&tx, &scope(), &id("m"), &digest("a")).await.unwrap(), Claim::First);
    tx.commit().await.unwrap();
    let tx = client.transaction().await.unwrap();
    assert_eq!(inbox.claim_payload(&tx, &scope(), &id("m"), &digest("a")).await.unwrap(), Claim::Duplicate);
    let error = inbox.claim_payload(&tx, &scope(), &id("m"), &digest("b")).await.unwrap_err();
    assert!(matches!(error, InboxError::PayloadMismatch { .. }) && !error.is_retryable());
    let error = inbox.claim_or_answer(&tx, &scope(), &id("m"), Some(&digest("b"))).await.unwrap_err();
    assert!(matches!(error, InboxError::PayloadMismatch { .. }));
    assert_eq!(inbox.claim(&tx, &scope(), &id("plain")).await.unwrap(), Claim::First);
    let unknown = inbox.claim_payload(&tx, &scope(), &id("plain"), &digest("b")).await.unwrap();
    assert_eq!(unknown, Claim::Duplicate, "a marker without a digest says nothing about the payload");
}

#[tokio::test]
async fn options_that_the_inbox_lacks_are_refused_before_any_query() {
    let inbox = inbox().await;
    let mut client = connect().await;
    let tx = client.transaction().await.unwrap();
    let refused = [
        inbox.claim_payload(&tx, &scope(), &id("m"), &digest("a")).await.map(drop),
        inbox.claim_or_answer(&tx, &scope(), &id("m"), None).await.map(drop),
        inbox.record(&tx, &scope(), &id("m"), b"x").await,
    ];
    for refusal in refused {
        assert!(matches!(refusal, Err(InboxError::NotEnabled { .. })));
    }
    assert_eq!(inbox.claim(&tx, &scope(), &id("m")).await.unwrap(), Claim::First);
}

/// Prepared or not, a claim is the same; and what was prepared for one table claims in no other.
#[tokio::test]
async fn a_prepared_claim_keeps_the_contract() {
    let options = InboxOptions { digests: true, ..InboxOptions::default() };
    let (inbox, other) = (inbox_with(options).await, inbox().await);
    let mut client = connect().await;
    let prepared = inbox.prepare(&client).await.unwrap();
    for level in LEVELS {
        let message = id(&format!("{level:?}"));
        for expected in [Claim::First, Claim::Duplicate] {
            let tx = begin(&mut client, level).await;
            let claim = inbox.claim_payload(prepared.on(&tx), &scope(), &message, &digest("a")).await.unwrap();
            assert_eq!(claim, expected);
            assert_eq!(inbox.claim(prepared.on(&tx), &scope(), &message).await.unwrap(), Claim::Duplicate);
            tx.commit().await.unwrap();
        }
        let tx = begin(&mut client, level).await;
        assert_eq!(inbox.claim(&tx, &scope(), &message).await.unwrap(), Claim::Duplicate);
        let error = inbox.claim_payload(prepared.on(&tx), &scope(), &message, &digest("b")).await.unwrap_err();
        assert!(matches!(error, InboxError::PayloadMismatch { .. }));
        assert_eq!(other.claim(prepared.on(&tx), &scope(), &message).await.unwrap(), Claim::First);
        assert_eq!(other.claim(&tx, &scope(), &message).await.unwrap(), Claim::Duplicate, "in its own table");
        tx.rollback().await.unwrap();
    }
}
