//! Coalescing: messages that leave in one write ([`Sends`]), answers of channels that leave with the next message ([`DelayedAcks`]),
//! and messages that come in one read ([`Reads`]). A write, and a poll that finds something, cost as much for one message as for
//! several.
//!
//! All that waits for something else to share its way is decided here. How many to wait for is learnt from what has just been.
//! Invariant: a message that is alone waits for nobody, and what waits has somebody who comes for it.

use super::tuning::{
    RECEIVE_BATCH, RECEIVE_BATCH_PAUSE, RECEIVE_BATCH_POLLS, RECEIVE_BATCH_WORTH, SEND_BATCH,
    SEND_BATCH_BYTES, SEND_BATCH_COSTLY, SEND_BATCH_FROM,
};

/// Those that leave.
#[derive(Debug, Default)]
pub(in crate::pipe) struct Sends {
    /// Messages that nobody has tried to write, and bytes of those among them that wait in the protocol's queue.
    gathered: u32,
    queued: u64,
    /// Messages that left outside of a round in this batch: since something came in, or somebody came for what was left behind.
    left: u32,
    /// Something was left behind in it.
    batch_ends: bool,
    /// It was left to whoever drives next, who was told.
    owed: bool,
}

impl Sends {
    /// Somebody has come for what was left behind.
    pub(in crate::pipe) fn round_begins(&mut self) {
        if std::mem::take(&mut self.batch_ends) {
            self.left = 0;
        }
    }

    /// Something has come in.
    pub(in crate::pipe) fn batch_begins(&mut self) {
        self.left = 0;
    }

    pub(in crate::pipe) fn pushed(&mut self) {
        self.gathered += 1;
    }

    /// Whether what waits leaves now. It does when it is worth a write of its own, since the peer works on it while more is written.
    ///
    /// Where a write is no system call (not `costly`), at most as many are held back as have left in this batch. So somebody who
    /// writes few and then computes has few held back, and of one that comes alone nothing is.
    pub(in crate::pipe) fn is_due(&self, costly: bool) -> bool {
        self.gathered
            >= match costly {
                true => SEND_BATCH_COSTLY,
                false => self.left.clamp(1, SEND_BATCH),
            }
    }

    /// A message of so many bytes waits in the protocol's queue. Returns whether what waits is worth a write that is a system call.
    pub(in crate::pipe) fn is_much(&mut self, bytes: u64) -> bool {
        self.gathered += 1;
        self.queued = self.queued.saturating_add(bytes);
        self.is_due(true) || self.queued >= SEND_BATCH_BYTES
    }

    /// What waits is left to whoever drives next. Returns whether somebody has to be told.
    pub(in crate::pipe) fn owe(&mut self) -> bool {
        self.batch_ends = true;
        !std::mem::replace(&mut self.owed, true)
    }

    pub(in crate::pipe) fn is_owed(&self) -> bool {
        self.owed
    }

    /// What waits leaves outside of a round.
    pub(in crate::pipe) fn leave(&mut self) {
        self.left = self.left.saturating_add(self.gathered);
    }

    /// Somebody tries to write what waits, as far as it can leave.
    pub(in crate::pipe) fn tried(&mut self) {
        (self.owed, self.gathered, self.queued) = (false, 0, 0);
    }
}

/// Whether so many operations are under way that what begins another one is likely not to be alone: others are written at once. Where
/// messages come one by one (`last_batch`), most of these are at rest, and the others call in turn.
pub(in crate::pipe) fn is_many(under_way: usize, last_batch: u32) -> bool {
    last_batch != 1 && under_way >= SEND_BATCH_FROM
}

/// Answers of channels, for which nobody waits: whoever reads most likely writes soon. Where it computes instead, they leave without a
/// message, since a task comes for them.
#[derive(Debug, Default)]
pub(in crate::pipe) struct DelayedAcks {
    is_watched: bool,
    /// One waits that did not when the task was there last.
    more: bool,
}

impl DelayedAcks {
    /// One waits. Returns whether a task has to be sent for it.
    pub(in crate::pipe) fn wait(&mut self) -> bool {
        self.more = true;
        !std::mem::replace(&mut self.is_watched, true)
    }

