//! A pipe: carries out what [`proto`](crate::proto) decides, and the handle that applications hold.
//!
//! The path of an RPC call with a tensor of 4 KiB over `shm`, as a debugger shows it: functions in the order of their calls.
//!
//! | | out, from `Engine::call` (or `reply`) | |
//! |---|---|---|
//! | 1 | `Engine::send_call`, `EnginePipe::submit` | metadata, and its parts by value |
//! | 2 | `outbound::submit` | the pipe is open, and locked |
//! | 3 | `choose` | for each part: inside the frame, or a channel |
//! | 4 | `PipeState::write`, `Frame` | checks limits and credit; appends the head to the send buffer |
//! | 5 | `Io::push_message` | the tensor's bytes behind it |
//! | 6 | `dispatch` | leaves now, or together with others |
//! | 7 | `Io::send_gathered`, `Io::write_now` | one vectored write |
//! | 8 | `ShmConnection::poll_write_vectored` | into the ring |
//!
//! | | in, from the task that waits, or a wake of its runtime | |
//! |---|---|---|
//! | 1 | `Awaiting::drive`, `Waiter::drive` | that task has the connection |
//! | 2 | `Driver::drive`, `Driver::rounds` | rounds, until there is nothing to do |
//! | 3 | `Core::round`, `Io::round`, `Io::send_and_receive` | writes pending output, then reads what has come |
//! | 4 | `Io::receive` | bytes of the ring into the receive buffer |
//! | 5 | `Io::parse`, `PipeState::handle`, `PipeState::frame` | a frame, checked |
//! | 6 | `Head::decode` | metadata and parts |
//! | 7 | `Shared::arrive`, `arrive_with_parts` | parts copied into pooled memory, or adopted |
//! | 8 | `Shared::offer`, `Shared::deliver` | the handler's queue |
//! | 9 | `Core::deliver`, `Core::call_handler`, `DeliveryLock::deliver` | in order, without the pipe's lock |
//! | 10 | `Deliver::give`, `Handler::incoming` | the call's header |
//! | 11 | `Engine::call_arrives` or `reply_arrives` | admitted, or found |
//! | 12 | `Incoming::accept` | the message; its credit goes back |
//!
//! A message of metadata alone takes the same steps. If a message cannot be sent now, `PipeState::write` queues it, and the driver's
//! next pass sends it (`Io::take_frames`). A part that waits for its reader begins with the reader's GRANT (`Shared::process`).
//!
//! Its modules, from below; none imports one further down in this table:
//!
//! | part | what it is |
//! |---|---|
//! | `driver/`, `budget`, `stats` | who drives, polls and sleeps; bounds and counts |
//! | `lane/` | what a channel's lane sees of its pipe |
//! | `shared/` | what all operations share, behind one lock: the protocol's state, messages that arrive, reads under way |
//! | `io/` | the connection and its buffers, for the thread that drives |
//! | `core` | one open pipe: calls the handler, ends, keeps time |
//! | `lane_handle`, `outbound/`, `inbound/` | operations: of lanes on other threads, of messages that leave and that come |
//! | `background`, `polls`, `heartbeat` | the pipe's task; who keeps its thread; the thread that keeps pipes of a blocked runtime alive |
//! | `mod`, `engine` | [`Pipe`], the application's handle; the part for call engines and their futures |

mod background;
mod budget;
mod core;
mod credit_ahead;
mod driver;
pub(crate) mod engine;
mod heartbeat;
mod inbound;
mod io;
mod lane;
mod lane_handle;
mod outbound;
pub(crate) mod polls;
mod shared;
mod stats;
#[cfg(test)]
mod tests;

