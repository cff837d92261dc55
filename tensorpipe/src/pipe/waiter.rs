//! The pattern of every operation that is awaited: look, drive the pipe, look again, wait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};

use super::core::Core;
use super::shared::Shared;
use crate::sync::{Arc, lock};

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    Descriptor,
    Read(u64),
    Write(u64),
    Flush,
    End,
}

/// An operation's registration with its pipe. While it is polled it drives the pipe; dropping it leaves.
pub(super) struct Waiter {
    core: Arc<Core>,
    slot: Option<u64>,
}

impl Waiter {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core, slot: None }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(super) fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        interest: Interest,
        mut look: impl FnMut(&mut Shared) -> Option<T>,
    ) -> Poll<T> {
        // A waker is somebody else's code, also when it is dropped: never under a lock.
        let mut old = None;
        let found = {
            let mut shared = lock(&self.core.shared);
            if let Some(slot) = self.slot {
                // Not to be woken by what it is about to do itself.
                old = shared.waiting.remove(&slot);
            }
            look(&mut shared)
        };
        drop(old);
        let found = found.or_else(|| {
            // First the role, then the look: a wake from here on comes to this task.
            self.core.poller.register(&mut self.slot, cx.waker());
            self.core.drive();
            let mut shared = lock(&self.core.shared);
            let found = look(&mut shared);
            if let (None, Some(slot)) = (&found, self.slot) {
                // Nothing was there: it was removed above, and only this operation puts it there.
                shared.waiting.insert(slot, (interest, cx.waker().clone()));
            }
            found
        });
        match found {
            Some(found) => {
                self.core.poller.leave(&mut self.slot);
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            let old = lock(&self.core.shared).waiting.remove(&slot);
            drop(old);
            self.core.poller.leave(&mut self.slot);
        }
    }
}

/// Wakes all of them, without a lock. One that panics does not keep the others asleep.
pub(super) fn wake_all(wakes: Vec<Waker>) {
    wakes.into_iter().for_each(wake);
}

pub(super) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::warn!("a waker panicked; its task was not woken");
    }
}
