//! A certificate for 127.0.0.1, signed by itself, for servers that speak TLS, and a front for one that does not.
//!
//! Called by tests of TLS. Invariant: the key exists only in a temporary folder that goes when this is dropped.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::servers::{is_root, run};

/// A certificate and its key, as PEM files.
#[derive(Debug)]
pub struct Certificate {
    folder: TempDir,
}

impl Certificate {
    /// Makes a new one with the openssl program.
    ///
    /// # Panics
    /// When openssl is not installed: a test must not pass without it.
    #[must_use]
    pub fn new() -> Self {
        let made = Self { folder: tempfile::tempdir().expect("a temporary folder") };
        let (cert, key) = (made.cert().display().to_string(), made.key().display().to_string());
        let words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=litepost \
                     -addext subjectAltName=IP:127.0.0.1,DNS:localhost -addext basicConstraints=critical,CA:FALSE";
        let mut command: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        command.extend(["-keyout".into(), key, "-out".into(), cert]);
        run(&command);
        made
    }

    /// The certificate; also what a client trusts.
    #[must_use]
    pub fn cert(&self) -> PathBuf {
        self.folder.path().join("cert.pem")
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }
}

impl Certificate {
    /// A copy of the certificate and its key in `folder` that the server's user may read, and nobody else the key.
    pub(crate) fn copy_for(&self, folder: &Path, user: &str) -> [String; 2] {
        use std::os::unix::fs::PermissionsExt as _;
        [(self.cert(), "cert.pem", 0o644), (self.key(), "key.pem", 0o600)].map(|(from, name, mode)| {
            let to = folder.join(name);
            std::fs::copy(from, &to).expect("a copy of the certificate");
            std::fs::set_permissions(&to, std::fs::Permissions::from_mode(mode)).expect("its permissions");
            let shown = to.display().to_string();
            if is_root() {
                run(&["chown".into(), user.into(), shown.clone()]);
            }
            shown
        })
    }
}

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

impl Default for Certificate {
    fn default() -> Self {
        Self::new()
    }
}
