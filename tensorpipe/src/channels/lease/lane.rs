//! One end of channel `lease` on one pipe.
//!
//! An operation is in one table at a time: at the writer `offered` until the reader has taken the offer or wants the bytes; at the
//! reader `wanted` until the offer comes, or `offers` until the application reads, then `fetching` while its segment is being
//! mapped. Whatever is left when the lane goes was taken by nobody, and is withdrawn.

use std::collections::BTreeMap;

use super::frame::{FromReader, FromWriter};
use super::{Borrowed, Borrower, Exchange, Lender, Offer, Place, Taking};
use super::{Fault, Lane, LaneHandle, LaneIo, Link, OpId, Want};
use crate::device::{Buffer, BufferMut, Memory, MemoryKind};
use crate::sync::Arc;

/// Up to this size a copy is made on the spot.
const COPY_AT_ONCE: u64 = 256 << 10;

pub(super) struct LeaseLane {
    borrower: Arc<Borrower>,
    lender: Arc<Lender>,
    handle: LaneHandle,
    /// What was sent, and what the peer was told of it.
    offered: BTreeMap<OpId, (Buffer, FromWriter)>,
    wanted: BTreeMap<OpId, Want>,
    offers: BTreeMap<OpId, FromWriter>,
    fetching: BTreeMap<OpId, (Offer, Want)>,
}

impl LeaseLane {
    pub(super) fn new(exchange: &Arc<Exchange>, peer: &Place, link: Link) -> Self {
        Self {
            borrower: exchange.borrower(peer.process),
            lender: exchange.lender(peer.process, &peer.exchange),
            handle: link.handle,
            offered: BTreeMap::new(),
            wanted: BTreeMap::new(),
            offers: BTreeMap::new(),
            fetching: BTreeMap::new(),
        }
    }

    /// The writer's part of an operation is taken, or wanted as bytes.
    fn answered(&mut self, op: OpId, answer: FromReader, io: &mut LaneIo<'_>) -> Result<(), Fault> {
        let Some((source, told)) = self.offered.remove(&op) else {
            return Ok(());
        };
        match (answer, told) {
            (FromReader::Taken, FromWriter::Offer(offer)) => {
                let ledger = self.borrower.ledger();
                if ledger.is_none_or(|ledger| ledger.is_open(offer.entry)) {
                    self.offered.insert(op, (source, told));
                    return Err(Fault("an offer that is not taken in the ledger".to_owned()));
                }
                io.lent(offer.len);
                io.sent(op);
            }
            // From here on the lender sees to it itself.
            (FromReader::Taken, FromWriter::Yours(offer)) => {
                io.lent(offer.len);
                io.sent(op);
            }
            (FromReader::Taken, FromWriter::Cannot) => {
                return Err(Fault("an offer is taken that was not made".to_owned()));
            }
            (FromReader::Stream, told) => {
                self.withdraw(told);
                io.stream(op, source);
            }
        }
        Ok(())
    }

    fn withdraw(&self, told: FromWriter) {
        if let (FromWriter::Offer(offer), Some(ledger)) = (told, self.borrower.ledger()) {
            ledger.withdraw(offer.entry);
        }
    }

    /// What the peer is told of a tensor.
    fn tell(&self, source: &Buffer) -> FromWriter {
        if let Some(borrowed) = self.borrowed(source) {
            return FromWriter::Yours(borrowed.as_offer(source.offset(), source.len()));
        }
        match self.borrower.lend(source) {
            Ok(offer) => FromWriter::Offer(offer),
            Err(reason) => {
                tracing::debug!(reason, "a tensor is copied instead of lent");
                FromWriter::Cannot
            }
        }
    }

