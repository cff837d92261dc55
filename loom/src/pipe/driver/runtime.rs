//! Stand-in for `tensorpipe/src/pipe/driver/runtime.rs`: the runtime always counts as multi-threaded. A model
//! decides when a pipe's slice is over.

use std::cell::Cell;
use std::task::Waker;

use super::wakers::Wakers;
use crate::sync::Arc;

thread_local! {
    /// How many more times a slice is over. loom runs all threads of a model on this system thread.
    static OVER: Cell<u32> = const { Cell::new(0) };
}

/// The next `times` calls of [`is_slice_over`] return true.
pub(in crate::pipe) fn end_slices(times: u32) {
    OVER.set(times);
}

/// For `Core`.
pub(in crate::pipe) fn is_slice_over() -> bool {
    let over = OVER.get();
    OVER.set(over.saturating_sub(1));
    over > 0
}

/// No program holds a lock here.
pub(super) fn leave_handlers(work: impl FnOnce()) {
    work();
}

pub(super) fn is_single_threaded() -> bool {
    false
}

pub(super) fn has_several_workers() -> bool {
    true
}

pub(super) fn has_one_worker() -> bool {
    false
}

pub(super) fn is_main_future() -> bool {
    false
}

pub(super) fn has_yielded(_: &Wakers) -> bool {
    false
}

pub(super) fn yield_pipe(_: &Arc<Wakers>) {
    unreachable!("on a runtime of one thread alone");
}

pub(super) fn wake_last(_: &Waker) {
    unreachable!("on a runtime of one thread alone");
}
