//! What becomes of payloads before any sink sees them: encryption, and the claim check for those that are too large.
//!
//! Wrapped around every sink that delivers events by [`SinkType::make`]. Invariant: the sink gets the same events, in the
//! same order, with other payloads; and a payload whose topic is encrypted leaves the process encrypted, into a store too.

mod claim;
mod encrypt;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use litepost_core::{Applied, Chunk, Event, EventRef, Outcome, Seq, Unavailable};
use serde::Deserialize;
use serde_json::value::RawValue;

use self::claim::{ClaimCheck, Store};
use self::encrypt::{Encryption, Sealer};
pub(crate) use self::encrypt::{SEALED_TYPE, is_sealed};
use super::settings;
use crate::inspect::Finding;
use crate::sink::{Batch, Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

/// The keys that the connection of every sink for events has.
#[derive(Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Keys {
    /// Encrypts payloads: see [Payloads](payloads.md).
    #[serde(default)]
    encryption: Option<Encryption>,
    /// Puts payloads that are too large into a store, and a reference into the event: see [Payloads](payloads.md).
    #[serde(default)]
    claim_check: Option<ClaimCheck>,
}

/// Their names.
const NAMES: [&str; 2] = ["encryption", "claim_check"];

impl SinkType {
    /// JSON Schema of the `connection` table, with the keys that all types of its family share.
    #[must_use]
    pub fn schema(&self) -> schemars::Schema {
        let mut schema = (self.connection_schema)();
        if self.statements {
            return schema;
        }
        let mut shared = schemars::schema_for!(Keys).to_value();
        for part in ["properties", "$defs"] {
            let Some(more) = shared[part].as_object_mut().map(std::mem::take) else { continue };
            let known = schema.ensure_object().entry(part).or_insert_with(|| serde_json::json!({}));
            if let Some(known) = known.as_object_mut() {
                known.extend(more);
            }
        }
        schema
    }

    /// Checks the settings and makes a factory; touches neither network nor disk.
    pub fn make(&self, settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
        if self.statements || !NAMES.iter().any(|name| settings.connection.contains_key(*name)) {
            return (self.build)(settings);
        }
        let mut rest = settings.clone();
        let mut own = toml::Table::new();
        for name in NAMES {
            own.extend(rest.connection.remove_entry(name));
        }
        let keys: Keys =
            toml::Value::Table(own).try_into().map_err(|e: toml::de::Error| settings::unreadable(&e, "connection"))?;
        let stages = Stages {
            sealer: keys.encryption.as_ref().map(Sealer::new).transpose()?,
            store: keys.claim_check.as_ref().map(|given| Store::new(given, settings)).transpose()?,
        };
        Ok(Arc::new(Factory { inner: (self.build)(&rest)?, stages: Arc::new(stages) }))
    }
}

struct Stages {
    sealer: Option<Sealer>,
    store: Option<Store>,
}

struct Factory {
    inner: Arc<dyn SinkFactory>,
    stages: Arc<Stages>,
}

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let inner = self.inner.connect(context).await?;
            let (stages, origin) = (Arc::clone(&self.stages), Arc::clone(&context.origin));
            Ok(Box::new(Wrapped { inner, stages, origin }) as Box<dyn Sink>)
        })
    }

    fn inspect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        self.inner.inspect(context)
    }

    fn needs_watermark(&self) -> bool {
        self.inner.needs_watermark()
    }

    fn remembers(&self) -> bool {
        self.inner.remembers()
    }
}

struct Wrapped {
    inner: Box<dyn Sink>,
    stages: Arc<Stages>,
    origin: Arc<str>,
}

impl Sink for Wrapped {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            match self.stages.apply(batch, &self.origin).await {
                Ok(None) => self.inner.deliver(batch).await,
                Ok(Some(changed)) => self.inner.deliver(&changed).await,
                Err(trouble) => vec![Outcome::Unavailable(trouble); batch.events.len()],
            }
        })
    }

    fn applied(&self) -> Option<Applied> {
        self.inner.applied()
    }

    fn confirmed(&self) -> Option<Seq> {
        self.inner.confirmed()
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}

impl Stages {
    /// The batch with its payloads changed; `None` when there is nothing to change.
    async fn apply(&self, batch: &Batch, origin: &str) -> Result<Option<Batch>, Unavailable> {
        let mut events = Vec::with_capacity(batch.events.len());
        for event in &batch.events {
            events.push(self.one(event, origin).await?);
        }
        if events.iter().all(|event| matches!(event, Cow::Borrowed(_))) {
            return Ok(None);
        }
        let chunk = Chunk::new(events.into_iter().map(Cow::into_owned).collect());
        let events = (0..batch.events.len()).filter_map(|at| EventRef::new(&chunk, at)).collect();
        Ok(Some(Batch { order: batch.order, events, upcoming: Vec::new() }))
    }

    async fn one<'a>(&self, event: &'a Event, origin: &str) -> Result<Cow<'a, Event>, Unavailable> {
        let mut event = Cow::Borrowed(event);
        if let Some(sealer) = &self.sealer
            && let Some(sealed) = sealer.sealed(&event)?
        {
            event = Cow::Owned(sealed);
        }
        if let Some(store) = &self.store
            && let Some(reference) = store.checked(&event, origin).await?
        {
            event = Cow::Owned(reference);
        }
        Ok(event)
    }
}

/// The event's headers with one more, in place of one of that name. Headers that are no JSON object stay as they are.
fn with_header(event: &Event, name: &str, value: &str) -> Option<Box<str>> {
    let parsed = serde_json::from_str::<BTreeMap<&str, &RawValue>>(event.headers.as_deref().unwrap_or("{}"));
    let Ok(mut all) = parsed else { return event.headers.clone() };
    let Ok(value) = serde_json::value::to_raw_value(value) else { return event.headers.clone() };
    all.insert(name, &value);
    serde_json::to_string(&all).ok().map(Into::into).or_else(|| event.headers.clone())
}
