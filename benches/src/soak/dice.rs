//! Chance that can be had again: everything that is drawn follows from the seed.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    /// Those of this seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another stream, which follows from this one.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// The next number (splitmix64).
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// True once in `n` times.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A length in bytes: mostly small, seldom up to `largest`, sometimes nothing.
    pub(super) fn length(&mut self, largest: u64) -> usize {
        let up_to = match self.below(32) {
            0 | 1 => return 0,
            2..=11 => 4 << 10,
            12..=21 => 100 << 10,
            22..=28 => 1 << 20,
            29 | 30 => 6 << 20,
            _ => largest,
        };
        let length = 1 + self.below(up_to.min(largest).max(1));
        usize::try_from(length).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same() {
        let (mut one, mut other) = (Dice::new(7), Dice::new(7));
        for _ in 0..100 {
            assert_eq!(one.length(32 << 20), other.length(32 << 20));
        }
        assert_ne!(one.fork().next(), Dice::new(8).fork().next());
    }

    #[test]
    fn lengths_are_of_every_kind_and_bounded() {
        let mut dice = Dice::new(1);
        let lengths: Vec<_> = (0..2000).map(|_| dice.length(32 << 20)).collect();
        assert!(lengths.contains(&0));
        assert!(lengths.iter().any(|len| (1..4096).contains(len)));
        assert!(lengths.iter().any(|len| *len > 8 << 20));
        assert!(lengths.iter().all(|len| *len <= 32 << 20));
        assert!((0..200).all(|_| dice.length(10) <= 10));
    }
}
