//! Main memory of another process on this machine: lent instead of sent.
//!
//! Lendable memory ([`Pool::tensor`](crate::Pool::tensor)) lies in segments that both processes map. The writer's lane *offers* a place in
//! a segment and an entry in a ledger. The reader's lane *takes* the offer and gives its reader a buffer over its own read-only
//! mapping. Dropping the buffer gives the memory back: one store into the ledger. Ordinary memory is first copied into a segment,
//! once ([`copying`]).
//!
//! ```text
//!   lane ── offer, "taken" ── lane          on the pipe, between two lanes            lane.rs, frame.rs
//!   Invitation                              who the peer is, by the kernel's word     channels/exchange/
//!   Borrower ── ledger ── Lender            one for each pair of processes
//!   exchange ── descriptors ── exchange     one for each process; a thread
//! ```
//!
//! A borrower can send a tensor back: the lender gets its own memory, without a copy. Sent to a third process, the tensor is copied.
//!
//! Loans belong to a pair of processes, not to a pipe. The descriptors of the ledger and of each segment travel once, over a Unix socket
//! between the two exchanges. Each of them sees who the other is by what the kernel says. Memory is used again only when it is given back,
//! its offer is withdrawn, or the borrower's process has ended.
//!
//! Something may be missing: no descriptors are left, a ledger is full, an exchange does not answer. Then the tensor is sent as bytes on
//! the pipe's connection, like over `basic`. If it will not get better, both ends' routes say why.
//!
//! - **Ordinary memory.** Up to 256 KiB is copied as the message leaves. Up to 1 MiB is copied by whoever drives, in pieces, before the
//!   message leaves. More is copied when the reader asks for it. Copies lie in segments of that borrower's own. Unused ones are freed after
//!   10 to 20 s.
//! - **No go-ahead.** An offer takes none of the reader's memory, so it leaves with its message. The write ends when the reader's
//!   application has read the tensor. The writer's lane keeps no handle: if bytes are asked for, it withdraws the offer and reads
//!   them in the segment.
//! - **Bounded.** Reading a page that its lender never filled allocates it on the reader's account. So all mapped segments
//!   together may not exceed the largest receive budget among the process's contexts. Beyond that, tensors are sent as bytes.
//! - **Forks.** Mappings are not inherited (`MADV_DONTFORK`). A child makes its own exchange, and what it drops of its inheritance touches
//!   no lock, socket or timer of its parent's.
//! - **Huge pages.** Segments are on pages of `MFD_HUGETLB` if some are set aside. Else `MADV_COLLAPSE` joins a range whose pages were touched:
//!   64 MiB were there in 5 ms instead of 44 (command not kept). [`LendableStats`](crate::device::LendableStats) says which it got.

mod copying;
mod frame;
mod lane;
mod writing;

use self::lane::LeaseLane;
use super::exchange::{
    Access, Borrowed, Borrower, Copies, Exchange, Invitation, LendError, Lender, OFFER_LEN, Offer,
    ProcessDescriptor, Returned, TakeResult, Wanted,
};
use super::{
    Adopted, Channel, ChannelFault as Fault, Degraded, Lane, LaneHandle, LaneIo, Link, OpId,
    PartKind, Threshold, Want, costs,
};
use crate::device::{Device, DeviceOffer, MemoryKind};
use crate::error::Error;

/// Channel `lease`.
///
/// Tensors in lendable memory are lent as they are. Other tensors are copied once by their writer, and the copy is lent. One process may
/// keep 256 MiB of such copies of another one's (less where [`PoolOptions::lendable`](crate::PoolOptions::lendable) is less by default).
/// Beyond that, tensors go over other channels.
///
/// | a context that wants | says |
/// |---|---|
/// | all received tensors in memory of its own | `prefer_channel(LeaseChannel::lends_only())` |
/// | a single tensor in memory of its own | [`Place::Into`](crate::Place::Into) |
/// | not to copy ordinary memory for lending | `threshold("lease", Threshold::new(Pays::LastResort).of(MemoryKind::Heap))` |
///
/// Writing to a received tensor copies it into the reader's pool. Writing to a tensor while any of it is lent copies all of it
/// ([`Tensor::make_mut`](crate::Tensor::make_mut)).
///
/// # Trust
///
/// A process that is lent memory reads it where it is, while the lender could still write there. It relies on the lender to follow
/// the protocol. The lender relies on the borrower not to look at what else lies in the same segment. So memory is lent only
/// between processes of one user, who may read each other's memory anyway. A context that does not have this channel among its
/// [`channels`](crate::ContextBuilder::channels) neither lends nor borrows.
///
/// Which process the other end is, the kernel says, and not the peer. Before the first loan on a pipe its reader connects to a
/// Unix socket of the lender's, with a number that it was told over the pipe. The kernel tells which process connects. If the pipe has a
/// key, by a [token](crate::ContextBuilder::token) or TLS, the reader also sends a MAC of the number, made with that key. Only the range of the
/// tensor is lent.
///
/// # Limits
/// One process has at most 4096 loans of another one at once, over all pipes between them. Beyond, tensors are copied: a warning
/// says so once, [`LendableStats::ledger_full`](crate::device::LendableStats::ledger_full) counts them, and
/// [`PipeStats::bytes_diverted`](crate::PipeStats::bytes_diverted) their bytes. The mapped segments of others have at most as many
/// bytes as the largest [`Limits::receive_budget`](crate::Limits::receive_budget) of the process's contexts. To read a page that
/// its lender has not filled allocates it here. Tensors in further segments are copied, and a warning says so. A loan ends when its
/// reader lets go of the tensor, whether or not its owner keeps it. Sending a tensor back to its lender makes no copy over the pipe
/// that it came over, and over pipes whose transport identifies the peer's process (`shm`). Over other pipes it is copied.
#[derive(Debug, Default)]
pub struct LeaseChannel {
    within_process: bool,
    lends_only: bool,
}

impl LeaseChannel {
    /// Between processes of this machine. Where the system lacks something for it, the route says what.
    pub fn new() -> Self {
        Self::default()
    }

    /// Borrows nothing: what is received from other processes lies in memory of this one's, where nobody else can write. What this
    /// process has lent itself still comes back without a copy. It holds for memory of GPUs, too, where the context has some.
    pub fn lends_only() -> Self {
        Self {
            lends_only: true,
            ..Self::default()
        }
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

impl Channel for LeaseChannel {
    fn name(&self) -> &'static str {
        "lease"
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        let exchange = Exchange::here();
        Access::Lend.devices(exchange.process(), exchange.name(), !self.lends_only)
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        Access::Lend.reaches(ours.descriptor, theirs.descriptor, self.within_process)
    }

    fn thresholds(&self, peer: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        let borrows = Access::Lend.place(peer).is_ok_and(|place| place.borrows);
        let mut all = costs::LEASE.to_vec();
        // What the peer has lent goes back all the same.
        all.retain(|entry| borrows || entry.memory == Some(MemoryKind::Borrowed));
        all
    }

    fn moves_bytes(&self, memory: MemoryKind) -> bool {
        memory == MemoryKind::Heap
    }

    fn borrows(&self) -> bool {
        !self.lends_only
    }

    fn sends_at_once(&self) -> bool {
        true
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        let peer = Access::Lend.peer(self.name(), &link)?;
        let lane = LeaseLane::new(&Exchange::here(), &peer, !self.lends_only, link);
        Ok(Box::new(lane))
    }
}

#[cfg(test)]
mod tests;
