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
//! between the two exchanges. The kernel tells each exchange which process the other one is. Memory is reused only when it is given back,
//! its offer is withdrawn, or the borrower's process has ended or executes another program.
//!
//! A resource may be missing: no descriptors are left, a ledger is full, an exchange does not answer. Then the tensor is sent as bytes on
//! the pipe's connection, like over `basic`. If the cause is lasting, both ends' routes report it.
//!
//! - **Ordinary memory.** Up to 256 KiB is copied as the message leaves. Up to 1 MiB is copied in pieces by the thread that drives the
//!   pipe, before the message leaves. More is copied when the reader asks for it. Copies lie in segments of that borrower's own. Unused
//!   ones are freed after 10 to 20 s.
//! - **No go-ahead.** An offer takes none of the reader's memory, so it leaves with its message. The write ends when the reader's
//!   application has read the tensor. The writer's lane keeps no handle on it: if the reader asks for bytes, the lane withdraws the offer
//!   and reads them from the segment.
//! - **Bounded.** If a reader reads a page that its lender never filled, the kernel charges the page to the reader. So all mapped segments
//!   together may not exceed the largest receive budget among the process's contexts. Beyond that, tensors are sent as bytes.
//! - **Forks.** Mappings are not inherited (`MADV_DONTFORK`). A child makes its own exchange. Dropping what it inherited touches no lock,
//!   socket or timer of the parent's.
//! - **Huge pages.** Segments use `MFD_HUGETLB` pages if the system has some set aside. Otherwise `MADV_COLLAPSE` joins a range whose pages
//!   were touched: 64 MiB were there in 5 ms instead of 44 (command not kept). [`LendableStats`](crate::device::LendableStats) says which
//!   one was used.

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
/// Tensors in lendable memory are lent as they are. The writer copies other tensors once, and lends the copy. A process may keep 256 MiB of
/// such copies of one lender (less where the default of [`PoolOptions::lendable`](crate::PoolOptions::lendable) is lower). Beyond that,
/// tensors go over other channels.
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
/// A borrower reads memory in place while the lender could still write there. It relies on the lender to follow the protocol. The lender
/// relies on the borrower not to look at other data in the same segment. So memory is lent only between processes of one user, who may read
/// each other's memory anyway. A context without this channel among its [`channels`](crate::ContextBuilder::channels) neither lends nor
/// borrows.
///
/// The kernel, not the peer, says which process the other end is. Before the first loan on a pipe, the reader connects to a Unix socket of
/// the lender's and sends a number that it got over the pipe. The kernel tells the lender which process connects. If the pipe has a key, by
/// a [token](crate::ContextBuilder::token) or TLS, the reader also sends a MAC of the number, made with that key. Only the range of the
/// tensor is lent.
///
/// # Limits
/// One process has at most 4096 loans of another one at once, over all pipes between them. Beyond that, tensors are copied: a warning says
/// so once, [`LendableStats::ledger_full`](crate::device::LendableStats::ledger_full) counts them, and
/// [`PipeStats::bytes_diverted`](crate::PipeStats::bytes_diverted) counts their bytes. A process maps at most as many bytes of others'
/// segments as the largest [`Limits::receive_budget`](crate::Limits::receive_budget) of its contexts, because reading a page that its
/// lender has not filled allocates it here. Tensors in further segments are copied, and a warning says so. A loan ends when its reader lets
/// go of the tensor, whether or not its owner keeps it, or when the reader's process ends or executes another program. A tensor goes back to its lender without a copy over the pipe that it came over,
/// and over pipes whose transport identifies the peer's process (`shm`). Over other pipes it is copied.
#[derive(Debug, Default)]
pub struct LeaseChannel {
    within_process: bool,
    lends_only: bool,
}

impl LeaseChannel {
    /// Works between processes of this machine. If the system lacks something for it, the route says what.
    pub fn new() -> Self {
        Self::default()
    }

    /// Borrows nothing: tensors from other processes are received into memory of this process, where nobody else can write. Tensors
    /// that this process has lent still come back without a copy. This applies to memory of the context's GPUs as well.
    pub fn lends_only() -> Self {
        Self {
            lends_only: true,
            ..Self::default()
        }
    }

    /// Also works where both ends are in one process, although `xth` is better there: for tests.
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
        Access::Lend.devices(&exchange, !self.lends_only)
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        Access::Lend.reaches(ours.descriptor, theirs.descriptor, self.within_process)
    }

    fn thresholds(&self, peer: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        let borrows = Access::Lend.place(peer).is_ok_and(|place| place.borrows);
        let mut all = costs::LEASE.to_vec();
        // A peer that borrows nothing still gets back what it has lent.
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
