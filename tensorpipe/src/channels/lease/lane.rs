//! One end of channel `lease` on one pipe.
//!
//! An operation is in one table at a time: at the writer `offered` until it hears that the reader has taken the offer or wants the
//! bytes, which is no hurry: who has the memory stands in the ledger, and the lane keeps no handle on what it has offered. At the
//! reader `wanted` until the offer comes, or `offers` until the application reads, then `fetching` while the exchange is asked.
//! Whatever is left when the lane goes was taken by nobody, and is withdrawn.
//!
//! Nothing is offered to a peer that has not come to the exchange: until then the writer sends its invitation instead of the
//! offer, and the reader brings it there and says so. That is once for each pipe and direction.
//!
//! Invariant: what a peer says that it sends back counts only if the process that has come for this lane was lent that.

use std::collections::BTreeMap;

use super::frame::{FromReader, FromWriter};
use super::{Adopted, Fault, Lane, LaneHandle, LaneIo, Link, OpId, Setback, Want};
use super::{
    Borrowed, Borrower, Exchange, Invitation, Lender, Offer, Place, Returned, Taking, Unlent,
};
use crate::device::{Buffer, BufferMut, Memory, MemoryKind};
use crate::process::Token;
use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use crate::sys::ledger::Open;
use crate::sys::segment::SegmentId;

pub(super) struct LeaseLane {
    /// No other lane of this process has it.
    id: u64,
    exchange: Arc<Exchange>,
    /// Made for the first loan.
    invitation: Option<Arc<Invitation>>,
    /// Where the peer says that its exchange is.
    lender: Arc<Lender>,
    /// The peer's invitation.
    invited: Option<Token>,
    /// It was accepted there.
    is_welcome: Arc<AtomicBool>,
    handle: LaneHandle,
    setback: Setback,
    /// What the peer was told of.
    offered: BTreeMap<OpId, Told>,
    wanted: BTreeMap<OpId, Want>,
    offers: BTreeMap<OpId, FromWriter>,
    fetching: BTreeMap<OpId, (FromWriter, Want)>,
}

/// What the peer was told of a tensor, and what it takes to send its bytes instead.
enum Told {
    Offer(Offer, Open),
    Cannot(Buffer),
    Yours(Offer, Buffer),
    Invite(Token, Buffer),
}

impl Told {
    fn words(&self) -> FromWriter {
        match self {
            Self::Offer(offer, _) => FromWriter::Offer(*offer),
            Self::Cannot(_) => FromWriter::Cannot,
            Self::Yours(offer, _) => FromWriter::Yours(*offer),
            Self::Invite(number, _) => FromWriter::Invite(*number),
        }
    }
}

