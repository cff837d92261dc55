//! The number of a server's calls.

use std::sync::atomic::{AtomicU64, Ordering};

/// One call that has not been answered yet.
const UNANSWERED: u64 = 1 << 32;

/// One of the [`ServerLimits::calls`](crate::ServerLimits::calls) places.
const PLACE: u64 = 1;

/// Counts calls twice, in one word: places taken, and calls not yet answered. A call frees its place just before it is answered, so
/// that its caller may make the next call at once, even on a full server. A shutdown waits until the answer is on its way.
#[derive(Default)]
pub(crate) struct CallCount(AtomicU64);

impl CallCount {
    pub(crate) fn begin(&self) {
        self.0.fetch_add(UNANSWERED + PLACE, Ordering::SeqCst);
    }

    /// A call is about to be answered: its place is free for the next one.
    pub(crate) fn leave(&self) {
        self.0.fetch_sub(PLACE, Ordering::SeqCst);
    }

    /// A call was answered. Returns whether it was the last one.
    pub(super) fn end(&self) -> bool {
        self.0.fetch_sub(UNANSWERED, Ordering::SeqCst) / UNANSWERED == 1
    }

    /// Calls that are not answered.
    pub(super) fn unanswered(&self) -> usize {
        (self.0.load(Ordering::SeqCst) / UNANSWERED) as usize
    }

    /// Places that are taken.
    pub(super) fn places(&self) -> usize {
        (self.0.load(Ordering::SeqCst) % UNANSWERED) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_leaves_its_place_before_it_ends() {
        let calls = CallCount::default();
        calls.begin();
        calls.begin();
        assert_eq!((calls.places(), calls.unanswered()), (2, 2));
        calls.leave();
        assert_eq!((calls.places(), calls.unanswered()), (1, 2));
        assert!(!calls.end(), "one is left");
        calls.leave();
        assert!(calls.end());
        assert_eq!((calls.places(), calls.unanswered()), (0, 0));
    }
}
