//! Wakers for both directions of a connection, whose socket has only one waker for reading.

use std::sync::Arc;
use std::task::{Wake, Waker};

use crate::sync::{Mutex, lock};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// One waker for both directions: the socket takes one, and wake-ups do not tell which direction they are for.
#[derive(Debug, Default)]
pub(super) struct Wakers(Mutex<[Option<Waker>; 2]>);

impl Wakers {
    /// Stores who waits for a direction.
    pub(super) fn set(&self, direction: Direction, waker: &Waker) {
        let slot = &mut lock(&self.0)[direction as usize];
        match slot {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    pub(super) fn wake_other(&self, direction: Direction) {
        let other = lock(&self.0)[1 - direction as usize].take();
        if let Some(other) = other {
            other.wake();
        }
    }
}

impl Wakers {
    /// Wakes the waiters of both directions.
    pub(super) fn wake_both(&self) {
        let wakers = std::mem::take(&mut *lock(&self.0));
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_both();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_both();
    }
}
