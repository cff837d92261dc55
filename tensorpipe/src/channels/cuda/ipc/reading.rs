//! The reading side of a lane.

use std::collections::{HashMap, HashSet};

use super::frame::{FromReader, FromWriter};
use super::mapping;
use super::proof::{self, Number, OTHER_MEMORY};
use super::{
    Arc, Buffer, BufferMut, ChannelFault, Device, DeviceError, Error, JobHandle, Lane, LaneContext,
    LaneIo, Lender, Offer, OpId, Room, Want, Wanted, copy, failed,
};
use crate::device::cuda::{Download, Physical};
use crate::keys::PipeKey;
use crate::process::Token;
use crate::sync::{AtomicBool, Ordering};

/// See the module's documentation.
pub(super) struct Reader {
    /// The process that owns the exchange which the peer names.
    lender: Arc<Lender>,
    /// The pipe's key.
    key: Option<PipeKey>,
    /// Whether received memory may remain the peer's.
    borrows: bool,
    /// The peer's invitation.
    invited: Option<Token>,
    /// The peer's exchange has accepted the invitation.
    is_welcome: Arc<AtomicBool>,
    /// Devices for which the number showed that the mapped memory is the writer's.
    proved: HashSet<Device>,
    /// Consecutive failed proofs, by device.
    unproved: HashMap<Device, u32>,
    parts: HashMap<OpId, Part>,
}

/// The state of a part.
enum Part {
    /// The writer has not made an offer yet.
    Wanted(Want),
    /// The exchange fetches what is needed to take the offer.
    Fetching(FromWriter, Want),
    /// The memory is being mapped.
    Mapping(FromWriter, Want, JobHandle<Result<(), (DeviceError, bool)>>),
    /// The read of a number is being queued.
    Queueing(Proof, JobHandle<Download>),
    /// A number is being read.
    Proving(Proof, Download),
    /// It is being copied to where it is wanted.
    Copying(JobHandle<Buffer, Error>),
}

/// A number that should lie in memory of a device, and the part that waits for it.
struct Proof {
    number: Number,
    local: Device,
    want: Want,
}

/// An offer, and the local mapping of its memory.
struct Offered<'a> {
    offer: &'a Offer,
    local: Device,
    physical: &'a Arc<Physical>,
}

impl Reader {
    pub(super) fn new(lender: Arc<Lender>, key: Option<PipeKey>, borrows: bool) -> Self {
        Self {
            lender,
            key,
            borrows,
            invited: None,
            is_welcome: Arc::default(),
            proved: HashSet::new(),
            unproved: HashMap::new(),
            parts: HashMap::new(),
        }
    }

    pub(super) fn recv(&mut self, op: OpId, want: Want) {
        self.parts.insert(op, Part::Wanted(want));
    }

    /// Handles a frame of the writer's lane.
    pub(super) fn told(
        &mut self,
        op: OpId,
        told: FromWriter,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        if let FromWriter::Invite(number) = told
            && *self.invited.get_or_insert(number) != number
        {
            return Err(ChannelFault(
                "another invitation on the same pipe".to_owned(),
            ));
        }
        match self.parts.remove(&op) {
            Some(Part::Wanted(want)) => self.settle(op, told, want, false, tools, io),
            // The writer gave up on the proof because it took too long: nobody reads the number any more.
            Some(
                Part::Fetching(FromWriter::Prove(..), want)
                | Part::Mapping(FromWriter::Prove(..), want, _)
                | Part::Queueing(Proof { want, .. }, _)
                | Part::Proving(Proof { want, .. }, _),
            ) if told == FromWriter::Unavailable => {
                self.detour(op, want, tools, io);
                Ok(())
            }
            Some(_) => Err(ChannelFault(format!("{told:?} out of turn"))),
            // The frame crossed the end of the operation.
            None => Ok(()),
        }
    }

    /// `fetched`: everything that the exchange can provide is here.
    fn settle(
        &mut self,
        op: OpId,
        told: FromWriter,
        want: Want,
        fetched: bool,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        // If nothing can be taken any more, nothing is fetched either.
        if told == FromWriter::Unavailable || tools.degraded.receiving().is_some() {
            self.detour(op, want, tools, io);
            return Ok(());
        }
        let wanted = match told {
            FromWriter::Invite(_) if self.is_welcome.load(Ordering::Acquire) => {
                io.control(op, FromReader::Connected.encode());
                self.parts.insert(op, Part::Wanted(want));
                return Ok(());
            }
            FromWriter::Invite(_) | FromWriter::Unavailable => Vec::new(),
            FromWriter::Offer(ref lies) | FromWriter::Prove(ref lies, _) => {
                let all = lies.all().map(|(segment, _)| Wanted::Device(segment));
                let missing: Vec<_> = all.filter(|one| !self.lender.has(*one)).collect();
                if missing.is_empty() {
                    return self.take(op, told, want, tools, io);
                }
                missing
            }
        };
        let Some(number) = self
            .invited
            .filter(|_| !fetched && !self.lender.is_unreliable())
        else {
            self.detour(op, want, tools, io);
            return Ok(());
        };
        let invitation = self.lender.brings(&number, self.key.as_ref());
        self.parts.insert(op, Part::Fetching(told, want));
        let (lender, handle) = (self.lender.clone(), tools.handle.clone());
        let (degraded, is_welcome) = (tools.degraded.clone(), self.is_welcome.clone());
        io.spawn(async move {
            match mapping::fetch(&lender, invitation, &wanted).await {
                Ok(()) => drop(is_welcome.fetch_or(wanted.is_empty(), Ordering::Release)),
                Err(unlent) => {
                    tracing::debug!(unlent.reason, "a tensor of a device is not borrowed");
                    if unlent.lasting {
                        degraded.cannot_receive(unlent.reason);
                    }
                }
            }
            handle.resume(op);
        });
        Ok(())
    }

