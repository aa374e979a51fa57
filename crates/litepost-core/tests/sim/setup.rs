//! What a schedule starts from: a destination's settings and a log, drawn from the seed.

use std::collections::BTreeMap;

use litepost_core::pipeline::OnDead;
use litepost_core::{
    BreakerPolicy, Event, HeaderFilter, Lane, Millis, Ordering, PipelineConfig, RetryHint, RetryPolicy, Seq,
    TopicFilter,
};

use crate::chance::Chance;
use crate::destination::Poison;

/// A destination's settings, from the extremes that matter.
pub(crate) fn config(chance: &mut Chance, with_ledger: bool) -> PipelineConfig {
    PipelineConfig {
        destination: "here".into(),
        ordering: *chance.pick(&[Ordering::Strict, Ordering::Key, Ordering::Key, Ordering::None]),
        lane: *chance.pick(&[Lane::ONLY, Lane { index: 1, count: 3 }, Lane { index: 1, count: 2 }]),
        // The lane of the priority topics, or one beside it.
        priority: TopicFilter::parse(*chance.pick(&[&[][..], &["pay.*"][..]])).unwrap_or_default(),
        headers: HeaderFilter::default(),
        statements_only: false,
        topics: TopicFilter::parse(*chance.pick(&[&["*"][..], &["orders", "pay.*"][..]])).unwrap_or_default(),
        retry: RetryPolicy {
            first_ms: 10,
            factor: 2.0,
            cap_ms: 200,
            max_attempts: *chance.pick(&[None, Some(1), Some(3)]),
            max_age_ms: *chance.pick(&[None, None, Some(50)]),
        },
        breaker: BreakerPolicy { first_ms: 5, cap_ms: 50 },
        on_dead: *chance.pick(&[OnDead::Continue, OnDead::Continue, OnDead::Hold]),
        ranges_max: *chance.pick(&[0, 2, 512]),
        watermark: with_ledger,
        concurrency: if with_ledger { 1 } else { *chance.pick(&[1, 2, 5]) },
        batch_events: *chance.pick(&[1, 2, 7, 100]),
        batch_bytes: *chance.pick(&[1, 1_000, 1 << 20]),
        window_bytes: *chance.pick(&[1, 2_000, 1 << 20]),
        save_after_ms: *chance.pick(&[0, 5, 50, 200]),
        save_after_events: *chance.pick(&[1, 10, 500]),
    }
}

/// A log, and which of its events are refused how often.
pub(crate) fn log(chance: &mut Chance) -> (Vec<Event>, BTreeMap<i64, Poison>) {
    let length = i64::try_from(1 + chance.below(60)).unwrap_or(1);
    let poisoned = *chance.pick(&[0, 5, 30]);
    let mut poison = BTreeMap::new();
    let log = (1..=length).map(|seq| {
        let mut event =
            Event::new(Seq(seq), &format!("id-{seq}"), chance.pick::<&str>(&["orders", "pay.in", "other"]), "{}");
        if chance.percent(80) {
            event.key = Some((*chance.pick(&["a", "b", "c"])).into());
        }
        if chance.percent(4) {
            event.deliver_after = Some(Millis(1_000_000 + i64::try_from(chance.below(2_000)).unwrap_or(0)));
        }
        if chance.percent(4) {
            event.expires_at = Some(Millis(1_000_000 + i64::try_from(chance.below(2_000)).unwrap_or(0)));
        }
        if chance.percent(1) {
            event.defect = Some("the topic is no UTF-8".into());
        }
        if chance.percent(4) {
            event.only_for = Some((*chance.pick(&["here", "elsewhere"])).into());
        }
        if chance.percent(poisoned) {
            let retry = *chance.pick(&[RetryHint::Policy, RetryHint::Policy, RetryHint::Hold, RetryHint::Never]);
            let times = u32::try_from(1 + chance.below(5)).unwrap_or(1);
            poison.insert(seq, Poison { times, retry });
        }
        event
    });
    (log.collect(), poison)
}
