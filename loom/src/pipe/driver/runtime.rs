//! In place of `tensorpipe/src/pipe/driver/runtime.rs`: who runs between two polls is no matter here, so a
//! model has several threads. It says whether a pipe's slice is over.

use std::cell::Cell;
use std::task::Waker;

use super::wakers::Wakers;
use crate::sync::Arc;

thread_local! {
    /// So many times from now on. loom runs all threads of a model on this one.
    static OVER: Cell<u32> = const { Cell::new(0) };
}

/// The next `times` somebody asks, a slice is over.
pub(in crate::pipe) fn end_slices(times: u32) {
    OVER.set(times);
}

/// For `Core`.
pub(in crate::pipe) fn is_slice_over() -> bool {
    let over = OVER.get();
    OVER.set(over.saturating_sub(1));
    over > 0
}

pub(super) fn is_single_threaded() -> bool {
    false
}

pub(super) fn is_main_future() -> bool {
    false
}

pub(super) fn has_yielded(_: &Wakers) -> bool {
    false
}

pub(super) fn yields(_: &Arc<Wakers>) {
    unreachable!("on a runtime of one thread alone");
}

pub(super) fn wake_last(_: &Waker) {
    unreachable!("on a runtime of one thread alone");
}

/// A model has no clock, and nobody counts.
pub(super) struct ThreadCounts;

pub(super) fn thread_counts() -> ThreadCounts {
    ThreadCounts
}

pub(super) fn polls() {}

pub(super) fn drives() {}
