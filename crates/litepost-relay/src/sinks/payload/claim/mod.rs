//! `claim_check`: payloads above a size go to a store, and the event carries a reference to them.
//!
//! Called by the wrapper of the sinks, before the event leaves. Invariant: an event with a reference is delivered only
//! after the store has the payload; the same event always has the same place, so a redelivery finds what is there.

mod folder;
#[cfg(feature = "s3")]
mod s3;

use std::path::PathBuf;

use litepost_core::{Event, Payload, Unavailable};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use self::folder::Folder;
use super::with_header;
use crate::sink::{SinkConfigError, SinkSettings};
use crate::sinks::message;

/// The header that says where the payload is.
const HEADER: &str = "claim-check";
/// Payloads up to this size stay in their events, unless the configuration says otherwise.
const ABOVE_BYTES: usize = 256 << 10;

/// `claim_check` of a connection: `folder` or `s3`.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClaimCheck {
    /// The folder that payloads are put into, relative to the configuration. It must be there; what becomes of old
    /// payloads is up to whoever owns it.
    #[serde(default)]
    folder: Option<PathBuf>,
    /// The bucket that payloads are put into, of S3 or of a store that speaks its protocol.
    #[cfg(feature = "s3")]
    #[serde(default)]
    s3: Option<s3::S3>,
    /// How consumers see the store, when they see it under another name: what stands before the rest of a reference's
    /// `location`, `https://files.example/payloads` for example. Without it, the folder as a `file://` URL, the bucket as an
    /// `s3://` URL.
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
    place: Place,
    base_url: String,
    above_bytes: usize,
}

#[derive(Debug)]
enum Place {
    Folder(Folder),
    #[cfg(feature = "s3")]
    S3(s3::Bucket),
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

fn error(key: &str, message: &str) -> SinkConfigError {
    SinkConfigError::new(format!("connection.claim_check.{key}"), message)
}

impl Store {
    /// Checks the table.
    pub(super) fn new(given: &ClaimCheck, settings: &SinkSettings) -> Result<Self, SinkConfigError> {
        let (place, url) = place(given, settings)?;
        let base_url = match &given.base_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => url,
        };
        Ok(Self { place, base_url, above_bytes: given.above_bytes })
    }

    /// The event with a reference in place of its payload, which is in the store by then; `None` when it is small.
    pub(super) async fn checked(&self, event: &Event, origin: &str) -> Result<Option<Event>, Unavailable> {
        let payload = event.payload.bytes();
        if payload.len() <= self.above_bytes {
            return Ok(None);
        }
        let digest = hex(&Sha256::digest(payload));
        let content_type = message::media_type(event);
        // An encrypted payload differs with every attempt; each attempt refers to its own.
        let name = format!("{}-{}", event.seq, &digest[..32]);
        match &self.place {
            Place::Folder(folder) => folder.put(origin, &name, payload.clone()).await?,
            #[cfg(feature = "s3")]
            Place::S3(bucket) => bucket.put(origin, &name, payload.clone(), content_type).await?,
        }
        let location = format!("{}/{origin}/{name}", self.base_url);
        let reference = Reference { location: &location, bytes: payload.len(), sha256: &digest, content_type };
        // A struct of strings and a number always has a JSON form.
        let text = serde_json::json!({ "claim_check": reference }).to_string();
        let headers = with_header(event, HEADER, &location);
        Ok(Some(Event { payload: Payload::Text(text.into()), headers, ..event.clone() }))
    }
}

/// Where the payloads go, and its URL.
fn place(given: &ClaimCheck, settings: &SinkSettings) -> Result<(Place, String), SinkConfigError> {
    #[cfg(feature = "s3")]
    if let Some(s3) = &given.s3 {
        if given.folder.is_some() {
            return Err(error("s3", "and folder are two stores; name one"));
        }
        let (bucket, url) = s3::Bucket::new(s3)?;
        return Ok((Place::S3(bucket), url));
    }
    let Some(folder) = given.folder.as_deref().filter(|folder| !folder.as_os_str().is_empty()) else {
        return Err(error("folder", "must not be empty; name a folder, or a bucket in s3"));
    };
    let (folder, url) = Folder::new(&settings.base_dir.join(folder), given.base_url.is_none())?;
    Ok((Place::Folder(folder), url))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
