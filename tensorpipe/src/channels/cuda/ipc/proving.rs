//! The writer's proofs: which ones it has, waits for, and gives up. At most one per device is under way, and all parts for that device wait
//! for it.
//!
//! Invariant: each proof that was begun ends in [`Writer::proof_ended`], or continues with another part ([`Writer::pass_on`]). So no part
//! waits for a proof that nobody makes, and each failed proof is counted.

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
    /// Proofs under way: until the reader answers, or its time is up.
    underway: HashMap<Device, Underway>,
    /// Failed proofs since the last success.
    unproved: HashMap<Device, Unproved>,
}

#[derive(Default)]
struct Unproved {
    count: u32,
    /// The reader could not give a proof: it is not asked again before this.
    until: Option<Instant>,
}

/// A proof about a device.
#[derive(Default)]
struct Underway {
    /// Set once the reader was asked.
    asked: Option<Arc<Asked>>,
    /// Parts that wait for it.
    waiting: Vec<OpId>,
}

/// The reader was asked for a proof and has [`proof::WITHIN`] for it, whichever parts ask.
pub(super) struct Asked {
    pub(super) is_late: AtomicBool,
    /// The part that currently asks.
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

    /// The reader could not give a proof. The obstacle may last for a while, and three tries would soon be used up.
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
    /// Handles a part for whose device there is no proof: the part waits, or begins a proof.
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
                // Forgets parts that were given up.
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

    /// Begins a proof with this part. Makes the memory for it, for which a driver takes long.
    fn numbering(op: OpId, source: Buffer, tools: &LaneContext, io: &mut LaneIo<'_>) -> Part {
        let (cuda, device) = (tools.cuda.clone(), source.device());
        let made = move || proof::made(&cuda, device);
        Part::Numbering(JobHandle::of(op, false, &tools.handle, io, made), source)
    }

    /// The part that was to prove something about this device is given up. Another one continues the proof, and the rest wait on. The last
    /// one is chosen, since the parts of a message are given up from its front.
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

    /// Asks the reader to prove that it maps this side's memory, once the number is there.
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

    /// The reader's time begins when it is first asked about a device, and continues if another part asks instead.
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

    /// The proof failed, for this reason: the part and those that wait go another way.
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

    /// Counts a failed proof. After some in a row, no more are tried.
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

    /// A proof is over. The parts that wait for it are offered, or go another way if there is a reason. So a failed proof is not repeated
    /// for each part of a message.
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
                    io.control(op, FromWriter::Unavailable.encode());
                    self.parts
                        .insert(op, Part::Unavailable(source, reason.clone()));
                }
                (Some(other), _) => drop(self.parts.insert(op, other)),
                // Given up in the meantime.
                (None, _) => {}
            }
        }
    }
}

/// The reader did not say in time whether it maps the memory in question.
pub(super) fn late() -> LendError {
    let within = proof::WITHIN.as_secs();
    not_now(&format!(
        "the peer gave no proof within {within} s that it maps this memory"
    ))
}
