//! Main memory of another process on this machine: the reader copies it, once, out of the writer's memory into its own.
//!
//! ```text
//!   lane ── export, "done" ── lane                 on the pipe, between two lanes         lane.rs, frame.rs
//!   exports <── process_vm_readv ── peer process   what there is to read; who reads it    exports.rs, peer_process.rs, copy.rs
//!   exchange ── "where is your export table?" ──   the kernel says who it is              channels/exchange/
//! ```
//!
//! The writer keeps the memory of an operation, puts an *export* with its address into an export table of its own process, and tells the
//! reader which export it is. The reader reads the export, copies, reads it again, and says that it is done. So no address
//! goes over the pipe, where others may listen: who cannot read the table learns nothing. And a copy is only good if the
//! export is still there afterwards: the writer takes it down before it lets go of the memory.
//!
//! Whether one process may read another's memory depends on both, on security modules and filters, and cannot be known but by
//! trying. The first read of an export is that trial. Where it fails, the reader says why, and has the writer send the bytes on the
//! pipe's connection, like over `basic`; the writer then chooses other channels.
//!
//! Whether it pays depends on the processors of both ends, which the writer knows from its own and from the reader's descriptor:
//!
//! | the reader | copies | so it is used |
//! |---|---|---|
//! | may use several | by two threads; the writer waits | from 4 MiB on, over `shm` from 8 MiB |
//! | and the writer are bound to one, the same | once instead of twice, without changing sides | from 1 MiB on |
//! | has one, and the writer another | alone, where both ends of a connection copy at the same time | not |
//!
//! Whoever drives the pipe copies, in pieces of 256 KiB. Between two pieces messages pass, and the copy stops if nobody wants it
//! any more. A piece that takes over 1 ms (memory that is not there) sends the rest to a thread for blocking work.

mod copy;
mod exports;
mod frame;
mod lane;
mod peer_process;

use self::lane::CmaLane;
use self::peer_process::PeerProcess;
use super::costs;
use super::exchange::{Access, Exchange, Pass};
use super::{
    Channel, ChannelFault as Fault, Degraded, Lane, LaneHandle, LaneIo, Link, OpId, Threshold, Want,
};
use crate::device::{Device, DeviceOffer};
use crate::error::Error;
use crate::sys::process_memory;
use crate::sys::processors::Processors;

/// Channel `cma` (cross-memory attach): the reader copies tensors out of the writer's memory with `process_vm_readv`.
///
/// The reader copies, with two threads where it may use more than one processor. Its device descriptor says which processors it
/// has, and the writer chooses by it. With several, tensors go by `cma` from 4 MiB on, over `shm` from 8 MiB on. Where both
/// processes are bound to the same processor they do from 1 MiB on. Where the reader has one of its own none does: both ends of a
/// connection copy at the same time then, which was measured to be faster.
/// [`ContextBuilder::threshold`](crate::ContextBuilder::threshold) says otherwise.
///
/// # Trust
///
/// It reads only where the system lets it. Processes of one user may read each other's memory anyway, unless Yama, seccomp or
/// another security module forbids it. A process whose kernel says that it is another one than the peer claims is not read. On a
/// pipe that has a key, by a [token](crate::ContextBuilder::token) or TLS, no process is read that has not the key.
#[derive(Debug, Default)]
pub struct CmaChannel {
    within_process: bool,
}

impl CmaChannel {
    /// Between processes of this machine. Where the system does not allow it, the route says why.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, after letting *every* process of this user read this one's memory, and debug it, until it ends
    /// (`PR_SET_PTRACER_ANY`). Where some distributions set the Yama security module to 1, only its ancestors can otherwise. The
    /// permission belongs to the process, not to the channel, and nothing here takes it back.
    pub fn readable_by_all() -> Self {
        process_memory::let_all_read();
        Self::new()
    }

    /// Also where both ends are in one process, for which `xth` is better: for tests.
    #[doc(hidden)]
    pub fn also_within_process() -> Self {
        Self {
            within_process: true,
        }
    }
}

impl Channel for CmaChannel {
    fn name(&self) -> &'static str {
        "cma"
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        let exchange = Exchange::here();
        Access::Read.devices(exchange.process(), exchange.name(), true)
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        Access::Read.reaches(ours.descriptor, theirs.descriptor, self.within_process)
    }

    fn thresholds(&self, peer: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        let reader = Access::Read.place(peer).ok();
        let reader = reader.and_then(|place| place.reader);
        let reader = reader.map(|reader| reader.processors);
        costs::cma(Processors::here(), reader)
    }

    fn sends_at_once(&self) -> bool {
        true
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        let peer = Access::Read.peer(self.name(), &link)?;
        // Who has the pipe's key is met by it, else whoever says that it is the peer.
        let key = link.key.as_ref();
        let to = key.map_or(peer.process, |key| key.pass(&peer.exchange));
        let peer_process = PeerProcess::of(to, &peer.exchange);
        Ok(Box::new(CmaLane::new(peer_process, link)))
    }
}

#[cfg(test)]
mod tests;
