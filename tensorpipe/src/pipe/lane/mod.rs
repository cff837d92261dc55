//! What a lane sees of its pipe.

mod host;
#[cfg(all(test, feature = "conformance"))]
mod tests;

pub(super) use self::host::{LaneHost, PipeHost, SendOptions};

use std::cell::Cell;

use super::budget::out_of_memory;
use super::driver::Wakers;
use crate::channels::{ChannelFault, Want};
use crate::device::{Buffer, BufferMut, Destination, Device, DevicePool, Pool};
use crate::error::{Error, Misuse};
use crate::proto::OpId;
use crate::sync::Arc;
use crate::sys::workers;

thread_local! {
    /// The pipe whose lane's method runs on this thread, under the pipe's lock: the address of its wakers.
    static CALLED: Cell<usize> = const { Cell::new(0) };
}

/// Calls a method of a lane of the pipe with these wakers.
pub(super) fn call<T>(pipe: &Arc<Wakers>, method: impl FnOnce() -> T) -> T {
    /// Resets `CALLED`, also if the method panics.
    struct Outer(usize);
    impl Drop for Outer {
        fn drop(&mut self) {
            CALLED.set(self.0);
        }
    }
    let _outer = Outer(CALLED.replace(Arc::as_ptr(pipe).addr()));
    method()
}

/// Whether a method of a lane of this pipe runs on this thread.
pub(super) fn is_called(pipe: &Arc<Wakers>) -> bool {
    CALLED.get() == Arc::as_ptr(pipe).addr()
}

/// How an operation of a lane went on.
#[derive(Debug)]
pub enum Outcome {
    /// The source is not read any more, except by unfinished work that its memory [keeps](crate::device::QueuedWork).
    Sent,
    /// All of it is in this memory, once that is [ready](Buffer::ready).
    Received(Buffer),
    /// It cannot be done.
    Failed(Error),
}

/// What a lane has reported.
#[derive(Debug)]
pub(crate) enum LaneResult {
    Ended(OpId, Outcome),
    /// A piece takes no memory any more.
    Released(OpId),
    Fault(OpId, ChannelFault),
}

/// Work of a lane that takes long: the thread that drives the pipe does it in steps, without the pipe's lock. No thread has to be woken for
/// it, and between two steps messages pass, operations are cancelled, and the runtime's other tasks run. Once it is over the pipe calls
/// [`Lane::resume`](crate::channels::Lane::resume) for its operation.
pub(crate) trait Work: Send {
    /// Does some tens of microseconds of it. Returns whether there is more.
    fn step(&mut self) -> bool;

    /// A step took so long that the driver would hold others up: goes on with it on another thread, and resumes the operation by
    /// its lane's handle.
    fn finish_on_thread(self: Box<Self>);
}

/// Memory that a lane fills, from [`LaneIo::room`].
pub(crate) enum Room {
    /// It is there.
    Warm(BufferMut),
    /// So many bytes of this pool, which has none that are warm. A driver takes long to make them, or to open the device first.
    Cold(DevicePool, usize),
}

impl Room {
    fn of(pool: DevicePool, len: usize) -> Self {
        match pool.take_warm(len) {
            Some(warm) => Self::Warm(warm),
            None => Self::Cold(pool, len),
        }
    }

    /// The memory. If it is not warm, the pipe must not be locked.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device has none.
    pub(crate) fn take(self) -> Result<BufferMut, Error> {
        match self {
            Self::Warm(memory) => Ok(memory),
            Self::Cold(pool, len) => pool
                .take(len)
                .map_err(|error| out_of_memory(len as u64, error.to_string())),
        }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn is_warm(&self) -> bool {
        matches!(self, Self::Warm(_))
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn device(&self) -> Device {
        match self {
            Self::Warm(memory) => memory.device(),
            Self::Cold(pool, _) => pool.device(),
        }
    }
}

/// A lane's access to its pipe, from inside one of its methods.
pub struct LaneIo<'a> {
    /// The pipe, as far as lanes see it.
    host: &'a mut (dyn LaneHost + Send),
}

impl std::fmt::Debug for LaneIo<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneIo").finish_non_exhaustive()
    }
}

