//! The relay's randomness: the only place in this crate that draws a number.
//!
//! Called by the lane loop for jitter and by the relay for its identity. Invariant: seeded from the operating system,
//! so two relays started in the same millisecond do not retry in step.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// SplitMix64: small, fast, and good enough for jitter (nothing here is a secret).
#[derive(Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator of its own for each caller; `RandomState` takes its keys from the operating system.
    pub(crate) fn new() -> Self {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        Self(hasher.finish())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0.0..1.0`.
    #[allow(clippy::cast_precision_loss, reason = "53 bits fit a float exactly")]
    pub(crate) fn chance(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// 128 random bits as hexadecimal text: the identity of one relay process.
    pub(crate) fn identity(&mut self) -> String {
        format!("{:016x}{:016x}", self.next(), self.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_generators_differ_and_chance_stays_in_its_range() {
        let (mut a, mut b) = (Rng::new(), Rng::new());
        assert_ne!(a.identity(), b.identity());
        for _ in 0..10_000 {
            let c = a.chance();
            assert!((0.0..1.0).contains(&c), "{c}");
        }
    }
}
