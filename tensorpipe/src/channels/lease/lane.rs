//! One end of channel `lease` on one pipe.
//!
//! An operation is in one table at a time.
//!
//! - At the writer, it is `copying` while ordinary memory is copied. Then it is `offered` until the reader has taken the offer or asks for
//!   the bytes. That answer is not urgent: the ledger records who has the memory, and the lane keeps no handle on what it has offered.
//! - At the reader, it is `wanted` until the offer comes, or in `offers` until the application reads. It is `fetching` while the exchange
//!   is asked.
//!
//! Dropping the lane withdraws the offers that are left. One that the reader has taken meanwhile stays taken.
//!
//! The writer offers nothing before the peer has come to the exchange. It sends its invitation instead, and the reader brings that to the
//! exchange and says so. This happens once for each pipe and direction.
//!
//! Invariant: what a peer claims to send back counts only if it was lent to the process that came with this lane's invitation or, before
//! one came, to the process that the kernel names for the connection.

use rustc_hash::FxHashMap;

use super::copying::Job;
use super::frame::{FromReader, FromWriter};
use super::writing::PendingOffer;
use super::{Adopted, Degraded, Fault, Lane, LaneHandle, LaneIo, Link, OpId, PartKind, Want};
use super::{Exchange, Invitation, Lender, Offer, ProcessDescriptor, TakeResult, Wanted};
use crate::address::SettledPeer;
use crate::device::{Buffer, Memory, MemoryKind, Pool};
use crate::keys::PipeKey;
use crate::process::Token;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use crate::sys::segment::SegmentId;

pub(super) struct LeaseLane {
    /// No other lane of this process has it.
    pub(super) id: u64,
    /// The peer's address, if the kernel reports it for the pipe's connection.
    pub(super) peer: SettledPeer,
    pub(super) exchange: Arc<Exchange>,
    /// The pipe's key.
    pub(super) key: Option<PipeKey>,
    /// Made for the first loan.
    pub(super) invitation: Option<Arc<Invitation>>,
    /// The process that owns the exchange which the peer names.
    lender: Arc<Lender>,
    /// Whether this end takes what the peer offers.
    borrows: bool,
    /// The peer's invitation.
    invited: Option<Token>,
    /// The peer's exchange has accepted the invitation.
    is_welcome: Arc<AtomicBool>,
    pub(super) handle: LaneHandle,
    pub(super) degraded: Degraded,
    /// For copies of borrowed memory that the application writes to.
    pool: Pool,
    pub(super) copying: FxHashMap<OpId, Job>,
    /// What the peer was told and has not answered.
    pub(super) offered: FxHashMap<OpId, PendingOffer>,
    wanted: FxHashMap<OpId, Want>,
    offers: FxHashMap<OpId, FromWriter>,
    fetching: FxHashMap<OpId, (FromWriter, Want)>,
}

