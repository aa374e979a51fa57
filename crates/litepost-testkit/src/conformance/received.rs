//! What a consumer got, and how a consumer in another language tells it.
//!
//! Called by harnesses. Invariant: bytes travel as base64, so that nothing between the consumer and the comparison can
//! mend them.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

use crate::servers::consumers;

/// One message as a consumer got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The event's id, from wherever the sink puts it.
    pub id: String,
    /// The ordering key's bytes.
    pub key: Option<Vec<u8>>,
    /// The body.
    pub body: Vec<u8>,
    /// The headers, names as they arrived.
    pub headers: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Line {
    id: String,
    key: Option<String>,
    body: String,
    #[serde(default)]
    headers: Vec<(String, String)>,
}

/// Runs a Python consumer with these arguments in the environment that `cargo xtask setup` has made
/// (`xtask/requirements/consumers.txt`). It prints a line of JSON per message: `id`, `key` and `body` in base64 (`key`
/// may be null), `headers` as a list of pairs.
///
/// # Panics
/// When the environment is missing, the script fails, or prints something else.
pub fn consume_with(script: &str, arguments: &[&str]) -> Vec<Received> {
    let output = Command::new(python())
        .arg("-c")
        .arg(script)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("the consumers' Python runs");
    assert!(output.status.success(), "the consumer failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8 from the consumer");
    text.lines().map(received).collect()
}

fn received(line: &str) -> Received {
    let line: Line = serde_json::from_str(line).unwrap_or_else(|e| panic!("the consumer printed {line:?}: {e}"));
    let bytes = |text: &str| BASE64.decode(text).expect("base64 from the consumer");
    Received { id: line.id, key: line.key.as_deref().map(bytes), body: bytes(&line.body), headers: line.headers }
}

/// The Python of that environment, for programs that are destinations themselves.
///
/// # Panics
/// When it is missing.
pub fn python() -> PathBuf {
    consumers("python").expect("the consumers' Python environment is not there: run `cargo xtask setup`")
}