impl<'a> LaneIo<'a> {
    pub(super) fn new(host: &'a mut (dyn LaneHost + Send)) -> Self {
        Self { host }
    }
}

impl LaneIo<'_> {
    /// Sends bytes to the peer's lane about `op`; at most 8 KiB. They arrive in order, between other frames.
    pub fn control(&mut self, op: OpId, body: impl AsRef<[u8]>) {
        self.host.control(op, body.as_ref());
    }

    /// Whether somebody waits until the outgoing part that this is about is sent, as far as is known.
    pub(crate) fn is_awaited(&self) -> bool {
        self.host.is_awaited()
    }

    /// Sends main memory as part `op` on the pipe's own connection; [`Lane::streamed`](crate::channels::Lane::streamed) tells when it
    /// is through. Where the operation is cancelled the pipe ends the stream itself, and `streamed` is not called.
    pub fn stream(&mut self, op: OpId, source: Buffer) {
        self.host.stream(op, source);
    }

    /// Lets what the peer's lane streams for `op` fill `dest`, main memory as long as the part; `Lane::streamed` brings it back. To be
    /// called in [`Lane::recv`](crate::channels::Lane::recv): bytes that come before it are the peer's fault, as are too many.
    pub fn expect(&mut self, op: OpId, dest: BufferMut) {
        self.expect_in(op, dest.into());
    }

    /// As [`LaneIo::expect`], where the reader wants it, in main memory. Warm main memory, for [`Want::Adopt`], is taken when its first
    /// byte comes: a peer that only announces bytes takes none. Returns `false` if the pipe's messages announce more than
    /// [`Limits::receive_budget`](crate::Limits::receive_budget): then `op` has failed.
    pub fn receive(&mut self, op: OpId, want: Want) -> bool {
        let dest = match want {
            Want::Into(dest) => Ok(dest.into()),
            Want::Adopt { len, .. } => self.reserve(op, len),
        };
        match dest {
            Ok(dest) => self.expect_in(op, dest),
            Err(error) => {
                self.failed(op, error);
                return false;
            }
        }
        true
    }

    pub(crate) fn expect_in(&mut self, op: OpId, dest: Destination) {
        self.host.stats().streamed += dest.len() as u64;
        self.host.expect(op, dest);
    }

    /// Addresses for `len` bytes of warm main memory.
    pub(crate) fn reserve(&mut self, op: OpId, len: u64) -> Result<Destination, Error> {
        self.host.reserve(op, len)
    }

    /// Calls an inner lane for a piece. If that lane reserves or allocates main memory of the piece's length for it, it gets `dest`.
    #[cfg(feature = "cuda")]
    pub(crate) fn with_place<T>(
        &mut self,
        piece: OpId,
        dest: Option<Destination>,
        call: impl FnOnce(&mut Self) -> T,
    ) -> T {
        *self.host.piece_place() = dest.map(|dest| (piece, dest));
        let called = call(self);
        *self.host.piece_place() = None;
        called
    }

    /// Warm memory that the channel fills itself, for received parts or for stages between. The budget counts main memory from now on, a
    /// piece's until it is [released](Self::release). For streamed parts [`LaneIo::receive`] takes less. Memory of a device is bounded by
    /// the device. The pipe is locked while its allocator makes it.
    ///
    /// # Errors
    /// - [`Error::OutOfMemory`] where there is none, where the pipe's messages announce more than
    ///   [`Limits::receive_budget`](crate::Limits::receive_budget), or where messages of all pipes take that.
    /// - [`Misuse::NoAllocator`] for a device that the context has no allocator for.
    pub fn allocate(&mut self, op: OpId, device: Device, len: u64) -> Result<BufferMut, Error> {
        self.room(op, device, len)?.take()
    }

    /// As [`allocate`](Self::allocate), but [`Room::take`] makes memory of a device that is not warm, once the pipe is not locked.
    pub(crate) fn room(&mut self, op: OpId, device: Device, len: u64) -> Result<Room, Error> {
        self.host.room(op, device, len)
    }

    /// `op` is with the peer or its transport. The source is not read any more, except by work for which [`Buffer::use_until`] was called.
    pub fn sent(&mut self, op: OpId) {
        self.result(op, Outcome::Sent);
    }

    /// All of `op` is in this memory, once that is [ready](Buffer::ready).
    pub fn received(&mut self, op: OpId, memory: Buffer) {
        self.result(op, Outcome::Received(memory));
    }

    /// The memory of a piece is free again, or will be without waiting for the peer: the budget counts it no more. Without this call it
    /// counts until its part is received; a part received in main memory goes on counting as part of the message.
    pub fn release(&mut self, piece: OpId) {
        self.host.results().push(LaneResult::Released(piece));
    }

    /// `op` cannot be done. Its message is abandoned, the pipe goes on.
    pub fn failed(&mut self, op: OpId, error: Error) {
        self.result(op, Outcome::Failed(error));
    }

    fn result(&mut self, op: OpId, outcome: Outcome) {
        self.host.results().push(LaneResult::Ended(op, outcome));
    }

    /// What the peer's lane has sent about `op` before its `recv` makes no sense: ends the pipe.
    pub fn fault(&mut self, op: OpId, fault: ChannelFault) {
        self.host.results().push(LaneResult::Fault(op, fault));
    }

    /// Counts bytes that the peer reads where they are here ([`PipeStats::bytes_lent`](crate::PipeStats::bytes_lent)).
    pub fn lent(&mut self, bytes: u64) {
        self.host.stats().lent += bytes;
    }

    /// Counts bytes that are read here where the peer has them
    /// ([`PipeStats::bytes_borrowed`](crate::PipeStats::bytes_borrowed)).
    pub fn borrowed(&mut self, bytes: u64) {
        self.host.stats().borrowed += bytes;
    }

    /// The lane is about to send `bytes` of `op` as channel `over` would, since it can do no better
    /// ([`PipeStats::bytes_diverted`](crate::PipeStats::bytes_diverted)). Returns `false` if the context
    /// [requires](crate::ContextBuilder::require) another channel, or the message does: then `op` has failed. A piece is main memory
    /// already, and may go any way. `why` says what prevents the better way.
    pub fn divert(&mut self, op: OpId, over: &str, bytes: u64, why: &str) -> bool {
        if let Some(required) = self.host.forbids(op, over) {
            let misuse = Misuse::NotAsRequired {
                what: format!("part {} of message {}", op.part, op.message).into(),
                required: required.into(),
                instead: over.into(),
                reason: why.into(),
            };
            self.failed(op, misuse.into());
            return false;
        }
        self.host.diverts(op, over, bytes, why);
        true
    }

    /// Counts bytes that the lane copies, or has copied, from memory of the peer's: not what it copies between its own stages
    /// ([`PipeStats::bytes_copied`](crate::PipeStats::bytes_copied)).
    pub fn copied(&mut self, bytes: u64) {
        self.host.stats().copied += bytes;
    }

    /// Counts bytes of what is received that the peer's lane has copied
    /// ([`MessageStats::copied_by_writer`](crate::MessageStats::copied_by_writer)).
    pub fn copied_by_writer(&mut self, bytes: u64) {
        self.host.stats().copied_by_writer += bytes;
    }

    pub(super) fn runtime(&self) -> &tokio::runtime::Handle {
        self.host.runtime()
    }

    /// Has the thread that drives the pipe do this, in steps.
    pub(crate) fn work(&mut self, op: OpId, work: impl Work + 'static) {
        self.host.work().push((op, Box::new(work)));
    }

    /// Runs what takes long on a thread for blocking work; it reports through the [`LaneHandle`](crate::channels::LaneHandle).
    pub fn spawn_blocking(&self, work: impl FnOnce() + Send + 'static) {
        workers::run(self.runtime(), work);
    }

    /// Runs a future of the lane's own; it reports through the [`LaneHandle`](crate::channels::LaneHandle).
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime().spawn(work);
    }
}

pub(super) fn allocate(pool: &Pool, len: u64) -> Result<BufferMut, Error> {
    let taken = usize::try_from(len).map_err(|error| error.to_string());
    let taken = taken.and_then(|len| pool.try_take(len).map_err(|error| error.to_string()));
    taken.map_err(|reason| out_of_memory(len, reason))
}
