//! The writer's lane: what it tells the peer about a tensor, and how it handles the reader's answer.

use super::copying::{AT_ONCE, Copying, Job, UNASKED};
use super::frame::{FromReader, FromWriter};
use super::lane::LeaseLane;
use super::{
    Borrowed, Borrower, Copies, Fault, Invitation, LaneIo, LendError, Offer, OpId, Returned,
};
use crate::device::{Buffer, BufferMut, MemoryKind};
use crate::process::Token;
use crate::sync::Arc;
use crate::sys::copy;
use crate::sys::ledger::Open;

/// What the peer was told about a tensor, with what is needed to send its bytes instead.
pub(super) enum PendingOffer {
    /// An offer of the tensor itself, or (`true`) of a copy.
    Offer(Offer, Open, bool),
    Unavailable(Buffer),
    SentBack(Offer, Buffer),
    Invite(Token, Buffer),
}

impl PendingOffer {
    fn words(&self) -> FromWriter {
        match self {
            Self::Offer(offer, _, false) => FromWriter::Offer(*offer),
            Self::Offer(offer, _, true) => FromWriter::Copy(*offer),
            Self::Unavailable(_) => FromWriter::Unavailable,
            Self::SentBack(offer, _) => FromWriter::SentBack(*offer),
            Self::Invite(number, _) => FromWriter::Invite(*number),
        }
    }
}

impl LeaseLane {
    /// The peer's process, once it has come to the exchange.
    fn borrower(&self) -> Option<&Arc<Borrower>> {
        self.invitation.as_ref()?.borrower()
    }

    /// The reader has taken the tensor, or asks for its bytes.
    pub(super) fn answered(
        &mut self,
        op: OpId,
        answer: FromReader,
        io: &mut LaneIo<'_>,
    ) -> Result<(), Fault> {
        let Some(told) = self.offered.remove(&op) else {
            return Ok(());
        };
        match (answer, told) {
            (FromReader::Taken, PendingOffer::Offer(offer, open, is_copy)) => {
                let ledger = self.borrower().and_then(|borrower| borrower.ledger());
                if ledger.is_none_or(|ledger| ledger.is_open(offer.entry)) {
                    self.offered
                        .insert(op, PendingOffer::Offer(offer, open, is_copy));
                    return Err(Fault("an offer that is not taken in the ledger".to_owned()));
                }
                io.lent(offer.len);
                io.sent(op);
            }
            // From here on, the memory is the lender's again, and the lender looks after it.
            (FromReader::Taken, PendingOffer::SentBack(offer, source)) => {
                let arrived = self.borrowed(&source).is_none_or(Borrowed::arrived);
                if !arrived {
                    return Err(Fault(
                        "it has taken back what is not in its ledger".to_owned(),
                    ));
                }
                io.lent(offer.len);
                io.sent(op);
            }
            (FromReader::Taken, PendingOffer::Unavailable(_) | PendingOffer::Invite(..)) => {
                return Err(Fault("an offer is taken that was not made".to_owned()));
            }
            (FromReader::Connected, PendingOffer::Invite(_, source))
                if self.borrower().is_some() =>
            {
                self.offer(op, source, true, io);
            }
            (FromReader::Connected, told) => {
                // `told` is withdrawn when the lane is dropped.
                self.offered.insert(op, told);
                return Err(Fault("it says that it came, and has not".to_owned()));
            }
            (answer @ (FromReader::Stream | FromReader::StreamAlways(_)), told) => {
                let why = match answer {
                    FromReader::StreamAlways(reason) => {
                        let reason = format!("the peer cannot borrow from this process: {reason}");
                        self.degraded.cannot_send(&*reason);
                        reason
                    }
                    _ => String::from(match &told {
                        PendingOffer::Unavailable(_) => "this end could not lend it just then",
                        _ => "the peer could not borrow it just then",
                    }),
                };
                let source = match told {
                    PendingOffer::Offer(offer, open, _) => {
                        let borrower = self.borrower();
                        let source = borrower.and_then(|borrower| borrower.recall(&offer, open));
                        let taken = || Fault("bytes are asked for of what was taken".to_owned());
                        source.ok_or_else(taken)?
                    }
                    PendingOffer::SentBack(_, source) => {
                        let is_here = self.borrowed(&source).is_none_or(Borrowed::stays);
                        let gone = || Fault("bytes are asked for of what has gone back".to_owned());
                        is_here.then_some(source).ok_or_else(gone)?
                    }
                    PendingOffer::Unavailable(source) | PendingOffer::Invite(_, source) => source,
                };
                if io.divert(op, "basic", source.len() as u64, &why) {
                    io.stream(op, source);
                }
            }
        }
        Ok(())
    }

    pub(super) fn withdraw(&self, told: &PendingOffer) {
        match told {
            PendingOffer::Offer(offer, ..) => {
                if let Some(ledger) = self.borrower().and_then(|borrower| borrower.ledger()) {
                    ledger.withdraw(offer.entry);
                }
            }
            PendingOffer::SentBack(_, source) => {
                if let Some(borrowed) = self.borrowed(source) {
                    borrowed.contest();
                }
            }
            PendingOffer::Unavailable(_) | PendingOffer::Invite(..) => {}
        }
    }

    /// Sends a tensor; `asked`: the peer has already asked for it.
    pub(super) fn offer(&mut self, op: OpId, source: Buffer, asked: bool, io: &mut LaneIo<'_>) {
        let told = match source.memory().kind() {
            MemoryKind::Heap => match self.copy(op, source, asked, io) {
                Some(told) => told,
                // The peer is told once the copy is made.
                None => return,
            },
            _ => self.tell(source),
        };
        self.say(op, told, io);
    }

