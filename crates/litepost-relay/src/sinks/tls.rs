//! TLS for the clients that take rustls from us.
//!
//! Called by the sinks before they connect. Invariant: one provider, ring, whoever asks first.

/// The binary installs its provider first; a program that embeds the relay may not have. Without one a client would
/// panic. Losing the race to another installer is fine.
pub(crate) fn ensure_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}
