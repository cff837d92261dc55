//! Main memory of another process on this machine: the reader copies it, once, out of the writer's memory into its own.
//!
//! ```text
//!   lane ── notice, "done" ── lane            on the pipe, between two lanes              lane.rs, frame.rs
//!   board <── process_vm_readv ── neighbour   what there is to read; who reads it         board.rs, neighbour.rs, copy.rs
//!   exchange ── "where is your board?" ──     the kernel says who it is      channels/exchange/
//! ```
//!
//! The writer keeps the memory of an operation, puts a *notice* with its address on a board of its own process, and tells the
//! reader which notice it is. The reader looks at the notice, copies, looks again, and says that it is done. So no address
//! goes over the pipe, where strangers may listen: who cannot read the board learns nothing. And a copy is only good if the
//! notice is still there afterwards: the writer takes it down before it lets go of the memory.
//!
//! Whether one process may read another's memory depends on both, on security modules and filters, and cannot be known but by
//! trying. The first look at a notice is that trial. Where it fails, the reader says why, and has the writer send the bytes on the
//! pipe's connection, like over `basic`; the writer then chooses other channels.

mod board;
mod copy;
mod frame;
mod lane;
mod neighbour;

use self::lane::CmaLane;
use self::neighbour::Neighbour;
use super::exchange::{Access, Exchange};
use super::{Channel, ChannelFault as Fault, Lane, LaneHandle, LaneIo, Link, OpId, Setback, Want};
use crate::device::Device;
use crate::error::Error;
use crate::sys::process_memory;

/// What rides in the message's frame at most, as far as the peer's limits allow.
const RIDES: u64 = 1 << 20;

/// What is worth reading this way where the pipe is a socket, in bytes. Measured there and back, p50, two processes of one
/// machine over tcp: 1 MiB 318 µs by `basic`, 368 by `cma`; 16 MiB 5.6 ms and 3.5; 64 MiB 18.8 and 13.1.
const WORTH: u64 = 4 << 20;

/// From which size on it is used beside other channels. Over rings of shared memory never: there `basic` took 53 µs for
/// 1 MiB where `cma` took 347, 1.9 ms for 16 MiB against 3.0, 7.8 ms for 64 MiB against 14.1.
fn worth(transport: &str) -> u64 {
    if transport == "shm" { u64::MAX } else { WORTH }
}

/// Channel `cma` (cross-memory attach): the reader copies tensors out of the writer's memory with `process_vm_readv`.
///
/// # Trust
///
/// It reads only where the system lets it: processes of one user, which may read each other's memory anyway, as far as Yama,
/// seccomp and other security modules do not forbid it. A process whose kernel says that it is another one than the
/// peer claims is not read.
#[derive(Debug, Default)]
pub struct CmaChannel {
    /// As it was asked for.
    worth: Option<u64>,
    within_process: bool,
}

impl CmaChannel {
    /// Between processes of this machine. Where the system does not allow it, the route says why.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, after letting *every* process of this user read this one's memory, and debug it, until it ends
    /// (`PR_SET_PTRACER_ANY`): where the Yama security module is set to 1, as some distributions do, only its ancestors can
    /// otherwise. The permission belongs to the process, not to the channel, and nothing here takes it back.
    pub fn readable_by_all() -> Self {
        process_memory::let_all_read();
        Self::new()
    }

    /// Where there are other channels, it carries tensors and payloads from this size on, in bytes. By default from 4 MiB on,
    /// and none where the pipe itself goes through shared memory, which was measured to be faster at every size.
    #[must_use]
    pub fn pays_from(mut self, bytes: u64) -> Self {
        self.worth = Some(bytes);
        self
    }

    /// Also where both ends are in one process, for which `xth` is better: for tests.
    #[doc(hidden)]
    pub fn also_within_process() -> Self {
        Self {
            within_process: true,
            ..Self::default()
        }
    }
}

impl Channel for CmaChannel {
    fn name(&self) -> &'static str {
        "cma"
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        let exchange = Exchange::here();
        Access::Read.devices((exchange.process(), exchange.name()))
    }

    fn reaches(&self, ours: (Device, &[u8]), theirs: (Device, &[u8])) -> Result<(), String> {
        Access::Read.reaches(ours.1, theirs.1, self.within_process)
    }

    fn rides_up_to(&self) -> u64 {
        self.worth.unwrap_or(RIDES)
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        let peer = Access::Read.peer(self.name(), &link)?;
        let neighbour = Neighbour::of(peer.process, &peer.exchange);
        let worth = self.worth.unwrap_or_else(|| worth(&link.transport));
        Ok(Box::new(CmaLane::new(neighbour, worth, link)))
    }
}

#[cfg(test)]
mod tests;
