//! One end of channel `lease` on one pipe.
//!
//! An operation is in one table at a time. At the writer it is `copying` while ordinary memory is copied, then `offered` until it hears
//! that the reader has taken the offer or wants the bytes. That is no hurry: who has the memory stands in the ledger, and the lane keeps no
//! handle on what it has offered. At the reader `wanted` until the offer comes, or `offers` until the application reads, then `fetching`
//! while the exchange is asked. Whatever is left when the lane goes was taken by nobody, and is withdrawn.
//!
//! Nothing is offered to a peer that has not come to the exchange. Until then the writer sends its invitation instead of the offer, and the
//! reader brings it there and says so. That is once for each pipe and direction.
//!
//! Invariant: what a peer says that it sends back counts only if the process that has come for this lane was lent that.

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
    /// Where the kernel says it of the pipe's connection.
    pub(super) peer: SettledPeer,
    pub(super) exchange: Arc<Exchange>,
    /// The pipe's.
    pub(super) key: Option<PipeKey>,
    /// Made for the first loan.
    pub(super) invitation: Option<Arc<Invitation>>,
    /// Where the peer says that its exchange is.
    lender: Arc<Lender>,
    /// Whether anything is taken of what it offers.
    borrows: bool,
    /// The peer's invitation.
    invited: Option<Token>,
    /// It was accepted there.
    is_welcome: Arc<AtomicBool>,
    pub(super) handle: LaneHandle,
    pub(super) degraded: Degraded,
    /// For who writes to what was borrowed.
    pool: Pool,
    pub(super) copying: FxHashMap<OpId, Job>,
    /// What the peer was told of.
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
            exchange.may_map(link.receive_budget);
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

    /// The reader has both what it was told and a place for it.
    fn settle(
        &mut self,
        op: OpId,
        told: FromWriter,
        want: Want,
        io: &mut LaneIo<'_>,
    ) -> Result<(), Fault> {
        match told {
            FromWriter::Cannot => self.ask_for_bytes(op, want, io),
            FromWriter::Offer(_) | FromWriter::Copy(_) => {
                return self.take(op, told, want, false, io);
            }
            FromWriter::Yours(offer) => {
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

    /// The reader has an invitation, and a place for what will be offered. `fetched`: it was brought to the exchange.
    fn come(&mut self, op: OpId, told: FromWriter, want: Want, fetched: bool, io: &mut LaneIo<'_>) {
        if self.is_welcome.load(Ordering::Acquire) {
            io.control(op, FromReader::Came.encode());
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

    /// Has the exchange bring the invitation to the lender's, and get a segment if one is named.
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
                // A segment may be here because of another pipe.
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

    /// The reader has both the offer and a place for it. `fetched`: what can be fetched is there.
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
            // The writer's RESET, or the end of the pipe, is behind this.
            TakeResult::Withdrawn => {}
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

    /// Has the writer send the bytes themselves.
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
            // Whoever parses bytes wants them where no other process can change them: they would be copied once more.
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
        // What is wrong with it is found again, and said, where it comes as any other does.
        let (told, awaited) = FromWriter::decode(body).ok()?;
        let (memory, urgent) = match told {
            FromWriter::Offer(offer) | FromWriter::Copy(offer) if offer.len == len => {
                match self.borrow(&offer) {
                    TakeResult::Taken(borrowed) => (Buffer::new(Arc::new(borrowed)), false),
                    TakeResult::Unknown | TakeResult::Withdrawn | TakeResult::Outside => {
                        return None;
                    }
                }
            }
            FromWriter::Yours(offer) if offer.len == len => {
                let returned = self.returned(&offer)?;
                // The peer keeps what is not over until it hears of this.
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
            // Of a piece the reader has asked for it first.
            None if op.number().is_some() => Err(Fault(format!("too much about {op:?}"))),
            // The protocol sees to it that there is one for each operation.
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
