//! What a call engine needs of a pipe, and an application does not.
//!
//! An engine builds operations of its own on a pipe: calls, streams. It is *given* messages ([`Handler`]) instead of asking for them,
//! drives the pipe for whoever awaits its operations ([`Awaiting`](super::awaiting::Awaiting)), and knows messages by their number.

use std::time::{Duration, Instant};

use super::budget::Held;
use super::handler::Handler;
use super::outbound::{Outbound, Submitted, When, submit, write};
use super::{Pipe, inbound};
use crate::device::Allocators;
use crate::error::{Error, Misuse, ResetCode};
use crate::route::Route;
use crate::sync::{Arc, lock};

mod sealed {
    #[expect(unnameable_types, reason = "nobody else implements `EnginePipe`")]
    pub trait Sealed {}
    impl Sealed for super::Pipe {}
}

/// The engine's side of a [`Pipe`]: see the [module](crate::engine).
pub trait EnginePipe: sealed::Sealed {
    /// From now on messages are given to `handler` instead of `read_descriptor`, on whichever task drives the pipe. The pipe keeps it
    /// until it has told it how it ended ([`Handler::closed`]): one that holds the pipe keeps it open until then.
    ///
    /// # Errors
    /// [`Misuse::Other`] where it has a handler: there is one in the life of a pipe.
    fn set_handler<H: Handler>(&self, handler: Arc<H>) -> Result<(), Misuse>;

    /// Sends a message of which the parts are taken. `note` is told the message's number before anybody can answer it. It runs under a
    /// lock: it must not block, nor call the pipe.
    ///
    /// # Errors
    /// As [`Pipe::send`]. The parts are still there then.
    fn submit(
        &self,
        message: &mut Outbound<'_>,
        when: When,
        note: impl FnOnce(u64),
    ) -> Result<Submitted, Error>;

    /// Messages that the peer may have under way to this side and that are not read yet:
    /// [`Limits::window_messages`](crate::Limits::window_messages).
    fn window_messages(&self) -> u64;

    /// Has `note` called when message number `id` of this side's begins to leave: when its head is among the bytes that are
    /// handed to the connection; at once, if it is already. It runs under a lock: it must not block, nor call the pipe. Not
    /// called where the pipe ends first.
    fn when_leaving(&self, id: u64, note: impl FnOnce() + Send + 'static);

    /// If message number `id` of this side's has not begun to leave, has the time since `since` written into its metadata when it does:
    /// at `at`, 8 bytes, in nanoseconds, the lowest first. What is there stays for one that has left, and where there is no room.
    /// It begins to leave as for [`when_leaving`](Self::when_leaving).
    fn stamp_when_leaving(&self, id: u64, at: usize, since: Instant);

    /// Whether message number `id` of this side's is not handed over yet.
    fn is_unwritten(&self, id: u64) -> bool;

    /// Abandons message number `id` of this side's: what has not left does not leave, and the peer hears of it even if it
    /// has read the message long ago.
    fn reset(&self, id: u64, code: ResetCode, reason: &str);

    /// Gives up reading message number `id` of the peer's, which was taken with [`Incoming::accept`](crate::Incoming::accept) and is not complete.
    fn stop(&self, id: u64, code: ResetCode, reason: &str);

    /// Counts `bytes` against [`Limits::receive_budget`](crate::Limits::receive_budget) until the result is dropped: for what is
    /// kept of messages that were read, on behalf of the peer.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where there is no room.
    fn hold(&self, bytes: u64) -> Result<Held, Error>;

    /// Its context's memory.
    fn allocators(&self) -> &Allocators;

    /// The runtime that it was made on, which drives it when nobody awaits it.
    fn runtime(&self) -> &tokio::runtime::Handle;

    /// How long closing waits where nobody says otherwise: [`Timeouts::linger`](crate::Timeouts::linger) of its context.
    fn linger(&self) -> Duration;

    /// [`Pipe::route`], to keep.
    fn shared_route(&self) -> Arc<Route>;
}

impl EnginePipe for Pipe {
    fn set_handler<H: Handler>(&self, handler: Arc<H>) -> Result<(), Misuse> {
        let listens = handler.listens();
        self.core().push_to(handler, listens)
    }

    fn submit(
        &self,
        message: &mut Outbound<'_>,
        when: When,
        note: impl FnOnce(u64),
    ) -> Result<Submitted, Error> {
        let submitted = submit(self.core(), message, when, false, note)?;
        if submitted.drive {
            self.core().drive();
        }
        Ok(submitted)
    }

    fn window_messages(&self) -> u64 {
        lock(&self.core().shared).state.limits().window_messages
    }

    fn when_leaving(&self, id: u64, note: impl FnOnce() + Send + 'static) {
        let mut shared = lock(&self.core().shared);
        if shared.ended.is_none() {
            shared.leaving.entry(id).or_default().push(Box::new(note));
            shared.note_left();
        }
    }

    fn stamp_when_leaving(&self, id: u64, at: usize, since: Instant) {
        lock(&self.core().shared).stamp(id, at, since);
    }

    fn is_unwritten(&self, id: u64) -> bool {
        lock(&self.core().shared).state.is_writing(id)
    }

    fn reset(&self, id: u64, code: ResetCode, reason: &str) {
        write::reset(self.core(), id, code, reason);
    }

    fn stop(&self, id: u64, code: ResetCode, reason: &str) {
        inbound::stop(self.core(), id, code, reason);
    }

    fn hold(&self, bytes: u64) -> Result<Held, Error> {
        Held::new(&self.core().budget, bytes)
    }

    fn allocators(&self) -> &Allocators {
        &self.core().allocators
    }

    fn runtime(&self) -> &tokio::runtime::Handle {
        &self.core().runtime
    }

    fn linger(&self) -> Duration {
        self.core().timeouts.linger
    }

    fn shared_route(&self) -> Arc<Route> {
        self.core().route.now().clone()
    }
}