    /// Takes an offer whose descriptors were fetched.
    fn take(
        &mut self,
        op: OpId,
        told: FromWriter,
        want: Want,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        let (lies, number) = match &told {
            FromWriter::Offer(lies) => (lies, None),
            FromWriter::Prove(lies, number) => (lies, Some(*number)),
            FromWriter::Invite(_) | FromWriter::Unavailable => return Ok(()),
        };
        let (ids, lens): (Vec<_>, Vec<_>) = lies.all().unzip();
        let len = lens.iter().copied().fold(0, u64::saturating_add);
        let offer = lies.offer;
        let Some(local) = tools.cuda.seen_as(lies.device) else {
            self.detour(op, want, tools, io);
            return Ok(());
        };
        let (span, unused) = match self.lender.span(&ids) {
            Ok(found) => found,
            Err(unlent) => {
                tracing::debug!(unlent.reason, "a tensor of a device is not borrowed");
                self.detour(op, want, tools, io);
                return Ok(());
            }
        };
        // Not while it is still being mapped for another part: that thread holds the lock.
        let mapped = span.mapped.try_lock();
        let mapped = mapped.map_or(None, |mapped| mapped.clone());
        let Some(physical) = mapped.and_then(|mapped| mapped.downcast::<Physical>().ok()) else {
            let cuda = tools.cuda.clone();
            let slot = JobHandle::of(op, false, &tools.handle, io, move || {
                // Evicted mappings: the driver takes as long to unmap them.
                drop(unused);
                Ok(mapping::map(&cuda, local, &span, &lens))
            });
            self.parts.insert(op, Part::Mapping(told, want, slot));
            return Ok(());
        };
        // The length must agree with earlier offers, and the memory must be on the claimed device.
        if physical.len() as u64 != len || !tools.cuda.is_on(local, &physical) {
            self.detour(op, want, tools, io);
            return Ok(());
        }
        let offered = Offered {
            offer: &offer,
            local,
            physical: &physical,
        };
        let Some(number) = number else {
            return self.borrow(op, &offered, want, tools, io);
        };
        let len = number.len() as u64;
        let Some((borrowed, want)) = self.owed(op, &offered, len, want, tools, io)? else {
            return Ok(());
        };
        let cuda = tools.cuda.clone();
        let is_quick = cuda.has_stream(local);
        let reading = JobHandle::of(op, is_quick, &tools.handle, io, move || {
            proof::read(&cuda, local, &borrowed)
        });
        let proof = Proof {
            number,
            local,
            want,
        };
        self.parts.insert(op, Part::Queueing(proof, reading));
        Ok(())
    }

    /// Takes an offer of memory that is mapped here.
    fn borrow(
        &mut self,
        op: OpId,
        offered: &Offered<'_>,
        want: Want,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        let local = offered.local;
        if !self.proved.contains(&local) {
            return Err(ChannelFault(format!("memory of {local} without a proof")));
        }
        let len = match &want {
            Want::Into(dest) => dest.len() as u64,
            Want::Adopt { len, .. } => *len,
        };
        let Some((borrowed, want)) = self.owed(op, offered, len, want, tools, io)? else {
            return Ok(());
        };
        match want {
            Want::Adopt { device, .. } if device == local && self.borrows => {
                io.borrowed(len);
                self.received(op, borrowed, io);
            }
            Want::Adopt { len, device } => match io.room(op, device, len) {
                Ok(room) => self.copy(op, borrowed, room, tools, io),
                Err(error) => io.failed(op, error),
            },
            Want::Into(dest) => self.copy(op, borrowed, Room::Warm(dest), tools, io),
        }
        Ok(())
    }

