//! `[admin]`: where `litepost run` serves its dashboard, and who may ask.
//!
//! Read by `load.rs`. Invariants: without a token only this machine is served; the token is never shown.

use std::net::SocketAddr;

use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::keys::{AdminKeys, Given};
use super::problem::Problem;
use super::reader::{Entry, Node, Value};
use super::spec;
use super::values::{Kind, expected};

/// A shorter token could be guessed.
const TOKEN_CHARACTERS_MIN: usize = 16;

/// What `[admin]` says.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Admin {
    /// Where to listen; `None` when the file does not say.
    pub listen: Option<SocketAddr>,
    /// What every request must carry.
    pub token: Option<Token>,
    /// How long an event may wait before `/ready` says no, milliseconds.
    pub freshness_ms: Option<i64>,
}

/// Reads the table; what is wrong goes to `problems`.
pub(crate) fn read(entry: &Entry, problems: &mut Vec<Problem>) -> Admin {
    const PATH: &str = "admin";
    let mut keys = AdminKeys::default();
    let before = problems.len();
    // A value that a variable or a secret did not give was reported when the file was read.
    let mut unreadable = false;
    for entry in spec::table_entries(entry, PATH, "[admin]", problems) {
        unreadable |= entry.node.is_none();
        if !keys.take(entry, PATH, problems) {
            spec::unknown(entry, PATH, &[AdminKeys::KEYS], &[], problems);
        }
    }
    let admin = Admin {
        listen: keys.listen.as_ref().map(|given| given.value.0),
        token: keys.token.as_ref().map(|given| given.value.clone()),
        freshness_ms: keys.freshness.as_ref().map(|given| given.value.0),
    };
    if unreadable || problems.len() > before {
        // What cannot be used was reported where it stands.
        return admin;
    }
    match &keys.listen {
        Some(Given { value: Address(address), key, span }) if !address.ip().is_loopback() && keys.token.is_none() => {
            let message = format!("{key}: {address} can be reached from other machines, and there is no token");
            let hint = "add token = \"${LITEPOST_ADMIN_TOKEN}\" below [admin], or listen on 127.0.0.1";
            problems.push(Problem::error(key, message).at(span.clone()).label("needs a token").hint(hint));
        }
        None => problems.push(
            Problem::warning(PATH, "[admin] has no listen: nothing is served unless `--admin` names an address")
                .at(entry.key_span.clone())
                .label("needs listen = \"127.0.0.1:8765\""),
        ),
        Some(_) => {}
    }
    admin
}

/// An address and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

impl Kind for Address {
    fn read(node: &Node) -> Result<Self, String> {
        match &node.value {
            Value::Text(text) => text.parse().map(Self).or_else(|_| expected(&Self::describe(), node)),
            _ => expected(&Self::describe(), node),
        }
    }
    fn schema() -> serde_json::Value {
        json!({"type": "string", "minLength": 1})
    }
    fn describe() -> String {
        "an address and a port, such as \"127.0.0.1:8765\" or \"[::1]:8765\"".into()
    }
}

/// The token of `[admin]`.
#[derive(Clone, Debug)]
pub struct Token(SecretString);

impl Token {
    /// The token, for who compares it.
    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

/// Whether a reload has another one; not for judging what a client sends.
impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Kind for Token {
    fn read(node: &Node) -> Result<Self, String> {
        // Whatever stands there may be a secret: no message repeats it.
        match &node.value {
            Value::Text(text) if text.chars().count() >= TOKEN_CHARACTERS_MIN && !text.contains(char::is_control) => {
                Ok(Self(text.clone().into()))
            }
            Value::Text(_) => Err(format!(
                "expected a token of at least {TOKEN_CHARACTERS_MIN} characters; `openssl rand -hex 32` makes one"
            )),
            _ => Err("expected a text".into()),
        }
    }
    fn schema() -> serde_json::Value {
        json!({"type": "string", "minLength": 1})
    }
    fn describe() -> String {
        format!("a text of at least {TOKEN_CHARACTERS_MIN} characters")
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{AdminBuilder, AdminOptions as _, AppBuilder, AppOptions as _, ConfigBuilder, ConfigError};

    fn built(admin: AdminBuilder) -> Result<super::Admin, Vec<String>> {
        let app = AppBuilder::new("shop").database("shop.db");
        match ConfigBuilder::new().admin(admin).app(app).build("/nowhere") {
            Ok(config) => Ok(config.admin),
            Err(ConfigError::Invalid { problems, .. }) => Err(problems
                .into_iter()
                .filter(|problem| problem.key.starts_with("admin"))
                .map(|problem| problem.message)
                .collect()),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn who_is_not_this_machine_needs_a_token() {
        let token = "hunter2hunter2hunter2";
        let admin = built(AdminBuilder::new().listen("127.0.0.1:1").freshness("30s")).unwrap();
        assert_eq!((admin.listen, admin.freshness_ms), (Some("127.0.0.1:1".parse().unwrap()), Some(30_000)));
        let admin = built(AdminBuilder::new().listen("0.0.0.0:1").token(token)).unwrap();
        assert_eq!(admin.token.as_ref().unwrap().expose(), token);
        assert!(!format!("{admin:?}").contains("hunter2"), "{admin:?}");
        for address in ["0.0.0.0:1", "[::]:1", "192.168.0.1:1"] {
            let refused = built(AdminBuilder::new().listen(address)).unwrap_err();
            assert!(refused[0].ends_with("can be reached from other machines, and there is no token"), "{refused:?}");
        }
        for (admin, message) in [
            (AdminBuilder::new().listen("localhost:1"), "expected an address and a port"),
            (AdminBuilder::new().listen("[::1]:1").token("hunter2"), "expected a token of at least 16 characters"),
            (AdminBuilder::new().listen("[::1]:1").token(5), "expected a text"),
        ] {
            let refused = built(admin).unwrap_err();
            assert!(refused[0].contains(message) && !refused[0].contains("hunter2"), "{refused:?}");
        }
    }
}