pub(crate) use self::background::spawn_background;
pub(crate) use self::budget::Budget;
pub use self::budget::{BudgetStats, Held, NoRoom};
pub(crate) use self::core::{Core, CoreParts};
pub(crate) use self::credit_ahead::{Credit, CreditAhead};
pub use self::inbound::{Incoming, Read, ReadError, ReadInto};
#[cfg(feature = "cuda")]
pub(crate) use self::lane::Room;
pub(crate) use self::lane::Work;
pub use self::lane::{LaneIo, Outcome};
pub use self::lane_handle::LaneHandle;
pub use self::outbound::write::{Flush, Write};
pub use self::outbound::{Outbound, Submitted, When};
pub(crate) use self::shared::{LaneSlot, PipePermit, Shared};
pub use self::stats::{MessageStats, PipeStats};

use std::sync::Arc;
use std::time::Duration;

use self::core::Waiter;
use self::driver::Interest;
use self::outbound::submit_message;
use self::shared::{Arrival, ShutdownState};
use crate::address::{Peer, PeerAddr};
use crate::device::Pool;
use crate::error::{Error, Misuse};
use crate::message::Message;
use crate::proto::wire::hello::WireLimits;
use crate::route::Route;
use crate::sync::lock;

/// One end of a two-way stream of [`Message`]s between two contexts.
///
/// Cloning it clones the handle. Messages arrive in the order in which they were written. When the last handle is dropped, written messages
/// are still delivered in the background, for [`Timeouts::linger`](crate::Timeouts::linger) at most; [`Pipe::close`] waits for it.
#[derive(Clone)]
pub struct Pipe {
    handle: Arc<Handle>,
}

/// Closes the pipe with the last handle.
struct Handle {
    core: Arc<Core>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.core.is_inherited() {
            self.core.start_closing(self.core.timeouts.linger);
        }
    }
}

impl std::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipe")
            .field("name", &self.core().name)
            .field("id", &self.core().id)
            .finish_non_exhaustive()
    }
}

impl Pipe {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self {
            handle: Arc::new(Handle { core }),
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }

    /// The pipe's name in errors and logs: this context's name and the peer's.
    pub fn name(&self) -> &str {
        &self.core().name
    }

    /// A number that no other pipe of this process has. Names are not unique: two pipes between the same contexts have the same one.
    pub fn id(&self) -> u64 {
        self.core().id
    }

    /// The context at the other end. Its address is final once a message has arrived: until then the listener may still refuse the upgrade
    /// to another transport.
    pub fn peer(&self) -> Peer {
        Peer {
            addr: self.core().settled.addr(),
            identity: self.route().identity.clone(),
            name: self.core().peer_name.clone(),
        }
    }

    /// The other end of the transport, as reported by the operating system: see [`Peer::addr`].
    pub fn peer_addr(&self) -> PeerAddr {
        self.core().settled.addr()
    }

    /// The name that the peer's context gave itself. Who it has proved to be is in [`Route::identity`].
    pub fn peer_name(&self) -> &str {
        &self.core().peer_name
    }

    /// Which transport and channels were chosen, and why not the others. It may change once, shortly after `connect`: if the listener
    /// refuses the upgrade to another transport, the pipe stays on the first one.
    pub fn route(&self) -> &Route {
        self.core().route.now()
    }

    /// The largest message that the peer takes.
    pub fn peer_limits(&self) -> PeerLimits {
        PeerLimits::of(&self.core().peer_limits)
    }

    /// The pool that received tensors come from.
    pub fn pool(&self) -> &Pool {
        self.core().allocators.main()
    }

    /// Counters since the pipe was opened.
    pub fn stats(&self) -> PipeStats {
        let (lanes, bytes_dropped) = {
            let shared = lock(&self.core().shared);
            (shared.lane_stats, shared.state.dropped())
        };
        self.core().counters.stats(lanes, bytes_dropped)
    }

    /// Sends a message. It is queued, and starts to leave, at once; the future ends when every byte is with the transport or the channel.
    /// Parts for which the peer has given no credit ([`Limits::window_ahead`](crate::Limits::window_ahead)) leave only after its reader has
    /// asked for them, so awaiting a write may wait for that reader. Dropping the future does not stop the message; [`Write::cancel`] does.
    ///
    /// # Errors
    /// [`Misuse`](crate::Misuse) for what the peer's limits or the channels do not allow, and where
    /// [`Limits::queued_writes`](crate::Limits::queued_writes) of this end wait already (nothing is sent); [`Error::GoingAway`] when the peer takes no
    /// more messages, [`Error::Refused`] when the reader does not want this one, [`Error::Unsent`] when a channel fails to carry it, and how the
    /// pipe ended.
    pub fn write(&self, message: Message) -> Write {
        Write::start(self.core().clone(), message)
    }

