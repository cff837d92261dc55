//! Where many operations wait for messages, it pays to let a few of these come together: each look into the connection that finds
//! one, and its way to whoever waits, costs as much as for several.
//!
//! Whether that is to be expected is learnt: where waiting for more was in vain, the next reads do without, and the more so the
//! more often. So a few slow calls beside a fast one delay it hardly ever.

use crate::pipe::driver::tuning::{
    RECEIVE_BATCH, RECEIVE_BATCH_PAUSE, RECEIVE_BATCH_POLLS, RECEIVE_BATCH_WORTH,
};

#[derive(Debug, Default)]
pub(super) struct Patience {
    /// Many wait.
    on: bool,
    /// Looks in this wait.
    looks: u32,
    /// Reads to come that do not wait.
    without: u32,
    /// How many it is after the next wait in vain.
    next_without: u32,
}

impl Patience {
    /// Whether many wait.
    pub(super) fn set(&mut self, on: bool) {
        self.on = on;
    }

    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// How much there has to be for a read.
    pub(super) fn wanted(&self) -> usize {
        match self.on && self.without == 0 && self.looks < RECEIVE_BATCH_POLLS {
            true => RECEIVE_BATCH,
            false => 1,
        }
    }

    /// A look found something, but not what is wanted. Returns whether to read it now.
    pub(super) fn is_over(&mut self) -> bool {
        self.looks += 1;
        self.looks >= RECEIVE_BATCH_POLLS
    }

    /// So much was read.
    pub(super) fn read(&mut self, bytes: usize) {
        let waited = std::mem::take(&mut self.looks) > 0;
        if self.without > 0 {
            self.without -= 1;
        } else if waited && bytes < RECEIVE_BATCH_WORTH {
            self.next_without = (self.next_without * 2).clamp(1, RECEIVE_BATCH_PAUSE);
            self.without = self.next_without;
        } else if bytes >= RECEIVE_BATCH_WORTH {
            self.next_without = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks until a message of `bytes` that is there is read.
    fn looks(patience: &mut Patience, bytes: usize) -> u32 {
        let mut looks = 1;
        while bytes < patience.wanted() && !patience.is_over() {
            looks += 1;
        }
        patience.read(bytes);
        looks
    }

    #[test]
    fn it_waits_for_more_only_where_many_wait() {
        let mut patience = Patience::default();
        assert_eq!(looks(&mut patience, 40), 1);
        patience.set(true);
        assert_eq!(looks(&mut patience, 40), RECEIVE_BATCH_POLLS);
        patience.set(false);
        assert_eq!(looks(&mut patience, 40), 1);
    }

    #[test]
    fn a_slow_answer_among_many_that_do_not_come_is_hardly_ever_delayed() {
        let mut patience = Patience::default();
        patience.set(true);
        let all: u32 = (0..10_000).map(|_| looks(&mut patience, 40)).sum();
        assert!(all < 10_000 + 50 * RECEIVE_BATCH_POLLS, "{all}");
    }

    #[test]
    fn what_comes_together_is_waited_for_each_time() {
        let mut patience = Patience::default();
        patience.set(true);
        // In vain a few times, as when calls were slow.
        for _ in 0..5 {
            looks(&mut patience, 40);
        }
        for _ in 0..40 {
            looks(&mut patience, 300);
        }
        for _ in 0..100 {
            assert_eq!(patience.wanted(), RECEIVE_BATCH);
            assert!(!patience.is_over());
            patience.read(RECEIVE_BATCH);
        }
    }
}
