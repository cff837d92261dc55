//! What a lane sees of its pipe.

use std::sync::Arc;

use super::borrowed::Copy;
use super::budget::{Announced, Announcements, Reservation};
use super::core::Core;
use super::driver::wake_all;
use super::shared::Shared;
use super::stats::LaneStats;
use crate::channels::{ChannelFault, Want};
use crate::device::{Buffer, BufferMut, Destination, Pool};
use crate::error::{Error, PeerFault};
use crate::proto::{OpId, PipeState};
use crate::sync::{Weak, lock};

/// How an operation of a lane went on.
#[derive(Debug)]
pub(crate) enum LaneResult {
    Sent(OpId),
    Received(OpId, Buffer),
    Failed(OpId, Error),
    Fault(OpId, ChannelFault),
}

/// A lane's access to its pipe, from inside one of its methods.
pub struct LaneIo<'a> {
    pub(super) state: &'a mut PipeState<Buffer, Destination>,
    pub(super) results: &'a mut Vec<LaneResult>,
    pub(super) stats: &'a mut LaneStats,
    pub(super) pool: &'a Pool,
    pub(super) announcements: Option<&'a Announcements>,
    /// For what is allocated, until the message is complete.
    pub(super) announced: &'a mut Vec<Announced>,
    /// The same of what is resident.
    pub(super) taken: &'a mut Option<Reservation>,
    pub(super) runtime: &'a tokio::runtime::Handle,
}

impl std::fmt::Debug for LaneIo<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneIo").finish_non_exhaustive()
    }
}

