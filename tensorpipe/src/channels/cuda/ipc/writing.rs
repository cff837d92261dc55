//! Parts that are sent.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use super::frame::{FromReader, FromWriter, Lies};
use super::loan::LoanFence;
use super::proof::{self, Number};
use super::{
    Arc, Borrower, Buffer, ChannelFault, Device, Error, Exchange, Invitation, Lane, LaneIo, Offer,
    OpId, Slot, Tools, Unlent, failed,
};
use crate::device::Fence;
use crate::device::cuda::SharedMemory;
use crate::keys::PipeKey;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// See the module's documentation.
pub(super) struct Writer {
    exchange: Arc<Exchange>,
    /// The pipe's.
    key: Option<PipeKey>,
    /// Made for the first loan.
    invitation: Option<Arc<Invitation>>,
    /// Devices whose memory the reader has proved to map.
    proved: HashSet<Device>,
    /// Devices about which a proof is under way: until the reader answers, or its time is up.
    proving: HashMap<Device, Underway>,
    /// Proofs about a device that came to nothing, since one was given.
    unproved: HashMap<Device, u32>,
    parts: HashMap<OpId, Part>,
}

/// A proof about a device.
#[derive(Default)]
struct Underway {
    /// Since the reader was asked first.
    asked: Option<Arc<Asked>>,
    /// Parts that wait for it.
    waiting: Vec<OpId>,
}

/// The reader was asked for a proof, and has [`proof::WITHIN`] for it, whichever parts ask.
struct Asked {
    is_late: AtomicBool,
    /// The part that asks now.
    by: Mutex<OpId>,
}

/// How far a part is.
enum Part {
    /// Its bytes are not there yet.
    NotReady(Buffer),
    /// It is copied to memory that can be lent.
    Copied(Slot<Buffer>, Buffer),
    /// The proof that another part has begun is about its device, too.
    Waits(Buffer),
    /// Memory for a proof is being filled.
    Numbering(Slot<(Buffer, Number)>, Buffer),
    /// The reader is to read a number there.
    Numbered(Buffer, Number, Buffer),
    /// It is about to.
    Proving(Offer, Arc<Asked>, Buffer),
    /// The reader is to bring an invitation.
    Invited(Buffer),
    Offered(Offer, Buffer),
    /// The reader was told that it cannot be lent, for this reason.
    Cannot(Buffer, Arc<str>),
    /// The same of one whose proof was late: what the reader says of that crosses it.
    Late(Buffer, Arc<str>),
}

impl Writer {
    pub(super) fn new(exchange: Arc<Exchange>, key: Option<PipeKey>) -> Self {
        Self {
            exchange,
            key,
            invitation: None,
            proved: HashSet::new(),
            proving: HashMap::new(),
            unproved: HashMap::new(),
            parts: HashMap::new(),
        }
    }

