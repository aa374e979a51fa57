//! What holds for every broker. Each test is a function here, called by the broker's file.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use litepost_inbox::consume::{Attempts, Consumer, Database, HandlerError, Message, Source};
use litepost_inbox::{Dialect, Inbox, Scope};
use tokio::sync::{Notify, oneshot};
use tokio_postgres::{Client, Transaction};

use super::{Broker, database, effects, ids, postgres_url, quick, random};

pub(super) fn consumer<S: Source>(
    table: &str,
    source: S,
) -> Consumer<S, impl for<'t> Database<Tx<'t> = Transaction<'t>> + use<S>> {
    Consumer::new(
        Inbox::new(&format!("inbox_{table}")).unwrap(),
        Scope::new("effects.v1").unwrap(),
        source,
        database(&postgres_url()),
    )
    .policy(quick())
}

/// The handler of these tests: one row.
pub(super) async fn effect(tx: &mut Transaction<'_>, table: &str, message: &Message) -> Result<(), HandlerError> {
    let id = message.id.as_deref().unwrap_or_default();
    tx.execute(&format!("INSERT INTO {table} (id) VALUES ($1)"), &[&id]).await?;
    Ok(())
}

/// A message that always fails becomes a dead letter after its attempts, one without an id and one that is rejected at
/// once; the others are handled, each once, whatever is sent twice.
pub(super) async fn poison<B: Broker>(broker: B) {
    let (client, table) = effects().await;
    for id in ["a", "poison", "b", "rejected", "a", "c"] {
        broker.publish(Some(id), id).await;
    }
    broker.publish(None, "nameless").await;
    broker.publish(Some("last"), "last").await;
    let attempts = Rc::new(RefCell::new(BTreeMap::<String, u32>::new()));
    let done = Rc::new(Notify::new());
    let mut consumer = consumer(&table, broker.source().await).policy(quick().attempts_max(3));
    let stop = {
        let (done, broker) = (Rc::clone(&done), &broker);
        async move {
            done.notified().await;
            while broker.dead_letters().await.len() < 3 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    let (table, seen) = (&table, &attempts);
    let run = consumer.run(stop, async |tx: &mut Transaction<'_>, message: &Message| {
        let id = message.id.clone().unwrap_or_default();
        *seen.borrow_mut().entry(id.clone()).or_default() += 1;
        effect(tx, table, message).await?;
        match id.as_str() {
            "poison" => return Err(HandlerError::failed("it never works")),
            "rejected" => return Err(HandlerError::reject("not for us")),
            "last" => done.notify_one(),
            _ => {}
        }
        Ok(())
    });
    let summary = tokio::time::timeout(Duration::from_secs(60), run).await.expect("it ends").unwrap();
    assert_eq!(ids(&client, table).await, ["a", "b", "c", "last"]);
    let mut dead = broker.dead_letters().await;
    dead.sort();
    assert_eq!(dead, ["", "poison", "rejected"]);
    assert_eq!((attempts.borrow()["poison"], attempts.borrow()["rejected"]), (3, 1));
    assert_eq!((summary.handled, summary.duplicates, summary.returned, summary.dead_letters), (4, 1, 2, 3));
}

/// Asked to stop in the middle of a message the consumer ends it: committed, acknowledged; what it had received in
/// advance is for the next one.
pub(super) async fn shutdown<B: Broker>(broker: B) {
    let (client, table) = effects().await;
    for id in ["1", "2", "3"] {
        broker.publish(Some(id), id).await;
    }
    let (began, begun) = oneshot::channel::<()>();
    let began = RefCell::new(Some(began));
    let stop = async { begun.await.unwrap_or_default() };
    let mut first = consumer(&table, broker.source().await);
    let run = first.run(stop, async |tx: &mut Transaction<'_>, message: &Message| {
        effect(tx, &table, message).await?;
        let _ = began.borrow_mut().take().expect("one message").send(());
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok::<(), HandlerError>(())
    });
    let summary = tokio::time::timeout(Duration::from_secs(60), run).await.expect("it ends").unwrap();
    assert_eq!((summary.handled, ids(&client, &table).await.as_slice()), (1, &["1".to_owned()][..]));
    drop(first);

    let delivered = RefCell::new(Vec::new());
    let last = Notify::new();
    let mut second = consumer(&table, broker.source().await);
    let run = second.run(last.notified(), async |tx: &mut Transaction<'_>, message: &Message| {
        delivered.borrow_mut().push(message.id.clone().unwrap_or_default());
        effect(tx, &table, message).await?;
        if delivered.borrow().len() == 2 {
            last.notify_one();
        }
        Ok::<(), HandlerError>(())
    });
    let summary = tokio::time::timeout(Duration::from_secs(60), run).await.expect("it ends").unwrap();
    assert_eq!((summary.handled, summary.duplicates), (2, 0), "the first one was acknowledged");
    assert_eq!(ids(&client, &table).await, ["1", "2", "3"]);
}