    /// The offered memory of so many bytes; `None` if the part has ended or goes another way.
    fn owed(
        &self,
        op: OpId,
        offered: &Offered<'_>,
        len: u64,
        want: Want,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<Option<(Buffer, Want)>, ChannelFault> {
        let Offered {
            offer,
            local,
            physical,
        } = *offered;
        let range = offer.range().filter(|range| range.end <= physical.len());
        let (Some(range), true) = (range, offer.len == len) else {
            let found = offer.len;
            let reason = format!("{found} bytes at {} for a tensor of {len}", offer.offset);
            return Err(ChannelFault(reason));
        };
        let Some(debt) = self.lender.owe(offer) else {
            // If the writer has withdrawn it, the answer means nothing there, and a RESET or the end of the pipe follows.
            self.detour(op, want, tools, io);
            return Ok(None);
        };
        match tools.cuda.lent(local, physical, range, Box::new(debt)) {
            Ok(borrowed) => Ok(Some((borrowed, want))),
            Err(error) => {
                tracing::debug!(%error, "a tensor of a device is not borrowed");
                self.detour(op, want, tools, io);
                Ok(None)
            }
        }
    }

    /// The read of the number may have finished.
    fn proves(
        &mut self,
        op: OpId,
        proof: Proof,
        mut read: Download,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) {
        match read.take().map(|read| read.map(BufferMut::freeze)) {
            Err(error) => self.unproved(op, proof, &error, tools, io),
            Ok(None) => {
                tools.handle.resume_at(op, read.fence());
                self.parts.insert(op, Part::Proving(proof, read));
            }
            Ok(Some(found)) if found.as_bytes() == Some(&proof.number[..]) => {
                self.proved.insert(proof.local);
                self.unproved.remove(&proof.local);
                io.control(op, FromReader::Proved.encode());
                self.parts.insert(op, Part::Wanted(proof.want));
            }
            Ok(Some(_)) => {
                tools.degraded.cannot_receive(OTHER_MEMORY);
                self.detour(op, proof.want, tools, io);
            }
        }
    }

    fn copy(
        &mut self,
        op: OpId,
        borrowed: Buffer,
        room: Room,
        tools: &LaneContext,
        io: &mut LaneIo<'_>,
    ) {
        let copying = copy(op, borrowed, room, tools, io);
        self.parts.insert(op, Part::Copying(copying));
    }

    fn received(&self, op: OpId, buffer: Buffer, io: &mut LaneIo<'_>) {
        io.control(op, FromReader::Taken.encode());
        io.received(op, buffer);
    }

    /// The number could not be read; a later proof may succeed.
    fn unproved(
        &mut self,
        op: OpId,
        proof: Proof,
        error: &dyn std::fmt::Display,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) {
        tracing::debug!(%error, "nothing is borrowed yet: the proof could not be read");
        let unproved = self.unproved.entry(proof.local).or_default();
        *unproved += 1;
        if *unproved >= proof::TRIES {
            let tries = proof::TRIES;
            let reason = format!("{tries} proofs of the peer's memory could not be read: {error}");
            tools.degraded.cannot_receive(reason);
        }
        self.detour(op, proof.want, tools, io);
    }

    fn detour(&self, op: OpId, want: Want, tools: &mut LaneContext, io: &mut LaneIo<'_>) {
        let reason = tools.degraded.receiving().map(str::to_owned);
        io.control(op, FromReader::Detour(reason).encode());
        tools.detour.recv(op, want, io);
    }

    /// A step of a part has finished.
    pub(super) fn resume(
        &mut self,
        op: OpId,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        match self.parts.remove(&op) {
            Some(Part::Fetching(told, want)) => self.settle(op, told, want, true, tools, io)?,
            Some(Part::Mapping(told, want, slot)) => match slot.take() {
                None => drop(self.parts.insert(op, Part::Mapping(told, want, slot))),
                Some(Ok(Ok(()))) => self.settle(op, told, want, true, tools, io)?,
                Some(Ok(Err((error, lasting)))) => {
                    tracing::debug!(%error, "a tensor of a device is not borrowed");
                    if lasting {
                        tools.degraded.cannot_receive(error.to_string());
                    }
                    self.detour(op, want, tools, io);
                }
                Some(Err(error)) => io.failed(op, failed(&error)),
            },
            Some(Part::Queueing(proof, slot)) => match slot.take() {
                None => drop(self.parts.insert(op, Part::Queueing(proof, slot))),
                Some(Ok(read)) => self.proves(op, proof, read, tools, io),
                Some(Err(error)) => self.unproved(op, proof, &error, tools, io),
            },
            Some(Part::Proving(proof, read)) => self.proves(op, proof, read, tools, io),
            Some(Part::Copying(slot)) => match slot.take() {
                None => drop(self.parts.insert(op, Part::Copying(slot))),
                Some(Ok(buffer)) => {
                    io.copied(buffer.len() as u64);
                    self.received(op, buffer, io);
                }
                Some(Err(error)) => io.failed(op, error),
            },
            Some(Part::Wanted(want)) => drop(self.parts.insert(op, Part::Wanted(want))),
            None => {}
        }
        Ok(())
    }

    /// Nobody waits for the part any more.
    pub(super) fn cancel(&mut self, op: OpId) {
        self.parts.remove(&op);
    }
}
