//! Channels move the memory of tensors and large payloads.
//!
//! A [`Channel`] belongs to a context; for each pipe on which both ends have it, it opens a [`Lane`]. The shortest one for a device
//! copies to main memory, calls [`LaneIo::stream`] there and [`LaneIo::receive`] at the reader, and in [`Lane::streamed`] copies on.
//!
//! The contract of a lane. The conformance suite checks it, but for nonsense in `control`: a new channel needs a test of its own for
//! that.
//!
//! - `send` is called once per operation at the writer, after the reader's go-ahead or with credit ahead of it. `recv` is called
//!   once at the reader, before the writer's first byte or control frame can arrive, maybe before the application reads. Each ends
//!   in exactly one of [`LaneIo::sent`] / [`LaneIo::received`] / [`LaneIo::failed`], or in `cancel`. Parts without bytes come to no
//!   lane;
//! - `failed` at one end becomes `cancel` at the other. A lane that sees that its peer has given up a part does not call `failed`: the
//!   pipe knows the reason, and calls `cancel` or ends;
//! - a channel that [sends at once](Channel::sends_at_once) has `send` called as soon as the message leaves. Its control frame, one
//!   for each operation, may come before `recv`, and the lane keeps it until then, or until `cancel`. It may come to
//!   [`Lane::adopt`] instead. If that returns the part, no other method hears of it;
//! - which channel carries a part is the sender's choice: by its size, by where it lies, and by what each channel says of itself
//!   ([`Channel::thresholds`]). A lane that finds that it cannot move anything says so in its [`Degraded`], and is not chosen
//!   again. What it was given before, it still delivers or fails;
//! - operations are independent: their order of completion is free, and one that stalls does not hold up others, but behind
//!   a device's queue that works in order (below);
//! - it owns the memory of an operation until it gives it back. `sent` means that it no longer reads the source, `received` that
//!   the destination is complete and no longer written. Work that a device has only queued may come behind that, if the memory
//!   knows of it: [`Buffer::use_until`] of a source, [`BufferMut::freeze_at`] of a destination. Main memory knows of no such work.
//!   A lane that keeps a handle on it may go on reading, since memory with two handles is written by nobody;
//! - it reads device memory behind what that is [ready](Buffer::ready) at, and writes it behind what is
//!   [unfinished](BufferMut::unfinished). For that it orders its device's queue, or goes on when the fence is reached
//!   ([`LaneHandle::resume_at`]). It never waits for a device. A queue that works in order holds up what is queued behind a source that is
//!   not ready; a lane that goes on at the fence does not;
//! - no method waits or computes for long: what takes time runs elsewhere and reports through [`LaneHandle`], which no method
//!   of a lane may call;
//! - bytes from the peer's lane are checked: nonsense is a [`ChannelFault`], never a panic;
//! - after `cancel`, and after `failed`, it lets go of the operation's memory as soon as the hardware is done with it. A read that failed
//!   waits for that, and gives the memory back;
//! - `cancel` may be followed by control frames of the peer that crossed it: they are ignored.

mod basic;
mod cma;
mod costs;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod exchange;
mod further;
mod handover;
mod lease;
mod mpt;
mod xth;

pub use basic::BasicChannel;
pub use cma::CmaChannel;
#[cfg(feature = "cuda")]
pub use cuda::{CudaBasicChannel, CudaIpcChannel, CudaXthChannel};
pub use further::{ConnectionSource, Expected, JoinToken};
pub use lease::LeaseChannel;
pub use mpt::MptChannel;
pub use xth::XthChannel;

use std::sync::Arc;

pub use crate::address::SettledPeer;
pub use crate::device::DeviceOffer;
use crate::device::{Buffer, BufferMut, Device, MemoryKind, Pool};
use crate::error::Error;
use crate::keys::PipeKey;
pub use crate::pipe::{LaneHandle, LaneIo, Outcome};
pub use crate::proto::OpId;
pub use crate::route::{Degraded, Pays, Threshold};
use crate::transports::Connection;

