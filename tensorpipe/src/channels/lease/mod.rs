//! Main memory of another process on this machine: lent instead of copied.
//!
//! What lies in lendable memory ([`Pool::tensor`](crate::Pool::tensor)) is not sent: the writer's lane *offers* it, as a place
//! in a segment and an entry in a ledger, and the reader's lane *takes* the offer and yields a buffer over its own read-only
//! mapping of the segment. Dropping the buffer gives it back: one store into the ledger, which both processes have mapped.
//!
//! ```text
//!   lane ── offer, "taken" ── lane          on the pipe, between two lanes            lane.rs, frame.rs
//!   Borrower ── ledger ── Lender            one for each pair of processes            borrower.rs, lender.rs
//!   exchange ── descriptors ── exchange     one for each process; a thread            exchange.rs, clerk.rs, packet.rs
//! ```
//!
//! What was borrowed can be sent back to its lender, for whom it is memory of its own. To others it is copied.
//!
//! Loans belong to a pair of processes, not to a pipe. The descriptors of the ledger and of each segment travel once, over a Unix
//! socket between the two exchanges, each of which sees who the other is by what the kernel says. Memory is used again only
//! when it is given back, its offer is withdrawn, or the borrower's process has ended.
//!
//! Where something is missing (no descriptors left, a ledger that is full, an exchange that does not answer), the tensor is sent as
//! bytes on the pipe's connection, like over `basic`.

mod borrower;
mod call;
pub(super) mod clerk;
pub(super) mod exchange;
mod frame;
mod lane;
mod lender;
pub(super) mod packet;
mod place;

use self::exchange::Exchange;
use self::lane::LeaseLane;
use self::place::Place;
use super::{Channel, ChannelFault as Fault, Lane, LaneHandle, LaneIo, Link, OpId, Want};
use crate::device::Device;
use crate::error::{Error, Misuse};

/// What is worth lending, in bytes: less is copied into the message's frame sooner than it is lent.
const WORTH: u64 = 4 << 10;

/// Channel `lease`.
///
/// # Trust
///
/// A process that is lent memory reads it where it is, while the lender could still write there: it relies on the lender to
/// follow the protocol, and the lender on the borrower not to look at what else lies in the same segment. So memory is lent only
/// between processes of one user, who may read each other's memory anyway. A context that does not have this channel among its
/// [`channels`](crate::ContextBuilder::channels) neither lends nor borrows.
#[derive(Debug, Default)]
pub struct LeaseChannel {
    within_process: bool,
}

impl LeaseChannel {
    /// Between processes of this machine. Where the system lacks something for it, the route says what.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also where both ends are in one process, for which `xth` is better: for tests.
    #[doc(hidden)]
    pub fn also_within_process() -> Self {
        Self {
            within_process: true,
        }
    }
}

impl Channel for LeaseChannel {
    fn name(&self) -> &'static str {
        "lease"
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        let exchange = Exchange::here();
        let place = Place::here(exchange.process(), exchange.name());
        let place = place.as_ref().map_err(String::as_str);
        vec![(Device::CPU, Place::describe(place))]
    }

    fn reaches(&self, ours: (Device, &[u8]), theirs: (Device, &[u8])) -> Result<(), String> {
        let ours = Place::parse(ours.1).map_err(|reason| format!("this end: {reason}"))?;
        let theirs = Place::parse(theirs.1).map_err(|reason| format!("the peer: {reason}"))?;
        ours.reaches(&theirs, self.within_process)
    }

    fn rides_up_to(&self) -> u64 {
        WORTH
    }

    fn sends_at_once(&self) -> bool {
        true
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        let descriptor = link.peer_devices.iter().find(|(device, _)| device.is_cpu());
        let descriptor = descriptor.map_or(&[][..], |(_, descriptor)| descriptor);
        let peer = Place::parse(descriptor)
            .map_err(|reason| Misuse::Other(format!("channel lease: the peer: {reason}")))?;
        Ok(Box::new(LeaseLane::new(&Exchange::here(), &peer, link)))
    }
}

#[cfg(test)]
mod tests;