    /// What lies in memory of the peer's.
    fn borrowed<'a>(&self, source: &'a Buffer) -> Option<&'a Borrowed> {
        let borrowed = source.memory().as_any().downcast_ref::<Borrowed>();
        borrowed.filter(|borrowed| borrowed.is_of(&self.lender))
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
            FromWriter::Cannot => ask_for_bytes(op, want, io),
            FromWriter::Offer(offer) => return self.take(op, offer, want, false, io),
            FromWriter::Yours(offer) => {
                check(&offer, &want)?;
                match self.borrower.sends_back(&offer) {
                    Some(returned) => self.taken(op, returned, want, io),
                    None => ask_for_bytes(op, want, io),
                }
            }
        }
        Ok(())
    }

    /// The reader has both the offer and a place for it. `fetched`: what can be fetched is there.
    fn take(
        &mut self,
        op: OpId,
        offer: Offer,
        want: Want,
        fetched: bool,
        io: &mut LaneIo<'_>,
    ) -> Result<(), Fault> {
        check(&offer, &want)?;
        match self.lender.take(&offer) {
            Taking::Taken(borrowed) => self.taken(op, borrowed, want, io),
            Taking::Unknown if fetched || self.lender.is_unreliable() => {
                ask_for_bytes(op, want, io);
            }
            Taking::Unknown => {
                self.fetching.insert(op, (offer, want));
                let (lender, handle) = (self.lender.clone(), self.handle.clone());
                io.spawn(async move {
                    if let Err(reason) = lender.fetch(offer.segment).await {
                        tracing::debug!(reason, "a tensor is copied instead of borrowed");
                    }
                    handle.resume(op);
                });
            }
            // The writer's RESET, or the end of the pipe, is behind this.
            Taking::Withdrawn => {}
            Taking::Outside => {
                return Err(Fault("an offer that lies outside its segment".to_owned()));
            }
        }
        Ok(())
    }

    fn taken(&self, op: OpId, borrowed: impl Memory, want: Want, io: &mut LaneIo<'_>) {
        let taken = FromReader::Taken.encode();
        let len = borrowed.len() as u64;
        match want {
            Want::Adopt { .. } => {
                io.borrowed(len);
                io.control(op, taken);
                io.received(op, Buffer::new(Arc::new(borrowed)));
            }
            Want::Into(dest) if len <= COPY_AT_ONCE => {
                io.copied(len);
                let dest = copy(borrowed, dest);
                io.control(op, taken);
                io.received(op, dest);
            }
            Want::Into(dest) => {
                io.copied(len);
                let handle = self.handle.clone();
                io.spawn_blocking(move || {
                    let dest = copy(borrowed, dest);
                    handle.received_and_tell(op, dest, taken);
                });
            }
        }
    }
}

impl Lane for LeaseLane {
    fn carries(&self, source: &Buffer) -> bool {
        source.memory().kind() != MemoryKind::Borrowed || self.borrowed(source).is_some()
    }

    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        let told = self.tell(&source);
        self.offered.insert(op, (source, told));
        io.control(op, told.encode());
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

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), Fault> {
        if op.outgoing {
            return self.answered(op, FromReader::decode(body)?, io);
        }
        let told = FromWriter::decode(body)?;
        match self.wanted.remove(&op) {
            // The protocol sees to it that there is one for each operation.
            None => {
                self.offers.insert(op, told);
                Ok(())
            }
            Some(want) => self.settle(op, told, want, io),
        }
    }

    fn streamed(&mut self, op: OpId, dest: Option<BufferMut>, io: &mut LaneIo<'_>) {
        match dest {
            None => io.sent(op),
            Some(dest) => io.received(op, dest.freeze()),
        }
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), Fault> {
        match self.fetching.remove(&op) {
            Some((offer, want)) => self.take(op, offer, want, true, io),
            None => Ok(()),
        }
    }

    fn cancel(&mut self, op: OpId, _: &mut LaneIo<'_>) {
        if let Some((_, told)) = self.offered.remove(&op) {
            self.withdraw(told);
        }
        self.wanted.remove(&op);
        self.offers.remove(&op);
        self.fetching.remove(&op);
    }
}

impl Drop for LeaseLane {
    fn drop(&mut self) {
        for (_, told) in self.offered.values() {
            self.withdraw(*told);
        }
    }
}

/// Has the writer send the bytes themselves.
fn ask_for_bytes(op: OpId, want: Want, io: &mut LaneIo<'_>) {
    let dest = match want {
        Want::Into(dest) => Ok(dest),
        Want::Adopt { len, .. } => io.allocate(len),
    };
    match dest {
        Ok(dest) => {
            io.expect(op, dest);
            io.control(op, FromReader::Stream.encode());
        }
        Err(error) => io.failed(op, error),
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

fn copy(source: impl Memory, mut dest: BufferMut) -> Buffer {
    // Both are main memory of the same length: checked when the offer was taken.
    if let (Some(source), Some(dest)) = (source.as_bytes(), dest.as_bytes_mut()) {
        dest.copy_from_slice(source);
    }
    dest.freeze()
}