    fn say(&mut self, op: OpId, told: PendingOffer, io: &mut LaneIo<'_>) {
        io.control(op, told.words().encode(io.is_awaited()));
        self.offered.insert(op, told);
    }

    /// Lends a copy of ordinary memory. `None`: the copy is being made elsewhere.
    fn copy(
        &mut self,
        op: OpId,
        source: Buffer,
        asked: bool,
        io: &mut LaneIo<'_>,
    ) -> Option<PendingOffer> {
        let invitation = match self.invitation() {
            Ok(invitation) => invitation,
            Err(unlent) => return Some(self.cannot(unlent, source)),
        };
        let len = source.len();
        let Some(borrower) = invitation.borrower().filter(|_| asked || len <= UNASKED) else {
            return Some(PendingOffer::Invite(invitation.number(), source));
        };
        // Memory that is mapped from a file may first have to be read from disk.
        let is_short = len <= AT_ONCE && source.memory().is_private();
        let Some(mut dest) = is_short.then(|| borrower.take_free(len)).flatten() else {
            let borrower = borrower.clone();
            let (copying, job) = Copying::new(op, source, borrower, self.handle.clone());
            self.copying.insert(op, job);
            io.work(op, copying);
            return None;
        };
        if let (Some(from), Some(to)) = (source.as_bytes(), dest.as_bytes_mut()) {
            copy::copy(from, to);
        }
        Some(self.lend_copy(source, dest, io))
    }

    /// Lends a finished copy.
    fn lend_copy(&mut self, source: Buffer, dest: BufferMut, io: &mut LaneIo<'_>) -> PendingOffer {
        io.copied(source.len() as u64);
        match self.lend(&dest.freeze()) {
            Ok(Lent::Offer(offer, open)) => PendingOffer::Offer(offer, open, true),
            Ok(Lent::WhenItComes(number)) => PendingOffer::Invite(number, source),
            Err(unlent) => self.cannot(unlent, source),
        }
    }

    /// A copy is finished, unless its message was abandoned.
    pub(super) fn copied(&mut self, op: OpId, job: &Job, io: &mut LaneIo<'_>) {
        let told = match job.take() {
            None => return,
            Some((source, None)) => PendingOffer::Unavailable(source),
            Some((source, Some(dest))) => self.lend_copy(source, dest, io),
        };
        self.say(op, told, io);
    }

    fn cannot(&self, unlent: LendError, source: Buffer) -> PendingOffer {
        tracing::debug!(unlent.reason, "a tensor is copied instead of lent");
        if unlent.lasting {
            self.degraded.cannot_send(unlent.reason);
        }
        PendingOffer::Unavailable(source)
    }

    /// Decides what to tell the peer about a tensor.
    fn tell(&mut self, mut source: Buffer) -> PendingOffer {
        let is_last = source.is_only_handle();
        if let Some(borrowed) = self.borrowed(&source) {
            if is_last && !borrowed.is_contested() {
                borrowed.send_back();
            }
            let offer = borrowed.as_offer(source.offset(), source.len());
            return PendingOffer::SentBack(offer, source);
        }
        match self.lend(&source) {
            Ok(Lent::Offer(offer, open)) => PendingOffer::Offer(offer, open, false),
            Ok(Lent::WhenItComes(number)) => PendingOffer::Invite(number, source),
            Err(unlent) => self.cannot(unlent, source),
        }
    }

    fn invitation(&mut self) -> Result<&Arc<Invitation>, LendError> {
        Ok(match &mut self.invitation {
            Some(invitation) => invitation,
            none => none.insert(self.exchange.invite(self.key.as_ref())?),
        })
    }

    fn lend(&mut self, source: &Buffer) -> Result<Lent, LendError> {
        let invitation = self.invitation()?;
        match invitation.borrower() {
            Some(borrower) => {
                let (offer, open) = borrower.lend(source)?;
                Ok(Lent::Offer(offer, open))
            }
            None => Ok(Lent::WhenItComes(invitation.number())),
        }
    }

    /// Whether ordinary memory of `len` bytes can be copied for the peer. Before the peer's process is known, whether a borrower's
    /// whole share would suffice.
    pub(super) fn has_room(&self, len: usize) -> bool {
        match self.borrower() {
            Some(borrower) => borrower.has_room(len),
            None => len as u64 <= Copies::share(),
        }
    }

    /// `source` as memory borrowed from this peer. An invitation does not prove that: a process that relays one would learn of loans
    /// that it has not made. So memory that goes back over another pipe than it came over needs the kernel's word for the peer.
    pub(super) fn borrowed<'a>(&self, source: &'a Buffer) -> Option<&'a Borrowed> {
        let borrowed = source.memory().as_any().downcast_ref::<Borrowed>();
        borrowed.filter(|borrowed| borrowed.goes_over(self.id, self.peer.addr().pid()))
    }

    /// This process's memory that the peer was lent and that a message brings back.
    pub(super) fn returned(&self, offer: &Offer) -> Option<Returned> {
        if let Some(borrower) = self.borrower() {
            return borrower.sends_back(offer);
        }
        let pid = self.peer.addr().pid()?;
        self.exchange.known_borrower(pid)?.sends_back(offer)
    }
}

/// How a tensor can be lent to the peer.
enum Lent {
    Offer(Offer, Open),
    /// The peer's process is not known yet.
    WhenItComes(Token),
}