    /// Offers a part, as soon as it is there.
    pub(super) fn send(&mut self, op: OpId, source: Buffer, tools: &Tools, io: &mut LaneIo<'_>) {
        if let Some(ready) = source.ready() {
            return match ready.reached() {
                Some(Err(error)) => io.failed(op, failed(&error)),
                _ => {
                    tools.handle.resume_at(op, &ready);
                    self.parts.insert(op, Part::NotReady(source));
                }
            };
        }
        let part = match tools.cuda.share(&source) {
            Some(Ok(shared)) => match self.borrower() {
                Ok(Some(_)) if !self.proved.contains(&source.device()) => {
                    match self.proving.entry(source.device()) {
                        Entry::Occupied(mut waiting) => {
                            let waiting = &mut waiting.get_mut().waiting;
                            // Those that were given up are forgotten.
                            if waiting.len() > 2 * self.parts.len() + 64 {
                                waiting.retain(|one| self.parts.contains_key(one));
                            }
                            waiting.push(op);
                            Part::Waits(source)
                        }
                        Entry::Vacant(proving) => match tools.degraded.sending() {
                            Some(reason) => Self::cannot(op, source, not_now(&reason), tools, io),
                            None => {
                                proving.insert(Underway::default());
                                Self::numbering(op, source, tools, io)
                            }
                        },
                    }
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
                Self::cannot(op, source, Unlent { reason, lasting }, tools, io)
            }
            None => match Self::copy(op, source.clone(), tools, io) {
                Ok(copying) => Part::Copied(copying, source),
                Err(error) => Self::cannot(op, source, not_now(&error), tools, io),
            },
        };
        self.parts.insert(op, part);
    }

    /// Begins a proof with this part. Its memory is made for it: that takes a driver long.
    fn numbering(op: OpId, source: Buffer, tools: &Tools, io: &mut LaneIo<'_>) -> Part {
        let (cuda, device) = (tools.cuda.clone(), source.device());
        let made = move || proof::made(&cuda, device);
        Part::Numbering(Slot::of(op, false, &tools.handle, io, made), source)
    }

    /// Whoever was to prove something about this device is given up: another one does, and the rest wait on. The last one, since the parts
    /// of a message are given up from its front.
    fn pass_on(&mut self, device: Device, tools: &Tools, io: &mut LaneIo<'_>) {
        let mut proof = self.proving.remove(&device).unwrap_or_default();
        while let Some(op) = proof.waiting.pop() {
            match self.parts.remove(&op) {
                Some(Part::Waits(source)) => {
                    let part = Self::numbering(op, source, tools, io);
                    self.parts.insert(op, part);
                    self.proving.insert(device, proof);
                    return;
                }
                Some(other) => drop(self.parts.insert(op, other)),
                None => {}
            }
        }
    }

    /// Has the reader prove that it maps this side's memory, as soon as the number is there.
    fn prove(
        &mut self,
        op: OpId,
        numbered: Buffer,
        number: Number,
        source: Buffer,
        tools: &Tools,
        io: &mut LaneIo<'_>,
    ) {
        if let Some(ready) = numbered.ready() {
            return match ready.reached() {
                Some(Err(error)) => self.unproved(op, source, not_now(&error), tools, io),
                _ => {
                    tools.handle.resume_at(op, &ready);
                    let part = Part::Numbered(numbered, number, source);
                    self.parts.insert(op, part);
                }
            };
        }
        let asked = self.ask(op, source.device(), tools, io);
        let lent = match (tools.cuda.share(&numbered), self.borrower()) {
            _ if asked.is_late.load(Ordering::Acquire) => Err(late()),
            (Some(Ok(shared)), Ok(Some(borrower))) => lend(&borrower, shared, &numbered, tools),
            (Some(Err((reason, lasting))), _) => Err(Unlent { reason, lasting }),
            (_, Err(unlent)) => Err(unlent),
            (None, _) | (_, Ok(None)) => Err(not_now(&"the reader has gone")),
        };
        match lent {
            Ok(lies) => {
                let offer = lies.offer;
                io.control(op, FromWriter::Prove(lies, number).encode());
                self.parts.insert(op, Part::Proving(offer, asked, source));
            }
            Err(unlent) => self.unproved(op, source, unlent, tools, io),
        }
    }

    /// The reader's time begins when it is asked about a device, and goes on where another part asks instead.
    fn ask(&mut self, op: OpId, device: Device, tools: &Tools, io: &LaneIo<'_>) -> Arc<Asked> {
        let proof = self.proving.entry(device).or_default();
        if let Some(asked) = &proof.asked {
            *lock(&asked.by) = op;
            return asked.clone();
        }
        let asked = Arc::new(Asked {
            is_late: AtomicBool::new(false),
            by: Mutex::new(op),
        });
        let (late, handle) = (Arc::downgrade(&asked), tools.handle.clone());
        io.spawn(async move {
            tokio::time::sleep(proof::WITHIN).await;
            if let Some(late) = late.upgrade() {
                late.is_late.store(true, Ordering::Release);
                let by = *lock(&late.by);
                handle.resume(by);
            }
        });
        proof.asked.insert(asked).clone()
    }

    /// There is no proof, for this reason: the part goes another way, and so do those that wait. After some in a row none is tried.
    fn unproved(
        &mut self,
        op: OpId,
        source: Buffer,
        unlent: Unlent,
        tools: &Tools,
        io: &mut LaneIo<'_>,
    ) {
        let (device, reason) = (source.device(), Arc::from(unlent.reason.as_str()));
        let unproved = self.unproved.entry(device).or_default();
        *unproved += 1;
        if *unproved >= proof::TRIES {
            let tries = proof::TRIES;
            let reason = format!("{tries} proofs for the peer came to nothing: {reason}");
            tools.degraded.cannot_send(reason);
        }
        let part = Self::cannot(op, source, unlent, tools, io);
        self.parts.insert(op, part);
        self.proof_ended(device, Some(&reason), tools, io);
    }

    /// A proof is over. What waits for it is offered, unless there is a reason why not: so one that fails is not made again for each part
    /// of a message.
    fn proof_ended(
        &mut self,
        device: Device,
        failed: Option<&Arc<str>>,
        tools: &Tools,
        io: &mut LaneIo<'_>,
    ) {
        let proof = self.proving.remove(&device).unwrap_or_default();
        for op in proof.waiting {
            match (self.parts.remove(&op), failed) {
                (Some(Part::Waits(source)), None) => self.send(op, source, tools, io),
                (Some(Part::Waits(source)), Some(reason)) => {
                    io.control(op, FromWriter::Cannot.encode());
                    self.parts.insert(op, Part::Cannot(source, reason.clone()));
                }
                (Some(other), _) => drop(self.parts.insert(op, other)),
                // Given up meanwhile.
                (None, _) => {}
            }
        }
    }

    /// The process at the other end, once it is known.
    fn borrower(&mut self) -> Result<Option<Arc<Borrower>>, Unlent> {
        let invitation = match &self.invitation {
            Some(invitation) => invitation,
            None => {
                let invitation = self.exchange.invite(self.key.as_ref())?;
                self.invitation.insert(invitation)
            }
        };
        Ok(invitation.borrower().cloned())
    }

    /// To memory of this process's own.
    fn copy(
        op: OpId,
        source: Buffer,
        tools: &Tools,
        io: &mut LaneIo<'_>,
    ) -> Result<Slot<Buffer>, Error> {
        let (cuda, device) = (tools.cuda.clone(), source.device());
        let room = io.allocate(op, device, source.len() as u64)?;
        io.copied(source.len() as u64);
        let is_quick = cuda.has_stream(device);
        Ok(Slot::of(op, is_quick, &tools.handle, io, move || {
            let stream = cuda.stream(device)?;
            cuda.copy(&source, room, &stream)
        }))
    }

    fn cannot(
        op: OpId,
        source: Buffer,
        unlent: Unlent,
        tools: &Tools,
        io: &mut LaneIo<'_>,
    ) -> Part {
        tracing::debug!(unlent.reason, "a tensor of a device is not lent");
        if unlent.lasting {
            tools.degraded.cannot_send(&*unlent.reason);
        }
        io.control(op, FromWriter::Cannot.encode());
        Part::Cannot(source, unlent.reason.into())
    }

    /// A part has got further.
    pub(super) fn resume(&mut self, op: OpId, tools: &Tools, io: &mut LaneIo<'_>) {
        match self.parts.remove(&op) {
            Some(Part::NotReady(source)) => self.send(op, source, tools, io),
            Some(Part::Copied(slot, source)) => match slot.take() {
                Some(Ok(copy)) => self.send(op, copy, tools, io),
                Some(Err(error)) => {
                    let part = Self::cannot(op, source, not_now(&error), tools, io);
                    self.parts.insert(op, part);
                }
                None => drop(self.parts.insert(op, Part::Copied(slot, source))),
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
                if let Some(Part::Cannot(source, why)) = self.parts.remove(&op) {
                    self.parts.insert(op, Part::Late(source, why));
                }
            }
            Some(other) => drop(self.parts.insert(op, other)),
            None => {}
        }
    }

    /// The reader's lane has said something.
    pub(super) fn answered(
        &mut self,
        op: OpId,
        said: FromReader,
        tools: &mut Tools,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        match (self.parts.remove(&op), said) {
            // It crossed the end of the operation.
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
                self.proved.insert(device);
                self.unproved.remove(&device);
                self.send(op, source, tools, io);
                self.proof_ended(device, None, tools, io);
            }
            (Some(Part::Invited(source)), FromReader::Came) => match self.borrower() {
                Ok(Some(_)) => self.send(op, source, tools, io),
                _ => return Err(ChannelFault("nobody has come".to_owned())),
            },
            (Some(Part::Offered(offer, source)), FromReader::Detour(reason)) => {
                self.withdraw(&offer);
                self.detour(op, source, None, reason, tools, io);
            }
            (Some(Part::Late(source, why)), FromReader::Proved) => {
                self.parts.insert(op, Part::Cannot(source, why));
            }
            (Some(Part::Proving(offer, _, source)), FromReader::Detour(reason)) => {
                self.withdraw(&offer);
                let device = source.device();
                let words = reason.as_deref().unwrap_or(NOT_NOW).into();
                self.detour(op, source, None, reason, tools, io);
                self.proof_ended(device, Some(&words), tools, io);
            }
            (Some(Part::Invited(source)), FromReader::Detour(reason)) => {
                self.detour(op, source, None, reason, tools, io);
            }
            (
                Some(Part::Cannot(source, ours) | Part::Late(source, ours)),
                FromReader::Detour(reason),
            ) => {
                self.detour(op, source, Some(ours), reason, tools, io);
            }
            // It stays to be withdrawn.
            (Some(part), said) => {
                self.parts.insert(op, part);
                return Err(ChannelFault(format!("{said:?} out of turn")));
            }
        }
        Ok(())
    }

