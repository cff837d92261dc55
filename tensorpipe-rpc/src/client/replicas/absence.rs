//! When a replica that is not there deserves a warning: after a while, and again for as long as that lasts.

use std::time::Duration;

use tokio::time::Instant;

/// A replica that restarts within this time is not worth a warning.
const AFTER: Duration = Duration::from_secs(2);

/// How long one warning suffices.
const EVERY: Duration = Duration::from_secs(60);

/// See the module's documentation.
pub(super) struct Absence {
    since: Instant,
    warned: Option<Instant>,
}

impl Absence {
    pub(super) fn begin(now: Instant) -> Self {
        Self {
            since: now,
            warned: None,
        }
    }

    /// Whether to warn of an attempt that fails now.
    pub(super) fn warns(&mut self, now: Instant) -> bool {
        let warns = match self.warned {
            None => now - self.since >= AFTER,
            Some(warned) => now - warned >= EVERY,
        };
        if warns {
            self.warned = Some(now);
        }
        warns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_warns_after_two_seconds_and_then_once_a_minute() {
        let begun = Instant::now();
        let mut absence = Absence::begin(begun);
        let mut warns = |at| absence.warns(begun + Duration::from_secs(at));
        let warned: Vec<u64> = (0..200).filter(|at| warns(*at)).collect();
        assert_eq!(warned, [2, 62, 122, 182]);
    }
}
