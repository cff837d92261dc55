//! What the writer's lane tells of a tensor, and what becomes of it when the reader's answers.

use super::frame::{FromReader, FromWriter};
use super::lane::LeaseLane;
use super::{Borrowed, Borrower, Fault, LaneIo, Offer, OpId, Returned, Unlent};
use crate::device::Buffer;
use crate::process::Token;
use crate::sync::Arc;
use crate::sys::ledger::Open;

/// What the peer was told of a tensor, and what it takes to send its bytes instead.
pub(super) enum Told {
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
    /// The process that the peer is, once it has come.
    fn borrower(&self) -> Option<&Arc<Borrower>> {
        self.invitation.as_ref()?.borrower()
    }

    /// The writer's part of an operation is taken, or wanted as bytes.
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

    pub(super) fn withdraw(&self, told: &Told) {
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
    pub(super) fn offer(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
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

    /// What the peer has lent. An invitation does not prove that: whoever relays it would hear of loans that it has not made. So
    /// what goes back over another pipe than it came over needs the kernel's word.
    pub(super) fn borrowed<'a>(&self, source: &'a Buffer) -> Option<&'a Borrowed> {
        let borrowed = source.memory().as_any().downcast_ref::<Borrowed>();
        borrowed.filter(|borrowed| borrowed.goes_over(self.id, self.peer.addr().pid()))
    }

    /// What a message brings back of what the peer was lent.
    pub(super) fn returned(&self, offer: &Offer) -> Option<Returned> {
        if let Some(borrower) = self.borrower() {
            return borrower.sends_back(offer);
        }
        let pid = self.peer.addr().pid()?;
        self.exchange.known_borrower(pid)?.sends_back(offer)
    }
}

/// What can be done for a peer.
enum Lent {
    Offer(Offer, Open),
    /// It is not known yet which process it is.
    WhenItComes(Token),
}