    /// Sends a message without a future for its completion. Returns the message's number.
    ///
    /// # Errors
    /// As [`Pipe::write`], as far as they are known at once.
    pub fn send(&self, message: Message) -> Result<u64, Error> {
        let submitted = submit_message(self.core(), message, false)?;
        if submitted.drive {
            self.core().drive();
        }
        Ok(submitted.id)
    }

    /// How many messages were written here and not yet handed to the transport or a channel: it grows when the peer does not read.
    pub fn unwritten(&self) -> usize {
        self.core().unwritten()
    }

    /// Ends when the peer's application has called read for, skipped or refused every message written so far.
    ///
    /// # Errors
    /// [`Error::GoingAway`] when the peer closes without having received all of it; else how the pipe ended.
    pub fn flush(&self) -> Flush {
        Flush::start(self.core().clone())
    }

    /// The next message's descriptor. Cancel safe: a message is either returned or still there.
    ///
    /// Several may be asked for at once; each gets another message.
    ///
    /// # Errors
    /// [`Error::Closed`] after the last message of a peer that closed in good order; else how the pipe ended.
    pub async fn read_descriptor(&self) -> Result<Incoming, Error> {
        let core = self.core();
        let (arrival, ()) = self.next_arrival(|_, _| ()).await?;
        Ok(Incoming::new(core.clone(), arrival))
    }

    /// Waits for the next message, and calls `take` on it under the lock.
    async fn next_arrival<T>(
        &self,
        take: impl Fn(&Arrival, &mut Shared) -> T,
    ) -> Result<(Arrival, T), Error> {
        let core = self.core();
        let mut waiter = Waiter::new(core.clone());
        std::future::poll_fn(|cx| {
            waiter.poll(cx, Interest::Descriptor, |shared| {
                shared.take_arrival(&take)
            })
        })
        .await
    }

    /// The next message, read into pooled memory. Not cancel safe: a message whose read is dropped is given up. A tensor on a device
    /// may be here before its bytes are, see [`Incoming::read`].
    ///
    /// # Errors
    /// As [`Pipe::read_descriptor`] and [`Incoming::read`].
    pub async fn read(&self) -> Result<Message, Error> {
        // A message that is here whole is finished under the same lock, and needs no second check.
        let whole = |arrival: &Arrival, shared: &mut Shared| {
            arrival
                .is_whole()
                .then(|| inbound::finish(self.core(), shared, arrival))
        };
        let (arrival, finished) = self.next_arrival(whole).await?;
        match finished {
            None => {
                let incoming = Incoming::new(self.core().clone(), arrival);
                incoming.read().await
            }
            Some(answers) => {
                if answers {
                    self.core().send_out();
                }
                arrival.into_message()
            }
        }
    }

    /// Tells the peer, with the reason, that this side takes no more messages: those that still come are refused. Earlier messages are
    /// still read, and this side may still write. Returns the number of the first ignored message.
    pub fn go_away(&self, reason: &str) -> u64 {
        let next = lock(&self.core().shared).state.go_away(reason);
        self.core().drive();
        next
    }

    /// Ends this side's writing. Readers at the peer get [`Error::Closed`] after the last message, and so does every later write here. This
    /// side still reads what the peer writes, until the peer closes. A second call changes nothing.
    ///
    /// ```
    /// # use tensorpipe::{Context, Error, Message};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let context = Context::new();
    /// # let listener = context.listen(["tcp://127.0.0.1:0"]).await?;
    /// # let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
    /// # let (client, server) = (client?, server?);
    /// client.send(Message::new("all I ask"))?;
    /// client.finish();
    /// assert_eq!(server.read().await?.metadata, "all I ask");
    /// assert!(matches!(server.read().await, Err(Error::Closed { by_peer: true, .. })));
    /// server.send(Message::new("the answer"))?;
    /// assert_eq!(client.read().await?.metadata, "the answer");
    /// # Ok(())
    /// # }
    /// ```
    pub fn finish(&self) {
        lock(&self.core().shared).finish();
        self.core().drive();
    }

