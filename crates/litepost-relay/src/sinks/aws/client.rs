//! The SDK's settings: who asks, where, and for how long.
//!
//! Called by the factories of `sqs` and `sns`. Invariants: the SDK tries nothing again and its behaviour is that of a fixed
//! version; TLS is rustls with ring, as everywhere else; a role's credentials come from the same place as those of the claim
//! check's bucket, so that there is one way to give them.

use std::error::Error as StdError;
use std::fmt;

use aws_credential_types::Credentials;
use aws_credential_types::provider::{self, ProvideCredentials, error::CredentialsError, future};
use aws_sdk_sqs::config::http::HttpResponse;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_sdk_sqs::config::timeout::TimeoutConfig;
use aws_sdk_sqs::config::{BehaviorVersion, IdentityCache, Region, SharedCredentialsProvider};
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_types::SdkConfig;
use litepost_core::UnavailableKind;
use object_store::aws::{AmazonS3Builder, AwsCredentialProvider};
use secrecy::ExposeSecret as _;

use super::access;
use super::errors::Failure;
use super::keys::Settings;
use crate::sink::SinkConfigError;

/// What both SDKs are made from.
pub(super) fn sdk(settings: &Settings) -> Result<SdkConfig, SinkConfigError> {
    crate::sinks::tls::ensure_provider();
    let http = aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(settings.connect_timeout)
        .operation_attempt_timeout(settings.timeout)
        .operation_timeout(settings.timeout)
        .build();
    let credentials = match &settings.access_key {
        Some(key) => {
            let token = key.token.as_ref().map(|token| token.expose_secret().to_owned());
            let known = Credentials::new(&key.id, key.secret.expose_secret(), token, None, "litepost");
            SharedCredentialsProvider::new(known)
        }
        None => SharedCredentialsProvider::new(Surroundings::new(settings)?),
    };
    let mut config = SdkConfig::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new(settings.region.clone()))
        .http_client(http)
        .credentials_provider(credentials)
        // The provider keeps what it has found, and knows when it ends.
        .identity_cache(IdentityCache::no_cache())
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts);
    if let Some(endpoint) = &settings.endpoint {
        config = config.endpoint_url(access::address(endpoint));
    }
    Ok(config.build())
}

/// What the environment has: variables, a role of the machine or of the container.
struct Surroundings(AwsCredentialProvider);

impl Surroundings {
    fn new(settings: &Settings) -> Result<Self, SinkConfigError> {
        // The store is asked for nothing but its credentials; a bucket must have a name.
        let store = AmazonS3Builder::from_env().with_bucket_name("none").with_region(&settings.region).build();
        let store = store.map_err(|e| SinkConfigError::new("connection", e.to_string()))?;
        Ok(Self(store.credentials().clone()))
    }

    async fn find(&self) -> provider::Result {
        let found = self.0.get_credential().await.map_err(CredentialsError::provider_error)?;
        Ok(Credentials::new(&found.key_id, &found.secret_key, found.token.clone(), None, "environment"))
    }
}

impl fmt::Debug for Surroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Surroundings")
    }
}

impl ProvideCredentials for Surroundings {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.find())
    }
}

/// Why a request was not answered, or was refused as a whole.
pub(super) fn failure<E>(error: &SdkError<E, HttpResponse>) -> Failure
where
    E: ProvideErrorMetadata + StdError + 'static,
{
    match error {
        SdkError::ServiceError(service) => Failure {
            code: service.err().code().unwrap_or_default().to_owned(),
            text: match service.err().message() {
                Some(message) => message.to_owned(),
                None => format!("answered with status {}", service.raw().status()),
            },
            status: service.raw().status().as_u16(),
            otherwise: UnavailableKind::Server,
        },
        SdkError::TimeoutError(_) => Failure::unanswered(UnavailableKind::Timeout, "no answer within timeout_ms"),
        SdkError::DispatchFailure(dispatch) if dispatch.is_timeout() => {
            Failure::unanswered(UnavailableKind::Timeout, chain(error))
        }
        SdkError::DispatchFailure(_) => Failure::unanswered(UnavailableKind::Connect, chain(error)),
        _ => Failure::unanswered(UnavailableKind::Server, chain(error)),
    }
}

/// An error and what is behind it.
fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}
