//! One operation's part: check, drive, check again; then busy-poll or sleep.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use super::drive::Driven;
use super::runtime;
use crate::sync::{Arc, lock};

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::pipe) enum Interest {
    Descriptor,
    Read(u64),
    Write(u64),
    Flush,
    End,
}

/// Sleeping operations, by what each waits for and its registration: whom to wake once that is there. Many may sleep, each for a message
/// of its own.
pub(in crate::pipe) type Waiting = BTreeMap<(Interest, u64), Waker>;

/// Takes those that wait for this.
pub(in crate::pipe) fn take_waiting(
    waiting: &mut Waiting,
    interest: Interest,
) -> impl Iterator<Item = Waker> {
    let all = (interest, 0)..=(interest, u64::MAX);
    waiting.extract_if(all, |_, _| true).map(|(_, waker)| waker)
}

/// An owner of a pipe.
pub(in crate::pipe) trait Holds {
    type Core: Driven;

    fn core(&self) -> &Arc<Self::Core>;
}

impl<C: Driven> Holds for Arc<C> {
    type Core = C;

    fn core(&self) -> &Self {
        self
    }
}

/// An operation's registration with its pipe. While it is polled it drives the pipe; dropping it leaves.
///
/// [`Waiter::poll`] serves operations whose state is in the shared part. One with a state of its own uses the steps:
/// [`drive`](Waiter::drive), a check of its state, [`poll_again`](Waiter::poll_again).
pub(in crate::pipe) struct Waiter<H: Holds> {
    holder: H,
    slot: Option<u64>,
    /// It is the poller: its task is scheduled to poll again, and nobody has to wake it.
    polls: bool,
    /// It is listed among the operations that are woken when what they wait for is there: this.
    listed: Option<Interest>,
    /// It is only counted: the connection does not wake it, and others drive for it.
    counted: bool,
    /// It was awaited by a main future first.
    of_main_future: bool,
}

impl<H: Holds> Waiter<H> {
    pub(in crate::pipe) fn new(holder: H) -> Self {
        Self {
            holder,
            slot: None,
            polls: false,
            listed: None,
            counted: false,
            of_main_future: false,
        }
    }

    /// Whether it is awaited, as far as its pipe knows.
    fn waits(&self) -> bool {
        self.slot.is_some() || self.counted
    }

    /// It is awaited from here on.
    fn begin(&mut self) {
        if runtime::is_main_future() {
            self.of_main_future = true;
            self.core().driver().wakers.count_main_future();
        }
    }

    pub(in crate::pipe) fn holder(&self) -> &H {
        &self.holder
    }

    pub(in crate::pipe) fn core(&self) -> &Arc<H::Core> {
        self.holder.core()
    }

    /// Makes `waker` the one that the connection wakes.
    fn register(&mut self, waker: &Waker) -> u64 {
        let begins = !self.waits();
        let wakers = &self.holder.core().driver().wakers;
        let id = wakers.register(&mut self.slot, waker);
        if std::mem::take(&mut self.counted) {
            wakers.uncount();
        }
        if begins {
            self.begin();
        }
        id
    }

    /// Only counts the operation while a poller drives for many; otherwise registers it.
    pub(in crate::pipe) fn count(&mut self, waker: &Waker) {
        if !self.waits() {
            self.begin();
            let driver = self.holder.core().driver();
            self.counted = true;
            if driver.count() {
                return;
            }
        }
        self.register(waker);
    }

    /// Makes `waker` the one that the connection wakes, and sends and receives what is possible without waiting.
    pub(in crate::pipe) fn drive(&mut self, waker: &Waker) {
        self.register(waker);
        let core = self.holder.core();
        let driver = core.driver();
        if !self.polls {
            driver.start_polling();
            driver.drive_to_wait(core);
        } else if !driver.is_polling() || driver.poll::<H::Core>() {
            // If another task has stopped polling in between, the connection may have woken this one.
            driver.drive(core);
        }
    }

    /// What it waits for is not there. Returns whether its task is scheduled to poll again; if so, nobody else has to wake it.
    pub(in crate::pipe) fn poll_again(&mut self, waker: &Waker) -> bool {
        let Some(who) = self.slot else { return false };
        let core = self.holder.core();
        core.driver().poll_again(core, who, &mut self.polls, waker)
    }

