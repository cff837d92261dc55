//! Channels move the memory of tensors and large payloads.
//!
//! A [`Channel`] belongs to a context. It opens one [`Lane`] for each pipe whose two ends both have the channel. The shortest lane for a
//! device copies to main memory and calls [`LaneIo::stream`] at the writer; at the reader it calls [`LaneIo::receive`], and copies on in
//! [`Lane::streamed`].
//!
//! The contract of a lane follows. The conformance suite checks it, except for malformed `control` frames: a new channel needs its own test
//! for those.
//!
//! - `send` is called once per operation at the writer, after the reader's go-ahead or with credit granted ahead of it. `recv` is called
//!   once at the reader, before the writer's first byte or control frame can arrive, possibly before the application reads. Each ends in
//!   exactly one of [`LaneIo::sent`] / [`LaneIo::received`] / [`LaneIo::failed`], or in `cancel`. Lanes never see parts without bytes;
//! - `failed` at one end becomes `cancel` at the other. A lane that notices that its peer has given up a part does not call `failed`: the
//!   pipe knows the reason, and either calls `cancel` or ends;
//! - on a channel that [sends at once](Channel::sends_at_once), `send` is called as soon as the message leaves. Each operation has one
//!   control frame. If it arrives before `recv`, the lane keeps it until `recv` or `cancel`. The pipe may pass the frame to [`Lane::adopt`]
//!   instead; if that returns the part, no other method is called for this operation;
//! - the sender chooses which channel carries a part: by the part's size, by where it lies, and by the channels' [`Channel::thresholds`]. A
//!   lane that finds that it cannot move anything reports it through its [`Degraded`] and is not chosen again. It still delivers or fails
//!   the parts that it was given before;
//! - operations are independent: they complete in any order, and one that stalls does not hold up others. Exception: work queued on a
//!   device that works in order (below);
//! - a lane owns the memory of an operation until it reports the end. `sent` means that it no longer reads the source; `received` means
//!   that the destination is complete and no longer written. Work that is only queued on a device may finish later if the memory records
//!   it: [`Buffer::use_until`] for a source, [`BufferMut::freeze_at`] for a destination. Main memory records no such work. A lane that
//!   keeps a handle on a source may go on reading, since nobody writes to memory with two handles;
//! - a lane reads device memory only after its [ready](Buffer::ready) fence, and writes it only after its
//!   [unfinished](BufferMut::unfinished) fence. It either orders its device queue behind the fence, or continues once the fence is reached
//!   ([`LaneHandle::resume_at`]). It never blocks on a device. In an in-order queue, a source that is not ready holds up everything queued
//!   behind it; a lane that waits for the fence first avoids that;
//! - no method blocks or computes for long: slow work runs elsewhere and reports through [`LaneHandle`], which no method of a lane may
//!   call;
//! - bytes from the peer's lane are checked: nonsense is a [`ChannelFault`], never a panic;
//! - after `cancel` and after `failed`, a lane lets go of the operation's memory as soon as the hardware is done with it. A failed read
//!   waits for that before it gives the memory back;
//! - `cancel` may be followed by control frames of the peer that crossed it: they are ignored.

mod basic;
mod cma;
mod connection_source;
mod costs;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod exchange;
mod handover;
mod lease;
mod mpt;
mod xth;

pub use basic::BasicChannel;
pub use cma::CmaChannel;
pub use connection_source::{ConnectionSource, Expected, JoinToken};
#[cfg(feature = "cuda")]
pub use cuda::{CudaBasicChannel, CudaIpcChannel, CudaXthChannel};
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

/// Moves tensor memory between devices of two contexts. A value of such a type exists only where the channel works.
pub trait Channel: Send + Sync + 'static {
    /// Its name.
    fn name(&self) -> &'static str;

    /// The devices that the channel serves here. Each comes with a descriptor of at most 1 KiB, by which two ends tell whether they
    /// reach each other. If the lanes use [`LaneIo::allocate`], list only devices that the context has an allocator for: peers would
    /// send to the others as well, and the reads would fail ([`Misuse::NoAllocator`](crate::Misuse::NoAllocator)).
    fn devices(&self) -> Vec<(Device, Vec<u8>)>;

    /// Whether a device here and one at the peer reach each other, or why not. Both ends ask. By default they do if their
    /// descriptors are equal. An empty reason is not reported; return one for a pair that this channel is not meant to connect.
    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        if ours.descriptor == theirs.descriptor {
            Ok(())
        } else {
            Err("the two ends are in different domains".to_owned())
        }
    }

    /// Whether the channel works only between two ends in one process. Such a channel is used only on pipes whose transport proves
    /// that ([`Transport::in_process`](crate::transports::Transport::in_process)); descriptors alone prove nothing, since the peer
    /// writes them. By default no.
    fn in_process(&self) -> bool {
        false
    }

    /// How many connections of its own the channel needs for each pipe. With none, control frames travel on the pipe's connection.
    fn connections(&self) -> u8 {
        0
    }

    /// From which size on the channel pays for sending to `peer`, given as its devices and descriptors; by transport and kind of
    /// memory. The first matching entry counts; memory that matches none is not carried. A context may override this. By default the
    /// channel carries all memory on its devices, and pays for parts that do not fit into the message's own frame.
    fn thresholds(&self, peer: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        let _ = peer;
        costs::BASIC.to_vec()
    }

    /// Whether the channel copies the bytes of such memory. A channel that hands the memory itself to the peer is chosen before
    /// those that copy, whatever the order of a context's channels. Exception: an entry for exactly
    /// [that kind of memory](Threshold::of), from the other channel or from the context, wins. By default it copies.
    fn moves_bytes(&self, memory: MemoryKind) -> bool {
        let _ = memory;
        true
    }

    /// Whether received memory may remain memory of another process, which the application reads in place. By default yes.
    fn borrows(&self) -> bool {
        true
    }

    /// Whether the channel sends without waiting for the reader's go-ahead. It then takes no memory of the reader's before the
    /// application reads: the writer's lane only tells the reader's lane where the part is, and streams only what the reader's lane
    /// asks for.
    fn sends_at_once(&self) -> bool {
        false
    }

    /// Opens it for a pipe.
    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error>;
}

