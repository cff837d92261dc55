//! The pattern of every operation that a handler completes: as in `waiter.rs`, for whoever has a state of their own to look
//! at.

use std::task::Waker;

use super::core::Core;
use crate::sync::Arc;

/// Drives a pipe for an operation that a [`Handler`](super::Handler) completes.
///
/// Whoever awaits such an operation calls [`Awaiting::drive`] in each poll, before the last look at the operation's own
/// state, and [`Awaiting::look_again`] when that found nothing: the task is then the one that is woken when the pipe's
/// connection has something to say, so that the answer takes no detour through another task, and for a while it does not
/// even sleep.
pub struct Awaiting {
    core: Arc<Core>,
    slot: Option<u64>,
    spins: bool,
}

impl std::fmt::Debug for Awaiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Awaiting")
            .field("pipe", &self.core.name)
            .finish_non_exhaustive()
    }
}

impl Awaiting {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            slot: None,
            spins: false,
        }
    }

    /// Makes `waker` the one that the connection wakes, and moves nothing: for an operation that begins with
    /// [`Pipe::send_soon`](super::Pipe::send_soon).
    pub fn register(&mut self, waker: &Waker) {
        self.core.poller.register(&mut self.slot, waker);
    }

    /// Makes `waker` the one that the connection wakes, and moves what can be moved.
    pub fn drive(&mut self, waker: &Waker) {
        self.core.poller.register(&mut self.slot, waker);
        if !self.spins {
            self.core.heat();
        } else if self.core.hot.is_on() && !self.core.look() {
            // Cooled by another in between, the connection may have woken this one: then it drives.
            return;
        }
        self.core.drive();
    }

    /// The operation is not complete: for a short while, as long as that has paid lately, its task is scheduled to look
    /// again. Returns whether it is; if so, nobody else has to wake it.
    pub fn look_again(&mut self, waker: &Waker) -> bool {
        let Some(who) = self.slot else { return false };
        self.core.look_again(who, &mut self.spins, waker)
    }

    /// The operation is awaited no more (as by dropping this).
    pub fn leave(&mut self) {
        let Some(who) = self.slot else { return };
        if !self.core.is_inherited() {
            self.core.poller.leave(&mut self.slot);
            self.core.stop_looking(who, &mut self.spins);
        }
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        self.leave();
    }
}
