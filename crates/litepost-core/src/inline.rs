//! A text that takes no memory of its own while it is short: ids and keys, of which every event has one.
//!
//! Made by the log reader, millions at a time. Invariant: what it derefs to is what it was made from.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Bytes that need no allocation: a UUID in its text form has 36, and most keys are shorter.
const INLINE_MAX: usize = 38;

/// A text that never changes. Read it as a `&str`.
#[derive(Clone)]
pub struct InlineStr(Repr);

#[derive(Clone)]
enum Repr {
    /// The first `len` bytes, which are valid UTF-8.
    Inline {
        len: u8,
        bytes: [u8; INLINE_MAX],
    },
    Heap(Box<str>),
}

impl InlineStr {
    /// The text. (Short ones are looked through once more: that costs less than an allocation did.)
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Repr::Inline { len, bytes } => std::str::from_utf8(&bytes[..usize::from(*len)]).unwrap_or_default(),
            Repr::Heap(text) => text,
        }
    }
}

impl From<&str> for InlineStr {
    #[inline]
    fn from(text: &str) -> Self {
        let mut bytes = [0; INLINE_MAX];
        match (bytes.get_mut(..text.len()), u8::try_from(text.len())) {
            (Some(place), Ok(len)) => {
                place.copy_from_slice(text.as_bytes());
                Self(Repr::Inline { len, bytes })
            }
            _ => Self(Repr::Heap(text.into())),
        }
    }
}

impl From<String> for InlineStr {
    #[inline]
    fn from(text: String) -> Self {
        if text.len() > INLINE_MAX { Self(Repr::Heap(text.into_boxed_str())) } else { text.as_str().into() }
    }
}

impl From<Box<str>> for InlineStr {
    fn from(text: Box<str>) -> Self {
        String::from(text).into()
    }
}

impl Default for InlineStr {
    #[inline]
    fn default() -> Self {
        "".into()
    }
}

impl Deref for InlineStr {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for InlineStr {
    fn as_ref(&self) -> &str {
        self
    }
}

impl Borrow<str> for InlineStr {
    fn borrow(&self) -> &str {
        self
    }
}

impl PartialEq for InlineStr {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for InlineStr {}

impl PartialEq<str> for InlineStr {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for InlineStr {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl PartialOrd for InlineStr {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for InlineStr {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for InlineStr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl fmt::Debug for InlineStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for InlineStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_the_text_it_was_made_from(a in "\\PC{0,20}|.{30,60}", b in "[ab]{0,3}|[ab]{38,39}", c in "[ab]{0,3}|[ab]{38,39}") {
            prop_assert_eq!(&*InlineStr::from(a.as_str()), a.as_str());
            prop_assert_eq!(&*InlineStr::from(a.clone()), a.as_str());
            prop_assert_eq!(&*InlineStr::from(a.clone().into_boxed_str()), a.as_str());
            let (left, right) = (InlineStr::from(b.as_str()), InlineStr::from(c.clone()));
            prop_assert_eq!(left == right, b == c);
            prop_assert_eq!(left.cmp(&right), b.cmp(&c));
            // A set of these is asked with a `&str`.
            prop_assert_eq!(HashSet::from([left.clone()]).contains(c.as_str()), b == c);
            prop_assert_eq!(format!("{left} {left:?}"), format!("{b} {b:?}"));
        }
    }

    #[test]
    fn every_length_around_the_limit_and_bytes_that_are_zero() {
        for len in 0..2 * INLINE_MAX {
            let text = "\0".repeat(len);
            assert_eq!(InlineStr::from(text.as_str()), *text);
            assert_eq!(InlineStr::from(text.clone()).len(), len);
        }
        assert_eq!(size_of::<Option<InlineStr>>(), INLINE_MAX + 2);
    }
}
