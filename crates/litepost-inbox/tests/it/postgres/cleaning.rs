//! The cleaner: what it deletes, what it leaves, and in which transactions.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use litepost_inbox::{Claim, Cleaner, Horizon, Inbox, InboxError, Scope};
use tokio_postgres::Client;

use super::{connect, count, inbox, quoted};
use crate::{NO_HORIZON, eventually, hours, id, scope};

/// Inserts `count` markers of a scope, one second apart, the newest `age` old.
async fn markers(client: &Client, inbox: &Inbox, scope: &str, count: u32, age: &str) {
    let insert = format!(
        "INSERT INTO {} (scope, message_id, processed_at) \
         SELECT '{scope}', '{age} ' || n, now() - interval '{age}' - n * interval '1 second' FROM generate_series(1, {count}) n",
        quoted(inbox)
    );
    client.batch_execute(&insert).await.unwrap();
}

#[tokio::test]
async fn one_cutoff_of_the_databases_clock_and_batches_of_1000() {
    let inbox = inbox().await;
    let mut client = connect().await;
    markers(&client, &inbox, "old", 2_500, "8 days").await;
    markers(&client, &inbox, "new", 10, "1 hour").await;
    let batches = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&batches);
    let mut cleaner = Cleaner::new(&inbox, hours(7 * 24), NO_HORIZON)
        .unwrap()
        .on_progress(move |progress| seen.lock().unwrap().push((progress.batch, progress.deleted)));
    let plan = cleaner.plan(&mut client).await.unwrap();
    assert_eq!((plan.doomed, count(&inbox).await), (2_500, 2_510), "a dry run deletes nothing");
    let result = cleaner.run(&mut client).await.unwrap();
    assert_eq!(result.deleted, 2_500);
    assert_eq!(*batches.lock().unwrap(), [(1_000, 1_000), (1_000, 2_000), (500, 2_500)]);
    let now: SystemTime = client.query_one("SELECT now()", &[]).await.unwrap().get(0);
    let age = now.duration_since(result.cutoff).unwrap();
    assert!(age >= hours(7 * 24) && age < hours(7 * 24) + Duration::from_secs(60), "{age:?}");
    assert_eq!(count(&inbox).await, 10);
    assert_eq!(cleaner.run(&mut client).await.unwrap().deleted, 0);
}

#[tokio::test]
async fn it_skips_what_another_transaction_holds_and_never_waits() {
    let inbox = inbox().await;
    let (mut holder, mut client) = (connect().await, connect().await);
    markers(&client, &inbox, "s", 10, "8 days").await;
    let held = holder.transaction().await.unwrap();
    held.execute(&format!("SELECT FROM {} WHERE message_id = '8 days 3' FOR UPDATE", quoted(&inbox)), &[])
        .await
        .unwrap();
    let mut cleaner = Cleaner::new(&inbox, hours(24), NO_HORIZON).unwrap();
    let run = tokio::time::timeout(Duration::from_secs(10), cleaner.run(&mut client)).await;
    assert_eq!(run.expect("the cleaner waits").unwrap().deleted, 9);
    held.rollback().await.unwrap();
    assert_eq!(cleaner.run(&mut client).await.unwrap().deleted, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_at_once_share_the_work() {
    let inbox = inbox().await;
    let (mut a, mut b) = (connect().await, connect().await);
    markers(&a, &inbox, "s", 20_000, "8 days").await;
    let mut first = Cleaner::new(&inbox, hours(24), NO_HORIZON).unwrap().batch_size(100).unwrap();
    let mut second = Cleaner::new(&inbox, hours(24), NO_HORIZON).unwrap().batch_size(100).unwrap();
    let (x, y) = tokio::join!(first.run(&mut a), second.run(&mut b));
    let (x, y) = (x.unwrap().deleted, y.unwrap().deleted);
    assert_eq!(x + y, 20_000);
    assert!(x > 0 && y > 0, "one did everything: {x} and {y}");
}

#[tokio::test]
async fn each_batch_is_read_committed_whatever_the_default() {
    let inbox = inbox().await;
    let mut client = connect().await;
    markers(&client, &inbox, "s", 5, "8 days").await;
    let table = quoted(&inbox);
    client
        .batch_execute(&format!(
            "CREATE TABLE IF NOT EXISTS seen_levels (level text, xact text);
             CREATE FUNCTION note_level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
               INSERT INTO seen_levels VALUES (current_setting('transaction_isolation'), pg_current_xact_id()::text); RETURN NULL; END $$;
             CREATE TRIGGER note AFTER DELETE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION note_level();
             SET default_transaction_isolation = 'serializable'"
        ))
        .await
        .unwrap();
    Cleaner::new(&inbox, hours(24), NO_HORIZON).unwrap().batch_size(2).unwrap().run(&mut client).await.unwrap();
    let levels = client
        .query_one("SELECT string_agg(DISTINCT level, ','), count(DISTINCT xact), count(*) FROM seen_levels", &[])
        .await
        .unwrap();
    assert_eq!(
        (levels.get(0), levels.get(1), levels.get(2)),
        ("read committed", 4_i64, 4_i64),
        "2 + 2 + 1 + the one that finds nothing"
    );
}

#[tokio::test]
async fn committed_batches_stay_when_a_later_one_fails() {
    let inbox = inbox().await;
    let mut client = connect().await;
    markers(&client, &inbox, "s", 25, "8 days").await;
    let table = quoted(&inbox);
    client
        .batch_execute(&format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '53100'; END $$;
             CREATE TRIGGER refuse BEFORE DELETE ON {table} FOR EACH ROW WHEN (OLD.message_id = '8 days 1') EXECUTE FUNCTION refuse()"
        ))
        .await
        .unwrap();
    let mut cleaner = Cleaner::new(&inbox, hours(24), NO_HORIZON).unwrap().batch_size(10).unwrap();
    let error = cleaner.run(&mut client).await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("53100"), "the error reaches the caller");
    assert_eq!(count(&inbox).await, 5, "the two batches before it stay");
}

