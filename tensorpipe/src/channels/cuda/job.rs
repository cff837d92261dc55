//! Driver calls that are made without holding the pipe's lock.

use std::sync::{Arc, Mutex, PoisonError};

use super::{LaneHandle, LaneIo, OpId};
use crate::device::cuda::ContextGuard;
use crate::error::DeviceError;
use crate::pipe::Work;

/// Where a job leaves its result; the operation is resumed then.
pub(super) struct JobHandle<T, E = DeviceError>(Slot<T, E>);

type Slot<T, E> = Arc<Mutex<Option<Result<T, E>>>>;

impl<T: Send + 'static, E: Send + 'static> JobHandle<T, E> {
    /// The result, once the job is done.
    pub(super) fn take(&self) -> Option<Result<T, E>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Runs a job for `op`. If it `is_quick` (some tens of microseconds), the thread that drives the pipe runs it, otherwise another
    /// thread.
    pub(super) fn of(
        op: OpId,
        is_quick: bool,
        handle: &LaneHandle,
        io: &mut LaneIo<'_>,
        act: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Self {
        let slot = Self(Arc::default());
        let into = slot.0.clone();
        let act = move || {
            let _mine = ContextGuard::keep();
            // If nobody waits any more, the result is dropped here, while this thread's CUDA context is kept.
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

    /// Runs a job for `op` in steps of some tens of microseconds, on the thread that drives the pipe, until a step returns a result. The
    /// job is given up if nobody holds the handle any more.
    pub(super) fn by_steps(
        op: OpId,
        handle: &LaneHandle,
        io: &mut LaneIo<'_>,
        step: impl FnMut() -> Option<Result<T, E>> + Send + 'static,
    ) -> Self {
        let slot = Self(Arc::default());
        let (into, handle) = (slot.0.clone(), handle.clone());
        let step = Some(step);
        io.work(
            op,
            Steps {
                op,
                handle,
                into,
                step,
            },
        );
        slot
    }
}

struct Steps<T, E, F> {
    op: OpId,
    handle: LaneHandle,
    into: Slot<T, E>,
    /// Dropped, with everything that it holds, before anybody learns of its end.
    step: Option<F>,
}

impl<T, E, F> Work for Steps<T, E, F>
where
    T: Send + 'static,
    E: Send + 'static,
    F: FnMut() -> Option<Result<T, E>> + Send + 'static,
{
    fn step(&mut self) -> bool {
        let is_wanted = Arc::strong_count(&self.into) > 1;
        let done = match &mut self.step {
            Some(step) if is_wanted => step(),
            _ => None,
        };
        if done.is_none() && is_wanted && self.step.is_some() {
            return true;
        }
        self.step = None;
        if done.is_some() {
            *self.into.lock().unwrap_or_else(PoisonError::into_inner) = done;
        }
        false
    }

    fn finish_on_thread(mut self: Box<Self>) {
        let (op, handle) = (self.op, self.handle.clone());
        handle.resume_after(op, move || while self.step() {});
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
    fn finish_on_thread(self: Box<Self>) {}
}
