//! The lock of a pipe's handler: one thread calls it at a time, so that messages keep their order. Nobody waits for it.
//!
//! Invariant: what was there to be delivered before a call of [`DeliveryLock::deliver`] is delivered by it, or by the thread
//! that holds the lock. Whichever has delivered enough returns [`Rest::ForLater`], and its caller has a task woken for the rest.

use std::cell::Cell;

use crate::sync::{AtomicBool, Ordering, thread_local};

thread_local! {
    /// The address of the lock that this thread holds; 0 without one.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// What a thread that delivered leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pipe) enum Rest {
    /// Nothing, or it is left to the thread that holds the lock.
    None,
    /// It has delivered enough, and there is more: whoever drives next delivers that.
    ForLater,
    /// All of it, to a task that it has woken.
    Left,
}

#[derive(Debug, Default)]
pub(in crate::pipe) struct DeliveryLock {
    held: AtomicBool,
}

impl DeliveryLock {
    /// Whether this thread holds it: the caller is called by the handler.
    pub(in crate::pipe) fn is_held_here(&self) -> bool {
        HERE.with(Cell::get) == self.address()
    }

    /// Whether any thread holds it.
    pub(in crate::pipe) fn is_held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// While there `is_left` a message: calls `next`, which gives one to the handler, until it finds none or this thread `has_enough`; if
    /// another thread holds the lock, leaves it to that one. Whoever adds a message calls this afterwards.
    #[must_use]
    pub(in crate::pipe) fn deliver(
        &self,
        mut next: impl FnMut() -> bool,
        is_left: impl Fn() -> bool,
        has_enough: impl Fn() -> bool,
    ) -> Rest {
        while is_left() {
            // Only here, without the lock: nobody leaves a message to this thread any more.
            if has_enough() {
                return Rest::ForLater;
            }
            let Some(guard) = self.try_hold() else {
                return Rest::None;
            };
            while !has_enough() && is_left() && next() {}
            drop(guard);
            // One that came in between the last check and the line above must not be left behind.
        }
        Rest::None
    }

    /// `None` if somebody has it. A handler may drive another pipe, whose handler is then called inside this one.
    fn try_hold(&self) -> Option<Guard<'_>> {
        if self.held.swap(true, Ordering::SeqCst) {
            return None;
        }
        let outer = HERE.with(|here| here.replace(self.address()));
        Some(Guard { lock: self, outer })
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

struct Guard<'a> {
    lock: &'a DeliveryLock,
    outer: usize,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        HERE.with(|here| here.set(self.outer));
        // An exchange: a thread that found the lock held has left a message before, which the next check sees.
        self.lock.held.swap(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_handler_inside_anothers_call_has_a_lock_of_its_own() {
        let (outer, inner) = (DeliveryLock::default(), DeliveryLock::default());
        let once = |left: &Cell<bool>| left.replace(false);
        let (outer_left, inner_left) = (Cell::new(true), Cell::new(true));
        let inner_call = || {
            let called = once(&inner_left);
            if called {
                assert!(inner.is_held_here() && !outer.is_held_here());
                // It drives the outer pipe: the messages that come in are for the outer lock.
                let rest = outer.deliver(|| unreachable!(), || true, || false);
                assert_eq!(rest, Rest::None);
            }
            called
        };
        let outer_call = || {
            let called = once(&outer_left);
            if called {
                assert!(outer.is_held_here());
                let rest = inner.deliver(inner_call, || inner_left.get(), || false);
                assert_eq!(rest, Rest::None);
                assert!(outer.is_held_here() && !inner.is_held());
            }
            called
        };
        let rest = outer.deliver(outer_call, || outer_left.get(), || false);
        assert_eq!(rest, Rest::None);
        assert!(!outer.is_held_here() && !outer.is_held());
        assert!(!inner_left.get(), "the inner one was not called");
    }

    #[test]
    fn a_handler_that_panics_gives_the_lock_back() {
        let lock = DeliveryLock::default();
        let deliver = || lock.deliver(|| panic!("by design"), || true, || false);
        let call = std::panic::AssertUnwindSafe(deliver);
        std::panic::catch_unwind(call).unwrap_err();
        assert!(!lock.is_held_here() && !lock.is_held());
    }
}
