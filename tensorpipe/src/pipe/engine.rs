//! What a call engine needs of a pipe, and an application does not.
//!
//! An engine builds operations of its own on a pipe: calls, streams. It is *given* messages ([`Handler`]) instead of asking for them,
//! drives the pipe for whoever awaits its operations ([`Awaiting`]), and knows messages by their number.

use std::ops::Deref;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::Pipe;
use super::budget::Held;
use super::core::{Core, Deliver};
use super::driver::{Holds, Waiter};
use super::inbound::{self, Incoming};
use super::outbound::{Outbound, Submitted, When, submit, write};
use super::shared::Delivery;
use super::stats::MessageStats;
use crate::device::Allocators;
use crate::error::{Error, Misuse, ResetCode};
use crate::message::Message;
use crate::route::Route;
use crate::sync::{Arc, lock};

mod sealed {
    #[expect(unnameable_types, reason = "nobody else implements `EnginePipe`")]
    pub trait Sealed {
        fn pipe(&self) -> &super::Pipe;
    }

    impl Sealed for super::Pipe {
        fn pipe(&self) -> &Self {
            self
        }
    }
}

/// The engine's side of a [`Pipe`]: see the [module](crate::engine).
pub trait EnginePipe: sealed::Sealed {
    /// From now on messages are given to `handler` instead of `read_descriptor`, on whichever task drives the pipe. The pipe keeps it
    /// until it has told it how it ended ([`Handler::closed`]): one that holds the pipe keeps it open until then.
    ///
    /// # Errors
    /// [`Misuse::Other`] where it has a handler: there is one in the life of a pipe.
    fn set_handler<H: Handler>(&self, handler: Arc<H>) -> Result<(), Misuse> {
        let listens = handler.listens();
        self.pipe().core().push_to(handler, listens)
    }

    /// Sends a message of which the parts are taken. `numbered` is told the message's number before anybody can answer it. It runs under a
    /// lock: it must not block, nor call the pipe.
    ///
    /// # Errors
    /// As [`Pipe::send`]. The parts are still there then.
    fn submit(
        &self,
        message: &mut Outbound<'_>,
        when: When,
        numbered: impl FnOnce(u64),
    ) -> Result<Submitted, Error> {
        let submitted = submit(self.pipe().core(), message, when, false, numbered)?;
        if submitted.drive {
            self.pipe().core().drive();
        }
        Ok(submitted)
    }

    /// Messages that the peer may have under way to this side and that are not read yet:
    /// [`Limits::window_messages`](crate::Limits::window_messages).
    fn window_messages(&self) -> u64 {
        lock(&self.pipe().core().shared)
            .state
            .limits()
            .window_messages
    }

    /// Calls `sends` when message number `id` of this side's begins to leave. Then its head is among the bytes for the connection's next
    /// writes, behind at most 512 KiB. It has left whole when it is no more [unwritten](Self::is_unwritten).
    ///
    /// Called at once if it has begun already, or never will; not called where the pipe ends first. It runs under a lock: it must not
    /// block, nor call the pipe.
    fn when_sending(&self, id: u64, sends: impl FnOnce() + Send + 'static) {
        let mut shared = lock(&self.pipe().core().shared);
        if shared.ended.is_none() {
            shared
                .on_sending
                .entry(id)
                .or_default()
                .push(Box::new(sends));
            shared.run_on_sending();
        }
    }

    /// Writes the time since `since` into the metadata of message number `id` of this side's when it begins to leave, as for
    /// [`when_sending`](Self::when_sending): at `at`, 8 bytes, in nanoseconds, little-endian. The metadata of a message that has left stays
    /// as it is, and so does one without room there.
    fn stamp_when_sending(&self, id: u64, at: usize, since: Instant) {
        lock(&self.pipe().core().shared).stamp(id, at, since);
    }

    /// Whether message number `id` of this side's is not handed over yet.
    fn is_unwritten(&self, id: u64) -> bool {
        lock(&self.pipe().core().shared).state.is_writing(id)
    }

    /// Abandons message number `id` of this side's: what has not left does not leave, and the peer hears of it even if it
    /// has read the message long ago.
    fn reset(&self, id: u64, code: ResetCode, reason: &str) {
        write::reset(self.pipe().core(), id, code, reason);
    }

    /// Gives up reading message number `id` of the peer's, which was taken with [`Incoming::accept`] and is not complete.
    fn stop(&self, id: u64, code: ResetCode, reason: &str) {
        inbound::stop(self.pipe().core(), id, code, reason);
    }

    /// Counts `bytes` against [`Limits::receive_budget`](crate::Limits::receive_budget) until the result is dropped: for what is
    /// kept of messages that were read, on behalf of the peer.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where there is no room.
    fn hold(&self, bytes: u64) -> Result<Held, Error> {
        Held::new(&self.pipe().core().budget, bytes)
    }

