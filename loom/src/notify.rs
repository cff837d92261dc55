//! tokio's `Notify` as far as the models use it, made of our lock.
//!
//! One permit at most is left, also where somebody waits: two calls of `notify_one` wake one. A `Notified` that is dropped does not
//! hand on what it was told; no model drops one that waits.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, lock};

/// `notify_one` leaves a permit, which one takes; `notify_waiters` tells each [`Notified`] that was made before it.
#[derive(Default)]
pub struct Notify {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// How often all were told.
    told_all: u64,
    permit: bool,
    waiting: Vec<Waker>,
}

impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notify").finish_non_exhaustive()
    }
}

impl Notify {
    /// Nobody was told.
    pub fn new() -> Self {
        Self::default()
    }

    /// Completes when it is told from now on, or has been left a permit.
    pub fn notified(&self) -> Notified<'_> {
        Notified {
            of: self,
            told_all: lock(&self.state).told_all,
        }
    }

    /// Tells one of those who wait, or the next.
    pub fn notify_one(&self) {
        self.tell(|state| state.permit = true);
    }

    /// Tells all who wait now.
    pub fn notify_waiters(&self) {
        self.tell(|state| state.told_all += 1);
    }

    fn tell(&self, change: impl FnOnce(&mut State)) {
        let waiting = {
            let mut state = lock(&self.state);
            change(&mut state);
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// See [`Notify::notified`].
#[derive(Debug)]
pub struct Notified<'a> {
    of: &'a Notify,
    told_all: u64,
}

impl Future for Notified<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = lock(&self.of.state);
        if state.told_all != self.told_all || std::mem::take(&mut state.permit) {
            return Poll::Ready(());
        }
        if !state.waiting.iter().any(|one| one.will_wake(cx.waker())) {
            state.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}
