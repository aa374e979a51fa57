//! What is generated from the key tables is current, and the examples pass it. `LITEPOST_UPDATE=1` writes it anew.

use std::path::{Path, PathBuf};

use litepost_relay::config::{Config, Purpose, Variables, json_schema, reference};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[track_caller]
fn is_current(name: &str, wanted: &str) {
    let path = root().join(name);
    if std::env::var_os("LITEPOST_UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{name} is not current; run: LITEPOST_UPDATE=1 cargo test -p litepost-cli generated");
}

#[test]
fn the_reference_is_current() {
    is_current("docs/configuration.md", &reference());
}

#[test]
fn the_page_of_destinations_is_current() {
    is_current("docs/sinks.md", &litepost_relay::sinks::reference());
}

#[test]
fn the_schema_is_current() {
    is_current("docs/schema/litepost.schema.json", &format!("{:#}\n", json_schema()));
}

#[test]
fn every_example_loads_without_a_warning_and_fits_the_schema() {
    let validator = jsonschema::validator_for(&json_schema()).unwrap();
    let mut count = 0;
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        count += 1;
        let given = [("WEBHOOK_TOKEN", "secret"), ("WAREHOUSE_DB", "warehouse.db"), ("BILLING_DB", "billing.db")];
        let config =
            Config::load_with(&path, Variables::of(given), Purpose::Deliver).unwrap_or_else(|error| panic!("{error}"));
        assert!(config.warnings.is_empty(), "{}: {:?}", path.display(), config.warnings);
        let text = std::fs::read_to_string(&path).unwrap();
        let document: serde_json::Value = toml::from_str(&text).unwrap();
        let faults: Vec<String> =
            validator.iter_errors(&document).map(|e| format!("{}: {e}", e.instance_path)).collect();
        assert!(faults.is_empty(), "{}: {faults:#?}", path.display());
    }
    assert!(count >= 3, "only {count} examples");
}

#[test]
fn the_schema_refuses_what_the_loader_refuses() {
    let validator = jsonschema::validator_for(&json_schema()).unwrap();
    let broken = [
        "[apps.shop]\ndatabase = 'x'",
        "[app.shop]\ndatabase = 'x'\nbatchsize = 5",
        "[app.shop]\ndatabase = 'x'\nbatch_size = 0",
        "[app.shop]\ndatabase = 'x'\nordering = 'keys'",
        "[app.shop]\ndatabase = 'x'\ndb_dir = 'y'",
        "[app.shop]",
        "[app.shop]\ndatabase = 'x'\nretry = { frist = 1 }",
        "[app.shop]\ndatabase = 'x'\n[app.shop.sink.a]\ntopics = ['x']",
        "[app.shop]\ndatabase = 'x'\n[app.shop.sink.a]\ntype = 'fil'",
        "[app.shop]\ndatabase = 'x'\n[app.shop.sink.a]\ntype = 'file'\nconnection = { paht = 'x' }",
        "[app.shop]\ndatabase = 'x'\n[app.shop.db.a]\ntype = 'sqlite'\ntables = [{ batch_size = 5 }]",
    ];
    for text in broken {
        let document: serde_json::Value = toml::from_str(text).unwrap();
        assert!(!validator.is_valid(&document), "{text}");
    }
}