impl LaneIo<'_> {
    /// Sends bytes to the peer's lane about `op`; at most 8 KiB. They arrive in order, between other frames.
    pub fn control(&mut self, op: OpId, body: impl AsRef<[u8]>) {
        self.state.channel(op, body.as_ref());
    }

    /// Sends main memory as part `op` on the pipe's own connection; `Lane::streamed` tells when it is through.
    pub fn stream(&mut self, op: OpId, source: Buffer) {
        let len = source.len() as u64;
        self.state.stream(op, source, len);
    }

    /// Lets what the peer's lane streams for `op` fill `dest`; `Lane::streamed` brings it back.
    pub fn expect(&mut self, op: OpId, dest: BufferMut) {
        self.expect_in(op, dest.into());
    }

    /// The same where the reader wants it. Warm main memory, for [`Want::Adopt`], is taken when its first byte comes: what a peer
    /// only announces takes none. Returns `false` where the pipe's messages announce more than
    /// [`Limits::receive_budget`](crate::Limits::receive_budget): then `op` has failed.
    pub fn receive(&mut self, op: OpId, want: Want) -> bool {
        let dest = match want {
            Want::Into(dest) => Ok(dest.into()),
            Want::Adopt { len, .. } => self.reserve(len),
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
        self.stats.streamed += dest.len() as u64;
        self.state.expect(op, dest);
    }

    /// Addresses for `len` bytes of warm main memory.
    pub(crate) fn reserve(&mut self, len: u64) -> Result<Destination, Error> {
        let announced = self.announcements.map(|all| all.take(len)).transpose();
        let announced = announced.map_err(|reason| out_of_memory(len, reason))?;
        let dest = usize::try_from(len).map_err(|error| out_of_memory(len, error.to_string()))?;
        self.announced.extend(announced);
        Ok(Destination::pooled(dest))
    }

    /// Warm main memory that the channel fills itself, all of which counts from now on. For what is streamed [`LaneIo::receive`]
    /// takes less.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the system has none, or the pipe's messages announce more than
    /// [`Limits::receive_budget`](crate::Limits::receive_budget), or messages of all pipes take that.
    pub fn allocate(&mut self, len: u64) -> Result<BufferMut, Error> {
        let mut dest = self.reserve(len)?;
        if let Some(announcements) = self.announcements {
            let cost = dest.cost(0..dest.len(), self.pool);
            let cost = cost.map_err(|error| out_of_memory(len, error.to_string()))?;
            let taken = (self.taken).get_or_insert_with(|| announcements.reservation());
            taken
                .grow(cost)
                .map_err(|reason| out_of_memory(len, reason))?;
        }
        dest.open(self.pool)
            .map_err(|error| out_of_memory(len, error.to_string()))?;
        dest.into_memory()
            .ok_or_else(|| out_of_memory(len, "it was not taken".to_owned()))
    }

    /// `op` is with the peer or its transport: the source is not read any more.
    pub fn sent(&mut self, op: OpId) {
        self.results.push(LaneResult::Sent(op));
    }

    /// `op` is complete, in this memory.
    pub fn received(&mut self, op: OpId, memory: Buffer) {
        self.results.push(LaneResult::Received(op, memory));
    }

    /// `op` cannot be done. Its message is abandoned, the pipe goes on.
    pub fn failed(&mut self, op: OpId, error: Error) {
        self.results.push(LaneResult::Failed(op, error));
    }

    /// What the peer's lane has sent about `op` before its `recv` makes no sense: ends the pipe.
    pub fn fault(&mut self, op: OpId, fault: ChannelFault) {
        self.results.push(LaneResult::Fault(op, fault));
    }

    /// Counts bytes that the peer reads where they are here ([`PipeStats::bytes_lent`](crate::PipeStats::bytes_lent)).
    pub fn lent(&mut self, bytes: u64) {
        self.stats.lent += bytes;
    }

    /// Counts bytes that are read here where the peer has them
    /// ([`PipeStats::bytes_borrowed`](crate::PipeStats::bytes_borrowed)).
    pub fn borrowed(&mut self, bytes: u64) {
        self.stats.borrowed += bytes;
    }

    /// Bytes that it was given to send, and has streamed since it could do no better
    /// ([`PipeStats::bytes_diverted`](crate::PipeStats::bytes_diverted)).
    pub fn diverted(&mut self, bytes: u64) {
        self.stats.diverted += bytes;
    }

    /// Counts bytes that the lane copies, or has copied, from memory of the peer's
    /// ([`PipeStats::bytes_copied`](crate::PipeStats::bytes_copied)).
    pub fn copied(&mut self, bytes: u64) {
        self.stats.copied += bytes;
    }

    /// Reads main memory of the peer's into as much of the application's, at once, or on a thread for blocking work if
    /// it is large. Then `op` is complete there, the source let go of, and the peer's lane told so.
    pub(crate) fn copy(
        &mut self,
        op: OpId,
        (source, dest): (Buffer, BufferMut),
        handle: &LaneHandle,
        tell: &'static [u8],
    ) {
        self.copied(source.len() as u64);
        let mut copy = Copy::new(op, source, dest);
        copy.answer = Some(tell);
        if copy.takes_a_while() {
            copy.begin_on_thread(self.runtime, handle.clone());
        } else {
            let dest = copy.make();
            self.control(op, tell);
            self.received(op, dest);
        }
    }

    /// Runs what takes long on a thread for blocking work; it reports through the [`LaneHandle`].
    pub fn spawn_blocking(&self, work: impl FnOnce() + Send + 'static) {
        self.runtime.spawn_blocking(work);
    }

    /// Runs a future of the lane's own; it reports through the [`LaneHandle`].
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }
}

pub(super) fn allocate(pool: &Pool, len: u64) -> Result<BufferMut, Error> {
    let taken = usize::try_from(len).map_err(|error| error.to_string());
    let taken = taken.and_then(|len| pool.try_take(len).map_err(|error| error.to_string()));
    taken.map_err(|reason| out_of_memory(len, reason))
}

pub(super) fn out_of_memory(bytes: u64, reason: String) -> Error {
    let reason = reason.into();
    Error::OutOfMemory { bytes, reason }
}

/// A lane's access to its pipe from other threads and tasks. Does nothing once the pipe has ended.
#[derive(Clone)]
pub struct LaneHandle {
    pub(super) core: Weak<Core>,
}

impl std::fmt::Debug for LaneHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaneHandle").finish_non_exhaustive()
    }
}

