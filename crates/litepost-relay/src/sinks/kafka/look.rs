//! What is there for the topics of a Kafka destination, and what is weaker than the promise.
//!
//! Called by `litepost check --connect`. Invariant: asks for metadata and settings only; a broker makes no topic for it.

use std::sync::Arc;

use litepost_core::{TopicPattern, Unavailable, UnavailableKind};
use rdkafka::admin::{AdminClient, AdminOptions, ConfigResource, ResourceSpecifier};
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::Producer as _;

use super::producer::{Complaints, Producer};
use super::{Keyless, Settings, errors};
use crate::inspect::Finding;

/// A topic as the cluster's metadata has it.
struct Topic {
    name: String,
    error: Option<RDKafkaErrorCode>,
    partitions: usize,
    /// The fewest copies that a partition has.
    copies: usize,
}

/// Looks.
pub(super) async fn look(settings: &Arc<Settings>, topics: &[String]) -> Result<Vec<Finding>, Unavailable> {
    let producer = Producer::connect(Arc::clone(settings)).await?;
    let there = metadata(settings, &producer).await?;
    let mut found = Vec::new();
    let names = settings.topic.names(topics);
    if names.is_empty() {
        by_pattern(settings, &there, &mut found);
    }
    for name in &names {
        match there.iter().find(|topic| topic.name == *name) {
            Some(topic) => one(settings, topic, &mut found).await,
            None => missing(settings, name, &mut found),
        }
    }
    if settings.keyless == Keyless::Any {
        found.push(Finding::weaker(
            "keyless = \"any\": events without a key go into any partition, in no order",
            "leave keyless out to keep them in one partition, in their order",
        ));
    }
    Ok(found)
}

async fn metadata(settings: &Settings, producer: &Producer) -> Result<Vec<Topic>, Unavailable> {
    let timeout = settings.connect_timeout;
    let asked = producer.blocking(move |inner| {
        let metadata = inner.client().fetch_metadata(None, timeout)?;
        let topics = metadata.topics().iter().map(|topic| Topic {
            name: topic.name().to_owned(),
            error: topic.error().map(RDKafkaErrorCode::from),
            partitions: topic.partitions().len(),
            copies: topic.partitions().iter().map(|partition| partition.replicas().len()).min().unwrap_or(0),
        });
        Ok::<_, KafkaError>(topics.collect())
    });
    match asked.await {
        Some(Ok(topics)) => Ok(topics),
        Some(Err(error)) => {
            let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail);
            Err(producer.unavailable(errors::kind(code), &errors::told(code)))
        }
        None => Err(producer.unavailable(UnavailableKind::Server, "the client has ended")),
    }
}

/// Which topics there are for a template that only an event can fill.
fn by_pattern(settings: &Settings, there: &[Topic], found: &mut Vec<Finding>) {
    let pattern = settings.topic.with_every_value("*");
    let fits = TopicPattern::parse(&pattern);
    let names: Vec<&str> = there
        .iter()
        .filter(|topic| !topic.name.starts_with("__") && fits.as_ref().is_ok_and(|fits| fits.matches(&topic.name)))
        .map(|topic| topic.name.as_str())
        .collect();
    if names.is_empty() {
        let message = format!("no topic there fits {pattern}: events wait until there is one for them");
        found.push(Finding::broken(
            message,
            "create the topics, or name them one by one in topics to have each looked for",
        ));
    } else {
        found.push(Finding::found(format!("topics that fit {pattern}: {}", names.join(", "))));
    }
}

fn missing(settings: &Settings, name: &str, found: &mut Vec<Finding>) {
    let automatic = settings.config.get("allow.auto.create.topics") == Some("true");
    found.push(if automatic {
        Finding::creates(format!("the topic {name}, with the broker's defaults, if the broker makes topics by itself"))
    } else {
        Finding::broken(format!("there is no topic {name}: events for it wait until there is one"), "create the topic")
    });
}

async fn one(settings: &Settings, topic: &Topic, found: &mut Vec<Finding>) {
    let name = &topic.name;
    if let Some(error) = topic.error {
        let message = format!("the topic {name} cannot be used: {}", errors::told(error));
        found.push(Finding::broken(message, "look after the topic or its permissions"));
        return;
    }
    let in_sync = setting(settings, name, "min.insync.replicas").await;
    let needed = in_sync.as_deref().map_or_else(String::new, |n| format!(", acks=all needs {n} of them in sync"));
    let (partitions, copies) = (topic.partitions, topic.copies);
    found.push(Finding::found(format!("the topic {name}: partitions {partitions}, copies of each {copies}{needed}")));
    if copies < 2 {
        let message = format!("the topic {name} has one copy: the loss of its broker loses what was confirmed");
        found.push(Finding::weaker(message, "give it a replication factor of 3"));
    } else if in_sync.as_deref() == Some("1") {
        let message =
            format!("min.insync.replicas = 1 for the topic {name}: a record may be confirmed while one copy has it");
        found.push(Finding::weaker(message, "set min.insync.replicas to 2"));
    }
    if setting(settings, name, "unclean.leader.election.enable").await.as_deref() == Some("true") {
        let message =
            format!("unclean.leader.election.enable for the topic {name}: a copy that lags may lead and lose the rest");
        found.push(Finding::weaker(message, "set unclean.leader.election.enable to false"));
    }
}

/// A setting of the topic, when the broker tells.
async fn setting(settings: &Settings, topic: &str, name: &str) -> Option<String> {
    let client = AdminClient::from_config_and_context(&settings.config, Complaints::default()).ok()?;
    let options = AdminOptions::new().request_timeout(Some(settings.connect_timeout));
    let answer = client.describe_configs(&[ResourceSpecifier::Topic(topic)], &options).await.ok()?;
    let resource: ConfigResource = answer.into_iter().next()?.ok()?;
    // Ending waits for librdkafka's threads.
    tokio::task::spawn_blocking(move || drop(client));
    resource.get(name)?.value.clone()
}