/// What a channel gets for a pipe that negotiated it.
#[non_exhaustive]
pub struct Link {
    /// The connections that the channel asked for, in the same order at both ends.
    pub connections: Vec<Box<dyn Connection>>,
    /// How to get more connections later.
    pub further: ConnectionSource,
    /// For work that is done elsewhere.
    pub handle: LaneHandle,
    /// Whether this is the end that connected.
    pub connector: bool,
    /// The peer's devices and their descriptors, as the peer claims them.
    pub peer_devices: Vec<(Device, Vec<u8>)>,
    /// Who the peer is, as the system reports it for the pipe's connection.
    pub peer: SettledPeer,
    /// A secret that only the two ends of the pipe share; there if they authenticated each other.
    pub(crate) key: Option<PipeKey>,
    /// Memory for incoming parts.
    pub pool: Pool,
    /// The context's [`Limits::receive_budget`](crate::Limits::receive_budget), in bytes.
    pub receive_budget: u64,
    /// Where the lane reports that the channel does not work after all: the sender then chooses other channels, and the route gives
    /// the reason.
    pub degraded: Degraded,
}

impl Link {
    /// The link for an inner lane. The outer lane, opened with this link, lets the inner one carry pieces of its parts: a staging
    /// lane, say, copies from a device to main memory, and the inner lane carries that to the peer's main memory.
    ///
    /// A piece of operation `op` is the operation [`op.piece(n)`](OpId::piece). The outer lane chooses `n`: the same at both ends,
    /// and never twice for one part. The inner lane follows the contract of any lane. The outer lane calls `recv` for a piece before
    /// the peer may send it, and `cancel` for pieces under way when its own operation is cancelled. Events about a piece come to the
    /// outer [`Lane::inner`], which passes them on and learns there how the piece ended. The outer channel asks whether the inner one
    /// reaches the peer: its descriptors hold the inner one's; `peer_devices` are those of the inner one. Inner lanes are not nested,
    /// and a channel that sends at once has none.
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
    /// Bytes that the reader most likely parses.
    Payload,
    /// Numbers.
    Tensor,
}

/// Where a part should go.
#[derive(Debug)]
pub enum Want {
    /// Into this memory.
    Into(BufferMut),
    /// Into whatever memory the channel has for it, without a copy if possible.
    Adopt {
        /// Length in bytes.
        len: u64,
        /// The device where it should be.
        device: Device,
    },
}

/// A part that a lane can deliver at once.
#[derive(Debug)]
pub struct Adopted {
    /// The part. It counts as [borrowed](crate::PipeStats::bytes_borrowed) if the application gets this memory itself.
    pub memory: Buffer,
    /// The answer to the peer's lane once the application has read the part or does not want it: the peer's write is then over.
    pub answer: &'static [u8],
    /// Whether the peer's lane holds resources until the answer. If not, the answer waits until there is time or something else to
    /// send.
    pub urgent: bool,
    /// Whether the peer's CPU copied the part to make this possible.
    pub is_copy: bool,
}

/// An event about a piece. The outer lane passes all but the last kind to the inner lane.
#[derive(Debug)]
pub enum PieceEvent<'a> {
    /// As [`Lane::control`].
    Control(&'a [u8]),
    /// As [`Lane::streamed`].
    Streamed(Option<BufferMut>),
    /// As [`Lane::resume`].
    Resume,
    /// The inner lane has ended the piece.
    Ended(Outcome),
}

/// The peer's lane sent something malformed; in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelFault(pub String);

/// One end of a channel on one pipe. See the module's documentation for the contract.
pub trait Lane: Send {
    /// Whether the lane can carry this very memory, as a part of this kind. Its channel already serves this kind of memory. If it
    /// cannot, the next channel is asked.
    fn carries(&self, source: &Buffer, kind: PartKind) -> bool {
        let _ = (source, kind);
        true
    }

    /// Sends `source` as operation `op`.
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>);

    /// Receives operation `op`.
    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>);

    /// The peer's lane has sent `body` about `op`, of `len` bytes, on a channel that [sends at once](Channel::sends_at_once), before
    /// anybody reads the message. If `body` suffices to get the memory without a copy and without waiting, returns the part, and no
    /// other method is called for `op`. `None`: nothing was done, and `body` comes as any control frame does. By default `None`.
    fn adopt(&mut self, op: OpId, body: &[u8], len: u64, io: &mut LaneIo<'_>) -> Option<Adopted> {
        let _ = (op, body, len, io);
        None
    }

    /// The peer's lane has sent `body` about `op`.
    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault>;

    /// A stream that this lane began is complete; `dest` is the filled memory of an incoming one. By default this calls
    /// [`LaneIo::sent`], or [`LaneIo::received`] with that memory.
    fn streamed(&mut self, op: OpId, dest: Option<BufferMut>, io: &mut LaneIo<'_>) {
        match dest {
            None => io.sent(op),
            Some(dest) => io.received(op, dest.freeze()),
        }
    }

    /// Somebody called [`LaneHandle::resume`] for `op`, which is still under way.
    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        let _ = (op, io);
        Ok(())
    }

    /// An event about piece `op` of an operation that is under way, which an inner lane carries: see [`Link::inner`]. A peer may
    /// name pieces that do not exist. By default a fault, since there is no inner lane.
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
