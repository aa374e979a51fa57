//! Encrypted payloads: JWE in its compact form (RFC 7516), `alg` `dir`, `enc` `A256GCM`, so that any JOSE library opens
//! them.
//!
//! Called by the mapping of messages, and by `litepost decrypt`. Invariant: no key is in a message or in a `Debug` text,
//! and no nonce is chosen by anything but the operating system's randomness.
//!
//! The protected header also names the event (`id`, `topic`) and the payload's media type (`cty`). It is authenticated:
//! who compares it notices a payload that was moved to another event.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD as BASE64URL};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom as _, SystemRandom};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Bytes of the tag.
const TAG_BYTES: usize = 16;

/// A key that encrypts and decrypts.
pub struct Key(LessSafeKey);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(***)")
    }
}

impl Key {
    /// From 32 bytes in base64, as `openssl rand -base64 32` prints them.
    pub fn parse(text: &SecretString) -> Result<Self, SealError> {
        let bytes = STANDARD.decode(text.expose_secret().trim()).map_err(|_| SealError::BadKey)?;
        if bytes.len() != KEY_BYTES {
            return Err(SealError::BadKey);
        }
        let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| SealError::BadKey)?;
        Ok(Self(LessSafeKey::new(key)))
    }
}

/// What went wrong with an encrypted payload.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// No key can be made of it.
    #[error("a key must be 32 bytes in base64, as `openssl rand -base64 32` prints them")]
    BadKey,
    /// It is no JWE in compact form with `dir` and `A256GCM`.
    #[error("this is no encrypted payload: {0}")]
    Malformed(&'static str),
    /// It was encrypted with a key that was not given.
    #[error("it was encrypted with the key {0:?}, which was not given")]
    UnknownKey(String),
    /// The key is another one, or something was changed.
    #[error("the key {0:?} does not open it: another key has that name, or it was changed on its way")]
    Refused(String),
    /// The operating system gave no randomness.
    #[error("the operating system gave no random bytes")]
    NoRandomness,
}

/// What the protected header says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    alg: String,
    enc: String,
    /// The key's id.
    pub kid: String,
    /// Media type of the payload.
    #[serde(default)]
    pub cty: String,
    /// The event's id.
    #[serde(default)]
    pub id: String,
    /// The event's topic.
    #[serde(default)]
    pub topic: String,
}

impl Sealed {
    /// The header of an event's payload.
    #[must_use]
    pub fn new(kid: &str, cty: &str, id: &str, topic: &str) -> Self {
        let own = str::to_owned;
        Self { alg: own("dir"), enc: own("A256GCM"), kid: own(kid), cty: own(cty), id: own(id), topic: own(topic) }
    }
}

/// Encrypts.
pub fn seal(key: &Key, header: &Sealed, payload: &[u8]) -> Result<String, SealError> {
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).map_err(|_| SealError::NoRandomness)?;
    let header = serde_json::to_vec(header).map_err(|_| SealError::Malformed("its header is no JSON"))?;
    let mut out = BASE64URL.encode(header);
    let aad = Aad::from(out.clone().into_bytes());
    let mut text = payload.to_vec();
    let tag = key.0.seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), aad, &mut text);
    let tag = tag.map_err(|_| SealError::Malformed("it is too large"))?;
    // No encrypted key: the key is used directly.
    out.push_str("..");
    BASE64URL.encode_string(nonce, &mut out);
    out.push('.');
    BASE64URL.encode_string(&text, &mut out);
    out.push('.');
    BASE64URL.encode_string(tag.as_ref(), &mut out);
    Ok(out)
}

/// Decrypts with the key that the header names.
pub fn open(keys: &BTreeMap<String, Key>, token: &str) -> Result<(Sealed, Vec<u8>), SealError> {
    let parts: Vec<&str> = token.trim().split('.').collect();
    let &[header64, "", nonce, text, tag] = parts.as_slice() else {
        return Err(SealError::Malformed("it has not the five parts of a JWE with a direct key"));
    };
    let bytes = |part: &str| BASE64URL.decode(part).map_err(|_| SealError::Malformed("a part is no base64url"));
    let header: Sealed = serde_json::from_slice(&bytes(header64)?)
        .map_err(|_| SealError::Malformed("its header lacks alg, enc or kid"))?;
    if (header.alg.as_str(), header.enc.as_str()) != ("dir", "A256GCM") {
        return Err(SealError::Malformed("it is not encrypted with dir and A256GCM"));
    }
    let key = keys.get(&header.kid).ok_or_else(|| SealError::UnknownKey(header.kid.clone()))?;
    let nonce = Nonce::try_assume_unique_for_key(&bytes(nonce)?)
        .map_err(|_| SealError::Malformed("its nonce has not 12 bytes"))?;
    let (mut text, tag) = (bytes(text)?, bytes(tag)?);
    if tag.len() != TAG_BYTES {
        return Err(SealError::Malformed("its tag has not 16 bytes"));
    }
    text.extend_from_slice(&tag);
    let plain = key.0.open_in_place(nonce, Aad::from(header64.as_bytes()), &mut text);
    let plain = plain.map_err(|_| SealError::Refused(header.kid.clone()))?.len();
    text.truncate(plain);
    Ok((header, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Key {
        Key::parse(&STANDARD.encode([byte; KEY_BYTES]).into()).unwrap()
    }

    fn keys(given: &[(&str, u8)]) -> BTreeMap<String, Key> {
        given.iter().map(|&(id, byte)| (id.to_owned(), key(byte))).collect()
    }

    #[test]
    fn opens_what_it_sealed_with_the_key_that_is_named() {
        let header = Sealed::new("new", "application/json", "id-1", "orders");
        let all = keys(&[("old", 1), ("new", 2)]);
        for payload in [&b""[..], b"\0\xff", &vec![7; 100_000]] {
            let token = seal(&all["new"], &header, payload).unwrap();
            assert_eq!(open(&all, &token).unwrap(), (header.clone(), payload.to_vec()));
            assert_ne!(token, seal(&all["new"], &header, payload).unwrap(), "a nonce of its own each time");
        }
    }

    #[test]
    fn nothing_that_was_changed_is_opened() {
        let token = seal(&key(2), &Sealed::new("new", "", "id-1", "orders"), b"secret").unwrap();
        let all = keys(&[("new", 2)]);
        let parts: Vec<&str> = token.split('.').collect();
        let moved = BASE64URL.encode(serde_json::to_vec(&Sealed::new("new", "", "id-2", "orders")).unwrap());
        for at in [0, 2, 3, 4] {
            let mut changed: Vec<String> = parts.iter().map(|&p| p.to_owned()).collect();
            let flipped = if changed[at].starts_with('A') { "B" } else { "A" };
            changed[at].replace_range(..1, flipped);
            if at == 0 {
                changed[0].clone_from(&moved);
            }
            assert_eq!(open(&all, &changed.join(".")).unwrap_err(), SealError::Refused("new".into()), "part {at}");
        }
        assert_eq!(open(&keys(&[("new", 3)]), &token).unwrap_err(), SealError::Refused("new".into()));
        assert_eq!(open(&keys(&[("old", 2)]), &token).unwrap_err(), SealError::UnknownKey("new".into()));
        for bad in ["", "a.b.c.d.e", "....", "{}"] {
            assert!(matches!(open(&all, bad), Err(SealError::Malformed(_))), "{bad}");
        }
        assert_eq!(Key::parse(&"c2hvcnQ=".into()).unwrap_err(), SealError::BadKey);
    }
}
