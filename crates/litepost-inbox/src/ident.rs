//! The two halves of a marker's key, as types that cannot hold what a database would refuse.
//!
//! Called by consumers before any query. Invariant: a [`Scope`] or [`MessageId`] is one to 255
//! characters (characters, not bytes) and has no NUL, so no claim can fail because of its key.

use std::fmt;

use crate::error::IdentError;

/// The longest scope or message id, in characters.
pub const LENGTH_MAX: usize = 255;

/// Names one logical consumer of a message, such as `billing.charge-card.v1`.
///
/// Write it as a constant. A name made from a function, a topic or a consumer group changes when code
/// moves, and then every retained message looks new. Change the version only when old messages are to be
/// processed again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope(String);

/// The stable identity of a message, given by its producer.
///
/// There is no "no id": what to do with a message without one is a decision of the handler.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(String);

impl Scope {
    /// Checks and keeps a scope's name.
    pub fn new(name: impl Into<String>) -> Result<Self, IdentError> {
        checked("scope", name.into()).map(Self)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl MessageId {
    /// Checks and keeps a message's id.
    pub fn new(id: impl Into<String>) -> Result<Self, IdentError> {
        checked("message id", id.into()).map(Self)
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

macro_rules! conversions {
    ($name:ident) => {
        impl std::str::FromStr for $name {
            type Err = IdentError;
            fn from_str(text: &str) -> Result<Self, IdentError> {
                Self::new(text)
            }
        }
        impl TryFrom<String> for $name {
            type Error = IdentError;
            fn try_from(text: String) -> Result<Self, IdentError> {
                Self::new(text)
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}
conversions!(Scope);
conversions!(MessageId);

fn checked(what: &'static str, text: String) -> Result<String, IdentError> {
    if text.is_empty() {
        return Err(IdentError::Empty { what });
    }
    if text.contains('\0') {
        return Err(IdentError::Nul { what });
    }
    let characters = text.chars().count();
    if characters > LENGTH_MAX {
        return Err(IdentError::TooLong { what, characters });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn counts_characters_not_bytes() {
        assert!(MessageId::new("\u{1f4ee}".repeat(LENGTH_MAX)).is_ok());
        let error = MessageId::new("\u{e9}".repeat(LENGTH_MAX + 1)).unwrap_err();
        assert_eq!(error, IdentError::TooLong { what: "message id", characters: 256 });
        assert_eq!(error.sqlstate(), Some("22001"));
    }

    #[test]
    fn refuses_empty_and_nul() {
        assert_eq!(Scope::new(""), Err(IdentError::Empty { what: "scope" }));
        let error = Scope::new("a\0b").unwrap_err();
        assert_eq!(error.sqlstate(), Some("22021"));
    }

    proptest! {
        #[test]
        fn holds_exactly_what_a_marker_can(text in "\\PC{0,300}|[\\x00-\\x02]{0,3}") {
            let fits = (1..=LENGTH_MAX).contains(&text.chars().count()) && !text.contains('\0');
            prop_assert_eq!(Scope::new(text.clone()).is_ok(), fits);
            prop_assert_eq!(MessageId::new(text).is_ok(), fits);
        }
    }
}
