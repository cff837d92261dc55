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

#[derive(Debug, Default)]
pub(in crate::pipe) struct Turn {
    taken: AtomicBool,
}

impl Turn {
    /// Whether this thread has it: the caller is called by the handler.
    pub(in crate::pipe) fn is_here(&self) -> bool {
        HERE.with(Cell::get) == self.address()
    }

    /// Whether any thread has it.
    pub(in crate::pipe) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// While there `is_left` a message: calls `next`, which gives one to the handler, until it finds none; if another thread
    /// has the turn, leaves it to that one. Whoever adds a message calls this afterwards.
    pub(in crate::pipe) fn deliver(
        &self,
        mut next: impl FnMut() -> bool,
        is_left: impl Fn() -> bool,
    ) {
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
        let outer = HERE.with(|here| here.replace(self.address()));
        Some(Taken { turn: self, outer })
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

struct Taken<'a> {
    turn: &'a Turn,
    outer: usize,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        HERE.with(|here| here.set(self.outer));
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
