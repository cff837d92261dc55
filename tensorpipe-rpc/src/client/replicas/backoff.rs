//! How long to wait before connecting again: longer each time, up to a bound, and never all clients at once.
//!
//! A pure function of the number of failures and of chance.

use std::time::Duration;

use tensorpipe::ambient;

/// The shortest pause, even if a shorter one is asked for: connecting again without one would keep a core busy.
const SHORTEST: Duration = Duration::from_millis(1);

/// The longest pause, because a timer cannot wait beyond any clock.
const LONGEST: Duration = Duration::from_secs(86_400);

/// The pauses between attempts to connect to a replica again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first pause, after a connection was lost or an attempt failed. Default 50 ms, at least 1 ms.
    pub first: Duration,
    /// The longest pause. Default 5 s, at most a day.
    pub longest: Duration,
    /// Each pause is so many times as long as the one before. Default 2, at least 1.
    pub factor: f64,
    /// A pause is shortened by up to this part of it, at random, so that the clients of a server that comes back do not
    /// all come at once. Default 0.5, from 0 to 1.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(50),
            longest: Duration::from_secs(5),
            factor: 2.0,
            jitter: 0.5,
        }
    }
}

impl Backoff {
    /// The pause after `failures` failed attempts in a row; 0 after the loss of a connection that had worked. `chance` is in
    /// `0..1`.
    pub(super) fn pause(&self, failures: u32, chance: f64) -> Duration {
        let exponent = f64::from(failures.saturating_sub(1));
        let longest = self.longest.clamp(SHORTEST, LONGEST);
        let first = self.first.clamp(SHORTEST, longest);
        // If one number is NaN, `max` and `min` take the other; every comparison with NaN is false.
        let grown = first.as_secs_f64() * self.factor.max(1.0).powf(exponent);
        let pause = grown.min(longest.as_secs_f64());
        let jitter = if self.jitter > 0.0 {
            self.jitter.min(1.0)
        } else {
            0.0
        };
        Duration::from_secs_f64(pause * (1.0 - jitter * chance)).clamp(SHORTEST, longest)
    }
}

/// A number in `0..1`.
pub(super) fn chance() -> f64 {
    (ambient::random_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// For any settings, even NaN, a pause lies between the shortest and the longest.
        #[test]
        fn a_pause_is_within_its_bounds(
            first in any::<u64>(),
            longest in any::<u64>(),
            factor in any::<f64>(),
            jitter in any::<f64>(),
            failures in any::<u32>(),
            chance in 0.0..1.0f64,
        ) {
            let (first, longest) = (Duration::from_micros(first), Duration::from_micros(longest));
            let backoff = Backoff { first, longest, factor, jitter };
            let pause = backoff.pause(failures, chance);
            prop_assert!(pause >= SHORTEST && pause <= longest.clamp(SHORTEST, LONGEST), "{pause:?}");
        }
    }
}