impl LaneHandle {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::downgrade(core),
        }
    }

    /// As [`LaneIo::control`].
    pub fn control(&self, op: OpId, body: Vec<u8>) {
        self.with(|core| lock(&core.shared).state.channel(op, body));
    }

    /// As [`LaneIo::sent`].
    pub fn sent(&self, op: OpId) {
        self.result(LaneResult::Sent(op));
    }

    /// As [`LaneIo::received`].
    pub fn received(&self, op: OpId, memory: Buffer) {
        self.result(LaneResult::Received(op, memory));
    }

    /// As [`LaneHandle::control`] and [`LaneHandle::received`] in one step: a peer that hears that all is well may close at
    /// once, and must not end a read whose memory is complete.
    pub fn received_and_tell(&self, op: OpId, memory: Buffer, body: Vec<u8>) {
        self.report(LaneResult::Received(op, memory), Some((op, body)));
    }

    /// Counts bytes of an incoming `op` that came over a connection of the channel's own
    /// ([`MessageStats::streamed`](crate::MessageStats::streamed)). Before it is received.
    pub fn streamed(&self, op: OpId, bytes: u64) {
        self.with_shared(|shared| shared.streamed(op, bytes));
    }

    /// Counts `bytes` of memory that an incoming `op` is about to fill. Where there is no room for them its message is given
    /// up, and the lane hears of that by [`Lane::cancel`](crate::channels::Lane::cancel).
    pub(crate) fn count(&self, op: OpId, bytes: u64) {
        self.with(|core| {
            let mut wakes = Vec::new();
            {
                let mut shared = lock(&core.shared);
                shared.count(op, bytes, &mut wakes);
                shared.process(core, &mut wakes);
            }
            wake_all(wakes);
        });
    }

    /// As [`LaneIo::failed`].
    pub fn failed(&self, op: OpId, error: Error) {
        self.result(LaneResult::Failed(op, error));
    }

    /// Has [`Lane::resume`](crate::channels::Lane::resume) called for `op`, if it is still under way: for a lane that waited
    /// for something and keeps the operation itself.
    pub fn resume(&self, op: OpId) {
        self.with(|core| {
            let mut wakes = Vec::new();
            {
                let mut shared = lock(&core.shared);
                shared.resume(op, core, &mut wakes);
                shared.process(core, &mut wakes);
            }
            wake_all(wakes);
        });
    }

    /// Ends the pipe: a connection of the channel's own is lost, or its peer sends nonsense on it.
    pub fn broken(&self, error: Error) {
        self.with(|core| core.fail(error));
    }

    /// Ends the pipe: what was on a connection of the channel's own is lost, for this reason.
    pub fn lost(&self, reason: &str) {
        self.with(|core| core.fail(core.lost(reason)));
    }

    /// Ends the pipe: on a connection of its own the peer's lane of `channel` has sent nonsense.
    pub fn fault(&self, channel: &'static str, ChannelFault(what): ChannelFault) {
        self.with(|core| {
            core.fail(Error::Peer {
                pipe: core.name.clone(),
                fault: PeerFault::Channel { channel, what },
            });
        });
    }

    fn result(&self, result: LaneResult) {
        self.report(result, None);
    }

    fn report(&self, result: LaneResult, tell: Option<(OpId, Vec<u8>)>) {
        self.with(|core| {
            let mut wakes = Vec::new();
            {
                let mut shared = lock(&core.shared);
                if let Some((op, body)) = tell {
                    shared.state.channel(op, body);
                }
                shared.lane_results.push(result);
                shared.process(core, &mut wakes);
            }
            wake_all(wakes);
        });
    }

    fn with_shared(&self, act: impl FnOnce(&mut Shared)) {
        if let Some(core) = self.core.upgrade() {
            act(&mut lock(&core.shared));
        }
    }

    fn with(&self, act: impl FnOnce(&Arc<Core>)) {
        if let Some(core) = self.core.upgrade() {
            act(&core);
            core.drive();
        }
    }
}
