//! The part of tokio's `Notify` that the models use, made of our lock.
//!
//! It differs from tokio's in two points. It stores at most one permit even while tasks wait, so two calls of `notify_one` wake only one.
//! A dropped `Notified` does not pass its notification on; no model drops a waiting one.

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
    /// Number of calls of `notify_waiters`.
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
    /// A `Notify` without a permit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Completes at the next notification, or at once if there is a permit.
    pub fn notified(&self) -> Notified<'_> {
        Notified {
            of: self,
            told_all: lock(&self.state).told_all,
        }
    }

    /// Wakes one waiting task, or the next one to wait.
    pub fn notify_one(&self) {
        self.tell(|state| state.permit = true);
    }

    /// Wakes all tasks that wait now.
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
