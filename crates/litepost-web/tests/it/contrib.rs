//! The alert rules and the Grafana dashboard ask only for metrics that there are.

use std::collections::BTreeSet;
use std::path::Path;

/// Every `litepost_…` and `messaging_…` name in a text, without the suffixes of histograms.
fn names(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("litepost_") || word.starts_with("messaging_client_"))
        .filter(|word| !["litepost_", "litepost_core", "litepost_relay", "litepost_outbox"].contains(word))
        .map(|word| word.trim_end_matches("_bucket").trim_end_matches("_count").to_owned())
        .collect()
}

#[test]
fn rules_and_dashboard_name_only_what_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let documented = names(&read("docs/dashboard.md"));
    assert!(documented.len() > 15, "{documented:?}");
    let source = read("crates/litepost-web/src/metrics.rs") + &read("crates/litepost-relay/src/relay/meter.rs");
    let recorded = names(&source);
    assert!(documented.is_subset(&recorded), "documented and not recorded: {:?}", documented.difference(&recorded));
    assert!(recorded.is_subset(&documented), "recorded and not documented: {:?}", recorded.difference(&documented));
    for path in ["contrib/prometheus/litepost.rules.yml", "contrib/grafana/litepost.json"] {
        let used = names(&read(path));
        assert!(!used.is_empty() && used.is_subset(&documented), "{path}: {:?}", used.difference(&documented));
    }
    let dashboard: serde_json::Value = serde_json::from_str(&read("contrib/grafana/litepost.json")).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() >= 10);
}