#[tokio::test]
async fn a_cancelled_run_keeps_its_batches_and_holds_no_lock() {
    let inbox = inbox().await;
    let (mut blocker, mut client, observer) = (connect().await, connect().await, connect().await);
    markers(&client, &inbox, "s", 30, "8 days").await;
    let table = quoted(&inbox);
    // The third batch hangs: a trigger waits for an advisory lock that the test holds.
    client
        .batch_execute(&format!(
            "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN OLD; END $$;
             CREATE TRIGGER hang BEFORE DELETE ON {table} FOR EACH ROW WHEN (OLD.message_id = '8 days 5') EXECUTE FUNCTION hang()"
        ))
        .await
        .unwrap();
    let lock = blocker.transaction().await.unwrap();
    lock.batch_execute("SELECT pg_advisory_xact_lock(77)").await.unwrap();
    let pid = super::pid(&client).await;
    {
        let mut cleaner = Cleaner::new(&inbox, hours(24), NO_HORIZON).unwrap().batch_size(10).unwrap();
        tokio::select! {
            result = cleaner.run(&mut client) => panic!("not cancelled: {result:?}"),
            () = super::until_blocked(pid) => {}
        }
    }
    lock.rollback().await.unwrap();
    eventually("the cancelled batch is rolled back", || async {
        let row =
            observer.query_one("SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $1", &[&pid]).await.unwrap();
        row.get::<_, Option<bool>>(0).unwrap_or(true)
    })
    .await;
    assert_eq!(count(&inbox).await, 10, "two batches committed, the third did not");
    let mut cleaner = Cleaner::new(&inbox, hours(24), NO_HORIZON).unwrap();
    assert_eq!(cleaner.run(&mut client).await.unwrap().deleted, 10, "the same connection goes on");
}

#[tokio::test]
async fn a_retention_below_the_redelivery_horizon_is_refused() {
    let inbox = Inbox::new("inbox").unwrap();
    let week = Horizon::new(hours(7 * 24), hours(72));
    let error = Cleaner::new(&inbox, hours(9 * 24), week).unwrap_err();
    assert!(matches!(error, InboxError::RetentionTooShort { .. }), "downtime is part of the horizon: {error}");
    let cleaner = Cleaner::new(&inbox, hours(10 * 24), week).unwrap();
    let error = cleaner.scope(scope(), hours(24), Horizon::new(hours(25), Duration::ZERO)).unwrap_err();
    assert!(error.to_string().contains("orders.ship.v1"), "{error}");
    let error = Cleaner::new(&inbox, hours(24), NO_HORIZON).unwrap().batch_size(0).unwrap_err();
    assert!(matches!(error, InboxError::OutOfRange { .. }));
}

