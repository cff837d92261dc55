//! How many calls a server has.

use std::sync::atomic::{AtomicU64, Ordering};

/// One call that has not been answered yet.
const UNANSWERED: u64 = 1 << 32;

/// One place of those that [`ServerLimits::calls`](crate::ServerLimits::calls) has.
const PLACE: u64 = 1;

/// Calls, counted in one word twice. A call gives its place back just before it is answered. Its caller may make another one as
/// soon as it has the answer; a full server would turn that away. Whoever shuts the server down waits until the answer is on its
/// way.
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

    /// Whether it was the last one.
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
