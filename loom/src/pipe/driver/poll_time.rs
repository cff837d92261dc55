//! In place of `tensorpipe/src/pipe/driver/poll_time.rs`: how long polling pays is a matter of time, which a model has not.
//! Here it says how often.

use std::cell::Cell;
use std::time::Instant;

use super::runtime::ThreadCounts;

thread_local! {
    /// The answers to come: whether to poll on. loom runs all threads of a model on this one.
    static ANSWERS: Cell<&'static [bool]> = const { Cell::new(&[]) };
    /// The same from when the peer was found awake.
    static PEER_ANSWERS: Cell<&'static [bool]> = const { Cell::new(&[]) };
}

/// From now on polling pays, until so many polls were in vain; each time it is said whether to poll on at once. Without
/// any it does not pay.
pub(in crate::pipe) fn answer(answers: &'static [bool]) {
    ANSWERS.set(answers);
}

/// Once the peer was found awake, polling pays until so many polls were in vain.
pub(in crate::pipe) fn answer_behind_peer(answers: &'static [bool]) {
    PEER_ANSWERS.set(answers);
}

#[derive(Debug)]
pub(super) struct PollTime;

// Its users have it locked, so that loom knows of them.
impl PollTime {
    pub(super) fn new(_: bool) -> Self {
        Self
    }

    pub(super) fn pays(&self) -> bool {
        !ANSWERS.get().is_empty()
    }

    pub(super) fn peer_polls(&self) -> bool {
        let peer = PEER_ANSWERS.take();
        if !peer.is_empty() {
            ANSWERS.set(peer);
        }
        !peer.is_empty()
    }

    pub(super) fn in_vain(&self, _: u32, _: ThreadCounts, _: impl FnOnce() -> Instant) -> bool {
        let Some((goes_on, rest)) = ANSWERS.get().split_first() else {
            return false;
        };
        ANSWERS.set(rest);
        *goes_on
    }

    pub(super) fn sleeps(&self, _: ThreadCounts, _: impl FnOnce() -> Instant) {}

    pub(super) fn found(&self, _: ThreadCounts, _: impl FnOnce() -> Instant) {}
}
