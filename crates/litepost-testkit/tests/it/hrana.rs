//! The Hrana server from libSQL's own client.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use litepost_testkit::hrana::{HranaOptions, HranaServer};

#[test]
fn libsqls_own_client_finds_everything_as_it_should_be() {
    let node = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node");
    let installed = node.join("node_modules/@libsql/client");
    assert!(installed.exists(), "run `npm ci` in crates/litepost-testkit/tests/node first (`cargo xtask setup` does)");
    let folder = tempfile::tempdir().unwrap();
    for moves_streams in [false, true] {
        let options = HranaOptions {
            token: Some("s3cret".into()),
            expiry: Duration::from_millis(600),
            moves_streams,
            ..HranaOptions::default()
        };
        let server = HranaServer::start(&folder.path().join(format!("{moves_streams}.db")), options);
        let output =
            Command::new("node").arg(node.join("client.mjs")).args([&server.url(), "s3cret"]).output().unwrap();
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{told}");
        assert!(server.resumed() >= 3, "the transactions went from baton to baton");
    }
}
