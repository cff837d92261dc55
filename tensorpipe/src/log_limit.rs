//! Keeps a peer from filling the log: what it can cause as often as it likes is said once, and then counted.

use std::time::{Duration, Instant};

use crate::sync::{Mutex, lock};

/// How long one cause is only counted after it was said.
const EVERY: Duration = Duration::from_secs(10);

/// One cause of log lines.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<(Option<Instant>, u64)>);

impl LogLimit {
    /// Nothing has been said yet.
    pub const fn new() -> Self {
        Self(Mutex::new((None, 0)))
    }

    /// Whether to say it now, and how often it was held back since the last time, if it was.
    pub fn admits(&self) -> Option<Option<u64>> {
        self.admits_at(Instant::now())
    }

    fn admits_at(&self, now: Instant) -> Option<Option<u64>> {
        let (last, held_back) = &mut *lock(&self.0);
        if last.is_some_and(|last| now.saturating_duration_since(last) < EVERY) {
            *held_back += 1;
            return None;
        }
        *last = Some(now);
        let held_back = std::mem::take(held_back);
        Some((held_back > 0).then_some(held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_and_the_next_ones_are_counted() {
        let (limit, begun) = (LogLimit::new(), Instant::now());
        assert_eq!(limit.admits_at(begun), Some(None));
        for _ in 0..1000 {
            assert_eq!(limit.admits_at(begun + EVERY / 2), None);
        }
        assert_eq!(limit.admits_at(begun + EVERY), Some(Some(1000)));
        assert_eq!(limit.admits_at(begun + 2 * EVERY), Some(None));
    }
}
