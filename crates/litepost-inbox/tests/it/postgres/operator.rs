//! Status and forget.

use litepost_inbox::{Claim, Scope};

use super::{connect, inbox};
use crate::{id, scope};

#[tokio::test]
async fn status_counts_per_scope_and_forget_makes_a_message_new() {
    let inbox = inbox().await;
    let mut client = connect().await;
    let other = Scope::new("another").unwrap();
    let empty = inbox.status(&mut client).await.unwrap();
    assert_eq!((empty.markers, empty.oldest, empty.scopes.len()), (0, None, 0));
    let tx = client.transaction().await.unwrap();
    for number in 0..1_500 {
        assert_eq!(inbox.claim(&tx, &scope(), &id(&number.to_string())).await.unwrap(), Claim::First);
    }
    assert_eq!(inbox.claim(&tx, &other, &id("0")).await.unwrap(), Claim::First);
    tx.commit().await.unwrap();

    let status = inbox.status(&mut client).await.unwrap();
    let scopes: Vec<(&str, u64)> = status.scopes.iter().map(|scope| (scope.scope.as_str(), scope.markers)).collect();
    assert_eq!((status.markers, scopes), (1_501, vec![("another", 1), ("orders.ship.v1", 1_500)]));
    assert!(status.oldest <= status.newest && status.oldest_age.is_some() && Some(status.now) >= status.newest);

    assert!(inbox.forget(&mut client, &scope(), &id("7")).await.unwrap());
    assert!(!inbox.forget(&mut client, &scope(), &id("7")).await.unwrap());
    let tx = client.transaction().await.unwrap();
    assert_eq!(inbox.claim(&tx, &scope(), &id("7")).await.unwrap(), Claim::First);
    tx.rollback().await.unwrap();
    assert_eq!(inbox.forget_scope(&mut client, &scope()).await.unwrap(), 1_499);
    assert_eq!(inbox.status(&mut client).await.unwrap().markers, 1);
}
