//! Signatures of Standard Webhooks (standardwebhooks.com): who sent a request, and that nobody has changed it.
//!
//! Called by the http sink for each request. Invariant: a secret is in no message, and in no `Debug` text.
//!
//! What is signed is `ID.TIMESTAMP.BODY`; the header holds one `v1,BASE64(HMAC-SHA256)` per secret, so that a receiver
//! that knows the old or the new one accepts it while they are exchanged.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::hmac;
use secrecy::{ExposeSecret as _, SecretString};

/// What every secret begins with.
const PREFIX: &str = "whsec_";
/// How many bytes the specification allows in a secret.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// How many secrets there may be: the old and the new, and a few more.
const SECRETS_MAX: usize = 8;

/// The keys of one destination.
pub(super) struct Signer(Vec<hmac::Key>);

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({} secrets)", self.0.len())
    }
}

impl Signer {
    /// From `whsec_…` secrets. The error says what is wrong with which, and repeats none.
    pub(super) fn new(secrets: &[SecretString]) -> Result<Self, String> {
        if secrets.len() > SECRETS_MAX {
            return Err(format!("at most {SECRETS_MAX} secrets"));
        }
        let keys = secrets.iter().zip(1..).map(|(secret, n)| {
            let text = secret.expose_secret().strip_prefix(PREFIX);
            let text = text.ok_or(format!("secret {n} must begin with {PREFIX}"))?;
            let bytes = BASE64.decode(text).map_err(|_| format!("secret {n} must be base64 after {PREFIX}"))?;
            if !SECRET_BYTES.contains(&bytes.len()) {
                let (least, most) = (SECRET_BYTES.start(), SECRET_BYTES.end());
                return Err(format!("secret {n} has {} bytes; the specification wants {least} to {most}", bytes.len()));
            }
            Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
        });
        keys.collect::<Result<_, _>>().map(Self)
    }

    /// Whether anything is signed.
    pub(super) fn signs(&self) -> bool {
        !self.0.is_empty()
    }

    /// The value of `webhook-signature`. `timestamp` in seconds since the Unix epoch.
    pub(super) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut value = String::new();
        for key in &self.0 {
            let mut context = hmac::Context::with_key(key);
            context.update(format!("{id}.{timestamp}.").as_bytes());
            context.update(body);
            if !value.is_empty() {
                value.push(' ');
            }
            value.push_str("v1,");
            BASE64.encode_string(context.sign(), &mut value);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signer(secrets: &[&str]) -> Result<Signer, String> {
        Signer::new(&secrets.iter().map(|&s| s.into()).collect::<Vec<_>>())
    }

    #[test]
    fn the_example_of_the_specification() {
        let signer = signer(&["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
        let signature = signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn wrong_secrets_are_told_and_not_repeated() {
        for (secret, why) in [
            ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "must begin with whsec_"),
            ("whsec_%%%", "must be base64"),
            ("whsec_c2hvcnQ=", "has 5 bytes"),
        ] {
            let error = signer(&[secret]).unwrap_err();
            assert!(error.contains(why) && !error.contains(&secret[6..]), "{error}");
        }
    }
}
