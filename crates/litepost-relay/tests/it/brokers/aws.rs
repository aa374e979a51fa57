//! An account of AWS: moto's server, which lets in one user only, read by boto3. For the bucket behind the claim check.

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
    pub(crate) fn new() -> Self {
        let server = Moto::start();
        let mut key = consume_with(SCRIPT, &[&server.url(), "prepare", "anybody", "anybody", ""]);
        let key = key.pop().unwrap();
        Self { server, key_id: key.id, secret: String::from_utf8(key.body).unwrap() }
    }

    /// Runs the script as the user.
    pub(crate) fn script(&self, what: &str, name: &str) -> Vec<Received> {
        consume_with(SCRIPT, &[&self.server.url(), what, &self.key_id, &self.secret, name])
    }

    /// Endpoint, region and key, as keys of a table.
    pub(crate) fn keys(&self) -> String {
        let (url, id, secret, region) = (self.server.url(), &self.key_id, &self.secret, Moto::REGION);
        format!(
            "endpoint = \"{url}\", region = \"{region}\", access_key_id = \"{id}\", secret_access_key = \"{secret}\""
        )
    }
}
