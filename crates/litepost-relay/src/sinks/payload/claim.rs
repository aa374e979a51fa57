//! `claim_check`: payloads above a size go to a store, and the event carries a reference to them.
//!
//! Called by the wrapper of the sinks, before the event leaves. Invariant: an event with a reference is delivered only
//! after the store has the payload; the same event always has the same place, so a redelivery finds what is there.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use litepost_core::{Event, Payload, Unavailable, UnavailableKind};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::with_header;
use crate::sink::{SinkConfigError, SinkSettings};
use crate::sinks::message;

/// The header that says where the payload is.
const HEADER: &str = "claim-check";
/// Payloads up to this size stay in their events, unless the configuration says otherwise.
const ABOVE_BYTES: usize = 256 << 10;

/// `claim_check` of a connection.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimCheck {
    /// The folder that payloads are put into, relative to the configuration. It must be there; what becomes of old
    /// payloads is up to whoever owns it.
    folder: PathBuf,
    /// How consumers see the folder, when they see it under another name: what stands before the rest of a reference's
    /// `location`, `https://files.example/payloads` for example. Without it, the folder as a `file://` URL.
    #[serde(default)]
    base_url: Option<String>,
    /// Payloads of more bytes than this go to the store.
    #[serde(default = "default_above")]
    above_bytes: usize,
}

fn default_above() -> usize {
    ABOVE_BYTES
}

/// Where payloads go.
#[derive(Debug)]
pub(super) struct Store {
    folder: PathBuf,
    base_url: String,
    above_bytes: usize,
}

/// What stands in the event instead of its payload.
#[derive(serde::Serialize)]
struct Reference<'a> {
    /// Where the payload is.
    location: &'a str,
    /// Its size in bytes.
    bytes: usize,
    /// Its SHA-256 in hexadecimal.
    sha256: &'a str,
    /// Its media type.
    content_type: &'a str,
}

impl Store {
    /// Checks the table.
    pub(super) fn new(given: &ClaimCheck, settings: &SinkSettings) -> Result<Self, SinkConfigError> {
        let error = |key: &str, message: &str| SinkConfigError::new(format!("connection.claim_check.{key}"), message);
        if given.folder.as_os_str().is_empty() {
            return Err(error("folder", "must not be empty; name a folder"));
        }
        let folder = std::path::absolute(settings.base_dir.join(&given.folder))
            .map_err(|e| error("folder", &format!("is no path: {e}")))?;
        let base_url = match &given.base_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => file_url(&folder).ok_or_else(|| error("folder", "cannot be written as a file:// URL"))?,
        };
        Ok(Self { folder, base_url, above_bytes: given.above_bytes })
    }

    /// The event with a reference in place of its payload, which is in the store by then; `None` when it is small.
    pub(super) async fn checked(&self, event: &Event, origin: &str) -> Result<Option<Event>, Unavailable> {
        let payload = event.payload.bytes();
        if payload.len() <= self.above_bytes {
            return Ok(None);
        }
        let digest = hex(&Sha256::digest(payload));
        // An encrypted payload differs with every attempt; each attempt refers to its own.
        let name = format!("{}-{}", event.seq, &digest[..32]);
        self.put(origin, &name, payload.clone()).await.map_err(|e| {
            let folder = self.folder.display();
            Unavailable::new(UnavailableKind::Server, format!("claim check: {folder}: {e}"))
        })?;
        let location = format!("{}/{origin}/{name}", self.base_url);
        let content_type = message::media_type(event);
        let reference = Reference { location: &location, bytes: payload.len(), sha256: &digest, content_type };
        // A struct of strings and a number always has a JSON form.
        let text = serde_json::json!({ "claim_check": reference }).to_string();
        let headers = with_header(event, HEADER, &location);
        Ok(Some(Event { payload: Payload::Text(text.into()), headers, ..event.clone() }))
    }

    async fn put(&self, origin: &str, name: &str, payload: Bytes) -> io::Result<()> {
        let (folder, origin, name) = (self.folder.clone(), origin.to_owned(), name.to_owned());
        // Syncing blocks for as long as the disk takes.
        tokio::task::spawn_blocking(move || write(&folder, &origin, &name, &payload)).await.map_err(io::Error::other)?
    }
}

/// Files this process has begun to write.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Puts a file in its place, whole and durable. Its name holds its digest, so one that is there already is the same.
fn write(folder: &Path, origin: &str, name: &str, payload: &[u8]) -> io::Result<()> {
    let own = folder.join(origin);
    match fs::create_dir(&own) {
        Ok(()) => File::open(folder)?.sync_all()?,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e),
    }
    let place = own.join(name);
    if fs::metadata(&place).is_ok_and(|there| there.len() == payload.len() as u64) {
        return Ok(());
    }
    // Two destinations or relays may write the same payload at once: each its own file, and the last rename wins with
    // the same bytes.
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let unfinished = own.join(format!("{name}.{}-{number}.part", std::process::id()));
    let mut file = File::create(&unfinished)?;
    file.write_all(payload)?;
    file.sync_all()?;
    fs::rename(&unfinished, &place)?;
    File::open(&own)?.sync_all()
}

fn file_url(folder: &Path) -> Option<String> {
    Some(reqwest::Url::from_file_path(folder).ok()?.as_str().trim_end_matches('/').to_owned())
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