/// Moves tensor memory between devices of two contexts. Having one means that it works here.
pub trait Channel: Send + Sync + 'static {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The devices that it serves here, each with what tells whether two of them reach each other (at most 1 KiB). Where lanes take
    /// memory by [`LaneIo::allocate`], those alone that the context has an allocator for: peers send to the others, too, and then the
    /// read fails ([`Misuse::NoAllocator`](crate::Misuse::NoAllocator)).
    fn devices(&self) -> Vec<(Device, Vec<u8>)>;

    /// Whether a device here and one at the peer reach each other, or why not. Both ends ask. By default when their
    /// descriptors are equal. A reason without words is not told: that of a pair that is none of its business.
    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        if ours.descriptor == theirs.descriptor {
            Ok(())
        } else {
            Err("the two ends are in different domains".to_owned())
        }
    }

    /// Whether it works between two ends in one process alone. It is then used on pipes whose transport shows that they are
    /// ([`Transport::in_process`](crate::transports::Transport::in_process)): descriptors are what a peer says. By default no.
    fn in_process(&self) -> bool {
        false
    }

    /// How many connections of its own it needs for each pipe. With none, it sends control frames on the pipe's.
    fn connections(&self) -> u8 {
        0
    }

    /// From which size on it pays to send to `peer`, whose devices and descriptors these are, over which transport, for which
    /// memory. The first entry that fits counts. Memory that none fits is not carried. Contexts may say otherwise. By default it
    /// carries whatever lies on its devices, and pays for what does not ride in the message's own frame.
    fn thresholds(&self, peer: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        let _ = peer;
        costs::BASIC.to_vec()
    }

    /// Whether it moves the bytes of such memory. One that does not, because the peer gets the memory itself, is chosen before
    /// those that do, whatever the order of a context's channels. Exception: a channel that has, or for which the context has, an
    /// entry for just [that kind of memory](Threshold::of). By default it does.
    fn moves_bytes(&self, memory: MemoryKind) -> bool {
        let _ = memory;
        true
    }

    /// Whether what is received over it may stay memory of another process, which is read there. By default yes.
    fn borrows(&self) -> bool {
        true
    }

    /// Whether it sends without waiting for the reader's go-ahead. Nothing that it sends then takes memory of the reader's before
    /// that reads: its lane is told where the part is. Its lanes stream nothing that theirs did not ask for.
    fn sends_at_once(&self) -> bool {
        false
    }

    /// Opens it for a pipe.
    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error>;
}

/// What a channel gets for a pipe on which it was negotiated.
#[non_exhaustive]
pub struct Link {
    /// The connections that it asked for, in the same order at both ends.
    pub connections: Vec<Box<dyn Connection>>,
    /// How to get more of them later.
    pub further: ConnectionSource,
    /// For work that is done elsewhere.
    pub handle: LaneHandle,
    /// Whether this is the end that connected.
    pub connector: bool,
    /// The peer's devices and their descriptors: what it says of itself.
    pub peer_devices: Vec<(Device, Vec<u8>)>,
    /// Who it is, as the system says of the pipe's connection.
    pub peer: SettledPeer,
    /// What the two ends of the pipe have, and nobody else, where they have proved who they are.
    pub(crate) key: Option<PipeKey>,
    /// Memory for what comes in.
    pub pool: Pool,
    /// The context's [`Limits::receive_budget`](crate::Limits::receive_budget), in bytes.
    pub receive_budget: u64,
    /// Where to say that it turned out not to work: the sender then chooses other channels, and the route says why.
    pub degraded: Degraded,
}

