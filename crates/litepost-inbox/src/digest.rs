//! A fingerprint of a payload, kept beside the marker so that one id with two contents is noticed.
//!
//! Called by consumers that ask for it. Invariant: 32 bytes, compared whole.

/// The digest of a message's payload, normally SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// A digest that the caller has computed.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// SHA-256 of the payload.
    #[cfg(feature = "digest")]
    pub fn of(payload: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(payload).into())
    }

    /// The bytes, as they are stored.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}
