//! The pattern of every operation that is awaited: look, drive the pipe, look again, wait.

use std::task::{Context, Poll};

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
    spins: bool,
    /// It stands among those that wait.
    listed: bool,
}

impl Waiter {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            slot: None,
            spins: false,
            listed: false,
        }
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
        let idle = self.spins && !self.core.look();
        let found = {
            let mut shared = lock(&self.core.shared);
            if let (false, true, Some(slot)) = (idle, self.listed, self.slot) {
                // Not to be woken by what it is about to do itself.
                shared.waiting.remove(&slot);
                self.listed = false;
            }
            look(&mut shared)
        };
        if let (None, true, Some(slot)) = (&found, idle, self.slot)
            && self.core.look_again(slot, &mut self.spins, cx.waker())
        {
            return Poll::Pending;
        }
        let found = found.or_else(|| {
            // First the role, then the look: a wake from here on comes to this task.
            self.core.poller.register(&mut self.slot, cx.waker());
            if !self.spins {
                self.core.hot.heat();
            }
            self.core.drive();
            let found = {
                let mut shared = lock(&self.core.shared);
                let found = look(&mut shared);
                if let (None, Some(slot)) = (&found, self.slot) {
                    shared.waiting.insert(slot, (interest, cx.waker().clone()));
                    self.listed = true;
                }
                found
            };
            if let (None, Some(slot)) = (&found, self.slot) {
                self.core.look_again(slot, &mut self.spins, cx.waker());
            }
            found
        });
        match found {
            Some(found) => {
                self.leave();
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }
}

impl Waiter {
    fn leave(&mut self) {
        if let Some(slot) = self.slot {
            if self.listed {
                lock(&self.core.shared).waiting.remove(&slot);
            }
            self.core.poller.leave(&mut self.slot);
            self.core.stop_looking(slot, &mut self.spins);
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.leave();
    }
}