    /// Its context's memory.
    fn allocators(&self) -> &Allocators {
        &self.pipe().core().allocators
    }

    /// The runtime that it was made on, which drives it when nobody awaits it.
    fn runtime(&self) -> &tokio::runtime::Handle {
        &self.pipe().core().runtime
    }

    /// How long closing waits where nobody says otherwise: [`Timeouts::linger`](crate::Timeouts::linger) of its context.
    fn linger(&self) -> Duration {
        self.pipe().core().timeouts.linger
    }

    /// [`Pipe::route`], to keep.
    fn shared_route(&self) -> Arc<Route> {
        self.pipe().core().route.now().clone()
    }
}

impl EnginePipe for Pipe {}

/// Receives everything of a pipe, on whichever task drives it, one call at a time, in order.
///
/// Methods must not block: what takes longer than some microseconds belongs on a task of its own. Behind one that does, up to
/// 4096 calls wait (16 MiB of messages), then the peer. Methods may write to the pipe, start reads, and close it. A panic
/// is caught, and ends the pipe.
pub trait Handler: Send + Sync + 'static {
    /// Whether messages are expected at any time, or only while an operation is awaited ([`Awaiting`]): then others
    /// may be seen some 50 to 100 ms late. Where they are, its methods are called within the pipe's runtime, whoever drives.
    fn listens(&self) -> bool {
        true
    }

    /// A message is there: take it with [`Incoming::accept`], read it on a task of your own, refuse it, or drop it.
    fn incoming(&self, incoming: Incoming);

    /// A message taken with [`Incoming::accept`] is complete, or never will be. `stats` says how its payloads and tensors came. `held` is
    /// what they take of [`Limits::receive_budget`](crate::Limits::receive_budget), until it is dropped.
    fn message(&self, id: u64, message: Result<Message, Error>, stats: MessageStats, held: Held);

    /// The peer abandons message `id`, which may have been read long ago: what it asked for is not wanted any more. By default
    /// it is ignored, like what follows.
    fn reset(&self, id: u64, code: ResetCode, reason: &str) {
        let _ = (id, code, reason);
    }

    /// The peer did not take message `id` of ours, or not all of it.
    fn refused(&self, id: u64, code: ResetCode, reason: &str) {
        let _ = (id, code, reason);
    }

    /// A channel could not send a part of message `id` of ours, which is abandoned: the peer has heard of it as of a reset.
    fn failed(&self, id: u64, error: &Error) {
        let _ = (id, error);
    }

    /// The peer will not take our messages from `next` on.
    fn going_away(&self, next: u64, reason: &str) {
        let _ = (next, reason);
    }

    /// The pipe has ended. Nothing follows.
    fn closed(&self, error: &Error);
}

impl<H: Handler> Deliver for H {
    fn give(&self, core: &Arc<Core>, delivery: Delivery) {
        match delivery {
            Delivery::Incoming(arrival) => self.incoming(Incoming::new(core.clone(), arrival)),
            Delivery::Message(come) => {
                let (id, message, stats, held) = *come;
                self.message(id, message, stats, held);
            }
            Delivery::Reset(why) => self.reset(why.message, why.code, &why.text),
            Delivery::Refused(why) => self.refused(why.message, why.code, &why.text),
            Delivery::Failed(failed) => self.failed(failed.0, &failed.1),
            Delivery::GoingAway(next, reason) => self.going_away(next, &reason),
            Delivery::Closed(error) => self.closed(&error),
        }
    }
}

/// Drives a pipe for an operation that a [`Handler`] completes. It holds whatever holds the pipe.
///
/// In each poll, whoever awaits such an operation calls [`Awaiting::drive`], checks the operation's own state, and calls
/// [`Awaiting::poll_again`] where that has nothing yet. The connection then wakes this very task, so the answer takes no detour through
/// another one; for a while the task busy-polls instead of sleeping. In the first poll of one whose message left with others
/// [`Awaiting::join_others`] may take the place of `drive`.
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
    /// [submitted](EnginePipe::submit) and [batched](Submitted::batched) with others. Otherwise makes
    /// `waker` the one that the connection wakes. Moves nothing.
    pub fn join_others(&mut self, waker: &Waker) {
        self.0.count(waker);
    }

    /// Makes `waker` the one that the connection wakes, and moves what can be moved.
    pub fn drive(&mut self, waker: &Waker) {
        self.0.drive(waker);
    }

    /// The operation is not complete: for a short while, as long as that has paid lately, its task is scheduled to poll
    /// again.
    pub fn poll_again(&mut self, waker: &Waker) {
        self.0.poll_again(waker);
    }

    /// Its task does something else before it polls again: others that wait do not wait for it.
    #[inline]
    pub fn rest(&mut self) {
        self.0.rest();
    }
}
