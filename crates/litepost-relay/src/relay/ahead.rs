//! When the reader reads on before anybody asks: a backlog's next piece is there when it is asked for.
//!
//! Told by the reader of what it hands out. Invariant: at most one piece is read that nobody has asked for; where such
//! pieces go to waste (destinations at different places of the log push each other's out of memory), it is tried less
//! and less often.

use litepost_core::Seq;

/// After so many wasted pieces in a row it does not become rarer any more: one try in 64.
const WASTED_MAX: u32 = 6;

#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// Where to read on when there is time.
    wanted: Option<Seq>,
    /// What was read ahead begins behind this, and was not asked for yet.
    unused: Option<Seq>,
    /// How many pieces in a row were for nothing.
    wasted: u32,
    /// So many chances are let pass.
    skips: u32,
}

impl ReadAhead {
    /// Somebody asks for what is behind `after`.
    pub(super) fn asked(&mut self, after: Seq) {
        if self.unused == Some(after) {
            self.unused = None;
            self.wasted = 0;
        }
    }

    /// A full piece was handed out, and more is likely to follow behind `last`.
    pub(super) fn handed_out(&mut self, last: Seq) {
        if self.unused.take().is_some() {
            self.wasted = (self.wasted + 1).min(WASTED_MAX);
            self.skips = 1 << self.wasted;
        }
        if self.skips > 0 {
            self.skips -= 1;
        } else {
            self.wanted = Some(last);
        }
    }

    /// Where to read on now that there is time, if anywhere.
    pub(super) fn take(&mut self) -> Option<Seq> {
        self.wanted.take()
    }

    /// What is behind `after` has been read, and is not asked for yet.
    pub(super) fn has_read(&mut self, after: Seq) {
        self.unused = Some(after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One full piece after the other, each asked for or not; how many were read ahead.
    fn run(pieces: i64, used: impl Fn(i64) -> bool) -> i64 {
        let mut ahead = ReadAhead::default();
        let mut read = 0;
        for n in 0..pieces {
            ahead.handed_out(Seq(n));
            if let Some(after) = ahead.take() {
                assert_eq!(after, Seq(n));
                ahead.has_read(after);
                read += 1;
                ahead.asked(if used(n) { after } else { Seq(-1) });
            }
            assert_eq!(ahead.take(), None, "one at a time");
        }
        read
    }

    #[test]
    fn what_is_used_is_read_ahead_every_time_and_what_is_not_ever_less() {
        assert_eq!(run(1_000, |_| true), 1_000);
        assert!((10..30).contains(&run(1_000, |_| false)), "{}", run(1_000, |_| false));
        // Once it is worth it again it is done every time again.
        assert!(run(1_000, |n| n > 500) > 400);
    }
}
