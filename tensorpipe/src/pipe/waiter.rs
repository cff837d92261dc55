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
    /// It looks again soon instead of being woken.
    spins: bool,
    /// It stands among those that are woken.
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
        // A spinner that sees bytes need not look for what they will bring.
        let news = self.spins && self.core.look();
        let found = if news { None } else { self.look(&mut look) };
        let found = found.or_else(|| {
            if let (true, false, Some(slot)) = (self.spins, news, self.slot)
                && self.core.look_again(slot, &mut self.spins, cx.waker())
            {
                return None;
            }
            // First the role, then the look: a wake from here on comes to this task.
            let slot = self.core.poller.register(&mut self.slot, cx.waker());
            if !self.spins {
                self.core.hot.heat();
            }
            self.core.drive();
            self.look(&mut look).or_else(|| {
                if self.core.look_again(slot, &mut self.spins, cx.waker()) {
                    return None;
                }
                // Asleep: whoever drives the pipe and finds what this waits for wakes it.
                let mut shared = lock(&self.core.shared);
                let found = look(&mut shared);
                if found.is_none() {
                    shared.waiting.push((slot, interest, cx.waker().clone()));
                    self.listed = true;
                }
                found
            })
        });
        match found {
            Some(found) => {
                self.leave();
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }

    /// Looks; what it waits for may be what it is about to do itself, so it is not to be woken.
    fn look<T>(&mut self, look: &mut impl FnMut(&mut Shared) -> Option<T>) -> Option<T> {
        let mut shared = lock(&self.core.shared);
        if std::mem::take(&mut self.listed) {
            shared
                .waiting
                .retain(|(slot, _, _)| Some(*slot) != self.slot);
        }
        look(&mut shared)
    }

    fn leave(&mut self) {
        let Some(slot) = self.slot else { return };
        if std::mem::take(&mut self.listed) {
            let mut shared = lock(&self.core.shared);
            shared.waiting.retain(|(other, _, _)| *other != slot);
        }
        self.core.poller.leave(&mut self.slot);
        self.core.stop_looking(slot, &mut self.spins);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.leave();
    }
}
