//! What follows from the figures: one sentence each, with what to do.
//!
//! Invariant: a sentence stands only where the figures on the same page say so.

use super::Report;
use super::measure::THREADS;

/// A sync is dear when a commit with one takes so many times one without.
const SYNC_DEAR: f64 = 4.0;
/// More than a quarter of a page, and pages are left half empty.
const PAYLOADS_PER_PAGE: f64 = 4.0;
/// A tail this far from the middle is another program's, or a slow disk's.
const TAIL_LONG: f64 = 30.0;
/// A destination below this part of the relay's own pace is what limits.
const SLOWER: f64 = 0.5;

pub(super) fn of(report: &Report) -> Vec<String> {
    let mut all = Vec::new();
    if report.database.journal_mode != "wal" {
        all.push(format!(
            "the database is in journal mode {}: WAL makes commits several times faster and wakes the relay sooner \
             (PRAGMA journal_mode = WAL, once)",
            report.database.journal_mode
        ));
    }
    let (sync, grouped) = (report.full.p50_us / report.normal.p50_us, report.grouped_per_s / report.full.per_s);
    if sync > SYNC_DEAR {
        all.push(format!(
            "a commit at FULL costs {sync:.0} times one at NORMAL; with NORMAL a power cut can undo the last commits, but \
             never one that the relay has published"
        ));
        if grouped > 2.0 {
            all.push(format!("where FULL is needed: {THREADS} threads through one GroupWriter write {grouped:.0} times as many events"));
        }
    }
    let payload =
        report.database.payload_bytes.unwrap_or(f64::from(u32::try_from(report.payload_bytes).unwrap_or(u32::MAX)));
    let page = f64::from(report.database.page_bytes);
    if payload * PAYLOADS_PER_PAGE > page && payload < page * PAYLOADS_PER_PAGE && page < 16_384.0 {
        all.push(format!(
            "events of {payload:.0} bytes fill pages of {page:.0} badly: larger pages write less (PRAGMA page_size = {:.0}; VACUUM, \
             with the application stopped and outside WAL)",
            page * 2.0
        ));
    }
    if report.full.p99_us > report.full.p50_us * TAIL_LONG {
        all.push(
            "one commit in a hundred takes far longer than the others: look for another program on the same disk"
                .into(),
        );
    }
    if let Some(delivered) = &report.destination {
        if delivered.per_s < report.drain_per_s * SLOWER {
            all.push(format!(
                "{} limits delivery: larger batches or more of its own capacity raise it, where its settings allow also \
                 concurrency or lanes",
                delivered.destination
            ));
        }
        if delivered.per_s < report.normal.per_s {
            all.push(format!(
                "one producer without pause ({:.0}/s) is faster than {} ({:.0}/s): watch the backlog, and set max_pending",
                report.normal.per_s, delivered.destination, delivered.per_s
            ));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::{Commits, Database, Delivered};
    use super::*;

    fn report() -> Report {
        let commits = |us: f64| Commits { p50_us: us, p99_us: us * 2.0, per_s: 1e6 / us };
        Report {
            database: Database {
                path: "shop.db".into(),
                journal_mode: "wal".into(),
                page_bytes: 4096,
                payload_bytes: None,
            },
            payload_bytes: 256,
            bare: commits(8.0),
            normal: commits(10.0),
            full: commits(20.0),
            grouped_per_s: 60_000.0,
            drain_per_s: 500_000.0,
            destination: None,
            advice: Vec::new(),
        }
    }

    #[test]
    fn nothing_is_said_where_nothing_is_wrong() {
        assert_eq!(of(&report()), Vec::<String>::new());
    }

    #[test]
    fn each_weakness_has_its_sentence() {
        let mut report = report();
        report.database.journal_mode = "delete".into();
        report.database.payload_bytes = Some(2_000.0);
        report.full = Commits { p50_us: 140.0, p99_us: 9_000.0, per_s: 6_000.0 };
        report.destination =
            Some(Delivered { destination: "shop.audit".into(), events: 1, per_s: 9_000.0, p50_us: 1.0, p99_us: 1.0 });
        let said = of(&report).join("\n");
        for part in [
            "journal mode delete",
            "FULL costs 14 times",
            "write 10 times as many",
            "2000 bytes fill pages of 4096 badly",
            "another program on the same disk",
            "shop.audit limits delivery",
            "(100000/s) is faster than shop.audit (9000/s)",
        ] {
            assert!(said.contains(part), "{part} is not in {said}");
        }
    }
}