    /// The task is there. Returns whether some may wait, and it has to come again.
    pub(in crate::pipe) fn come(&mut self) -> bool {
        self.is_watched = std::mem::take(&mut self.more);
        self.is_watched
    }

    #[cfg(test)]
    pub(in crate::pipe) fn is_watched(&self) -> bool {
        self.is_watched
    }
}

/// Those that are read, where many operations wait for them. After waiting for more in vain, the next reads do not wait; each further
/// time, more of them do not. So a few slow calls beside a fast one delay it hardly ever.
#[derive(Debug, Default)]
pub(in crate::pipe) struct Reads {
    /// Many wait.
    on: bool,
    /// Polls in this wait.
    polls: u32,
    /// Reads to come that do not wait.
    without: u32,
    /// How many it is after the next wait in vain.
    next_without: u32,
}

impl Reads {
    /// Whether many wait.
    pub(in crate::pipe) fn set(&mut self, on: bool) {
        self.on = on;
    }

    pub(in crate::pipe) fn is_on(&self) -> bool {
        self.on
    }

    /// How much there has to be for a read.
    pub(in crate::pipe) fn wanted(&self) -> usize {
        match self.on && self.without == 0 && self.polls < RECEIVE_BATCH_POLLS {
            true => RECEIVE_BATCH,
            false => 1,
        }
    }

    /// A poll found something, but not as much as is wanted. Returns whether to read it now.
    pub(in crate::pipe) fn is_over(&mut self) -> bool {
        self.polls += 1;
        self.polls >= RECEIVE_BATCH_POLLS
    }

    /// So much was read.
    pub(in crate::pipe) fn read(&mut self, bytes: usize) {
        let waited = std::mem::take(&mut self.polls) > 0;
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

    /// Polls until a message of `bytes` that is there is read.
    fn polls(reads: &mut Reads, bytes: usize) -> u32 {
        let mut polls = 1;
        while bytes < reads.wanted() && !reads.is_over() {
            polls += 1;
        }
        reads.read(bytes);
        polls
    }

    #[test]
    fn a_message_beside_many_operations_is_not_alone() {
        assert!(!is_many(SEND_BATCH_FROM - 1, 2));
        assert!(is_many(SEND_BATCH_FROM, 2));
        // Nothing has come so far: they may be the first of many.
        assert!(is_many(SEND_BATCH_FROM, 0));
        // Calls in turn, beside any that are at rest.
        assert!(!is_many(1000, 1));
    }

    #[test]
    fn it_waits_for_more_only_where_many_wait() {
        let mut reads = Reads::default();
        assert_eq!(polls(&mut reads, 40), 1);
        reads.set(true);
        assert_eq!(polls(&mut reads, 40), RECEIVE_BATCH_POLLS);
        reads.set(false);
        assert_eq!(polls(&mut reads, 40), 1);
    }

    #[test]
    fn a_slow_answer_among_many_that_do_not_come_is_hardly_ever_delayed() {
        let mut reads = Reads::default();
        reads.set(true);
        let all: u32 = (0..10_000).map(|_| polls(&mut reads, 40)).sum();
        assert!(all < 10_000 + 50 * RECEIVE_BATCH_POLLS, "{all}");
    }

    #[test]
    fn what_comes_together_is_waited_for_each_time() {
        let mut reads = Reads::default();
        reads.set(true);
        // In vain a few times, as when calls were slow.
        for _ in 0..5 {
            polls(&mut reads, 40);
        }
        for _ in 0..40 {
            polls(&mut reads, 300);
        }
        for _ in 0..100 {
            assert_eq!(reads.wanted(), RECEIVE_BATCH);
            assert!(!reads.is_over());
            reads.read(RECEIVE_BATCH);
        }
    }

    #[test]
    fn what_the_protocol_has_queued_leaves_by_number_or_by_bytes() {
        for (bytes, messages) in [(1, SEND_BATCH_COSTLY), (SEND_BATCH_BYTES / 4, 4)] {
            let mut sends = Sends::default();
            for _ in 0..2 {
                assert!((1..messages).all(|_| !sends.is_much(bytes)));
                assert!(sends.is_much(bytes));
                sends.tried();
            }
        }
    }
}