impl LeaseLane {
    pub(super) fn new(
        exchange: &Arc<Exchange>,
        peer: &ProcessDescriptor,
        borrows: bool,
        link: Link,
    ) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        if borrows {
            exchange.raise_map_limit(link.receive_budget);
        }
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            peer: link.peer,
            exchange: exchange.clone(),
            key: link.key,
            invitation: None,
            lender: exchange.lender(&peer.exchange),
            borrows,
            invited: None,
            is_welcome: Arc::default(),
            handle: link.handle,
            degraded: link.degraded,
            pool: link.pool,
            copying: FxHashMap::default(),
            offered: FxHashMap::default(),
            wanted: FxHashMap::default(),
            offers: FxHashMap::default(),
            fetching: FxHashMap::default(),
        }
    }

    /// Both the writer's frame and a place for the tensor are there.
    fn settle(
        &mut self,
        op: OpId,
        told: FromWriter,
        want: Want,
        io: &mut LaneIo<'_>,
    ) -> Result<(), Fault> {
        match told {
            FromWriter::Unavailable => self.ask_for_bytes(op, want, io),
            FromWriter::Offer(_) | FromWriter::Copy(_) => {
                return self.take(op, told, want, false, io);
            }
            FromWriter::SentBack(offer) => {
                check(&offer, &want)?;
                match self.returned(&offer) {
                    Some(returned) => self.taken(op, returned, want, io),
                    None => self.ask_for_bytes(op, want, io),
                }
            }
            FromWriter::Invite(_) => self.come(op, told, want, false, io),
        }
        Ok(())
    }

    /// Both an invitation and a place for the tensor are there. `fetched`: the invitation was brought to the exchange.
    fn come(&mut self, op: OpId, told: FromWriter, want: Want, fetched: bool, io: &mut LaneIo<'_>) {
        if self.is_welcome.load(Ordering::Acquire) {
            io.control(op, FromReader::Connected.encode());
            self.wanted.insert(op, want);
        } else if fetched || self.cannot_fetch() {
            self.ask_for_bytes(op, want, io);
        } else {
            self.fetch(op, told, want, None, io);
        }
    }

    fn cannot_fetch(&self) -> bool {
        !self.borrows || self.lender.is_unreliable() || self.degraded.receiving().is_some()
    }

    /// Takes an offer, without a system call.
    fn borrow(&self, offer: &Offer) -> TakeResult {
        match self.borrows {
            true => self.lender.take(offer, self.id, &self.pool),
            false => TakeResult::Unknown,
        }
    }

    /// Asks this process's exchange to bring the invitation to the lender's, and to get a segment if one is named.
    fn fetch(
        &mut self,
        op: OpId,
        told: FromWriter,
        want: Want,
        segment: Option<SegmentId>,
        io: &mut LaneIo<'_>,
    ) {
        let Some(number) = self.invited else {
            return self.ask_for_bytes(op, want, io);
        };
        let invitation = self.lender.brings(&number, self.key.as_ref());
        self.fetching.insert(op, (told, want));
        let segment = segment.map(Wanted::Main);
        let (lender, handle) = (self.lender.clone(), self.handle.clone());
        let (degraded, is_welcome) = (self.degraded.clone(), self.is_welcome.clone());
        io.spawn(async move {
            match lender.fetch(invitation, segment).await {
                // Another pipe may have brought the segment here, so only a fetch without one proves that the
                // invitation was accepted.
                Ok(()) => drop(is_welcome.fetch_or(segment.is_none(), Ordering::Release)),
                Err(unlent) => {
                    tracing::debug!(unlent.reason, "a tensor is copied instead of borrowed");
                    if unlent.lasting {
                        degraded.cannot_receive(unlent.reason);
                    }
                }
            }
            handle.resume(op);
        });
    }

    /// Both an offer and a place for the tensor are there. `fetched`: what can be fetched was fetched.
    fn take(
        &mut self,
        op: OpId,
        told: FromWriter,
        want: Want,
        fetched: bool,
        io: &mut LaneIo<'_>,
    ) -> Result<(), Fault> {
        let Some((offer, is_copy)) = told.offer() else {
            return Ok(());
        };
        check(&offer, &want)?;
        match self.borrow(&offer) {
            TakeResult::Taken(borrowed) => {
                if is_copy {
                    io.copied_by_writer(offer.len);
                }
                self.taken(op, borrowed, want, io);
            }
            TakeResult::Unknown if fetched || self.cannot_fetch() => {
                self.ask_for_bytes(op, want, io)
            }
            TakeResult::Unknown => {
                self.fetch(op, told, want, Some(offer.segment), io);
            }
            // If the writer has withdrawn it, the answer means nothing there, and a RESET or the end of the pipe follows.
            TakeResult::NotOffered => self.ask_for_bytes(op, want, io),
            TakeResult::Outside => {
                return Err(Fault("an offer that lies outside its segment".to_owned()));
            }
        }
        Ok(())
    }

    fn taken(&self, op: OpId, borrowed: impl Memory, want: Want, io: &mut LaneIo<'_>) {
        let taken = FromReader::TAKEN;
        let borrowed = Buffer::new(Arc::new(borrowed));
        match want {
            Want::Adopt { .. } => {
                io.borrowed(borrowed.len() as u64);
                io.control(op, taken);
                io.received(op, borrowed);
            }
            Want::Into(dest) => self.handle.copy(op, borrowed, dest, taken, io),
        }
    }

    /// Asks the writer to send the bytes themselves.
    fn ask_for_bytes(&self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        let reason = self.degraded.receiving();
        let answer = reason.map_or(FromReader::Stream, |reason| {
            FromReader::StreamAlways(reason.to_owned())
        });
        if io.receive(op, want) {
            io.control(op, answer.encode());
        }
    }
}

