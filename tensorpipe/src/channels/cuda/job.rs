//! Calls of the driver, made without the pipe's lock.

use std::sync::{Arc, Mutex, PoisonError};

use super::{LaneHandle, LaneIo, OpId};
use crate::device::cuda::Current;
use crate::error::DeviceError;
use crate::pipe::Work;

/// Where a job leaves what came of it; the operation is resumed then.
pub(super) struct Slot<T>(Arc<Mutex<Option<Result<T, DeviceError>>>>);

impl<T: Send + 'static> Slot<T> {
    /// What came of it, if it is done.
    pub(super) fn take(&self) -> Option<Result<T, DeviceError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Does it for `op`: `is_quick` where it takes some tens of microseconds, by whoever drives the pipe, else on another thread.
    pub(super) fn of(
        op: OpId,
        is_quick: bool,
        handle: &LaneHandle,
        io: &mut LaneIo<'_>,
        act: impl FnOnce() -> Result<T, DeviceError> + Send + 'static,
    ) -> Self {
        let slot = Self(Arc::default());
        let into = slot.0.clone();
        let act = move || {
            let _mine = Current::keep();
            // Where nobody waits any more, what came of it ends here, while this thread's context is kept.
            let into = into;
            let done = act();
            *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        };
        match is_quick {
            true => io.work(op, Quick(Some(act))),
            false => handle.resume_after(op, act),
        }
        slot
    }
}

struct Quick<F>(Option<F>);

impl<F: FnOnce() + Send> Work for Quick<F> {
    fn step(&mut self) -> bool {
        if let Some(act) = self.0.take() {
            act();
        }
        false
    }

    /// It has one step.
    fn elsewhere(self: Box<Self>) {}
}