    /// Why this side does not lend it, and why the other will never take anything.
    fn detour(
        &self,
        op: OpId,
        source: Buffer,
        ours: Option<Arc<str>>,
        theirs: Option<String>,
        tools: &mut Tools,
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

    /// Whether nobody has taken it.
    fn is_open(&self, offer: &Offer) -> bool {
        let borrower = self.invitation.as_ref().and_then(|known| known.borrower());
        let ledger = borrower.and_then(|borrower| borrower.ledger());
        ledger.is_some_and(|ledger| ledger.is_open(offer.entry))
    }

    fn withdraw(&self, offer: &Offer) {
        let borrower = self.invitation.as_ref().and_then(|known| known.borrower());
        if let Some(ledger) = borrower.and_then(|borrower| borrower.ledger()) {
            ledger.withdraw(offer.entry);
        }
    }

    /// Nobody waits for it any more. If it was to prove something, the next one does.
    pub(super) fn cancel(&mut self, op: OpId, tools: &Tools, io: &mut LaneIo<'_>) {
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

/// Where the reader does not say why.
const NOT_NOW: &str = "the peer could not borrow it just then";

/// Offers the memory in which a buffer lies to whoever is at the other end.
fn lend(
    borrower: &Arc<Borrower>,
    shared: SharedMemory,
    buffer: &Buffer,
    tools: &Tools,
) -> Result<Lies, Unlent> {
    let SharedMemory { first, rest, range } = shared;
    let (offer, loan) = borrower.lend_range(&first, &rest, range)?;
    let behind = rest.iter();
    let behind = behind.map(|segment| (segment.id(), segment.len() as u64));
    let lies = Lies {
        offer,
        device: tools.cuda.uuid(buffer.device()).unwrap_or_default(),
        len: first.len() as u64,
        behind: behind.collect(),
    };
    // Before anybody hears of the offer.
    let fence: Arc<dyn Fence> = Arc::new(LoanFence::new(loan, rest, &tools.cuda));
    buffer.use_until(&fence);
    Ok(lies)
}

/// The reader does not say whether it maps what it was asked about.
fn late() -> Unlent {
    let within = proof::WITHIN.as_secs();
    not_now(&format!(
        "the peer gave no proof within {within} s that it maps this memory"
    ))
}

/// There is no memory for a copy, say: another time there may be.
fn not_now(error: &dyn std::fmt::Display) -> Unlent {
    Unlent {
        reason: error.to_string(),
        lasting: false,
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // What is left was taken by nobody.
        for part in self.parts.values() {
            if let Part::Offered(offer, _) | Part::Proving(offer, ..) = part {
                self.withdraw(offer);
            }
        }
    }
}
