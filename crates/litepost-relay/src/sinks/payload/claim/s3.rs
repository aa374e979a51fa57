//! The claim check's store in a bucket of S3, or of a store that speaks its protocol.
//!
//! Called by the claim check. Invariants: an event waits until the bucket has answered for its payload; nothing is tried
//! again here (the relay does that); no key appears in a message.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use litepost_core::{Unavailable, UnavailableKind};
use object_store::aws::{AmazonS3, AmazonS3Builder, AwsCredential};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, ClientOptions, Error as StoreError, ObjectStore as _, PutOptions, RetryConfig,
    StaticCredentialProvider,
};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::error;
use crate::sink::SinkConfigError;
use crate::sinks::aws::access::{self, AccessKey};

/// Where its keys stand.
const TABLE: &str = "connection.claim_check.s3";

/// `claim_check.s3` of a connection.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct S3 {
    /// The bucket's name.
    bucket: String,
    /// What the payloads' names begin with, a folder as it were.
    #[serde(default)]
    prefix: String,
    /// The region; `AWS_REGION` unless given.
    #[serde(default)]
    region: Option<String>,
    /// The URL of another store that speaks the protocol (MinIO, Ceph, R2).
    #[serde(default)]
    endpoint: Option<String>,
    /// The access key's id, beside `secret_access_key`. Without them, what the environment has: `AWS_ACCESS_KEY_ID`, a role
    /// of the machine or of the container.
    #[serde(default)]
    access_key_id: Option<String>,
    /// The access key's secret.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    secret_access_key: Option<SecretString>,
    /// The token of a temporary access key.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    session_token: Option<SecretString>,
    /// Milliseconds for one upload.
    #[serde(default = "default_timeout_ms")]
    timeout_ms: u64,
}

fn default_timeout_ms() -> u64 {
    20_000
}

/// A bucket, and where in it.
pub(super) struct Bucket {
    store: AmazonS3,
    /// Bucket and prefix, for people.
    shown: String,
    prefix: String,
}

/// (The client's own text would hold its credentials.)
impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bucket").field(&self.shown).finish()
    }
}

impl Bucket {
    /// Checks the table; answers the bucket's URL too.
    pub(super) fn new(given: &S3) -> Result<(Self, String), SinkConfigError> {
        let error = |key: &str, message: &str| error(&format!("s3.{key}"), message);
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_');
        if given.bucket.is_empty() || !given.bucket.chars().all(plain) {
            return Err(error("bucket", "must be the name of a bucket: lower-case letters, digits, '.' and '-'"));
        }
        if given.timeout_ms == 0 {
            return Err(error("timeout_ms", "must be at least 1"));
        }
        let prefix = given.prefix.trim_matches('/');
        let level = |level: &str| !matches!(level, "." | "..") && (prefix.is_empty() || !level.is_empty());
        if !prefix.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c)) || !prefix.split('/').all(level) {
            return Err(error("prefix", "must be letters, digits, '.', '_' and '-', in levels separated by '/'"));
        }
        let mut builder = AmazonS3Builder::from_env().with_bucket_name(&given.bucket);
        if let Some(region) = &given.region {
            builder = builder.with_region(region);
        }
        let mut options = ClientOptions::new().with_timeout(Duration::from_millis(given.timeout_ms));
        if let Some(endpoint) = access::endpoint(TABLE, given.endpoint.as_deref())? {
            options = options.with_allow_http(endpoint.scheme() == "http");
            builder = builder.with_endpoint(access::address(&endpoint));
        }
        let (id, secret) = (given.access_key_id.clone(), given.secret_access_key.clone());
        if let Some(key) = AccessKey::read(TABLE, id, secret, given.session_token.clone())? {
            // As one, so that no token of the environment stands beside a key of the file.
            let token = key.token.as_ref().map(|token| token.expose_secret().to_owned());
            let known = AwsCredential { key_id: key.id, secret_key: key.secret.expose_secret().to_owned(), token };
            builder = builder.with_credentials(Arc::new(StaticCredentialProvider::new(known)));
        }
        crate::sinks::tls::ensure_provider();
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let store = builder.with_client_options(options).with_retry(retry).build();
        let store = store.map_err(|e| SinkConfigError::new(TABLE, e.to_string()))?;
        let url = format!("s3://{}/{prefix}", given.bucket).trim_end_matches('/').to_owned();
        Ok((Self { store, shown: url.clone(), prefix: prefix.to_owned() }, url))
    }

    /// Puts a payload in its place. Its name holds its digest, so what is there already is the same.
    pub(super) async fn put(
        &self,
        origin: &str,
        name: &str,
        payload: Bytes,
        content_type: &str,
    ) -> Result<(), Unavailable> {
        let place = Path::from(format!("{}/{origin}/{name}", self.prefix));
        let mut attributes = Attributes::new();
        attributes.insert(Attribute::ContentType, content_type.to_owned().into());
        let options = PutOptions { attributes, ..PutOptions::default() };
        match self.store.put_opts(&place, payload.into(), options).await {
            Ok(_) => Ok(()),
            Err(error) => {
                let kind = match error {
                    StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => UnavailableKind::Denied,
                    _ => UnavailableKind::Server,
                };
                Err(Unavailable::new(kind, format!("claim check: {}: {error}", self.shown)))
            }
        }
    }
}