/// A consumer that is killed again and again, often between the commit and the acknowledgement: each effect once.
pub(super) async fn killed<B: Broker>(url: &str) {
    const MESSAGES: usize = 150;
    let (client, table) = effects().await;
    let broker = B::at(url, &table).await;
    for n in 0..MESSAGES {
        broker.publish(Some(&format!("{n:04}")), "x").await;
    }
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("deliveries");
    let (mut kills, mut last) = (0, 0);
    for _ in 0..200 {
        let mut child = super::child::start::<B>(url, &table, &log);
        // Until it works, and then for a random moment.
        let mut polls = 0;
        while deliveries(&log) == last && polls < 1_000 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            polls += 1;
        }
        tokio::time::sleep(Duration::from_millis(random() % 300)).await;
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        last = deliveries(&log);
        if ids(&client, &table).await.len() >= MESSAGES {
            break;
        }
    }
    let expected: Vec<String> = (0..MESSAGES).map(|n| format!("{n:04}")).collect();
    assert_eq!(ids(&client, &table).await, expected, "each effect once");
    assert!(kills >= 3, "{kills} kills");
    // The last run ends by itself: it finds duplicates, or nothing.
    let stop = tokio::time::sleep(Duration::from_secs(4));
    let mut after = consumer(&table, broker.source().await);
    let run = after.run(stop, async |tx: &mut Transaction<'_>, message: &Message| effect(tx, &table, message).await);
    let summary = run.await.unwrap();
    assert_eq!(summary.handled, 0);
    assert_eq!(ids(&client, &table).await, expected, "each effect once");
    let delivered = deliveries(&log) as u64 + summary.duplicates;
    assert!(delivered > MESSAGES as u64, "no kill came between a commit and its acknowledgement");
}

/// The broker dies while its messages are handled and comes back: the consumer connects anew, and every effect is there
/// once. `restart` kills the server, starts it again and returns it.
pub(super) async fn outage<B: Broker, K: Send + 'static>(url: &str, restart: impl FnOnce() -> K + Send + 'static) {
    const EACH: usize = 25;
    let (client, table) = effects().await;
    let broker = B::at(url, &table).await;
    for n in 0..2 * EACH {
        broker.publish(Some(&format!("before {n:02}")), "x").await;
    }
    let stop = Notify::new();
    let mut consumer = consumer(&table, broker.source().await);
    let run = consumer.run(stop.notified(), async |tx: &mut Transaction<'_>, message: &Message| {
        effect(tx, &table, message).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
        Ok::<(), HandlerError>(())
    });
    let outage = async {
        until(&client, &table, |ids| ids.len() >= 5).await;
        let server = tokio::task::spawn_blocking(restart).await.unwrap();
        let at_the_restart = ids(&client, &table).await.len();
        let back = B::at(url, &table).await;
        for n in 0..EACH {
            back.publish(Some(&format!("after {n:02}")), "x").await;
        }
        until(&client, &table, |ids| ids.len() >= 3 * EACH).await;
        stop.notify_one();
        (server, at_the_restart)
    };
    let both = async { tokio::join!(run, outage) };
    let (summary, (_server, at_the_restart)) =
        tokio::time::timeout(Duration::from_secs(300), both).await.expect("it ends");
    assert!(at_the_restart < 3 * EACH, "the server was away while there was work");
    let ids = ids(&client, &table).await;
    let mut once = ids.clone();
    once.dedup();
    assert_eq!(ids, once, "each effect once");
    assert_eq!(summary.unwrap().handled, ids.len() as u64);
}

