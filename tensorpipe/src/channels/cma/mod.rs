//! Main memory of another process on this machine: the reader copies it, once, out of the writer's memory into its own.
//!
//! ```text
//!   lane ── export, "done" ── lane                 on the pipe, between two lanes         lane.rs, frame.rs
//!   exports <── process_vm_readv ── peer process   what there is to read; who reads it    exports.rs, peer_process.rs, copy.rs
//!   exchange ── "where is your export table?" ──   the kernel says who it is              channels/exchange/
//! ```
//!
//! The writer keeps the memory of an operation and puts an *export* with its address into a table of its own process. It tells the reader
//! the number of the export. The reader reads the export, copies the memory, reads the export again, and reports that it is done. So no
//! address goes over the pipe, where others may listen: a process that cannot read the table learns nothing. The second read validates the
//! copy: the writer removes the export before it lets go of the memory.
//!
//! Whether one process may read another's memory depends on both processes and on security modules and filters; only trying tells. The
//! first read of an export is that trial. If it fails, the reader reports the reason and asks the writer for the bytes on the pipe's
//! connection, like over `basic`; the writer then chooses other channels. The reader takes memory once it has read the export, and gives
//! it back before it asks for the bytes: what a peer only claims to export costs addresses.
//!
//! Whether the channel pays depends on the processors of both ends. The writer knows its own, and the reader's from the reader's
//! descriptor:
//!
//! | the reader | copies | so it is used |
//! |---|---|---|
//! | may use several | by two threads; the writer waits | from 4 MiB on, over `shm` from 8 MiB |
//! | and the writer are bound to one, the same | once instead of twice, without changing sides | from 1 MiB on |
//! | has one, and the writer another | alone, where both ends of a connection copy at the same time | not |
//!
//! The thread that drives the pipe copies, in pieces of 256 KiB. Between two pieces it handles messages, and stops if nobody wants the copy
//! any more. If a piece takes over 1 ms (its pages are not resident), a thread for blocking work copies the rest.

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
/// The reader copies, with two threads if it may use more than one processor. Its device descriptor lists its processors, and the writer
/// chooses accordingly. With several processors, tensors use `cma` from 4 MiB on, over `shm` from 8 MiB on. If both processes are bound to
/// the same processor, they use it from 1 MiB on. If the reader has one processor of its own, none do: both ends of a connection then copy
/// at the same time, which was measured to be faster. [`ContextBuilder::threshold`](crate::ContextBuilder::threshold) overrides this.
///
/// # Trust
///
/// The reader reads only what the system lets it. Processes of one user may read each other's memory anyway, unless Yama, seccomp or
/// another security module forbids it. The reader does not read a process that the kernel identifies as another one than the peer claims.
/// On a pipe with a key, by a [token](crate::ContextBuilder::token) or TLS, it reads only a process that has the key.
#[derive(Debug, Default)]
pub struct CmaChannel {
    within_process: bool,
}

impl CmaChannel {
    /// Works between processes of this machine. If the system does not allow it, the route says why.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`new`](Self::new), and lets *every* process of this user read and debug this process until it ends (`PR_SET_PTRACER_ANY`).
    /// Where a distribution sets the Yama security module to 1, only the process's ancestors may do so otherwise. The permission
    /// belongs to the process, not to the channel, and nothing here revokes it.
    pub fn readable_by_all() -> Self {
        process_memory::allow_any_ptracer();
        Self::new()
    }

    /// Also works where both ends are in one process, although `xth` is better there: for tests.
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
        Access::Read.devices(&Exchange::here(), true)
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
        // On a pipe with a key, the peer's process must have the key; otherwise its claimed id has to do.
        let key = link.key.as_ref();
        let to = key.map_or(peer.process, |key| key.pass(&peer.exchange));
        let peer_process = PeerProcess::of(to, &peer.exchange);
        Ok(Box::new(CmaLane::new(peer_process, link)))
    }
}

#[cfg(test)]
mod tests;
