//! In place of `tensorpipe/src/pipe/spin.rs`: how long looking pays is a matter of time, which a model has not. Here it
//! says how often.

use std::cell::Cell;
use std::time::Instant;

/// One that finds nothing, and whatever comes meanwhile.
pub(super) const LOOKS_IN_A_POLL: u32 = 1;

thread_local! {
    /// The answers to come: whether to look on. loom runs all threads of a model on this one.
    static ANSWERS: Cell<&'static [bool]> = const { Cell::new(&[]) };
}

/// From now on looking pays, until so many looks were in vain; each time it is said whether to look on at once. Without
/// any it does not pay.
pub(super) fn answer(answers: &'static [bool]) {
    ANSWERS.set(answers);
}

#[derive(Debug, Default)]
pub(super) struct Spin;

// Its users have it locked, so that loom knows of them.
impl Spin {
    pub(super) fn pays(&self) -> bool {
        !ANSWERS.get().is_empty()
    }

    pub(super) fn in_vain(&self, _: u32, _: impl FnOnce() -> Instant) -> bool {
        let Some((goes_on, rest)) = ANSWERS.get().split_first() else {
            return false;
        };
        ANSWERS.set(rest);
        *goes_on
    }

    pub(super) fn sleeps(&self, _: impl FnOnce() -> Instant) {}

    pub(super) fn found(&self, _: impl FnOnce() -> Instant) {}
}