/// Down for 20 of the last 21 days: what was unacknowledged then is still in the broker, so its marker
/// must still be there when the consumer returns, and while it works off the backlog.
#[tokio::test]
async fn downtime_of_a_consumer_does_not_age_its_markers() {
    let inbox = inbox().await;
    let mut client = connect().await;
    let horizon = Horizon::new(hours(5 * 24), hours(48));
    markers(&client, &inbox, "down", 10, "20 days").await;
    for age in 0..30 {
        markers(&client, &inbox, "busy", 1, &format!("{age} days")).await;
    }
    let mut cleaner = Cleaner::new(&inbox, hours(7 * 24), horizon).unwrap();
    let result = cleaner.run(&mut client).await.unwrap();
    assert_eq!(result.deleted, 23, "the busy scope's markers of 7 to 29 days");
    assert_eq!(result.own.len(), 1);
    assert_eq!((result.own[0].scope.as_str(), result.own[0].silence.as_secs() / 3600), ("down", 18 * 24));
    // It returns: the silence lies between its markers now, and still counts.
    let down = Scope::new("down").unwrap();
    let tx = client.transaction().await.unwrap();
    assert_eq!(inbox.claim(&tx, &down, &id("20 days 1")).await.unwrap(), Claim::Duplicate);
    assert_eq!(inbox.claim(&tx, &down, &id("fresh")).await.unwrap(), Claim::First);
    tx.commit().await.unwrap();
    assert_eq!(cleaner.run(&mut client).await.unwrap().deleted, 0);
    // Five days of work later they are seven days old by the consumer's own time.
    client
        .batch_execute(&format!("UPDATE {} SET processed_at = processed_at - interval '5 days 1 hour'", quoted(&inbox)))
        .await
        .unwrap();
    for age in 0..5 {
        markers(&client, &inbox, "down", 1, &format!("{age} days")).await;
    }
    let result = cleaner.run(&mut client).await.unwrap();
    // The busy one has been silent for five days itself by now: only its oldest marker is old enough without them.
    assert_eq!(result.deleted, 10 + 1, "the old markers of the consumer, and the busy one's oldest");
}

#[tokio::test]
async fn a_scope_can_have_its_own_retention() {
    let inbox = inbox().await;
    let mut client = connect().await;
    markers(&client, &inbox, "short", 3, "8 days").await;
    markers(&client, &inbox, "long", 3, "8 days").await;
    markers(&client, &inbox, "long", 4, "80 days").await;
    let mut cleaner = Cleaner::new(&inbox, hours(24), NO_HORIZON)
        .unwrap()
        .scope(Scope::new("long").unwrap(), hours(30 * 24), Horizon::new(hours(30 * 24), Duration::ZERO))
        .unwrap();
    assert_eq!(cleaner.plan(&mut client).await.unwrap().doomed, 7);
    assert_eq!(cleaner.run(&mut client).await.unwrap().deleted, 7);
    assert_eq!(count(&inbox).await, 3);
}

/// Batch for batch the same work, however many dead entries are before it in the index.
#[tokio::test]
async fn later_batches_do_not_walk_over_what_earlier_ones_deleted() {
    let inbox = inbox().await;
    let (mut snapshot, mut client) = (connect().await, connect().await);
    markers(&client, &inbox, "s", 30_000, "8 days").await;
    client.batch_execute(&format!("ANALYZE {}", quoted(&inbox))).await.unwrap();
    // A long-lived snapshot keeps the dead entries where they are.
    let old = super::begin(&mut snapshot, tokio_postgres::IsolationLevel::RepeatableRead).await;
    old.query_one("SELECT count(*) FROM pg_class", &[]).await.unwrap();
    client.batch_execute("SELECT pg_stat_reset()").await.unwrap();
    let mut cleaner = Cleaner::new(&inbox, hours(24), NO_HORIZON).unwrap();
    assert_eq!(cleaner.run(&mut client).await.unwrap().deleted, 30_000);
    old.rollback().await.unwrap();
    let observer = connect().await;
    eventually("the statistics are reported", || async {
        let row = observer
            .query_one(
                "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = $1",
                &[&format!("{}_processed_at", inbox.table())],
            )
            .await
            .unwrap();
        let read: i64 = row.get(0);
        assert!(read < 40_000, "{read} index entries read to delete 30000 markers");
        read >= 30_000
    })
    .await;
}
