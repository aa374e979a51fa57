//! A certificate for 127.0.0.1, signed by itself, for servers that speak TLS.
//!
//! Called by tests of TLS. Invariant: the key exists only in a temporary folder that goes when this is dropped.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

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

impl Default for Certificate {
    fn default() -> Self {
        Self::new()
    }
}