impl Lane for LeaseLane {
    fn carries(&self, source: &Buffer, kind: PartKind) -> bool {
        match source.memory().kind() {
            MemoryKind::Borrowed => self.borrowed(source).is_some(),
            // A reader that parses bytes wants them where no other process can change them: it would copy borrowed
            // ones once more.
            MemoryKind::Heap => kind == PartKind::Tensor && self.has_room(source.len()),
            _ => true,
        }
    }

    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        self.offer(op, source, false, io);
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        match self.offers.remove(&op) {
            None => drop(self.wanted.insert(op, want)),
            Some(told) => {
                if let Err(fault) = self.settle(op, told, want, io) {
                    io.fault(op, fault);
                }
            }
        }
    }

    fn adopt(&mut self, _: OpId, body: &[u8], len: u64, _: &mut LaneIo<'_>) -> Option<Adopted> {
        // A malformed frame is not reported here: it comes to `control` next, which does that.
        let (told, awaited) = FromWriter::decode(body).ok()?;
        let (memory, urgent) = match told {
            FromWriter::Offer(offer) | FromWriter::Copy(offer) if offer.len == len => {
                match self.borrow(&offer) {
                    TakeResult::Taken(borrowed) => (Buffer::new(Arc::new(borrowed)), false),
                    TakeResult::Unknown | TakeResult::NotOffered | TakeResult::Outside => {
                        return None;
                    }
                }
            }
            FromWriter::SentBack(offer) if offer.len == len => {
                let returned = self.returned(&offer)?;
                // While the loan is not over, the peer keeps it until it hears of this.
                let urgent = !returned.is_over();
                (Buffer::new(Arc::new(returned)), urgent)
            }
            _ => return None,
        };
        Some(Adopted {
            memory,
            answer: FromReader::TAKEN,
            urgent: urgent || awaited,
            is_copy: matches!(told, FromWriter::Copy(_)),
        })
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), Fault> {
        if op.outgoing {
            return self.answered(op, FromReader::decode(body)?, io);
        }
        let (told, _) = FromWriter::decode(body)?;
        if let FromWriter::Invite(number) = told
            && *self.invited.get_or_insert(number) != number
        {
            return Err(Fault("another invitation on the same pipe".to_owned()));
        }
        match self.wanted.remove(&op) {
            // For a piece, the reader calls `recv` before the writer may send.
            None if op.number().is_some() => Err(Fault(format!("too much about {op:?}"))),
            // The protocol allows one frame for each operation, so this is bounded.
            None => {
                self.offers.insert(op, told);
                Ok(())
            }
            Some(want) => self.settle(op, told, want, io),
        }
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), Fault> {
        if let Some(job) = self.copying.remove(&op) {
            self.copied(op, &job, io);
            return Ok(());
        }
        match self.fetching.remove(&op) {
            Some((told @ (FromWriter::Offer(_) | FromWriter::Copy(_)), want)) => {
                self.take(op, told, want, true, io)
            }
            Some((told, want)) => {
                self.come(op, told, want, true, io);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn cancel(&mut self, op: OpId, _: &mut LaneIo<'_>) {
        self.copying.remove(&op);
        if let Some(told) = self.offered.remove(&op) {
            self.withdraw(&told);
        }
        self.wanted.remove(&op);
        self.offers.remove(&op);
        self.fetching.remove(&op);
    }
}

impl Drop for LeaseLane {
    fn drop(&mut self) {
        self.offered.values().for_each(|told| self.withdraw(told));
    }
}

fn check(offer: &Offer, want: &Want) -> Result<(), Fault> {
    let len = match want {
        Want::Into(dest) => dest.len() as u64,
        Want::Adopt { len, .. } => *len,
    };
    if offer.len == len {
        return Ok(());
    }
    let found = offer.len;
    Err(Fault(format!("a tensor of {found} bytes instead of {len}")))
}
