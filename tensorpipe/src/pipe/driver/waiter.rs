//! The pattern of every operation that is awaited: look, drive the pipe, look again, wait.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};

use super::core::Core;
use super::shared::Shared;
use crate::sync::{Arc, lock};

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipe) enum Interest {
    Descriptor,
    Read(u64),
    Write(u64),
    Flush,
    End,
}

/// An operation's registration with its pipe. While it is polled it drives the pipe; dropping it leaves.
pub(in crate::pipe) struct Waiter {
    core: Arc<Core>,
    slot: Option<u64>,
    /// It looks again soon instead of being woken.
    spins: bool,
    /// It stands among those that are woken.
    listed: bool,
}

impl Waiter {
    pub(in crate::pipe) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            slot: None,
            spins: false,
            listed: false,
        }
    }

    pub(in crate::pipe) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(in crate::pipe) fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        interest: Interest,
        mut look: impl FnMut(&mut Shared) -> Option<T>,
    ) -> Poll<T> {
        // A spinner that sees bytes need not look for what they will bring.
        let news = self.spins && self.core.look();
        let found = if news { None } else { self.look(&mut look) };
        let found = found.or_else(|| {
            // It has looked for long enough, or another does: it sleeps, instead of beginning anew.
            let mut rests = false;
            if let (true, false, Some(slot)) = (self.spins, news, self.slot) {
                if self.core.look_again(slot, &mut self.spins, cx.waker()) {
                    return None;
                }
                rests = true;
            }
            // First the role, then the look: a wake from here on comes to this task.
            let slot = self.core.poller.register(&mut self.slot, cx.waker());
            if !self.spins && !rests {
                self.core.heat();
            }
            self.core.drive();
            self.look(&mut look).or_else(|| {
                if !rests && self.core.look_again(slot, &mut self.spins, cx.waker()) {
                    return None;
                }
                // Asleep: whoever drives the pipe and finds what this waits for wakes it.
                // A waker is somebody else's code, also when it is cloned or dropped: never under a lock.
                let waker = cx.waker().clone();
                let mut shared = lock(&self.core.shared);
                let found = look(&mut shared);
                if found.is_none() {
                    shared.waiting.push((slot, interest, waker));
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
        let listed = std::mem::take(&mut self.listed);
        let (found, old) = {
            let mut shared = lock(&self.core.shared);
            let old = listed.then(|| unlist(self.slot, &mut shared));
            (look(&mut shared), old)
        };
        drop(old);
        found
    }

    fn leave(&mut self) {
        let Some(slot) = self.slot else { return };
        if self.core.is_inherited() {
            return;
        }
        if std::mem::take(&mut self.listed) {
            let old = unlist(self.slot, &mut lock(&self.core.shared));
            drop(old);
        }
        self.core.poller.leave(&mut self.slot);
        self.core.stop_looking(slot, &mut self.spins);
    }
}

fn unlist(slot: Option<u64>, shared: &mut Shared) -> Option<(u64, Interest, Waker)> {
    let waiting = &mut shared.waiting;
    let at = waiting
        .iter()
        .position(|(other, ..)| Some(*other) == slot)?;
    Some(waiting.swap_remove(at))
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Wakes all of them, without a lock. One that panics does not keep the others asleep.
pub(in crate::pipe) fn wake_all(wakes: Vec<Waker>) {
    wakes.into_iter().for_each(wake);
}

pub(in crate::pipe) fn wake(waker: Waker) {
    if catch_unwind(AssertUnwindSafe(|| waker.wake())).is_err() {
        tracing::warn!("a waker panicked; its task was not woken");
    }
}
