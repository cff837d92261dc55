//! Which proofs a writer has, waits for, and gives up: one at a time about a device, for all parts that are sent meanwhile.
//!
//! Invariant: each proof that was begun ends in [`Writer::proof_ended`], or goes on with another part ([`Writer::pass_on`]), so that no part
//! waits for one that nobody makes; and each that came to nothing counts.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

use super::frame::FromWriter;
use super::proof::{self, Number};
use super::writing::{Part, Writer, lend, not_now};
use super::{Arc, Buffer, Device, JobHandle, LaneContext, LaneIo, LendError, OpId};
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// What a lane's writer knows of proofs, for each device.
#[derive(Default)]
pub(super) struct Proofs {
    /// Devices whose memory the reader has proved to map.
    proved: HashSet<Device>,
    /// Until the reader answers, or its time is up.
    underway: HashMap<Device, Underway>,
    /// Those that came to nothing, since one was given.
    unproved: HashMap<Device, Unproved>,
}

#[derive(Default)]
struct Unproved {
    count: u32,
    /// The reader could not just then: it is not asked before.
    until: Option<Instant>,
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
pub(super) struct Asked {
    pub(super) is_late: AtomicBool,
    /// The part that asks now.
    by: Mutex<OpId>,
}

impl Proofs {
    pub(super) fn is_proved(&self, device: Device) -> bool {
        self.proved.contains(&device)
    }

    /// There is one.
    pub(super) fn proved(&mut self, device: Device) {
        self.proved.insert(device);
        self.unproved.remove(&device);
    }

    /// The reader could not prove anything just then: what keeps it from that may do so for a while, and three tries are soon over.
    pub(super) fn pause(&mut self, device: Device) {
        let unproved = self.unproved.entry(device).or_default();
        unproved.until = Some(Instant::now() + proof::PAUSE);
    }

    fn is_paused(&self, device: Device) -> bool {
        let until = self.unproved.get(&device).and_then(|one| one.until);
        until.is_some_and(|until| Instant::now() < until)
    }
}

impl Writer {
    /// What becomes of a part whose device nothing is proved about: it waits, or begins a proof.
    pub(super) fn behind_a_proof(
        &mut self,
        op: OpId,
        source: Buffer,
        tools: &LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Part {
        let is_paused = self.proofs.is_paused(source.device());
        match self.proofs.underway.entry(source.device()) {
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
                None if is_paused => {
                    let reason = "the peer could prove nothing just now";
                    Self::cannot(op, source, not_now(&reason), tools, io)
                }
                None => {
                    proving.insert(Underway::default());
                    Self::numbering(op, source, tools, io)
                }
            },
        }
    }

    /// Begins a proof with this part. Its memory is made for it: that takes a driver long.
    fn numbering(op: OpId, source: Buffer, tools: &LaneContext, io: &mut LaneIo<'_>) -> Part {
        let (cuda, device) = (tools.cuda.clone(), source.device());
        let made = move || proof::made(&cuda, device);
        Part::Numbering(JobHandle::of(op, false, &tools.handle, io, made), source)
    }

    /// Whoever was to prove something about this device is given up: another one does, and the rest wait on. The last one, since the parts
    /// of a message are given up from its front.
    pub(super) fn pass_on(&mut self, device: Device, tools: &LaneContext, io: &mut LaneIo<'_>) {
        let mut proof = self.proofs.underway.remove(&device).unwrap_or_default();
        while let Some(op) = proof.waiting.pop() {
            match self.parts.remove(&op) {
                Some(Part::Waits(source)) => {
                    let part = Self::numbering(op, source, tools, io);
                    self.parts.insert(op, part);
                    self.proofs.underway.insert(device, proof);
                    return;
                }
                Some(other) => drop(self.parts.insert(op, other)),
                None => {}
            }
        }
    }

    /// Has the reader prove that it maps this side's memory, as soon as the number is there.
    pub(super) fn prove(
        &mut self,
        op: OpId,
        numbered: Buffer,
        number: Number,
        source: Buffer,
        tools: &LaneContext,
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
            (Some(Err((reason, lasting))), _) => Err(LendError { reason, lasting }),
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
    fn ask(
        &mut self,
        op: OpId,
        device: Device,
        tools: &LaneContext,
        io: &LaneIo<'_>,
    ) -> Arc<Asked> {
        let proof = self.proofs.underway.entry(device).or_default();
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

    /// There is no proof, for this reason: the part goes another way, and so do those that wait.
    pub(super) fn unproved(
        &mut self,
        op: OpId,
        source: Buffer,
        unlent: LendError,
        tools: &LaneContext,
        io: &mut LaneIo<'_>,
    ) {
        let (device, reason) = (source.device(), Arc::from(unlent.reason.as_str()));
        let part = Self::cannot(op, source, unlent, tools, io);
        self.parts.insert(op, part);
        self.not_proved(device, &reason, tools, io);
    }

    /// A proof came to nothing. After some in a row none is tried.
    pub(super) fn not_proved(
        &mut self,
        device: Device,
        reason: &Arc<str>,
        tools: &LaneContext,
        io: &mut LaneIo<'_>,
    ) {
        let unproved = self.proofs.unproved.entry(device).or_default();
        unproved.count += 1;
        if unproved.count >= proof::TRIES {
            let tries = proof::TRIES;
            let reason = format!("{tries} proofs for the peer came to nothing: {reason}");
            tools.degraded.cannot_send(reason);
        }
        self.proof_ended(device, Some(reason), tools, io);
    }

    /// A proof is over. What waits for it is offered, unless there is a reason why not: so one that fails is not made again for each part
    /// of a message.
    pub(super) fn proof_ended(
        &mut self,
        device: Device,
        failed: Option<&Arc<str>>,
        tools: &LaneContext,
        io: &mut LaneIo<'_>,
    ) {
        let proof = self.proofs.underway.remove(&device).unwrap_or_default();
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
}

/// The reader does not say whether it maps what it was asked about.
pub(super) fn late() -> LendError {
    let within = proof::WITHIN.as_secs();
    not_now(&format!(
        "the peer gave no proof within {within} s that it maps this memory"
    ))
}
