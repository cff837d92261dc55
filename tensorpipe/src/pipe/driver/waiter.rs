//! One operation's part: look, drive, look again; then busy-poll or sleep.

use std::task::{Context, Poll, Waker};

use super::drive::Driven;
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

/// A sleeping operation: its registration, and whom to wake once what it waits for is there.
pub(in crate::pipe) type Waiting = (u64, Interest, Waker);

/// An operation's registration with its pipe. While it is polled it drives the pipe; dropping it leaves.
///
/// [`Waiter::poll`] serves operations whose state is in the shared part. One with a state of its own uses the steps:
/// [`drive`](Waiter::drive), a look at its state, [`poll_again`](Waiter::poll_again).
pub(in crate::pipe) struct Waiter<C: Driven> {
    core: Arc<C>,
    slot: Option<u64>,
    /// It is the one that polls: it comes again soon instead of being woken.
    polls: bool,
    /// It stands among those that are woken.
    listed: bool,
}

impl<C: Driven> Waiter<C> {
    pub(in crate::pipe) fn new(core: Arc<C>) -> Self {
        Self {
            core,
            slot: None,
            polls: false,
            listed: false,
        }
    }

    pub(in crate::pipe) fn core(&self) -> &Arc<C> {
        &self.core
    }

    /// Makes `waker` the one that the connection wakes.
    pub(in crate::pipe) fn register(&mut self, waker: &Waker) -> u64 {
        let wakers = &self.core.driver().wakers;
        wakers.register(&mut self.slot, waker)
    }

    /// The same, and moves what can be moved.
    pub(in crate::pipe) fn drive(&mut self, waker: &Waker) {
        self.register(waker);
        let driver = self.core.driver();
        if !self.polls {
            driver.start_polling();
        } else if driver.is_polling() && !driver.poll::<C>() {
            // Where another has stopped the polling in between, the connection may have woken this one: then it drives.
            return;
        }
        driver.drive(&self.core);
    }

    /// What it waits for is not there. Returns whether its task is scheduled to poll again; if so, nobody else has to wake it.
    pub(in crate::pipe) fn poll_again(&mut self, waker: &Waker) -> bool {
        let Some(who) = self.slot else { return false };
        let driver = self.core.driver();
        driver.poll_again(&self.core, who, &mut self.polls, waker)
    }

    pub(in crate::pipe) fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        interest: Interest,
        mut look: impl FnMut(&mut C::Shared) -> Option<T>,
    ) -> Poll<T> {
        // A poller that sees bytes need not look for what they will bring.
        let news = self.polls && self.core.driver().poll::<C>();
        let found = if news { None } else { self.look(&mut look) };
        let found = found.or_else(|| {
            // It has polled for long enough, or another does: it sleeps, instead of beginning anew.
            let rests = self.polls && !news;
            if rests && self.poll_again(cx.waker()) {
                return None;
            }
            // First the registration, then the look: a wake from here on comes to this task.
            let slot = self.register(cx.waker());
            let driver = self.core.driver();
            if !self.polls && !rests {
                driver.start_polling();
            }
            driver.drive(&self.core);
            self.look(&mut look).or_else(|| {
                if !rests && self.poll_again(cx.waker()) {
                    return None;
                }
                // Asleep: whoever drives the pipe and finds what this waits for wakes it.
                // A waker is somebody else's code, also when it is cloned or dropped: never under a lock.
                let waker = cx.waker().clone();
                let mut shared = lock(self.core.shared());
                let found = look(&mut shared);
                if found.is_none() {
                    C::waiting(&mut shared).push((slot, interest, waker));
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
    fn look<T>(&mut self, look: &mut impl FnMut(&mut C::Shared) -> Option<T>) -> Option<T> {
        let (found, old) = {
            let mut shared = lock(self.core.shared());
            let old = unlist::<C>(self.slot, &mut self.listed, &mut shared);
            (look(&mut shared), old)
        };
        drop(old);
        found
    }

    /// The operation is awaited no more.
    pub(in crate::pipe) fn leave(&mut self) {
        if self.slot.is_none() || self.core.is_inherited() {
            return;
        }
        if self.listed {
            let mut shared = lock(self.core.shared());
            let old = unlist::<C>(self.slot, &mut self.listed, &mut shared);
            drop(shared);
            drop(old);
        }
        let driver = self.core.driver();
        driver.leave(&self.core, &mut self.slot, &mut self.polls);
    }
}

/// Takes an operation off those that are woken, if it is listed.
fn unlist<C: Driven>(
    slot: Option<u64>,
    listed: &mut bool,
    shared: &mut C::Shared,
) -> Option<Waiting> {
    if !std::mem::take(listed) {
        return None;
    }
    let waiting = C::waiting(shared);
    let at = waiting.iter().position(|(id, ..)| Some(*id) == slot)?;
    Some(waiting.swap_remove(at))
}

impl<C: Driven> Drop for Waiter<C> {
    fn drop(&mut self) {
        self.leave();
    }
}