impl LeaseLane {
    pub(super) fn new(exchange: &Arc<Exchange>, peer: &Place, link: Link) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            exchange: exchange.clone(),
            invitation: None,
            lender: exchange.lender(&peer.exchange),
            invited: None,
            is_welcome: Arc::default(),
            handle: link.handle,
            setback: link.setback,
            offered: BTreeMap::new(),
            wanted: BTreeMap::new(),
            offers: BTreeMap::new(),
            fetching: BTreeMap::new(),
        }
    }

    /// The process that the peer is, once it has come.
    fn borrower(&self) -> Option<&Arc<Borrower>> {
        self.invitation.as_ref()?.borrower()
    }

    /// The writer's part of an operation is taken, or wanted as bytes.
    fn answered(&mut self, op: OpId, answer: FromReader, io: &mut LaneIo<'_>) -> Result<(), Fault> {
        let Some(told) = self.offered.remove(&op) else {
            return Ok(());
        };
        match (answer, told) {
            (FromReader::Taken, Told::Offer(offer, open)) => {
                let ledger = self.borrower().and_then(|borrower| borrower.ledger());
                if ledger.is_none_or(|ledger| ledger.is_open(offer.entry)) {
                    self.offered.insert(op, Told::Offer(offer, open));
                    return Err(Fault("an offer that is not taken in the ledger".to_owned()));
                }
                io.lent(offer.len);
                io.sent(op);
            }
            // From here on the lender sees to it itself.
            (FromReader::Taken, Told::Yours(offer, source)) => {
                let arrived = self.borrowed(&source).is_none_or(Borrowed::arrived);
                if !arrived {
                    return Err(Fault(
                        "it has taken back what is not in its ledger".to_owned(),
                    ));
                }
                io.lent(offer.len);
                io.sent(op);
            }
            (FromReader::Taken, Told::Cannot(_) | Told::Invite(..)) => {
                return Err(Fault("an offer is taken that was not made".to_owned()));
            }
            (FromReader::Came, Told::Invite(_, source)) if self.borrower().is_some() => {
                self.offer(op, source, io);
            }
            (FromReader::Came, told) => {
                // What it was told is withdrawn with the lane.
                self.offered.insert(op, told);
                return Err(Fault("it says that it came, and has not".to_owned()));
            }
            (answer @ (FromReader::Stream | FromReader::StreamAlways(_)), told) => {
                if let FromReader::StreamAlways(reason) = answer {
                    let reason = format!("the peer cannot borrow from this process: {reason}");
                    self.setback.cannot_send(reason);
                }
                let source = match told {
                    Told::Offer(offer, open) => {
                        let borrower = self.borrower();
                        let source = borrower.and_then(|borrower| borrower.recall(&offer, open));
                        let taken = || Fault("bytes are asked for of what was taken".to_owned());
                        source.ok_or_else(taken)?
                    }
                    Told::Yours(_, source) => {
                        let is_here = self.borrowed(&source).is_none_or(Borrowed::stays);
                        let gone = || Fault("bytes are asked for of what has gone back".to_owned());
                        is_here.then_some(source).ok_or_else(gone)?
                    }
                    Told::Cannot(source) | Told::Invite(_, source) => source,
                };
                io.diverted(source.len() as u64);
                io.stream(op, source);
            }
        }
        Ok(())
    }

    fn withdraw(&self, told: &Told) {
        match told {
            Told::Offer(offer, _) => {
                if let Some(ledger) = self.borrower().and_then(|borrower| borrower.ledger()) {
                    ledger.withdraw(offer.entry);
                }
            }
            Told::Yours(_, source) => {
                if let Some(borrowed) = self.borrowed(source) {
                    borrowed.contest();
                }
            }
            Told::Cannot(_) | Told::Invite(..) => {}
        }
    }

    /// Tells the peer of a tensor.
    fn offer(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        let told = self.tell(source);
        io.control(op, told.words().encode());
        self.offered.insert(op, told);
    }

    /// What the peer is told of a tensor.
    fn tell(&mut self, mut source: Buffer) -> Told {
        let is_last = source.is_only_handle();
        if let Some(borrowed) = self.borrowed(&source) {
            if is_last && !borrowed.is_contested() {
                borrowed.send_back();
            }
            let offer = borrowed.as_offer(source.offset(), source.len());
            return Told::Yours(offer, source);
        }
        match self.lend(&source) {
            Ok(Lent::Offer(offer, open)) => Told::Offer(offer, open),
            Ok(Lent::WhenItComes(number)) => Told::Invite(number, source),
            Err(unlent) => {
                tracing::debug!(unlent.reason, "a tensor is copied instead of lent");
                if unlent.lasting {
                    self.setback.cannot_send(unlent.reason);
                }
                Told::Cannot(source)
            }
        }
    }

    fn lend(&mut self, source: &Buffer) -> Result<Lent, Unlent> {
        let invitation = match &self.invitation {
            Some(invitation) => invitation,
            None => self.invitation.insert(self.exchange.invite()?),
        };
        match invitation.borrower() {
            Some(borrower) => {
                let (offer, open) = borrower.lend(source)?;
                Ok(Lent::Offer(offer, open))
            }
            None => Ok(Lent::WhenItComes(invitation.number())),
        }
    }

    /// What the peer has lent over this pipe. What came over another one is not said to be its own here: whoever relays
    /// invitations could then speak of loans that it has not made.
    fn borrowed<'a>(&self, source: &'a Buffer) -> Option<&'a Borrowed> {
        let borrowed = source.memory().as_any().downcast_ref::<Borrowed>();
        borrowed.filter(|borrowed| borrowed.came_over(self.id))
    }

    /// What a message brings back of what the peer was lent.
    fn returned(&self, offer: &Offer) -> Option<Returned> {
        self.borrower()?.sends_back(offer)
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
            FromWriter::Offer(offer) => return self.take(op, offer, want, false, io),
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
        self.lender.is_unreliable() || self.setback.receiving().is_some()
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
        let Some(invitation) = self.invited else {
            return self.ask_for_bytes(op, want, io);
        };
        self.fetching.insert(op, (told, want));
        let (lender, handle) = (self.lender.clone(), self.handle.clone());
        let (setback, is_welcome) = (self.setback.clone(), self.is_welcome.clone());
        io.spawn(async move {
            match lender.fetch(invitation, segment).await {
                // A segment may be here because of another pipe.
                Ok(()) => drop(is_welcome.fetch_or(segment.is_none(), Ordering::Release)),
                Err(unlent) => {
                    tracing::debug!(unlent.reason, "a tensor is copied instead of borrowed");
                    if unlent.lasting {
                        setback.cannot_receive(unlent.reason);
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
        offer: Offer,
        want: Want,
        fetched: bool,
        io: &mut LaneIo<'_>,
    ) -> Result<(), Fault> {
        check(&offer, &want)?;
        match self.lender.take(&offer, self.id) {
            Taking::Taken(borrowed) => self.taken(op, borrowed, want, io),
            Taking::Unknown if fetched || self.cannot_fetch() => self.ask_for_bytes(op, want, io),
            Taking::Unknown => {
                let told = FromWriter::Offer(offer);
                self.fetch(op, told, want, Some(offer.segment), io);
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
        let taken = FromReader::TAKEN;
        let borrowed = Buffer::new(Arc::new(borrowed));
        match want {
            Want::Adopt { .. } => {
                io.borrowed(borrowed.len() as u64);
                io.control(op, taken);
                io.received(op, borrowed);
            }
            Want::Into(dest) => io.copy(op, (borrowed, dest), &self.handle, taken),
        }
    }

    /// Has the writer send the bytes themselves.
    fn ask_for_bytes(&self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        let reason = self.setback.receiving();
        let answer = reason.map_or(FromReader::Stream, |reason| {
            FromReader::StreamAlways(reason.to_owned())
        });
        if io.receive(op, want) {
            io.control(op, answer.encode());
        }
    }
}

impl Lane for LeaseLane {
    fn carries(&self, source: &Buffer) -> bool {
        source.memory().kind() != MemoryKind::Borrowed || self.borrowed(source).is_some()
    }

    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        self.offer(op, source, io);
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
        let (memory, urgent) = match FromWriter::decode(body).ok()? {
            FromWriter::Offer(offer) if offer.len == len => match self.lender.take(&offer, self.id)
            {
                Taking::Taken(borrowed) => (Buffer::new(Arc::new(borrowed)), false),
                Taking::Unknown | Taking::Withdrawn | Taking::Outside => return None,
            },
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
            urgent,
        })
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), Fault> {
        if op.outgoing {
            return self.answered(op, FromReader::decode(body)?, io);
        }
        let told = FromWriter::decode(body)?;
        if let FromWriter::Invite(number) = told
            && *self.invited.get_or_insert(number) != number
        {
            return Err(Fault("another invitation on the same pipe".to_owned()));
        }
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
            Some((FromWriter::Offer(offer), want)) => self.take(op, offer, want, true, io),
            Some((told, want)) => {
                self.come(op, told, want, true, io);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn cancel(&mut self, op: OpId, _: &mut LaneIo<'_>) {
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

/// What can be done for a peer.
enum Lent {
    Offer(Offer, Open),
    /// It is not known yet which process it is.
    WhenItComes(Token),
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
