//! One call that waits for its answer.

use std::ops::Deref;
use std::time::{Duration, Instant};

use super::oneshot::Oneshot;
use super::{CallData, Deadline, Outcome};
use crate::error::CallError;
use crate::lock::{AtomicBool, AtomicU64, Ordering};

/// Stands for a message number that is not known yet.
const UNSENT: u64 = u64::MAX;

/// Stands for the number of a message whose time passed before it was sent.
const GIVEN_UP: u64 = u64::MAX - 1;

/// A call that waits for its answer.
pub(crate) struct CallSlot {
    pub(crate) id: u64,
    /// The number of its message on the pipe.
    message: AtomicU64,
    /// The message number of its reply.
    reply: AtomicU64,
    pub(super) deadline: Deadline,
    /// [`complete`](Self::complete) brings it.
    pub(crate) outcome: Oneshot<Outcome>,
    /// The slot has left the table: whoever took it out completes it.
    removed: AtomicBool,
    /// The call's message leaves with others, or has left: the first poll need not drive the pipe.
    skip_first_drive: AtomicBool,
    /// Nobody awaits the call, but later calls refer to its result.
    orphan: AtomicBool,
    data: CallData,
}

impl Deref for CallSlot {
    type Target = CallData;

    #[inline]
    fn deref(&self) -> &CallData {
        &self.data
    }
}

impl CallSlot {
    #[inline]
    pub(super) fn new(id: u64, deadline: Deadline, data: CallData) -> Self {
        Self {
            id,
            message: AtomicU64::new(UNSENT),
            reply: AtomicU64::new(UNSENT),
            deadline,
            outcome: Oneshot::new(),
            removed: AtomicBool::new(false),
            skip_first_drive: AtomicBool::new(false),
            orphan: AtomicBool::new(false),
            data,
        }
    }

    /// Nobody awaits it any more, but others refer to its result.
    pub(super) fn make_orphan(&self) {
        self.orphan.store(true, Ordering::Release);
    }

    pub(super) fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Acquire)
    }

    pub(super) fn set_skip_first_drive(&self, skip_first_drive: bool) {
        self.skip_first_drive
            .store(skip_first_drive, Ordering::Relaxed);
    }

    /// Whether its message leaves without this poll's help. True once only; only the call's future asks.
    pub(crate) fn take_skip_first_drive(&self) -> bool {
        let skip_first_drive = self.skip_first_drive.load(Ordering::Relaxed);
        if skip_first_drive {
            self.skip_first_drive.store(false, Ordering::Relaxed);
        }
        skip_first_drive
    }

    /// Marks the slot as removed from the table. Whoever removed it completes it.
    pub(super) fn mark_removed(&self) {
        self.removed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// How long the call has taken so far, at `now`, and never longer than it may.
    pub(super) fn taken(&self, now: Instant) -> Duration {
        let taken = |(at, after): (Instant, Duration)| {
            after.saturating_sub(at.saturating_duration_since(now))
        };
        self.deadline.map(taken).unwrap_or_default()
    }

    /// Returns whether its message is not queued yet: the sender then takes it back as soon as it is queued.
    pub(super) fn cancel_unsent(&self) -> bool {
        self.try_set_message(GIVEN_UP)
    }

    /// Its message is queued. Returns `false` if its time has passed before.
    pub(super) fn try_set_message(&self, message: u64) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let set = self
            .message
            .compare_exchange(UNSENT, message, success, failure);
        set.is_ok()
    }

    /// The number of its message, once that is queued.
    pub(super) fn message(&self) -> Option<u64> {
        let message = self.message.load(Ordering::Acquire);
        (message < GIVEN_UP).then_some(message)
    }

    /// Message number `reply` of the peer's answers the call. Returns `false` if another message already does. Callers hold the
    /// lock of the table of calls.
    pub(super) fn try_set_reply(&self, reply: u64) -> bool {
        let first = self.reply.load(Ordering::Relaxed) == UNSENT;
        if first {
            self.reply.store(reply, Ordering::Release);
        }
        first
    }

    /// The number of its reply, once that is there.
    pub(super) fn reply(&self) -> Option<u64> {
        let reply = self.reply.load(Ordering::Acquire);
        (reply != UNSENT).then_some(reply)
    }

    /// Gives the outcome back if the call has ended already, or nobody waits for it.
    pub(super) fn complete(&self, outcome: Outcome) -> Option<Outcome> {
        if let Some(streams) = &self.streams {
            streams.no_more_sent();
        }
        if let Some(trace) = &self.trace {
            trace.ended(&outcome);
        }
        self.outcome.complete(outcome)
    }

    pub(super) fn fail(&self, error: CallError) {
        self.complete(Outcome::Failed(error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> CallSlot {
        CallSlot::new(7, None, CallData::default())
    }

    #[test]
    fn a_call_that_is_given_up_before_it_is_sent_is_taken_back_once_it_is() {
        let given_up = slot();
        assert!(given_up.cancel_unsent(), "it was not sent");
        assert!(!given_up.try_set_message(5) && given_up.message().is_none());
        let sent = slot();
        assert!(sent.try_set_message(5) && !sent.cancel_unsent());
        assert_eq!(sent.message(), Some(5));
    }

    #[test]
    fn a_call_has_one_reply() {
        let slot = slot();
        assert_eq!(slot.reply(), None);
        assert!(slot.try_set_reply(7) && !slot.try_set_reply(8));
        assert_eq!(slot.reply(), Some(7));
    }
}
