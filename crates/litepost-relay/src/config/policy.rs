//! The one rule of inheritance, applied: what holds for a table of a target of an app.
//!
//! Called by `resolve.rs`. The rule: a key may stand at table, target or app level and the nearest wins; what nobody
//! says has the documented default. Invariant: this is the only place with defaults, and the reference prints them.

use litepost::lanes::Retention;
use litepost_core::pipeline::OnDead;
use litepost_core::{Ordering, RetryPolicy, Split, TopicFilter};

use super::keys::{Delivery, Given, RetryKeys};
use super::problem::Problem;
use super::spec::Level;
use super::values::{Count, Factor, InjectOutboxSeq, Limit, Time, TimeOrNever, show_bytes, show_duration};
use super::words::{Dedupe, Start};

/// Everything that holds for delivery to one destination.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// What order is kept.
    pub ordering: Ordering,
    /// How many lanes the keys are split into, beside the one of `priority`.
    pub lanes: u32,
    /// Topics with a lane of their own.
    pub priority: Vec<String>,
    /// Deliveries of a lane under way at once.
    pub concurrency: usize,
    /// Most events in one delivery.
    pub batch_size: usize,
    /// Most bytes in one delivery.
    pub max_batch_bytes: usize,
    /// Most bytes read and not settled, per lane.
    pub max_in_flight_bytes: usize,
    /// How rejected events are tried again.
    pub retry: RetryPolicy,
    /// What becomes of a key with a dead letter.
    pub on_dead: OnDead,
    /// Dead letters of a file beyond which an alarm is raised; `None` for no limit.
    pub max_dead: Option<i64>,
    /// Where a new destination begins.
    pub start: Start,
    /// How long a dead relay keeps its lanes, milliseconds.
    pub lease_ms: i64,
    /// How long one delivery may take, milliseconds.
    pub timeout_ms: i64,
    /// How long an event may wait before `/ready` says no, milliseconds; `None` for what holds for all destinations.
    pub freshness_ms: Option<i64>,
    /// Waiting for company before a delivery, when asked for.
    pub pace: Option<Pace>,
    /// Most events per second; `None` for no limit.
    pub rate_limit: Option<u32>,
}

/// sqloutbox's pace: events wait for others to share their delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time between two looks, milliseconds.
    pub interval_ms: i64,
    /// Events that end the wait early.
    pub threshold: i64,
    /// The longest wait, milliseconds.
    pub max_wait_ms: i64,
}

/// Everything that holds for one outbox file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePolicy {
    /// Most undelivered events; `None` for no limit.
    pub max_pending: Option<i64>,
    /// Whether what was read is made durable before it is delivered.
    pub durable_reads: bool,
    /// How long delivered events stay, milliseconds; `None` for ever.
    pub retain_ms: Option<i64>,
    /// How many delivered events stay.
    pub retain_rows: i64,
    /// How many days receipts stay.
    pub retain_log_days: i64,
    /// Deliveries between two prunings at the latest.
    pub cleanup_every: i64,
}

/// What nobody has said.
fn or<T: Copy, U>(given: Option<&Given<T>>, default: U, take: impl Fn(T) -> U) -> U {
    given.map_or(default, |given| take(given.value))
}

