//! Kafka's consumer groups: members that come and go, offsets of partitions that have moved, a broker that is restarted.

use std::collections::BTreeMap;
use std::future::Future;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::pin::pin;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use litepost_inbox::consume::{ConsumeError, HandlerError, Kafka, Message, Source, Summary, kafka_config};
use litepost_testkit::servers::Kafka as Server;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _, StreamConsumer};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, Transaction};

use super::kafka::{Topic, url};
use super::suite::{consumer, effect, until};
use super::{Broker, child, effects, ids, suite};

const PARTITIONS: i32 = 4;
/// Messages of one partition in one phase of the test.
const PHASE: usize = 15;

/// A subscription: the group hands out the partitions.
fn subscribed(url: &str, topic: &str) -> StreamConsumer {
    let mut config = kafka_config(member_config(url, topic));
    let consumer: StreamConsumer = config.set("auto.offset.reset", "earliest").create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    consumer
}

fn member_config(url: &str, topic: &str) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", url).set("group.id", format!("{topic}.group"));
    // A rebalance is noticed with a heartbeat.
    config.set("heartbeat.interval.ms", "200").set("session.timeout.ms", "6000");
    config
}

/// A topic of four partitions, and the effects of a group of consumers.
struct Stage {
    url: String,
    topic: String,
    producer: FutureProducer,
    observer: BaseConsumer,
}

/// A member of the group, at work in a task of its own.
struct Member {
    stop: Arc<Notify>,
    begun: Arc<AtomicUsize>,
    task: JoinHandle<Result<Summary, ConsumeError>>,
}

impl Stage {
    /// The topic has the name of the table of effects.
    async fn new(topic: &str) -> Self {
        let url = url().await;
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &url);
        let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
        let new = [NewTopic::new(topic, PARTITIONS, TopicReplication::Fixed(1))];
        for made in admin.create_topics(&new, &AdminOptions::new()).await.unwrap() {
            made.unwrap();
        }
        let observer = member_config(&url, topic).create().unwrap();
        Self { topic: topic.into(), producer: config.create().unwrap(), observer, url }
    }

    fn source(&self) -> Kafka {
        Kafka::new(subscribed(&self.url, &self.topic), self.producer.clone(), format!("{}.dead", self.topic))
    }

    /// One phase's messages for each partition: `partition/number`.
    async fn publish(&self, phase: usize) {
        for number in phase * PHASE..(phase + 1) * PHASE {
            for partition in 0..PARTITIONS {
                let id = format!("{partition}/{number:03}");
                let headers = OwnedHeaders::new().insert(Header { key: "litepost-id", value: Some(&id) });
                let record = FutureRecord::<str, str>::to(&self.topic).payload(&id).headers(headers);
                self.producer.send(record.partition(partition), Duration::from_secs(10)).await.unwrap();
            }
        }
    }

    /// What the group has committed, by partition.
    fn committed(&self) -> BTreeMap<i32, usize> {
        let mut asked = TopicPartitionList::new();
        for partition in 0..PARTITIONS {
            asked.add_partition(&self.topic, partition);
        }
        let found = block_in_place(|| self.observer.committed_offsets(asked, Duration::from_secs(30)).unwrap());
        let next = |offset| if let Offset::Offset(next) = offset { usize::try_from(next).unwrap() } else { 0 };
        found.elements().iter().map(|place| (place.partition(), next(place.offset()))).collect()
    }

    /// Joins the group.
    fn member(&self) -> Member {
        let (stop, begun) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (stopped, counter, table) = (Arc::clone(&stop), Arc::clone(&begun), self.topic.clone());
        let mut consumer = consumer(&self.topic, self.source());
        let task = tokio::spawn(async move {
            let handle = async move |tx: &mut Transaction<'_>, message: &Message| {
                counter.fetch_add(1, Ordering::Relaxed);
                effect(tx, &table, message).await?;
                sleep(Duration::from_millis(20)).await;
                Ok::<(), HandlerError>(())
            };
            consumer.run(stopped.notified(), handle).await
        });
        Member { stop, begun, task }
    }
}

