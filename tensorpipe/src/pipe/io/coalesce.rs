//! Coalescing: messages that leave in one write, and messages that come in one read. A write, and a poll that finds something, cost as
//! much for one message as for several.
//!
//! How many to wait for is learnt from what has just been. Invariant: a message that is alone waits for nobody, and what waits has
//! somebody who comes for it.

use crate::pipe::driver::tuning::{
    RECEIVE_BATCH, RECEIVE_BATCH_PAUSE, RECEIVE_BATCH_POLLS, RECEIVE_BATCH_WORTH, SEND_BATCH,
    SEND_BATCH_COSTLY,
};

/// Those that leave.
#[derive(Debug, Default)]
pub(super) struct Sends {
    /// Messages among the frames that nobody has tried to write.
    gathered: u32,
    /// Messages that left outside of a round in this turn: since something came in, or somebody came for what was left behind.
    left: u32,
    /// Something was left behind in it.
    turn_ends: bool,
    /// It was left to whoever drives next, who was told.
    owed: bool,
}

impl Sends {
    /// Somebody has come for what was left behind.
    pub(super) fn round_begins(&mut self) {
        if std::mem::take(&mut self.turn_ends) {
            self.left = 0;
        }
    }

    /// Something has come in.
    pub(super) fn turn_begins(&mut self) {
        self.left = 0;
    }

    pub(super) fn pushed(&mut self) {
        self.gathered += 1;
    }

    /// Whether what waits leaves now: it is worth a write of its own, which is a system call (`costly`) or not, and the peer works on
    /// it while more is written. Where it is none, no more are held back than have left in this turn: whoever writes few and then
    /// computes holds back the fewer, and of one that comes alone nothing.
    pub(super) fn is_due(&self, costly: bool) -> bool {
        self.gathered
            >= match costly {
                true => SEND_BATCH_COSTLY,
                false => self.left.clamp(1, SEND_BATCH),
            }
    }

    /// What waits is left to whoever drives next. Returns whether somebody has to be told.
    pub(super) fn owe(&mut self) -> bool {
        self.turn_ends = true;
        !std::mem::replace(&mut self.owed, true)
    }

    pub(super) fn is_owed(&self) -> bool {
        self.owed
    }

    /// What waits leaves outside of a round.
    pub(super) fn leave(&mut self) {
        self.left = self.left.saturating_add(self.gathered);
    }

    /// All that waits is being written.
    pub(super) fn write(&mut self) {
        (self.owed, self.gathered) = (false, 0);
    }
}

/// Those that are read, where many operations wait for them. Where waiting for more was in vain, the next reads do without, and the
/// more so the more often: a few slow calls beside a fast one delay it hardly ever.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Many wait.
    on: bool,
    /// Looks in this wait.
    looks: u32,
    /// Reads to come that do not wait.
    without: u32,
    /// How many it is after the next wait in vain.
    next_without: u32,
}

impl Reads {
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
    fn looks(reads: &mut Reads, bytes: usize) -> u32 {
        let mut looks = 1;
        while bytes < reads.wanted() && !reads.is_over() {
            looks += 1;
        }
        reads.read(bytes);
        looks
    }

    #[test]
    fn it_waits_for_more_only_where_many_wait() {
        let mut reads = Reads::default();
        assert_eq!(looks(&mut reads, 40), 1);
        reads.set(true);
        assert_eq!(looks(&mut reads, 40), RECEIVE_BATCH_POLLS);
        reads.set(false);
        assert_eq!(looks(&mut reads, 40), 1);
    }

    #[test]
    fn a_slow_answer_among_many_that_do_not_come_is_hardly_ever_delayed() {
        let mut reads = Reads::default();
        reads.set(true);
        let all: u32 = (0..10_000).map(|_| looks(&mut reads, 40)).sum();
        assert!(all < 10_000 + 50 * RECEIVE_BATCH_POLLS, "{all}");
    }

    #[test]
    fn what_comes_together_is_waited_for_each_time() {
        let mut reads = Reads::default();
        reads.set(true);
        // In vain a few times, as when calls were slow.
        for _ in 0..5 {
            looks(&mut reads, 40);
        }
        for _ in 0..40 {
            looks(&mut reads, 300);
        }
        for _ in 0..100 {
            assert_eq!(reads.wanted(), RECEIVE_BATCH);
            assert!(!reads.is_over());
            reads.read(RECEIVE_BATCH);
        }
    }
}
