//! The writing side of a lane.

use std::collections::HashMap;

use super::frame::{FromReader, FromWriter, MemoryLocation};
use super::loan::LoanFence;
use super::proof::Number;
use super::proving::{Asked, Proofs, late};
use super::{
    Arc, Borrower, Buffer, ChannelFault, Error, Exchange, Invitation, JobHandle, Lane, LaneContext,
    LaneIo, LendError, Offer, OpId, copy, failed,
};
use crate::device::Fence;
use crate::device::cuda::SharedMemory;
use crate::keys::PipeKey;
use crate::sync::Ordering;

/// See the module's documentation.
pub(super) struct Writer {
    exchange: Arc<Exchange>,
    /// The pipe's key.
    key: Option<PipeKey>,
    /// Made for the first loan.
    invitation: Option<Arc<Invitation>>,
    pub(super) proofs: Proofs,
    pub(super) parts: HashMap<OpId, Part>,
}

/// The memory of a part that others may map; `None` if they may map nothing.
type Shared = Option<Result<SharedMemory, (String, bool)>>;

/// The state of a part.
pub(super) enum Part {
    /// Its bytes are not there yet.
    NotReady(Buffer),
    /// The driver is asked what others may map.
    Sharing(JobHandle<Shared>, Buffer),
    /// It is being copied to memory that can be lent.
    Copying(JobHandle<Buffer, Error>, Buffer),
    /// It waits for a proof about its device that another part has begun.
    Waits(Buffer),
    /// Memory for a proof is being filled.
    Numbering(JobHandle<(Buffer, Number)>, Buffer),
    /// The proof's memory is there; the reader is to read the number in it.
    Numbered(Buffer, Number, Buffer),
    /// The reader was asked for the proof.
    Proving(Offer, Arc<Asked>, Buffer),
    /// The reader was asked to bring an invitation.
    Invited(Buffer),
    Offered(Offer, Buffer),
    /// The reader was told that it cannot be lent, for this reason.
    Unavailable(Buffer, Arc<str>),
    /// As `Unavailable`, after a late proof: an answer about that proof may still cross this.
    Late(Buffer, Arc<str>),
}

impl Writer {
    pub(super) fn new(exchange: Arc<Exchange>, key: Option<PipeKey>) -> Self {
        Self {
            exchange,
            key,
            invitation: None,
            proofs: Proofs::default(),
            parts: HashMap::new(),
        }
    }

    /// Offers a part once its bytes are ready.
    pub(super) fn send(
        &mut self,
        op: OpId,
        source: Buffer,
        tools: &LaneContext,
        io: &mut LaneIo<'_>,
    ) {
        if let Some(ready) = source.ready() {
            return match ready.reached() {
                Some(Err(error)) => io.failed(op, failed(&error)),
                _ => {
                    tools.handle.resume_at(op, &ready);
                    self.parts.insert(op, Part::NotReady(source));
                }
            };
        }
        if tools.cuda.shares_at_once(&source) {
            let shared = tools.cuda.share(&source);
            return self.offer(op, source, shared, tools, io);
        }
        let (cuda, lies) = (tools.cuda.clone(), source.clone());
        let sharing = JobHandle::of(op, true, &tools.handle, io, move || Ok(cuda.share(&lies)));
        self.parts.insert(op, Part::Sharing(sharing, source));
    }

    /// Offers a part whose `shared` memory others may map.
    fn offer(
        &mut self,
        op: OpId,
        source: Buffer,
        shared: Shared,
        tools: &LaneContext,
        io: &mut LaneIo<'_>,
    ) {
        let part = match shared {
            Some(Ok(shared)) => match self.borrower() {
                Ok(Some(_)) if !self.proofs.is_proved(source.device()) => {
                    self.behind_a_proof(op, source, tools, io)
                }
                Ok(Some(borrower)) => match lend(&borrower, shared, &source, tools) {
                    Ok(lies) => {
                        let offer = lies.offer;
                        io.control(op, FromWriter::Offer(lies).encode());
                        Part::Offered(offer, source)
                    }
                    Err(unlent) => Self::cannot(op, source, unlent, tools, io),
                },
                Ok(None) => {
                    let number = self
                        .invitation
                        .as_ref()
                        .map(|invitation| invitation.number());
                    io.control(op, FromWriter::Invite(number.unwrap_or_default()).encode());
                    Part::Invited(source)
                }
                Err(unlent) => Self::cannot(op, source, unlent, tools, io),
            },
            Some(Err((reason, lasting))) => {
                Self::cannot(op, source, LendError { reason, lasting }, tools, io)
            }
            // It is copied to this process's own memory.
            None => match io.room(op, source.device(), source.len() as u64) {
                Ok(room) => Part::Copying(copy(op, source.clone(), room, tools, io), source),
                Err(error) => Self::cannot(op, source, not_now(&error), tools, io),
            },
        };
        self.parts.insert(op, part);
    }