impl Link {
    /// For a lane inside the one that is opened with this link. The outer lane has it carry pieces of its parts: staging copies
    /// from a device to main memory, and the inner lane carries that to main memory there.
    ///
    /// A piece of operation `op` is the operation [`op.piece(n)`](OpId::piece), with a number of the outer lane's choice, the same
    /// at both ends, and not used again for that part. The inner lane's contract is that of any. The outer lane calls `recv` for a
    /// piece before the peer's may send it. It calls `cancel` for those under way when its own operation is cancelled. What is said
    /// about a piece comes to [`Lane::inner`], which hands it on, and hears there how the piece ended. Whether the inner channel
    /// reaches the peer is for the outer one to ask, whose descriptors hold the inner one's; `peer_devices` are the inner
    /// channel's. There is no lane inside an inner one, and none that sends at once outside of one.
    pub fn inner(self, peer_devices: Vec<(Device, Vec<u8>)>) -> Self {
        Self {
            peer_devices,
            ..self
        }
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

/// What a part of a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartKind {
    /// Bytes that their reader most likely parses.
    Payload,
    /// Numbers.
    Tensor,
}

/// Where a part should go.
#[derive(Debug)]
pub enum Want {
    /// Into this memory.
    Into(BufferMut),
    /// Into whatever memory the channel has for it, best without a copy.
    Adopt {
        /// Length in bytes.
        len: u64,
        /// The device where it should be.
        device: Device,
    },
}

/// A part that a lane has at once.
#[derive(Debug)]
pub struct Adopted {
    /// The part. It counts as [borrowed](crate::PipeStats::bytes_borrowed) once the application has it as it is.
    pub memory: Buffer,
    /// What the peer's lane is told when the application has read it, or does not want it: then its write is over.
    pub answer: &'static [u8],
    /// Whether the peer's lane keeps something until then; else the answer waits until there is time, or something else to send.
    pub urgent: bool,
    /// Whether the peer's CPU has copied it for that.
    pub is_copy: bool,
}

/// What goes on about a piece: for the lane inside, but for the last.
#[derive(Debug)]
pub enum PieceEvent<'a> {
    /// As [`Lane::control`].
    Control(&'a [u8]),
    /// As [`Lane::streamed`].
    Streamed(Option<BufferMut>),
    /// As [`Lane::resume`].
    Resume,
    /// The lane inside has ended it.
    Ended(Outcome),
}

/// The peer's lane sent something that makes no sense; in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelFault(pub String);

/// One end of a channel on one pipe. See the module's documentation for the contract.
pub trait Lane: Send {
    /// Whether it can carry just this memory, which is of a kind that its channel carries, as such a part. Where it cannot, the next
    /// channel is asked.
    fn carries(&self, source: &Buffer, kind: PartKind) -> bool {
        let _ = (source, kind);
        true
    }

    /// Sends `source` as operation `op`.
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>);

    /// Receives operation `op`.
    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>);

    /// The peer's lane has sent `body` about `op`, of `len` bytes, on a channel that [sends at once](Channel::sends_at_once), and
    /// nobody has read the message yet. Where that is enough to have the memory, without a copy and without a wait, it is the part,
    /// and no other method is called about it. `None`, with nothing done, means that `body` comes as any other does. By default
    /// `None`.
    fn adopt(&mut self, op: OpId, body: &[u8], len: u64, io: &mut LaneIo<'_>) -> Option<Adopted> {
        let _ = (op, body, len, io);
        None
    }

    /// The peer's lane has sent `body` about `op`.
    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault>;

    /// A stream that this lane began is through: for an incoming one, with the memory it filled. By default this
    /// calls [`LaneIo::sent`], or [`LaneIo::received`] with that memory.
    fn streamed(&mut self, op: OpId, dest: Option<BufferMut>, io: &mut LaneIo<'_>) {
        match dest {
            None => io.sent(op),
            Some(dest) => io.received(op, dest.freeze()),
        }
    }

    /// [`LaneHandle::resume`] was called for `op`, which is still under way.
    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        let _ = (op, io);
        Ok(())
    }

    /// What goes on about piece `op` of an operation that is under way, which a lane inside this one carries: see [`Link::inner`].
    /// The peer may name a piece that there is not. By default a fault, since there is no such lane.
    fn inner(
        &mut self,
        op: OpId,
        event: PieceEvent<'_>,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        let _ = (event, io);
        Err(ChannelFault(format!("{op:?} is not carried in pieces")))
    }

    /// Nobody waits for `op` any more.
    fn cancel(&mut self, op: OpId, io: &mut LaneIo<'_>);
}

/// The channels of a context by default: order is priority.
pub(crate) fn builtin() -> Vec<Arc<dyn Channel>> {
    vec![
        Arc::new(XthChannel::new()),
        Arc::new(LeaseChannel::new()),
        Arc::new(CmaChannel::new()),
        Arc::new(BasicChannel::new()),
    ]
}
