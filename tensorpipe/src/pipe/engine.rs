//! The part of a pipe that call engines use and applications do not.
//!
//! An engine builds its own operations (calls, streams) on a pipe. The pipe pushes messages to the engine's [`Handler`], futures that await
//! an operation drive the pipe through [`Awaiting`], and messages are known by their number.

use std::ops::Deref;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::budget::{Held, NoRoom};
use super::core::{Core, Deliver};
pub use super::driver::leave_handlers;
use super::driver::{Holds, Waiter};
use super::inbound::{self, Incoming};
use super::outbound::{Outbound, Submitted, When, submit, write};
use super::shared::Delivery;
use super::stats::MessageStats;
use super::{PeerLimits, Pipe};
use crate::device::Allocators;
use crate::error::{Error, Misuse, ResetCode};
use crate::message::Message;
use crate::route::Route;
use crate::sync::{Arc, lock};
use crate::sys::workers;

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
    /// From now on the pipe pushes messages to `handler`, on whichever task drives the pipe; `read_descriptor` gets none. The pipe drops
    /// the handler after [`Handler::closed`]: a handler that owns the pipe keeps it open until then.
    ///
    /// # Errors
    /// [`Misuse::Other`] if the pipe has had a handler before: it takes one in its life.
    fn set_handler<H: Handler>(&self, handler: Arc<H>) -> Result<(), Misuse> {
        let listens = handler.listens();
        self.pipe().core().push_to(handler, listens)
    }

    /// Sends a message, taking its parts out of `message`. `numbered` gets the message's number before anybody can answer it. It runs under
    /// a lock: it must not block, nor call the pipe.
    ///
    /// # Errors
    /// As [`Pipe::send`]; `message` still has its parts then.
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

    /// How many messages the peer may have sent that this side has not read yet:
    /// [`Limits::window_messages`](crate::Limits::window_messages).
    fn window_messages(&self) -> u64 {
        lock(&self.pipe().core().shared)
            .state
            .limits()
            .window_messages
    }

    /// The largest message that this end takes: what the peer sees as its [`Pipe::peer_limits`].
    fn own_limits(&self) -> PeerLimits {
        PeerLimits::of(lock(&self.pipe().core().shared).state.limits())
    }

    /// How many messages may wait to be written: [`Limits::queued_writes`](crate::Limits::queued_writes).
    fn queued_writes(&self) -> usize {
        self.pipe().core().queued_writes
    }

    /// Ready when outgoing message `id` has begun to leave: its head is then among the bytes for the connection's next writes, behind at
    /// most 512 KiB. The whole message has left once it is no more [unwritten](Self::is_unwritten). Also ready if the message never leaves,
    /// or the pipe has ended. Otherwise it wakes `waker` then.
    fn poll_sending(&self, id: u64, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let mut shared = lock(&self.pipe().core().shared);
        if shared.ended.is_some() || shared.state.has_begun(id) {
            return Poll::Ready(());
        }
        let wakers = shared.on_sending.entry(id).or_default();
        if !wakers.iter().any(|known| known.will_wake(&waker)) {
            wakers.push(waker);
        }
        Poll::Pending
    }

    /// When outgoing message `id` begins to leave (as for [`poll_sending`](Self::poll_sending)), writes the time since `since` into 8 bytes
    /// of its metadata at offset `at`: in nanoseconds, little-endian. Does nothing if the message has left, or its metadata has no room
    /// there.
    fn stamp_when_sending(&self, id: u64, at: usize, since: Instant) {
        lock(&self.pipe().core().shared).stamp(id, at, since);
    }

    /// Whether outgoing message `id` is not yet with the transport or its channels.
    fn is_unwritten(&self, id: u64) -> bool {
        lock(&self.pipe().core().shared).state.is_writing(id)
    }

    /// Abandons outgoing message `id`: what has not left does not leave. The peer is told even if it has read the message long ago.
    fn reset(&self, id: u64, code: ResetCode, reason: &str) {
        write::reset(self.pipe().core(), id, code, reason);
    }

    /// Gives up reading incoming message `id`, which was taken with [`Incoming::accept`] and is not complete.
    fn stop(&self, id: u64, code: ResetCode, reason: &str) {
        inbound::stop(self.pipe().core(), id, code, reason);
    }

    /// Counts `bytes` against [`Limits::receive_budget`](crate::Limits::receive_budget) until the result is dropped: for data of read
    /// messages that the engine keeps on behalf of the peer.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where there is no room.
    fn hold(&self, bytes: u64) -> Result<Held, Error> {
        Held::new(&self.pipe().core().budget, bytes)
    }

    /// As [`hold`](Self::hold), for what the engine makes of a message, such as decoded values: `most` bytes, or as many as there are, but
    /// `least` at least. `own` of them it holds for this message already. All such memory takes at most half of the budget.
    ///
    /// # Errors
    /// [`NoRoom`] where there is none.
    fn hold_derived(&self, most: u64, least: u64, own: u64) -> Result<Held, NoRoom> {
        Held::derived(&self.pipe().core().budget, most, least, own)
    }

    /// Has [`Handler::asked`] called soon, by whoever drives: the pipe's background task, if nobody else does.
    fn ask(&self) {
        self.pipe().core().ask();
    }

    /// The allocators of the pipe's context.
    fn allocators(&self) -> &Allocators {
        &self.pipe().core().allocators
    }

    /// The runtime that the pipe was made on. Its background task there drives the pipe when nobody awaits an operation.
    fn runtime(&self) -> &tokio::runtime::Handle {
        &self.pipe().core().runtime
    }

    /// Runs `work` on another thread, within the pipe's runtime; on that runtime itself where the system refuses a thread.
    fn spawn_blocking(&self, work: impl FnOnce() + Send + 'static) {
        workers::run(&self.pipe().core().runtime, work);
    }

    /// The default bound on closing: [`Timeouts::linger`](crate::Timeouts::linger) of the pipe's context.
    fn linger(&self) -> Duration {
        self.pipe().core().timeouts.linger
    }

    /// An owned copy of [`Pipe::route`].
    fn shared_route(&self) -> Arc<Route> {
        self.pipe().core().route.now().clone()
    }
}