    pub(in crate::pipe) fn poll<T>(
        &mut self,
        cx: &Context<'_>,
        interest: Interest,
        mut check: impl FnMut(&mut <H::Core as Driven>::Shared) -> Option<T>,
    ) -> Poll<T> {
        // A poller that sees bytes need not check for what they will bring.
        let news = self.polls && self.core().driver().poll::<H::Core>();
        let found = if news { None } else { self.check(&mut check) };
        let found = found.or_else(|| {
            // The poller has polled for long enough, or another one polls: it sleeps, and does not start to poll anew.
            let rests = self.polls && !news;
            if rests && self.poll_again(cx.waker()) {
                return None;
            }
            // First the registration, then the check: a wake from here on comes to this task.
            let slot = self.register(cx.waker());
            let core = self.core();
            let driver = core.driver();
            if !self.polls && !rests {
                driver.start_polling();
            }
            match news {
                true => driver.drive(core),
                false => driver.drive_to_wait(core),
            }
            self.check(&mut check).or_else(|| {
                if !rests && self.poll_again(cx.waker()) {
                    return None;
                }
                // Asleep: the thread that drives the pipe, and finds what this waits for, wakes it.
                // A waker is somebody else's code, also when it is cloned or dropped: never under a lock.
                let waker = cx.waker().clone();
                let mut shared = lock(self.holder.core().shared());
                let found = check(&mut shared);
                if found.is_none() {
                    H::Core::waiting(&mut shared).insert((interest, slot), waker);
                    self.listed = Some(interest);
                }
                found
            })
        });
        match found {
            Some(found) => {
                self.deregister();
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }

    /// Checks. Takes the operation off the list first: it may itself do what it waits for, and is not to be woken for that.
    fn check<T>(
        &mut self,
        check: &mut impl FnMut(&mut <H::Core as Driven>::Shared) -> Option<T>,
    ) -> Option<T> {
        let (found, old) = {
            let mut shared = lock(self.holder.core().shared());
            let old = unlist::<H::Core>(self.slot, &mut self.listed, &mut shared);
            (check(&mut shared), old)
        };
        drop(old);
        found
    }

    /// Its task does something else next. Nothing may rely on its polls or wake-ups then: no listening handler, no later operation, and no
    /// other waiting one, as far as is seen without the lock.
    pub(in crate::pipe) fn pause(&mut self) {
        let driver = self.holder.core().driver();
        // First: an operation that has registered by now is seen below, and a later one finds that nobody polls.
        driver.pause(self.slot, &mut self.polls);
        if driver.listens() || driver.wakers.waiting() > 1 || !driver.is_polling() {
            self.deregister();
        }
    }

    /// The operation is awaited no more.
    pub(in crate::pipe) fn deregister(&mut self) {
        if !self.waits() || self.holder.core().is_inherited() {
            return;
        }
        let core = self.holder.core();
        if self.listed.is_some() {
            let mut shared = lock(core.shared());
            let old = unlist::<H::Core>(self.slot, &mut self.listed, &mut shared);
            drop(shared);
            drop(old);
        }
        let driver = core.driver();
        if std::mem::take(&mut self.of_main_future) {
            driver.wakers.uncount_main_future();
        }
        if std::mem::take(&mut self.counted) {
            driver.wakers.uncount();
        }
        if self.slot.is_some() {
            driver.deregister(core, &mut self.slot, &mut self.polls);
        }
    }
}

/// Takes an operation off those that are woken, if it is listed.
fn unlist<C: Driven>(
    slot: Option<u64>,
    listed: &mut Option<Interest>,
    shared: &mut C::Shared,
) -> Option<Waker> {
    let interest = listed.take()?;
    C::waiting(shared).remove(&(interest, slot?))
}

impl<H: Holds> Drop for Waiter<H> {
    fn drop(&mut self) {
        if self.waits() {
            // Whoever drops an operation may hold a lock that its handlers take.
            runtime::leave_handlers(|| self.deregister());
        }
    }
}