fn size(number: i64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl Policy {
    /// What holds for `keys` and `retry`, both inherited already.
    pub(crate) fn of(keys: &Delivery, retry: &RetryKeys, minutes: bool) -> Self {
        Self {
            ordering: or(keys.ordering.as_ref(), Ordering::Key, |v| v),
            lanes: or(keys.lanes.as_ref(), 1, |Count(n)| u32::try_from(n).unwrap_or(1)),
            priority: keys.priority.as_ref().map_or_else(Vec::new, |given| given.value.0.clone()),
            concurrency: or(keys.concurrency.as_ref(), 1, |Count(n)| size(n)),
            batch_size: or(keys.batch_size.as_ref(), 500, |Count(n)| size(n)),
            max_batch_bytes: or(keys.max_batch_bytes.as_ref(), 4 << 20, |v| size(v.0)),
            max_in_flight_bytes: or(keys.max_in_flight_bytes.as_ref(), 16 << 20, |v| size(v.0)),
            retry: retry_policy(retry, minutes),
            on_dead: or(keys.on_dead.as_ref(), OnDead::Continue, |v| v),
            max_dead: or(keys.max_dead.as_ref(), None, |Limit(n)| n),
            start: or(keys.start.as_ref(), Start::Earliest, |v| v),
            lease_ms: or(keys.lease.as_ref(), 15_000, |Time(ms)| ms),
            timeout_ms: or(keys.timeout.as_ref(), 30_000, |Time(ms)| ms),
            freshness_ms: or(keys.freshness.as_ref(), None, |Time(ms)| Some(ms)),
            pace: pace(keys),
            rate_limit: or(keys.rate_limit.as_ref(), None, |Count(n)| u32::try_from(n).ok()),
        }
    }

    /// How events are assigned to lanes.
    #[must_use]
    pub fn split(&self) -> Split {
        // The patterns were checked when they were read.
        let priority = TopicFilter::parse(&self.priority).unwrap_or_default();
        let lanes = self.lanes.saturating_add(u32::from(!priority.is_empty()));
        Split { lanes, ordering: self.ordering, priority }
    }
}

fn pace(keys: &Delivery) -> Option<Pace> {
    let (interval, threshold, wait) = (&keys.flush_interval, &keys.table_flush_threshold, &keys.table_max_wait);
    if interval.is_none() && threshold.is_none() && wait.is_none() {
        return None;
    }
    // sqloutbox's own defaults complete what is given. An interval alone says how often to look, not to wait.
    let waits = threshold.is_some() || wait.is_some();
    Some(Pace {
        interval_ms: or(interval.as_ref(), 1_000, |Time(ms)| ms),
        threshold: or(threshold.as_ref(), if waits { 15 } else { 1 }, |Count(n)| n),
        max_wait_ms: or(wait.as_ref(), if waits { 6_000 } else { 0 }, |Time(ms)| ms),
    })
}

fn retry_policy(keys: &RetryKeys, minutes: bool) -> RetryPolicy {
    let default = if minutes { RetryPolicy::sqloutbox(64, Some(10)) } else { RetryPolicy::default() };
    RetryPolicy {
        first_ms: or(keys.first.as_ref(), default.first_ms, |Time(ms)| ms),
        factor: or(keys.factor.as_ref(), default.factor, |Factor(f)| f),
        cap_ms: or(keys.cap.as_ref(), default.cap_ms, |Time(ms)| ms),
        max_attempts: or(keys.max_attempts.as_ref(), default.max_attempts, |Limit(n)| {
            n.map(|n| u32::try_from(n).unwrap_or(u32::MAX))
        }),
        max_age_ms: or(keys.max_age.as_ref(), default.max_age_ms, |TimeOrNever(ms)| ms),
    }
}

impl FilePolicy {
    /// What holds for `keys`, inherited already.
    pub(crate) fn of(keys: &Delivery) -> Self {
        Self {
            max_pending: or(keys.max_pending.as_ref(), None, |Limit(n)| n),
            durable_reads: or(keys.durable_reads.as_ref(), true, |v| v),
            retain_ms: or(keys.retain.as_ref(), Some(0), |TimeOrNever(ms)| ms),
            retain_rows: or(keys.retain_rows.as_ref(), 0, |Count(n)| n),
            retain_log_days: or(keys.retain_log_days.as_ref(), 30, |Count(n)| n),
            cleanup_every: or(keys.cleanup_every.as_ref(), 500, |Count(n)| n),
        }
    }

    /// What the store is told. In the configuration no age means for ever; for the store it means that age keeps
    /// nothing.
    #[must_use]
    pub fn retention(&self) -> Retention {
        Retention {
            retain_ms: Some(self.retain_ms.unwrap_or(FOR_EVER_MS)),
            retain_rows: Some(self.retain_rows),
            retain_receipts_ms: (self.retain_log_days > 0).then(|| self.retain_log_days * 86_400_000),
        }
    }
}

/// What "never deleted for its age" is in numbers: a century.
const FOR_EVER_MS: i64 = 100 * 365 * 86_400_000;

/// How `table` is deduplicated: the nearest level that says anything; within one level `dedupe` and
/// `inject_outbox_seq` agree (see [`normalise`]).
pub(crate) fn dedupe(table: &str, levels: &[&Delivery]) -> Option<Dedupe> {
    levels.iter().find_map(|keys| match (&keys.inject_outbox_seq, &keys.dedupe) {
        (Some(inject), _) if inject.value.covers(table) => Some(Dedupe::OutboxSeq),
        // False says that the SQL is sent as it is, and the ledger does that.
        (Some(_), dedupe) => Some(dedupe.as_ref().map_or(Dedupe::Ledger, |given| given.value)),
        (None, Some(dedupe)) => Some(dedupe.value),
        (None, None) => None,
    })
}

/// Turns a level's second spellings (`max_attempts`, `backoff_cap_minutes`) into its `retry` keys, and reports what
/// contradicts itself within the level.
pub(crate) fn normalise(level: &mut Level, problems: &mut Vec<Problem>) {
    let Level { delivery, retry } = level;
    if let Some(short) = &delivery.max_attempts {
        match &retry.max_attempts {
            Some(long) => twice(short, long, problems),
            None => retry.max_attempts = Some(short.clone()),
        }
    }
    if let Some(minutes) = &delivery.backoff_cap_minutes {
        let given = [
            retry.first.as_ref().map(|g| (&g.key, &g.span)),
            retry.factor.as_ref().map(|g| (&g.key, &g.span)),
            retry.cap.as_ref().map(|g| (&g.key, &g.span)),
        ];
        if let Some((key, span)) = given.into_iter().flatten().next() {
            problems.push(
                Problem::error(key, format!("{key} and {} both set the retry clock", minutes.key))
                    .at(span.clone())
                    .label("this one")
                    .also(minutes.span.clone(), "and this one")
                    .hint("keep one of them; backoff_cap_minutes is short for first = \"2m\", factor = 2, cap"),
            );
        } else {
            let at = |value: i64| Given { value: Time(value), key: minutes.key.clone(), span: minutes.span.clone() };
            retry.first = Some(at(120_000));
            retry.cap = Some(at(minutes.value.0 * 60_000));
            retry.factor = Some(Given { value: Factor(2.0), key: minutes.key.clone(), span: minutes.span.clone() });
            // A cap below two minutes is a cap on the first wait too.
            if minutes.value.0 < 2 {
                retry.first = Some(at(minutes.value.0 * 60_000));
            }
        }
    }
    contradiction(delivery, problems);
}

fn twice(short: &Given<Limit>, long: &Given<Limit>, problems: &mut Vec<Problem>) {
    problems.push(
        Problem::error(&short.key, format!("{} and {} are the same setting", short.key, long.key))
            .at(short.span.clone())
            .label("this one")
            .also(long.span.clone(), "and this one")
            .hint("keep one of them"),
    );
}

fn contradiction(keys: &Delivery, problems: &mut Vec<Problem>) {
    let (Some(inject), Some(dedupe)) = (&keys.inject_outbox_seq, &keys.dedupe) else { return };
    let wants_column = inject.value != InjectOutboxSeq::All(false);
    let agree = wants_column == (dedupe.value == Dedupe::OutboxSeq);
    if !agree {
        problems.push(
            Problem::error(&inject.key, format!("{} and {} contradict each other", inject.key, dedupe.key))
                .at(inject.span.clone())
                .label("this one")
                .also(dedupe.span.clone(), "and this one")
                .hint("keep dedupe and leave inject_outbox_seq out"),
        );
    }
}

/// Values that are legal alone and impossible together.
pub(crate) fn impossible(keys: &Delivery, retry: &RetryKeys, minutes: bool, problems: &mut Vec<Problem>) {
    let policy = Policy::of(keys, retry, minutes);
    if policy.retry.first_ms > policy.retry.cap_ms {
        let place = retry.first.as_ref().or(retry.cap.as_ref());
        let key = place.map_or("retry", |given| given.key.as_str());
        problems.push(
            Problem::error(
                key,
                format!(
                    "{key}: the first wait ({}) is longer than the cap ({})",
                    show_duration(policy.retry.first_ms),
                    show_duration(policy.retry.cap_ms)
                ),
            )
            .at(place.and_then(|given| given.span.clone()))
            .label("this value")
            .hint("first is the cap of the first wait, cap the cap of all"),
        );
    }
    if let Some(given) = keys.priority.as_ref().filter(|given| given.value.0.iter().any(|pattern| pattern == "*")) {
        problems.push(
            Problem::warning(&given.key, format!("{}: what every topic has is no priority", given.key))
                .at(given.span.clone())
                .label("every event goes into the same lane")
                .hint("name the topics that must not wait behind the others"),
        );
    }
    if policy.max_batch_bytes > policy.max_in_flight_bytes
        && let Some(given) = keys.max_in_flight_bytes.as_ref().or(keys.max_batch_bytes.as_ref())
    {
        problems.push(
            Problem::error(
                &given.key,
                format!(
                    "{}: one delivery ({}) would not fit into what may be in flight ({})",
                    given.key,
                    show_bytes(policy.max_batch_bytes),
                    show_bytes(policy.max_in_flight_bytes)
                ),
            )
            .at(given.span.clone())
            .label("this value")
            .hint("max_in_flight_bytes must be at least max_batch_bytes"),
        );
    }
}
