//! Keeps a peer from filling the log: what it can cause as often as it likes is said a few times, and then counted.

use std::time::{Duration, Instant};

use crate::sync::{Mutex, lock};

/// So many lines of one cause...
const MOST: u32 = 5;

/// ...in so long; further ones are counted.
const EVERY: Duration = Duration::from_secs(10);

/// One cause of log lines.
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<Said>);

#[derive(Debug)]
struct Said {
    /// When the first of `lines` was said.
    since: Option<Instant>,
    lines: u32,
    held_back: u64,
}

impl Said {
    const NOTHING: Self = Self {
        since: None,
        lines: 0,
        held_back: 0,
    };
}

impl Default for Said {
    fn default() -> Self {
        Self::NOTHING
    }
}

impl LogLimit {
    /// Nothing has been said yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Said::NOTHING))
    }

    /// Whether to say it now, and how often it was held back since the last time, if it was.
    pub fn admits(&self) -> Option<Option<u64>> {
        self.admits_at(Instant::now())
    }

    fn admits_at(&self, now: Instant) -> Option<Option<u64>> {
        let said = &mut *lock(&self.0);
        let lasts = |since| now.saturating_duration_since(since) < EVERY;
        if !said.since.is_some_and(lasts) {
            let held_back = said.held_back;
            *said = Said {
                since: Some(now),
                lines: 1,
                held_back: 0,
            };
            return Some((held_back > 0).then_some(held_back));
        }
        if said.lines < MOST {
            said.lines += 1;
            return Some(None);
        }
        said.held_back += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_said_and_the_next_ones_are_counted() {
        let (limit, begun) = (LogLimit::new(), Instant::now());
        for _ in 0..MOST {
            assert_eq!(limit.admits_at(begun), Some(None));
        }
        for _ in 0..1000 {
            assert_eq!(limit.admits_at(begun + EVERY / 2), None);
        }
        assert_eq!(limit.admits_at(begun + EVERY), Some(Some(1000)));
        assert_eq!(limit.admits_at(begun + 2 * EVERY), Some(None));
    }
}
