//! Sets of positions as sorted, disjoint ranges: what is settled above a cursor.

use std::fmt::Write as _;

use crate::Seq;

/// A set of [`Seq`]s, stored as inclusive ranges in ascending order, never touching one another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeqRanges {
    ranges: Vec<(Seq, Seq)>,
}

impl SeqRanges {
    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, inclusive on both ends.
    #[must_use]
    pub fn as_slice(&self) -> &[(Seq, Seq)] {
        &self.ranges
    }

    /// Whether `seq` is in the set.
    #[must_use]
    pub fn contains(&self, seq: Seq) -> bool {
        let after = self.ranges.partition_point(|&(first, _)| first <= seq);
        after > 0 && self.ranges[after - 1].1 >= seq
    }

    /// How many positions the set holds.
    #[must_use]
    pub fn count(&self) -> i64 {
        self.ranges.iter().map(|&(first, last)| last.0 - first.0 + 1).sum()
    }

    /// Adds `seq`; false when it was there already.
    pub fn insert(&mut self, seq: Seq) -> bool {
        self.insert_range(seq, seq)
    }

    /// Adds `first..=last`; false when any of it was there already (the set is then the union).
    pub fn insert_range(&mut self, first: Seq, last: Seq) -> bool {
        // The common case: the next position, or one beyond the end.
        match self.ranges.last_mut() {
            None => {
                self.ranges.push((first, last));
                return true;
            }
            Some(end) if end.1.next() == first => {
                end.1 = last;
                return true;
            }
            Some(end) if end.1 < first => {
                self.ranges.push((first, last));
                return true;
            }
            Some(_) => {}
        }
        let from = self.ranges.partition_point(|&(_, end)| end.next() < first);
        let to = self.ranges.partition_point(|&(start, _)| start <= last.next());
        let merged = &self.ranges[from..to];
        let fresh = merged.iter().all(|&(start, end)| end < first || start > last);
        let start = merged.first().map_or(first, |r| r.0.min(first));
        let end = merged.last().map_or(last, |r| r.1.max(last));
        self.ranges.splice(from..to, [(start, end)]);
        fresh
    }

    /// Takes the range that follows directly on `cursor` out of the set and returns where it ends, or
    /// `cursor` itself when nothing follows: how a cursor advances.
    pub fn advance(&mut self, cursor: Seq) -> Seq {
        match self.ranges.first() {
            Some(&(first, last)) if first <= cursor.next() => {
                self.ranges.remove(0);
                last.max(cursor)
            }
            _ => cursor,
        }
    }

    /// The text form: `5-9,12-12`. At most `limit` ranges, the lowest ones: what is left out is delivered
    /// again after a crash, which is allowed; a row that grows without bound is not.
    #[must_use]
    pub fn to_text(&self, limit: usize) -> String {
        let mut text = String::new();
        for (first, last) in self.ranges.iter().take(limit) {
            if !text.is_empty() {
                text.push(',');
            }
            // Writing into a String cannot fail.
            let _ = write!(text, "{first}-{last}");
        }
        text
    }

    /// Reads the text form; `None` when it is damaged.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut set = Self::default();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            let (first, last) = part.split_once('-')?;
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || !set.insert_range(Seq(first), Seq(last)) {
                return None;
            }
        }
        Some(set)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set(inserts in prop::collection::vec((1i64..60, 0i64..6), 0..60)) {
            let mut set = SeqRanges::default();
            let mut model = BTreeSet::new();
            for (first, len) in inserts {
                let fresh = (first..=first + len).all(|s| !model.contains(&s));
                model.extend(first..=first + len);
                prop_assert_eq!(set.insert_range(Seq(first), Seq(first + len)), fresh);
            }
            for s in 0..70 {
                prop_assert_eq!(set.contains(Seq(s)), model.contains(&s));
            }
            prop_assert_eq!(set.count(), i64::try_from(model.len()).unwrap());
            for pair in set.as_slice().windows(2) {
                prop_assert!(pair[0].1.next() < pair[1].0, "ranges touch: {:?}", set);
            }
            prop_assert_eq!(SeqRanges::parse(&set.to_text(usize::MAX)), Some(set.clone()));
            let mut cursor = Seq(0);
            let end = set.advance(cursor);
            while model.contains(&cursor.next().0) { cursor = cursor.next(); }
            prop_assert_eq!(end, cursor);
        }
    }

    #[test]
    fn damaged_text_is_noticed() {
        for text in ["5", "9-5", "a-b", "1-3,2-4", "-"] {
            assert_eq!(SeqRanges::parse(text), None, "{text}");
        }
        assert_eq!(SeqRanges::parse(""), Some(SeqRanges::default()));
    }
}
