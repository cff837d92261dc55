//! Coalescing: messages that leave in one write ([`Sends`]), answers of channels that leave with the next message ([`DelayedAcks`]),
//! and messages that come in one read ([`Reads`]). A write, and a poll that finds something, cost as much for one message as for
//! several.
//!
//! Every wait that lets messages share a read or a write is decided here. How many to wait for is learnt from recent traffic. Invariant: a
//! message that is alone waits for nobody, and for everything that waits some task is on its way.

use super::tuning::{
    RECEIVE_BATCH, RECEIVE_BATCH_PAUSE, RECEIVE_BATCH_POLLS, RECEIVE_BATCH_WORTH, SEND_BATCH,
    SEND_BATCH_BYTES, SEND_BATCH_COSTLY, SEND_BATCH_FROM,
};

/// Outgoing messages.
#[derive(Debug, Default)]
pub(in crate::pipe) struct Sends {
    /// Messages that nobody has tried to write, and bytes of those among them that wait in the protocol's queue.
    gathered: u32,
    queued: u64,
    /// Messages that left outside of a round in this batch. A batch begins when bytes come in, or when a round takes what was left behind.
    left: u32,
    /// Messages were left behind in this batch.
    batch_ends: bool,
    /// They were left to the next driver, and a task was told.
    owed: bool,
}

impl Sends {
    /// A round begins, and takes what was left behind.
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
    /// If a write is no system call (not `io_is_syscall`), at most as many messages are held back as have left in this batch. So a task that
    /// writes few and then computes has few held back, and a message that comes alone is never held back.
    pub(in crate::pipe) fn is_due(&self, io_is_syscall: bool) -> bool {
        self.gathered
            >= match io_is_syscall {
                true => SEND_BATCH_COSTLY,
                false => self.left.clamp(1, SEND_BATCH),
            }
    }

    /// A message of `bytes` waits in the protocol's queue. Returns whether the waiting messages are worth a write that is a system call.
    pub(in crate::pipe) fn is_worth_write(&mut self, bytes: u64) -> bool {
        self.gathered += 1;
        self.queued = self.queued.saturating_add(bytes);
        self.is_due(true) || self.queued >= SEND_BATCH_BYTES
    }

    /// Leaves what waits to the next driver. Returns whether a task has to be told.
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

    /// A thread tries to write what waits, as far as the connection takes it.
    pub(in crate::pipe) fn tried(&mut self) {
        (self.owed, self.gathered, self.queued) = (false, 0, 0);
    }
}

/// Whether so many operations are under way that the message of a further one is likely to have company. Not if messages come one by one
/// (`last_batch` is 1): then most operations are at rest, and the others call in turn.
pub(in crate::pipe) fn expects_batch(under_way: usize, last_batch: u32) -> bool {
    last_batch != 1 && under_way >= SEND_BATCH_FROM
}

/// Acknowledgements of channels, which nobody waits for. They leave with the next message, since a task that reads most likely writes soon.
/// If it computes instead, a timer task sends them without a message.
#[derive(Debug, Default)]
pub(in crate::pipe) struct DelayedAcks {
    is_watched: bool,
    /// An acknowledgement was added since the task last ran.
    more: bool,
}

impl DelayedAcks {
    /// Adds an acknowledgement. Returns whether a task has to be spawned for it.
    pub(in crate::pipe) fn add(&mut self) -> bool {
        self.more = true;
        !std::mem::replace(&mut self.is_watched, true)
    }

    /// The task runs. Returns whether acknowledgements may wait, so that it has to run again.
    pub(in crate::pipe) fn tick(&mut self) -> bool {
        self.is_watched = std::mem::take(&mut self.more);
        self.is_watched
    }

    #[cfg(test)]
    pub(in crate::pipe) fn is_watched(&self) -> bool {
        self.is_watched
    }
}

/// Incoming messages, while many operations wait for them. After a wait for more that was in vain, some reads do not wait; each further
/// time twice as many. So a few slow calls beside a fast one hardly ever delay it.
#[derive(Debug, Default)]
pub(in crate::pipe) struct Reads {
    /// Many operations wait.
    on: bool,
    /// Polls in this wait.
    polls: u32,
    /// Reads to come that do not wait.
    without: u32,
    /// The number of such reads after the last wait in vain; 0 after a read that was worth it.
    next_without: u32,
}

impl Reads {
    /// Sets whether many operations wait.
    pub(in crate::pipe) fn set(&mut self, on: bool) {
        self.on = on;
    }

    pub(in crate::pipe) fn is_on(&self) -> bool {
        self.on
    }

    /// How many bytes there have to be for a read.
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
        assert!(!expects_batch(SEND_BATCH_FROM - 1, 2));
        assert!(expects_batch(SEND_BATCH_FROM, 2));
        // Nothing has come so far: they may be the first of many.
        assert!(expects_batch(SEND_BATCH_FROM, 0));
        // Calls in turn, beside any that are at rest.
        assert!(!expects_batch(1000, 1));
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
                assert!((1..messages).all(|_| !sends.is_worth_write(bytes)));
                assert!(sends.is_worth_write(bytes));
                sends.tried();
            }
        }
    }
}