/// A message that ends every consumer which handles it becomes a dead letter although its broker does not count: the
/// attempts are in the database.
pub(super) async fn remembered<B: Broker>(broker: B) {
    let (client, table) = effects().await;
    let attempts = Attempts::new(&format!("attempts_{table}")).unwrap();
    client.batch_execute(&attempts.schema(Dialect::Postgres)).await.unwrap();
    for id in ["killer", "last"] {
        broker.publish(Some(id), "x").await;
    }
    let (begun, mut summary) = (Cell::new(0), None);
    for _ in 0..10 {
        let (killed, last) = (Notify::new(), Notify::new());
        let mut consumer =
            consumer(&table, broker.source().await).policy(quick().attempts_max(3)).attempts(attempts.clone());
        let run = consumer.run(last.notified(), async |tx: &mut Transaction<'_>, message: &Message| {
            if message.id.as_deref() == Some("killer") {
                begun.set(begun.get() + 1);
                killed.notify_one();
                std::future::pending::<()>().await;
            }
            effect(tx, &table, message).await?;
            last.notify_one();
            Ok::<(), HandlerError>(())
        });
        // Dropped in the middle of the message, as in a crash.
        tokio::select! {
            ended = run => { summary = Some(ended.unwrap()); break }
            () = killed.notified() => {}
            () = tokio::time::sleep(Duration::from_secs(60)) => panic!("nothing was delivered"),
        }
    }
    let summary = summary.expect("the message is given up");
    assert_eq!((summary.handled, summary.dead_letters, summary.returned), (1, 1, 0));
    assert_eq!((ids(&client, &table).await, broker.dead_letters().await), (vec!["last".into()], vec!["killer".into()]));
    // A broker that marks redeliveries leaves the first delivery uncounted.
    assert!((3..=4).contains(&begun.get()), "{} attempts", begun.get());
    let left = client.query(&format!("SELECT 1 FROM attempts_{table}"), &[]).await.unwrap();
    assert!(left.is_empty(), "what is done with is forgotten");
}

/// Waits until the effects are as they should be.
pub(super) async fn until(client: &Client, table: &str, ready: impl Fn(&[String]) -> bool) {
    while !ready(&ids(client, table).await) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A consumer in a task of its own, which may move between threads: that its future is `Send` is what is tested.
macro_rules! spawned {
    ($broker:expr) => {{
        let (client, table) = super::effects().await;
        let broker = $broker;
        broker.publish(Some("spawned"), "x").await;
        let mut consumer = super::suite::consumer(&table, broker.source().await);
        let stop = std::sync::Arc::new(tokio::sync::Notify::new());
        let (done, effects) = (std::sync::Arc::clone(&stop), table.clone());
        let task = tokio::spawn(async move {
            let handle = async move |tx: &mut tokio_postgres::Transaction<'_>,
                                     message: &litepost_inbox::consume::Message| {
                super::suite::effect(tx, &effects, message).await?;
                done.notify_one();
                Ok::<(), litepost_inbox::consume::HandlerError>(())
            };
            consumer.run(stop.notified(), handle).await
        });
        let summary = tokio::time::timeout(std::time::Duration::from_secs(60), task).await.expect("it ends");
        assert_eq!(summary.unwrap().unwrap().handled, 1);
        assert_eq!(super::ids(&client, &table).await, ["spawned"]);
    }};
}
pub(super) use spawned;

fn deliveries(log: &std::path::Path) -> usize {
    std::fs::read_to_string(log).map_or(0, |text| text.lines().count())
}
