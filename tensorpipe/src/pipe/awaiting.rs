//! A [`Waiter`] for whoever has a state of their own to look at.

use std::ops::Deref;
use std::task::Waker;

use super::Pipe;
use super::core::Core;
use super::driver::{Holds, Waiter};
use crate::sync::Arc;

/// Drives a pipe for an operation that a [`Handler`](crate::engine::Handler) completes. It holds whatever holds the pipe.
///
/// Whoever awaits such an operation calls [`Awaiting::drive`] in each poll, before the last look at the operation's own
/// state, and [`Awaiting::look_again`] when that found nothing: the task is then the one that is woken when the pipe's
/// connection has something to say, so that the answer takes no detour through another task, and for a while it does not
/// even sleep. In the first poll of one whose message left with others [`Awaiting::join_others`] may take the place of `drive`.
///
/// `holder` gives the same pipe each time.
pub struct Awaiting<H: Deref<Target: AsRef<Pipe>>>(Waiter<Holder<H>>);

struct Holder<H>(H);

impl<H: Deref<Target: AsRef<Pipe>>> Holds for Holder<H> {
    type Core = Core;

    fn core(&self) -> &Arc<Core> {
        (*self.0).as_ref().core()
    }
}

impl<H: Deref<Target: AsRef<Pipe>>> std::fmt::Debug for Awaiting<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awaiting")
            .field("pipe", &self.0.core().name)
            .finish_non_exhaustive()
    }
}

impl<H: Deref<Target: AsRef<Pipe>>> Awaiting<H> {
    /// Nothing is awaited yet.
    #[inline]
    pub fn new(holder: H) -> Self {
        Self(Waiter::new(Holder(holder)))
    }

    /// What holds the pipe.
    #[inline]
    pub fn holder(&self) -> &H {
        &self.0.holder().0
    }

    /// Has others drive, while one of several that wait polls: for an operation whose message was
    /// [submitted](crate::engine::EnginePipe::submit) [together](crate::engine::Submitted::together) with others. Otherwise makes
    /// `waker` the one that the connection wakes. Moves nothing.
    pub fn join_others(&mut self, waker: &Waker) {
        self.0.count(waker);
    }

    /// Makes `waker` the one that the connection wakes, and moves what can be moved.
    pub fn drive(&mut self, waker: &Waker) {
        self.0.drive(waker);
    }

    /// The operation is not complete: for a short while, as long as that has paid lately, its task is scheduled to look
    /// again.
    pub fn look_again(&mut self, waker: &Waker) {
        self.0.poll_again(waker);
    }

    /// Its task does something else before it polls again: others that wait do not wait for it.
    #[inline]
    pub fn rest(&mut self) {
        self.0.rest();
    }
}
