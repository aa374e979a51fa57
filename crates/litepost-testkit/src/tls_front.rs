//! A front that speaks TLS for a server that does not.
//!
//! Called by tests of TLS. Invariant: it passes on what it gets, and nothing of its own.

use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::tls::Certificate;

/// Speaks TLS with `certificate` in front of a server on 127.0.0.1 that does not, until the process ends; its port.
///
/// # Panics
/// When it cannot start.
#[must_use]
pub fn front(certificate: &Certificate, server: u16) -> u16 {
    let chain =
        CertificateDer::pem_file_iter(certificate.cert()).expect("a certificate").map(|c| c.expect("a certificate"));
    let key = PrivateKeyDer::from_pem_file(certificate.key()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("TLS versions")
        .with_no_client_auth()
        .with_single_cert(chain.collect(), key)
        .expect("a certificate with its key");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let (ready, started) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async move {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a loopback port");
            ready.send(listener.local_addr().expect("a local address").port()).expect("somebody who waits");
            while let Ok((client, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    // A client that does not trust us hangs up: that is its right.
                    let Ok(mut client) = acceptor.accept(client).await else { return };
                    if let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
    });
    started.recv().expect("the front did not start")
}
