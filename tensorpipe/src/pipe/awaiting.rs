//! A [`Waiter`] for whoever has a state of their own to look at.

use std::task::Waker;

use super::core::{Core, Waiter};
use crate::sync::Arc;

/// Drives a pipe for an operation that a [`Handler`](super::Handler) completes.
///
/// Whoever awaits such an operation calls [`Awaiting::drive`] in each poll, before the last look at the operation's own
/// state, and [`Awaiting::look_again`] when that found nothing: the task is then the one that is woken when the pipe's
/// connection has something to say, so that the answer takes no detour through another task, and for a while it does not
/// even sleep.
pub struct Awaiting(Waiter);

impl std::fmt::Debug for Awaiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awaiting")
            .field("pipe", &self.0.core().name)
            .finish_non_exhaustive()
    }
}

impl Awaiting {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self(Waiter::new(core))
    }

    /// Makes `waker` the one that the connection wakes, and moves nothing: for an operation that begins with
    /// [`EnginePipe::submit`](crate::engine::EnginePipe::submit).
    pub fn register(&mut self, waker: &Waker) {
        self.0.register(waker);
    }

    /// Makes `waker` the one that the connection wakes, and moves what can be moved.
    pub fn drive(&mut self, waker: &Waker) {
        self.0.drive(waker);
    }

    /// The operation is not complete: for a short while, as long as that has paid lately, its task is scheduled to look
    /// again. Returns whether it is; if so, nobody else has to wake it.
    pub fn look_again(&mut self, waker: &Waker) -> bool {
        self.0.poll_again(waker)
    }

    /// The operation is awaited no more (as by dropping this).
    pub fn leave(&mut self) {
        self.0.leave();
    }
}