    /// Delivers written messages, ends the pipe, and shuts its connection down ([`poll_shutdown`](tokio::io::AsyncWrite::poll_shutdown)).
    /// Operations that still read or write get [`Error::Closed`]. Takes [`Timeouts::linger`](crate::Timeouts::linger) at most, and a second
    /// for the shutdown; a few seconds more while nobody runs the runtime on which the pipe was made. A pipe that closes already keeps the
    /// bound that it has.
    ///
    /// # Errors
    /// [`Error::Undelivered`] when the peer did not take everything in time, else how the pipe ended before it did. In a forked child
    /// [`Misuse::Other`](crate::Misuse::Other): its parent's pipe goes on.
    pub async fn close(&self) -> Result<(), Error> {
        self.core().start_closing(self.core().timeouts.linger);
        self.closed().await
    }

    /// As [`Pipe::close`], with a bound of its own instead of the context's. Of several such bounds the earliest counts.
    ///
    /// # Errors
    /// As [`Pipe::close`].
    pub async fn close_within(&self, linger: Duration) -> Result<(), Error> {
        self.core().close_within(linger);
        self.closed().await
    }

    async fn closed(&self) -> Result<(), Error> {
        if self.core().is_inherited() {
            let reason = "it belongs to the process that this one was forked from: drop it";
            return Err(Misuse::Other(format!("pipe {}: {reason}", self.name())).into());
        }
        match self.gone().await {
            Error::Closed { by_peer: false, .. } => Ok(()),
            error => Err(error),
        }
    }

    /// Waits until the pipe has ended and its connection is gone. Returns how the pipe ended.
    pub(crate) async fn gone(&self) -> Error {
        let mut waiter = Waiter::new(self.core().clone());
        let gone = |shared: &mut Shared| {
            let ended = shared.ended.clone()?;
            (shared.shutdown == ShutdownState::Done).then_some(ended)
        };
        std::future::poll_fn(|cx| waiter.poll(cx, Interest::End, gone)).await
    }

    /// Whether the pipe has ended. Every operation then fails, except reading messages that are already here.
    pub fn has_ended(&self) -> bool {
        lock(&self.core().shared).ended.is_some()
    }

    /// Whether the pipe has ended, and holds no message that could still be read.
    pub(crate) fn has_ended_empty(&self) -> bool {
        let shared = lock(&self.core().shared);
        shared.ended.is_some() && shared.arrived.is_empty()
    }

    /// Waits until the pipe ends. Returns how it ended.
    pub async fn ended(&self) -> Error {
        let mut waiter = Waiter::new(self.core().clone());
        std::future::poll_fn(|cx| waiter.poll(cx, Interest::End, |shared| shared.ended.clone()))
            .await
    }
}

/// The largest message that the peer takes: its own [`Limits`](crate::Limits). A message beyond them is
/// [`Misuse::TooLarge`](crate::Misuse::TooLarge), and nothing of it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerLimits {
    /// All metadata of one message, in bytes.
    pub metadata: u32,
    /// One payload, in bytes.
    pub payload: u64,
    /// One tensor, in bytes.
    pub tensor: u64,
    /// All payloads and tensors of one message, in bytes.
    pub message: u64,
    /// Payloads plus tensors of one message.
    pub parts: u16,
}

impl PeerLimits {
    fn of(limits: &WireLimits) -> Self {
        Self {
            metadata: limits.metadata,
            payload: limits.payload,
            tensor: limits.tensor,
            message: limits.message,
            parts: limits.parts,
        }
    }
}
