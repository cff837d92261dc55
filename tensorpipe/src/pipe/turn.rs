//! The right to call a pipe's handler: one thread has it at a time, so that messages keep their order.
//!
//! Invariant: what was there to be delivered before a call of [`Turn::deliver`] is delivered by it, or by the thread that
//! has the turn. `tensorpipe-loom` checks it in every order of the threads' steps.

use std::cell::Cell;

use crate::sync::{AtomicBool, Ordering, thread_local};

thread_local! {
    /// The address of the turn that this thread has; 0 outside of any.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

thread_local! {
    /// What its handler has accepted, and whose credit has not gone back.
    static ACCEPTED: Cell<Accepted> = const { Cell::new(Accepted::NONE) };
}

/// Numbers of messages, of as many as a handler is given in one go. Nothing to be dropped: it is there in a thread's last moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Accepted {
    ids: [u64; 8],
    len: usize,
}

impl Accepted {
    const NONE: Self = Self {
        ids: [0; 8],
        len: 0,
    };

    pub(super) fn ids(&self) -> &[u64] {
        &self.ids[..self.len]
    }
}

#[derive(Debug, Default)]
pub(super) struct Turn {
    taken: AtomicBool,
}

impl Turn {
    /// Whether this thread has it: the caller is called by the handler.
    pub(super) fn is_here(&self) -> bool {
        HERE.with(Cell::get) == self.address()
    }

    /// The handler has accepted a message, whose credit goes back when it has returned. `false`, with nothing done, where it is
    /// called by another thread, or has accepted many.
    pub(super) fn accept(&self, id: u64) -> bool {
        if !self.is_here() {
            return false;
        }
        ACCEPTED.with(|accepted| {
            let mut all = accepted.get();
            let room = all.ids.get_mut(all.len);
            let has_room = room.is_some();
            if let Some(room) = room {
                *room = id;
                all.len += 1;
                accepted.set(all);
            }
            has_room
        })
    }

    /// The messages that it has accepted, whose credit goes back now.
    pub(super) fn take_accepted(&self) -> Accepted {
        ACCEPTED.with(|accepted| accepted.replace(Accepted::NONE))
    }

    /// Whether any thread has it.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// While there `is_left` a message: calls `next`, which gives one to the handler, until it finds none; if another thread
    /// has the turn, leaves it to that one. Whoever adds a message calls this afterwards.
    pub(super) fn deliver(&self, mut next: impl FnMut() -> bool, is_left: impl Fn() -> bool) {
        while is_left() {
            let Some(taken) = self.take() else {
                return;
            };
            while next() {}
            drop(taken);
            // One that came in between the last look and the line above must not be left behind.
        }
    }

    /// `None` if somebody has it. A handler may drive another pipe, whose handler is then called inside this one's turn.
    fn take(&self) -> Option<Taken<'_>> {
        if self.taken.swap(true, Ordering::SeqCst) {
            return None;
        }
        Some(Taken {
            turn: self,
            outer: HERE.with(|here| here.replace(self.address())),
            outer_accepted: self.take_accepted(),
        })
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

struct Taken<'a> {
    turn: &'a Turn,
    outer: usize,
    outer_accepted: Accepted,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        HERE.with(|here| here.set(self.outer));
        ACCEPTED.with(|accepted| accepted.set(self.outer_accepted));
        // An exchange: whoever has found it taken left a message before, which the next look sees.
        self.turn.taken.swap(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_handler_inside_anothers_call_has_a_turn_of_its_own() {
        let (outer, inner) = (Turn::default(), Turn::default());
        let once = |left: &Cell<bool>| left.replace(false);
        let (outer_left, inner_left) = (Cell::new(true), Cell::new(true));
        let inner_call = || {
            let called = once(&inner_left);
            if called {
                assert!(inner.is_here() && !outer.is_here());
                // It drives the outer pipe: the messages that come in are for the outer turn.
                outer.deliver(|| unreachable!(), || true);
            }
            called
        };
        let outer_call = || {
            let called = once(&outer_left);
            if called {
                assert!(outer.is_here());
                inner.deliver(inner_call, || inner_left.get());
                assert!(outer.is_here() && !inner.is_taken());
            }
            called
        };
        outer.deliver(outer_call, || outer_left.get());
        assert!(!outer.is_here() && !outer.is_taken());
        assert!(!inner_left.get(), "the inner one was not called");
    }

    #[test]
    fn a_handler_that_panics_gives_the_turn_back() {
        let turn = Turn::default();
        let call = std::panic::AssertUnwindSafe(|| turn.deliver(|| panic!("by design"), || true));
        std::panic::catch_unwind(call).unwrap_err();
        assert!(!turn.is_here() && !turn.is_taken());
    }
}