impl Member {
    /// Waits until it has begun with so many messages.
    async fn has_begun(&self, messages: usize) {
        while self.begun.load(Ordering::Relaxed) < messages {
            assert!(!self.task.is_finished(), "the member has ended");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// In good order.
    async fn leave(self) -> Summary {
        self.stop.notify_one();
        self.task.await.unwrap().unwrap()
    }

    /// In the middle of a message.
    async fn fall(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

/// The effects of each partition in the order in which they happened.
async fn by_partition(client: &Client, table: &str) -> BTreeMap<i32, Vec<String>> {
    let mut found: BTreeMap<i32, Vec<String>> = (0..PARTITIONS).map(|partition| (partition, Vec::new())).collect();
    for row in client.query(&format!("SELECT id FROM {table} ORDER BY seq"), &[]).await.unwrap() {
        let id: String = row.get(0);
        let partition: i32 = id.split('/').next().unwrap().parse().unwrap();
        found.get_mut(&partition).unwrap().push(id);
    }
    found
}

/// Looks on until `over`: no offset is committed before its transaction, and none goes back.
async fn looks_on(stage: &Stage, client: &Client, over: &AtomicBool) {
    let mut before = BTreeMap::new();
    while !over.load(Ordering::Relaxed) {
        let committed = stage.committed();
        // Read afterwards: whatever was committed to the broker by then is in it.
        let effects = by_partition(client, &stage.topic).await;
        for (partition, next) in &committed {
            let done = effects[partition].len();
            assert!(*next <= done, "partition {partition}: offset {next} is committed and {done} effects are");
            let last = before.get(partition).copied().unwrap_or_default();
            assert!(*next >= last, "partition {partition}: the offset went back from {last} to {next}");
        }
        before = committed;
        sleep(Duration::from_millis(20)).await;
    }
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(200), work).await.expect("it ends")
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_come_and_go_leave_each_effect_once_and_in_order() {
    const PHASES: usize = 5;
    let (client, table) = effects().await;
    client.batch_execute(&format!("ALTER TABLE {table} ADD COLUMN seq bigserial")).await.unwrap();
    let stage = Stage::new(&table).await;
    let over = AtomicBool::new(false);
    let play = async {
        stage.publish(0).await;
        let first = stage.member();
        first.has_begun(10).await;
        // One joins while the other works, and gets partitions of it.
        stage.publish(1).await;
        let second = stage.member();
        second.has_begun(10).await;
        // One leaves in good order: the other gets its partitions back.
        stage.publish(2).await;
        let summary = first.leave().await;
        assert!(summary.handled >= 10, "{summary:?}");
        stage.publish(3).await;
        let third = stage.member();
        third.has_begun(5).await;
        // One falls in the middle of a message, which is rolled back and comes to another.
        second.fall().await;
        stage.publish(4).await;
        let fourth = stage.member();
        fourth.has_begun(5).await;
        until(&client, &table, |ids| ids.len() >= PHASES * PHASE * 4).await;
        (third.leave().await, fourth.leave().await)
    };
    let all = async {
        let (client, _) = effects().await;
        let ((third, fourth), ()) = tokio::join!(
            async {
                let summaries = play.await;
                over.store(true, Ordering::Relaxed);
                summaries
            },
            looks_on(&stage, &client, &over)
        );
        assert_eq!((third.dead_letters, fourth.dead_letters), (0, 0));
    };
    in_time(all).await;
    for (partition, ids) in by_partition(&client, &table).await {
        let expected: Vec<String> = (0..PHASES * PHASE).map(|number| format!("{partition}/{number:03}")).collect();
        assert_eq!(ids, expected, "each once, and in the partition's order");
    }
    // Who leaves says where it was: the next one finds nothing.
    assert!(stage.committed().values().all(|next| *next == PHASES * PHASE), "{:?}", stage.committed());
}

/// Who was delivered how much, by the lines of the members' logs.
fn deliveries(logs: &[PathBuf]) -> usize {
    let lines = |log: &PathBuf| std::fs::read_to_string(log).map_or(0, |text| text.lines().count());
    logs.iter().map(lines).sum()
}

/// Members that are processes, three at a time, and are killed by a signal that no program notices: the broker has to find
/// out by itself, and what they had in hand goes to others.
#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_killed_as_processes_leave_each_effect_once_and_in_order() {
    const MEMBERS: usize = 3;
    const PHASES: usize = 5;
    const MESSAGES: usize = PHASES * PHASE * 4;
    let (client, table) = effects().await;
    client.batch_execute(&format!("ALTER TABLE {table} ADD COLUMN seq bigserial")).await.unwrap();
    let stage = Stage::new(&table).await;
    let folder = tempfile::tempdir().unwrap();
    let logs: Vec<PathBuf> = (0..MEMBERS).map(|member| folder.path().join(member.to_string())).collect();
    let over = AtomicBool::new(false);
    let kill = |mut child: Child| {
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9), "it had not ended before");
    };
    let play = async {
        let start = |member: usize| child::start::<Subscribed>(&stage.url, &table, &logs[member]);
        let mut members: Vec<Child> = (0..MEMBERS).map(start).collect();
        for phase in 0..PHASES {
            stage.publish(phase).await;
            // Whoever is at work now, with a message in hand.
            let before: Vec<usize> = logs.iter().map(|log| deliveries(std::slice::from_ref(log))).collect();
            let victim = loop {
                let works = |&member: &usize| deliveries(std::slice::from_ref(&logs[member])) > before[member] + 2;
                match (0..MEMBERS).find(works) {
                    Some(member) => break member,
                    None => sleep(Duration::from_millis(5)).await,
                }
            };
            kill(std::mem::replace(&mut members[victim], start(victim)));
        }
        until(&client, &table, |ids| ids.len() >= MESSAGES).await;
        // A moment for whatever would come twice.
        sleep(Duration::from_secs(1)).await;
        members.into_iter().for_each(kill);
        over.store(true, Ordering::Relaxed);
    };
    let all = async {
        let (client, _) = effects().await;
        tokio::join!(play, looks_on(&stage, &client, &over));
    };
    in_time(all).await;
    for (partition, ids) in by_partition(&client, &table).await {
        let expected: Vec<String> = (0..PHASES * PHASE).map(|number| format!("{partition}/{number:03}")).collect();
        assert_eq!(ids, expected, "each once, and in the partition's order");
    }
    let delivered = deliveries(&logs);
    assert!(delivered > MESSAGES, "{delivered} deliveries: no kill has met a message in hand");
}

/// Polls a source whose messages do not matter now, so that its group can be rebalanced, until `ready` says so.
async fn polled(source: &mut Kafka, mut ready: impl FnMut(&Message) -> bool) -> (Message, <Kafka as Source>::Token) {
    loop {
        let (message, token) = in_time(source.next()).await.unwrap();
        if ready(&message) {
            return (message, token);
        }
    }
}

fn partition_of(message: &Message) -> i32 {
    let id = message.id.as_deref().unwrap();
    id.split('/').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_offset_of_a_partition_that_has_moved_away_is_not_committed() {
    let (_client, table) = effects().await;
    let stage = Stage::new(&table).await;
    stage.publish(0).await;
    let mut old = stage.source();
    // One message of each partition is in hand.
    let mut in_hand = BTreeMap::new();
    while in_hand.len() < 4 {
        let (message, token) = in_time(old.next()).await.unwrap();
        in_hand.entry(partition_of(&message)).or_insert(token);
    }
    // Another member joins and gets some partitions, which it reads from their beginning.
    let mut new = stage.source();
    let message = {
        let mut newcomer = pin!(polled(&mut new, |_| true));
        in_time(async {
            loop {
                tokio::select! {
                    (message, token) = &mut newcomer => break (message, token),
                    // The old one goes on polling: that is where it gives partitions up.
                    _ = timeout(Duration::from_millis(20), old.next()) => {}
                }
            }
        })
        .await
    };
    let moved = partition_of(&message.0);
    assert_eq!(message.0.id, Some(format!("{moved}/000")));
    new.ack(message.1).await.unwrap();
    for number in 1..5 {
        let wanted = format!("{moved}/{number:03}");
        let (_, token) = polled(&mut new, |message| message.id.as_ref() == Some(&wanted)).await;
        new.ack(token).await.unwrap();
    }
    in_time(async {
        while stage.committed()[&moved] != 5 {
            sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // The old one's verdict about its first message comes late.
    old.ack(in_hand.remove(&moved).unwrap()).await.unwrap();
    old.close().await.unwrap();
    assert_eq!(stage.committed()[&moved], 5, "an older offset has no way back");
}

/// The topic of the other tests, with a group that hands out its partition.
pub(super) struct Subscribed(Topic);

impl Broker for Subscribed {
    const NAME: &'static str = "kafka group";
    type Source = Kafka;

    async fn at(url: &str, name: &str) -> Self {
        Self(Topic::at(url, name).await)
    }

    async fn publish(&self, id: Option<&str>, payload: &str) {
        self.0.publish(id, payload).await;
    }

    async fn source(&self) -> Kafka {
        let topic = &self.0.name;
        let url = self.0.config().get("bootstrap.servers").unwrap().to_owned();
        Kafka::new(subscribed(&url, topic), self.0.producer.clone(), format!("{topic}.dead"))
    }

    async fn dead_letters(&self) -> Vec<String> {
        self.0.dead_letters().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_dies_while_a_group_consumes_has_each_effect_once() {
    let mut server = tokio::task::spawn_blocking(Server::start_durable).await.unwrap();
    let url = server.bootstrap();
    let restart = move || {
        server.kill();
        server.start_again();
        server
    };
    Box::pin(suite::outage::<Subscribed, _>(&url, restart)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_hands_back_what_was_in_hand_when_a_member_stops() {
    let (client, table) = effects().await;
    let topic = Subscribed::at(&url().await, &table).await;
    for number in 0..20 {
        topic.publish(Some(&format!("{number:02}")), "x").await;
    }
    let mut summaries = Vec::new();
    for _ in 0..2 {
        let half = Notify::new();
        let mut consumer = consumer(&table, topic.source().await);
        let run = consumer.run(half.notified(), async |tx: &mut Transaction<'_>, message: &Message| {
            effect(tx, &table, message).await?;
            if ["09", "19"].contains(&message.id.as_deref().unwrap()) {
                half.notify_one();
            }
            Ok::<(), HandlerError>(())
        });
        summaries.push(in_time(run).await.unwrap());
    }
    assert_eq!(summaries.iter().map(|done| (done.handled, done.duplicates)).collect::<Vec<_>>(), [(10, 0), (10, 0)]);
    assert_eq!(ids(&client, &table).await.len(), 20);
}
