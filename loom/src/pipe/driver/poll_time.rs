//! Stand-in for `tensorpipe/src/pipe/driver/poll_time.rs`. A model has no clock, so each model says how many polls pay, instead
//! of how long polling pays.

use std::cell::Cell;
use std::time::Instant;

use super::thread_counts::ThreadCounts;

thread_local! {
    /// The next answers to "poll on?". loom runs all threads of a model on this system thread.
    static ANSWERS: Cell<&'static [bool]> = const { Cell::new(&[]) };
    /// The answers that apply once the peer was found awake.
    static PEER_ANSWERS: Cell<&'static [bool]> = const { Cell::new(&[]) };
}

/// Polling pays until `answers` are used up. Each poll in vain takes the next answer: whether to poll on at once. Without
/// answers polling does not pay.
pub(in crate::pipe) fn answer(answers: &'static [bool]) {
    ANSWERS.set(answers);
}

/// As [`answer`], from the moment at which the peer is found awake.
pub(in crate::pipe) fn answer_behind_peer(answers: &'static [bool]) {
    PEER_ANSWERS.set(answers);
}

#[derive(Debug)]
pub(super) struct PollTime;

// Callers hold a lock of the model, so loom sees these accesses.
impl PollTime {
    pub(super) fn new(_: bool) -> Self {
        Self
    }

    pub(super) fn pays(&self, _: &ThreadCounts, _: impl FnOnce() -> Instant) -> bool {
        !ANSWERS.get().is_empty()
    }

    pub(super) fn peer_polls(&self, _: &ThreadCounts, _: impl FnOnce() -> Instant) -> bool {
        let peer = PEER_ANSWERS.take();
        if !peer.is_empty() {
            ANSWERS.set(peer);
        }
        !peer.is_empty()
    }

    pub(super) fn should_poll_on(
        &self,
        _: u32,
        _: &ThreadCounts,
        _: impl FnOnce() -> Instant,
    ) -> bool {
        let Some((goes_on, rest)) = ANSWERS.get().split_first() else {
            return false;
        };
        ANSWERS.set(rest);
        *goes_on
    }

    pub(super) fn sleeps(&self, _: &ThreadCounts, _: impl FnOnce() -> Instant) {}

    pub(super) fn found(&self, _: &ThreadCounts, _: impl FnOnce() -> Instant) {}
}