impl EnginePipe for Pipe {}

/// Receives everything of a pipe, on whichever task drives it, one call at a time, in order.
///
/// Methods must not block: work of more than some microseconds belongs on a task of its own. Behind a method that blocks, up to 4096 calls
/// queue (16 MiB of messages); then the pipe reads no more. Methods may write to the pipe, start reads, and close it: messages that
/// are still queued by then are refused, and at most eight follow. A panic is caught, and ends the pipe. An operation that is not awaited
/// may call them on its own thread, unless it is begun within [`leave_handlers`].
pub trait Handler: Send + Sync + 'static {
    /// `true` if messages may come at any time: the methods are then called within the pipe's runtime, whichever thread drives. `false` if
    /// messages come only while an operation is awaited ([`Awaiting`]): others may be seen some 50 to 100 ms late.
    fn listens(&self) -> bool {
        true
    }

    /// A message is there: take it with [`Incoming::accept`], read it on a task of your own, refuse it, or drop it.
    fn incoming(&self, incoming: Incoming);

    /// A message taken with [`Incoming::accept`] is complete, or never will be. `stats` says how its payloads and tensors came. `held` is
    /// what they take of [`Limits::receive_budget`](crate::Limits::receive_budget), until it is dropped.
    fn message(&self, id: u64, message: Result<Message, Error>, stats: MessageStats, held: Held);

    /// The peer abandons its message `id`, which may have been read long ago: it no longer wants what it asked for. This and the next three
    /// methods do nothing by default.
    fn reset(&self, id: u64, code: ResetCode, reason: &str) {
        let _ = (id, code, reason);
    }

    /// The peer did not take message `id` of ours, or not all of it.
    fn refused(&self, id: u64, code: ResetCode, reason: &str) {
        let _ = (id, code, reason);
    }

    /// A channel could not send a part of our message `id`. The message is abandoned, and the peer gets a reset.
    fn failed(&self, id: u64, error: &Error) {
        let _ = (id, error);
    }

    /// The peer will not take our messages from `next` on.
    fn going_away(&self, next: u64, reason: &str) {
        let _ = (next, reason);
    }

    /// The pipe's runtime does not run: something blocks it, or nobody runs it. Timers and tasks there do not go on, and those who wait on
    /// other runtimes may have nobody who drives for them. Called several times a second meanwhile, on a thread of this crate's own, perhaps
    /// beside another method. Does nothing by default.
    fn stalled(&self) {}

    /// The engine has [asked](EnginePipe::ask) for this. Does nothing by default.
    fn asked(&self) {}

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

    fn stalled(&self) {
        Handler::stalled(self);
    }

    fn asked(&self) {
        Handler::asked(self);
    }
}

/// Drives a pipe for an operation that a [`Handler`] completes. Owns `holder`, which owns the pipe.
///
/// Each poll of such an operation's future calls [`Awaiting::drive`], checks the operation's own state, and calls [`Awaiting::poll_again`]
/// if there is no result yet. The connection then wakes this very task, so the answer needs no hop through another one; for a while the
/// task busy-polls instead of sleeping. If the operation's message was batched with others, the first poll may call
/// [`Awaiting::join_others`] instead of `drive`.
///
/// `holder` must deref to the same pipe each time.
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
    /// Registers nothing yet.
    #[inline]
    pub fn new(holder: H) -> Self {
        Self(Waiter::new(Holder(holder)))
    }

    /// What holds the pipe.
    #[inline]
    pub fn holder(&self) -> &H {
        &self.0.holder().0
    }

    /// Leaves driving to the poller, if one task polls for several waiting operations; otherwise makes `waker` the one that the connection
    /// wakes. For an operation whose message was [submitted](EnginePipe::submit) and [batched](Submitted::batched) with others. Sends and
    /// receives nothing.
    pub fn join_others(&mut self, waker: &Waker) {
        self.0.count(waker);
    }

    /// Makes `waker` the one that the connection wakes, and sends and receives what is possible without waiting.
    pub fn drive(&mut self, waker: &Waker) {
        self.0.drive(waker);
    }

    /// To be called while the operation is not complete. Schedules the task to poll again for a short while, if busy-polling has paid
    /// lately.
    pub fn poll_again(&mut self, waker: &Waker) {
        self.0.poll_again(waker);
    }

    /// To be called when the task does something else before it polls again: other operations then do not rely on its polls.
    #[inline]
    pub fn pause(&mut self) {
        self.0.pause();
    }
}
