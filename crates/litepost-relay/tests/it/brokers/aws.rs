//! An account of AWS: moto's server, which lets in one user only, read by boto3. For the bucket behind the claim check, and
//! for queues.

use litepost_testkit::conformance::{Received, consume_with};
use litepost_testkit::servers::Moto;

const SCRIPT: &str = include_str!("aws.py");

/// The server, and the key of the one user that it lets in.
pub(crate) struct Account {
    server: Moto,
    key_id: String,
    secret: String,
}

impl Account {
    /// One that lets in its user only, who may do everything that the tests do.
    pub(crate) fn new() -> Self {
        let account = Self::whose_user_may("s3:*,sqs:*,sns:*");
        account.lock();
        account
    }

    /// With a user who may do this, a list of actions, once it is locked. (Before, it is faster by far.)
    pub(crate) fn whose_user_may(actions: &str) -> Self {
        let server = Moto::start();
        let mut key = consume_with(SCRIPT, &[&server.url(), "prepare", "anybody", "anybody", actions]);
        let key = key.pop().unwrap();
        Self { server, key_id: key.id, secret: String::from_utf8(key.body).unwrap() }
    }

    /// From now on everybody else is turned away.
    pub(crate) fn lock(&self) {
        self.script("lock", "");
    }

    /// Runs the script as the user.
    pub(crate) fn script(&self, what: &str, name: &str) -> Vec<Received> {
        consume_with(SCRIPT, &[&self.server.url(), what, &self.key_id, &self.secret, name])
    }

    /// Endpoint, region and key, as keys of a table.
    pub(crate) fn keys(&self) -> String {
        self.keys_at(self.server.port(), &self.secret)
    }

    /// The same through another port and with another secret.
    pub(crate) fn keys_at(&self, port: u16, secret: &str) -> String {
        let (url, id, region) = (format!("http://127.0.0.1:{port}"), &self.key_id, Moto::REGION);
        format!(
            "endpoint = \"{url}\", region = \"{region}\", access_key_id = \"{id}\", secret_access_key = \"{secret}\""
        )
    }

    /// The secret of the user's key.
    #[cfg(feature = "aws")]
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// The server.
    #[cfg(feature = "aws")]
    pub(crate) fn server(&self) -> &Moto {
        &self.server
    }
}
