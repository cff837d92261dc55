//! Random enough, and the same in every run.
#![allow(dead_code, reason = "not every suite asks for everything")]

use std::time::Duration;

/// Marsaglia's xorshift of 64 bits; the seed is not zero.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn micros(&mut self, below: u64) -> Duration {
        Duration::from_micros(self.below(below))
    }
}