    /// The process at the other end, once it is known.
    pub(super) fn borrower(&mut self) -> Result<Option<Arc<Borrower>>, LendError> {
        let invitation = match &self.invitation {
            Some(invitation) => invitation,
            None => {
                let invitation = self.exchange.invite(self.key.as_ref())?;
                self.invitation.insert(invitation)
            }
        };
        Ok(invitation.borrower().cloned())
    }

    pub(super) fn cannot(
        op: OpId,
        source: Buffer,
        unlent: LendError,
        tools: &LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Part {
        tracing::debug!(unlent.reason, "a tensor of a device is not lent");
        if unlent.lasting {
            tools.degraded.cannot_send(&*unlent.reason);
        }
        io.control(op, FromWriter::Unavailable.encode());
        Part::Unavailable(source, unlent.reason.into())
    }

    /// A step of a part has finished.
    pub(super) fn resume(&mut self, op: OpId, tools: &LaneContext, io: &mut LaneIo<'_>) {
        match self.parts.remove(&op) {
            Some(Part::NotReady(source)) => self.send(op, source, tools, io),
            Some(Part::Sharing(slot, source)) => match slot.take() {
                Some(Ok(shared)) => self.offer(op, source, shared, tools, io),
                Some(Err(error)) => {
                    let part = Self::cannot(op, source, not_now(&error), tools, io);
                    self.parts.insert(op, part);
                }
                None => drop(self.parts.insert(op, Part::Sharing(slot, source))),
            },
            Some(Part::Copying(slot, source)) => match slot.take() {
                Some(Ok(copy)) => {
                    io.copied(copy.len() as u64);
                    self.send(op, copy, tools, io);
                }
                Some(Err(error)) => {
                    let part = Self::cannot(op, source, not_now(&error), tools, io);
                    self.parts.insert(op, part);
                }
                None => drop(self.parts.insert(op, Part::Copying(slot, source))),
            },
            Some(Part::Numbering(slot, source)) => match slot.take() {
                Some(Ok((numbered, number))) => self.prove(op, numbered, number, source, tools, io),
                Some(Err(error)) => self.unproved(op, source, not_now(&error), tools, io),
                None => drop(self.parts.insert(op, Part::Numbering(slot, source))),
            },
            Some(Part::Numbered(numbered, number, source)) => {
                self.prove(op, numbered, number, source, tools, io);
            }
            Some(Part::Proving(offer, asked, source)) if asked.is_late.load(Ordering::Acquire) => {
                self.withdraw(&offer);
                self.unproved(op, source, late(), tools, io);
                if let Some(Part::Unavailable(source, why)) = self.parts.remove(&op) {
                    self.parts.insert(op, Part::Late(source, why));
                }
            }
            Some(other) => drop(self.parts.insert(op, other)),
            None => {}
        }
    }

    /// Handles a frame of the reader's lane.
    pub(super) fn answered(
        &mut self,
        op: OpId,
        said: FromReader,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        match (self.parts.remove(&op), said) {
            // The frame crossed the end of the operation.
            (None, _) => {}
            (Some(Part::Offered(offer, _) | Part::Proving(offer, ..)), said)
                if matches!(said, FromReader::Taken | FromReader::Proved)
                    && self.is_open(&offer) =>
            {
                self.withdraw(&offer);
                let words = "it says that it has what it has not";
                return Err(ChannelFault(words.to_owned()));
            }
            (Some(Part::Offered(offer, _)), FromReader::Taken) => {
                io.lent(offer.len);
                io.sent(op);
            }
            (Some(Part::Proving(.., source)), FromReader::Proved) => {
                let device = source.device();
                self.proofs.proved(device);
                self.send(op, source, tools, io);
                self.proof_ended(device, None, tools, io);
            }
            (Some(Part::Invited(source)), FromReader::Connected) => match self.borrower() {
                Ok(Some(_)) => self.send(op, source, tools, io),
                _ => return Err(ChannelFault("nobody has come".to_owned())),
            },
            (Some(Part::Offered(offer, source)), FromReader::Detour(reason)) => {
                self.withdraw(&offer);
                self.detour(op, source, None, reason, tools, io);
            }
            (Some(Part::Late(source, why)), FromReader::Proved) => {
                self.parts.insert(op, Part::Unavailable(source, why));
            }
            (Some(Part::Proving(offer, _, source)), FromReader::Detour(reason)) => {
                self.withdraw(&offer);
                let device = source.device();
                let words = reason.as_deref().unwrap_or(NOT_NOW).into();
                self.detour(op, source, None, reason, tools, io);
                self.proofs.pause(device);
                self.not_proved(device, &words, tools, io);
            }
            (Some(Part::Invited(source)), FromReader::Detour(reason)) => {
                self.detour(op, source, None, reason, tools, io);
            }
            (
                Some(Part::Unavailable(source, ours) | Part::Late(source, ours)),
                FromReader::Detour(reason),
            ) => {
                self.detour(op, source, Some(ours), reason, tools, io);
            }
            // Kept, so that it is withdrawn later.
            (Some(part), said) => {
                self.parts.insert(op, part);
                return Err(ChannelFault(format!("{said:?} out of turn")));
            }
        }
        Ok(())
    }

    /// Sends a part through main memory. `ours`: why this side does not lend it. `theirs`: why the peer never takes anything.
    fn detour(
        &self,
        op: OpId,
        source: Buffer,
        ours: Option<Arc<str>>,
        theirs: Option<String>,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) {
        if let Some(reason) = &theirs {
            tools.degraded.cannot_send(&**reason);
        }
        let why = ours.as_deref().or(theirs.as_deref()).unwrap_or(NOT_NOW);
        if io.divert(op, "cuda_basic", source.len() as u64, why) {
            tools.detour.send(op, source, io);
        }
    }

    /// Whether the reader has not taken the offer.
    fn is_open(&self, offer: &Offer) -> bool {
        let borrower = self.invitation.as_ref().and_then(|known| known.borrower());
        let ledger = borrower.and_then(|borrower| borrower.ledger());
        ledger.is_some_and(|ledger| ledger.is_open(offer.entry))
    }

    pub(super) fn withdraw(&self, offer: &Offer) {
        let borrower = self.invitation.as_ref().and_then(|known| known.borrower());
        if let Some(ledger) = borrower.and_then(|borrower| borrower.ledger()) {
            ledger.withdraw(offer.entry);
        }
    }

    /// Nobody waits for the part any more. If it was to prove something, the next part does.
    pub(super) fn cancel(&mut self, op: OpId, tools: &LaneContext, io: &mut LaneIo<'_>) {
        let Some(part) = self.parts.remove(&op) else {
            return;
        };
        if let Part::Offered(offer, _) | Part::Proving(offer, ..) = &part {
            self.withdraw(offer);
        }
        if let Part::Numbering(_, source)
        | Part::Numbered(_, _, source)
        | Part::Proving(_, _, source) = part
        {
            self.pass_on(source.device(), tools, io);
        }
    }
}

/// The reason if the reader gives none.
const NOT_NOW: &str = "the peer could not borrow it just then";

/// Offers the memory of a buffer to the process at the other end.
pub(super) fn lend(
    borrower: &Arc<Borrower>,
    shared: SharedMemory,
    buffer: &Buffer,
    tools: &LaneContext,
) -> Result<MemoryLocation, LendError> {
    let SharedMemory { first, rest, range } = shared;
    let (offer, loan) = borrower.lend_range(&first, &rest, range)?;
    let behind = rest.iter();
    let behind = behind.map(|segment| (segment.id(), segment.len() as u64));
    let lies = MemoryLocation {
        offer,
        device: tools.cuda.uuid(buffer.device()).unwrap_or_default(),
        len: first.len() as u64,
        behind: behind.collect(),
    };
    // Set before anybody learns of the offer.
    let fence: Arc<dyn Fence> = Arc::new(LoanFence::new(loan, rest, &tools.cuda));
    tools.cuda.lent_until(buffer, &fence);
    Ok(lies)
}

/// A failure that may pass, such as a lack of memory for a copy.
pub(super) fn not_now(error: &dyn std::fmt::Display) -> LendError {
    LendError {
        reason: error.to_string(),
        lasting: false,
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Withdraws the remaining offers; one that the reader has taken meanwhile stays taken.
        for part in self.parts.values() {
            if let Part::Offered(offer, _) | Part::Proving(offer, ..) = part {
                self.withdraw(offer);
            }
        }
    }
}
