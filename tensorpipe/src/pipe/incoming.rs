//! A message that has been announced: its descriptor is known, the reader decides.

use std::sync::Arc;

use bytes::Bytes;

use super::borrowed::Copy;
use super::budget::Reservation;
use super::core::Core;
use super::loan::Loans;
use super::plan::Plan;
use super::read::{Read, ReadInto};
use super::reading::{Eager, Reading, build_whole};
use super::shared::Shared;
use super::stats::MessageStats;
use super::waiter::wake_all;
use crate::channels::{Adopted, Want};
use crate::descriptor::Descriptor;
use crate::device::Buffer;
use crate::error::{Error, ResetCode};
use crate::message::{Allocation, Message, Place};
use crate::proto::OpId;
use crate::stop;
use crate::sync::lock;

/// What a channel has to say of a part when it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) body: &'static [u8],
    pub(super) urgent: bool,
}

/// A message that is there but for its bulk parts. Boxed where it waits: it is handed on several times.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) id: u64,
    descriptor: Descriptor,
    /// Parts that are here.
    eager: Eager,
    /// How these came.
    came: MessageStats,
    /// The one that a channel had at once, and what it has to say when it is read.
    offered: Option<(u16, Answer)>,
    /// All its bytes are here.
    whole: bool,
}

impl Arrival {
    /// The parts that are here came with its frame.
    pub(super) fn new(id: u64, descriptor: Descriptor, eager: Eager) -> Self {
        let came = MessageStats::in_frame(bytes_of(&eager));
        Self {
            id,
            whole: descriptor.byte_len() == came.streamed,
            descriptor,
            eager,
            came,
            offered: None,
        }
    }

    /// The same, but for one of them, which this channel had.
    pub(super) fn with_adopted(
        id: u64,
        descriptor: Descriptor,
        mut eager: Eager,
        (part, channel): (u16, u8),
        adopted: Adopted,
    ) -> Self {
        let mut came = MessageStats::in_frame(bytes_of(&eager));
        came.carried_by(channel);
        let at = eager.partition_point(|(before, _)| *before < part);
        eager.insert(at, (part, adopted.memory));
        let answer = Answer {
            body: adopted.answer,
            urgent: adopted.urgent,
        };
        Self {
            id,
            descriptor,
            eager,
            came,
            offered: Some((part, answer)),
            whole: true,
        }
    }

    /// Takes the part that a channel had at once, if it is this one.
    fn take_offered(&mut self, part: u16) -> Option<Buffer> {
        let (offered, _) = self.offered?;
        let at = self
            .eager
            .iter()
            .position(|(number, _)| *number == part && part == offered)?;
        Some(self.eager.remove(at).1)
    }

    /// Says what its channel has to say now that it is read, or not wanted. `hot`: whoever reads it most likely answers soon.
    fn answer(&self, hot: bool, shared: &mut Shared) {
        if let Some((part, answer)) = self.offered {
            let op = OpId::incoming(self.id, part);
            if hot && !answer.urgent {
                shared.state.channel_late(op, answer.body);
            } else {
                shared.state.channel(op, answer.body);
            }
        }
    }

    /// The same, to be said by whoever takes it.
    fn take_answer(&mut self) -> Option<&'static [u8]> {
        Some(self.offered.take()?.1.body)
    }

    /// Of metadata alone.
    pub(super) fn bare(id: u64, metadata: Bytes) -> Self {
        let descriptor = Descriptor {
            metadata,
            payloads: Vec::new(),
            tensors: Vec::new(),
        };
        Self::new(id, descriptor, Eager::new())
    }

    fn is_bare(&self) -> bool {
        self.descriptor.payloads.is_empty() && self.descriptor.tensors.is_empty()
    }

    /// Whether all its bytes are here.
    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    /// Bytes of what is here, roughly.
    pub(super) fn weight(&self) -> usize {
        let parts = self.descriptor.payloads.len() + self.descriptor.tensors.len();
        self.descriptor.metadata.len() + self.came.streamed as usize + 64 * parts
    }

    /// The application reads it, which is whole. Returns whether the peer is to hear of it: it gets credit, or the answer to a
    /// flush.
    pub(super) fn finish(&self, core: &Core, shared: &mut Shared) -> bool {
        self.answer(core.hot.is_on(), shared);
        shared.state.take_whole(self.id);
        shared.state.has_control()
    }

    /// It is whole.
    pub(super) fn into_message(self) -> Message {
        if self.is_bare() {
            return Message::new(self.descriptor.metadata);
        }
        build_whole(self.descriptor, self.eager)
    }
}

fn bytes_of(parts: &Eager) -> u64 {
    parts.iter().map(|(_, buffer)| buffer.len() as u64).sum()
}

/// A message of which the [`Descriptor`] is known. Dropping it skips the message.
pub struct Incoming {
    core: Arc<Core>,
    /// `None` once it is decided.
    arrival: Option<Arrival>,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("arrival", &self.arrival)
            .finish_non_exhaustive()
    }
}

impl Incoming {
    pub(super) fn new(core: Arc<Core>, arrival: Arrival) -> Self {
        Self {
            core,
            arrival: Some(arrival),
        }
    }

    /// Its number among the peer's messages on this pipe.
    pub fn id(&self) -> u64 {
        self.arrival.as_ref().map_or(0, |arrival| arrival.id)
    }

    /// Whether all of its bytes are here: then [`Incoming::accept`] returns the message, and reading it takes no wait.
    pub fn is_whole(&self) -> bool {
        self.arrival.as_ref().is_some_and(Arrival::is_whole)
    }

    /// How what is here of it has come; of a message that [is here whole](Self::is_whole) that is all.
    pub fn stats(&self) -> MessageStats {
        self.arrival
            .as_ref()
            .map_or_else(MessageStats::default, |arrival| arrival.came)
    }

    /// Lengths, types, devices and metadata.
    pub fn descriptor(&self) -> &Descriptor {
        static NONE: std::sync::OnceLock<Descriptor> = std::sync::OnceLock::new();
        self.arrival.as_ref().map_or_else(
            || NONE.get_or_init(Descriptor::default),
            |arrival| &arrival.descriptor,
        )
    }

    /// Reads all of it into pooled memory. The read is under way from now on, polled or not; dropping the future gives
    /// it up, and the pipe goes on.
    pub fn read(self) -> Read {
        Read(self.read_into(Allocation::default()))
    }

    /// The same into memory of the caller's. Places that the allocation does not mention are [`Place::Pool`].
    ///
    /// # Errors
    /// The future gives a [`ReadError`](crate::ReadError), which holds the allocation: with
    /// [`Misuse::Allocation`](crate::Misuse::Allocation) or [`Misuse::OutOfReach`](crate::Misuse::OutOfReach) where a place
    /// does not fit (the message is then skipped), else with what ended the message or the pipe.
    pub fn read_into(mut self, mut allocation: Allocation) -> ReadInto {
        let core = self.core.clone();
        let loans = Loans::of(&mut allocation, &core.runtime);
        match self.start(allocation, false) {
            Err(error) => ReadInto::ended(core, Some(Err(error)), loans),
            Ok(None) => {
                let whole = self.take_whole();
                ReadInto::ended(core, whole, loans)
            }
            Ok(Some(id)) => {
                core.send_out();
                stop::at(stop::GRANT_SENT);
                ReadInto::of(core, id, loans)
            }
        }
    }

    /// Has all of it read into pooled memory and given to the pipe's [`Handler`](super::Handler). `Some` if it was here
    /// whole: then the handler is not called.
    pub fn accept(mut self) -> Option<Result<Message, Error>> {
        match self.start(Allocation::default(), true) {
            Err(error) => Some(Err(error)),
            Ok(None) => self.take_whole(),
            Ok(Some(_)) => None,
        }
    }

    /// Does not want it: the writer does not send what it has not sent yet, and sees no error.
    pub fn skip(self) {}

    /// Does not want it, for a reason that the writer gets as [`Error::Refused`].
    pub fn refuse(mut self, reason: &str) {
        self.decline(ResetCode::Refused, reason);
    }

    pub(super) fn decline(&mut self, code: ResetCode, reason: &str) {
        if let Some(arrival) = self.arrival.take() {
            let mut wakes = Vec::new();
            {
                let mut shared = lock(&self.core.shared);
                if code == ResetCode::Skipped {
                    arrival.answer(false, &mut shared);
                }
                shared.state.refuse(arrival.id, code, reason);
                shared.reads.remove(&arrival.id);
                shared.process(&self.core, &mut wakes);
            }
            wake_all(wakes);
            self.core.drive();
        }
    }

    /// Starts reading. `None`: the message is whole and still in `arrival`.
    fn start(&mut self, allocation: Allocation, pushed: bool) -> Result<Option<u64>, Error> {
        let Some(arrival) = &self.arrival else {
            return Ok(None);
        };
        let id = arrival.id;
        let all_pooled = allocation.payloads.is_empty() && allocation.tensors.is_empty();
        if all_pooled && arrival.is_whole() {
            return Ok(None);
        }
        let mut plan = Plan::new(&arrival.descriptor, allocation)?;
        if arrival.is_whole() && plan.is_default() {
            return Ok(None);
        }
        let mut wakes = Vec::new();
        {
            let mut guard = lock(&self.core.shared);
            let shared = &mut *guard;
            if let (Some(error), false) = (&shared.ended, arrival.is_whole()) {
                return Err(error.clone());
            }
            plan.check_reach(&arrival.descriptor, |part, from, to| {
                shared.reaches(id, part, from, to)
            })?;
            plan.check_copies(&arrival.descriptor, |part| {
                !matches!(shared.state.bulk_channel(id, part), Some((_, false)))
            })?;
            let Some(mut arrival) = self.arrival.take() else {
                return Ok(None);
            };
            if !shared.state.grant(id, &plan.skipped) && !arrival.is_whole() {
                let reason = "it was taken back before it was read".into();
                return Err(Error::Reset {
                    code: ResetCode::Cancelled,
                    reason,
                });
            }
            let mut places = Vec::new();
            let mut own = Vec::new();
            let mut copy = None;
            // There while the lanes work: they count there what they do.
            shared.reads.entry(id).or_insert_with(Reading::ahead);
            for (part, place) in plan.places {
                let op = OpId::incoming(id, part);
                let bulk = shared.state.bulk_channel(id, part);
                if let (Some((channel, _)), false) = (bulk, matches!(place, Place::Skip)) {
                    shared.carried_by(id, channel);
                }
                match (bulk, place) {
                    // Its bytes are here or on their way into pooled memory: copied in the end.
                    (None | Some((_, true)), Place::Into(dest)) => {
                        match arrival.take_offered(part) {
                            Some(source) => {
                                arrival.came.copied += source.len() as u64;
                                shared.lane_stats.copied += source.len() as u64;
                                copy = Some(Copy::new(op, source, dest));
                            }
                            None => places.push((part, dest)),
                        }
                    }
                    (None | Some((_, true)), _) => {}
                    (Some((channel, false)), Place::Into(dest)) => {
                        own.push(part);
                        shared
                            .with_lane(op, channel, |lane, io| lane.recv(op, Want::Into(dest), io));
                    }
                    (Some((channel, false)), place @ (Place::Pool | Place::On(_))) => {
                        let len = arrival.descriptor.part_len(part);
                        let device = match place {
                            Place::On(device) => device,
                            _ => arrival.descriptor.device(part),
                        };
                        let want = Want::Adopt { len, device };
                        shared.with_lane(op, channel, |lane, io| lane.recv(op, want, io));
                    }
                    (Some(_), Place::Skip) => {}
                }
            }
            // What takes a while is answered when it is done: a writer that hears that all is well may close at once.
            match &mut copy {
                Some(copy) if copy.takes_a_while() => copy.answer = arrival.take_answer(),
                _ => arrival.answer(false, shared),
            }
            let over = shared.ended.is_some();
            let reading = shared.reads.entry(id).or_insert_with(Reading::ahead);
            reading.reserve(Reservation::new(&self.core.budget), own);
            reading.start(
                arrival.descriptor,
                (arrival.eager, arrival.came),
                places,
                plan.skipped,
                plan.elsewhere,
                pushed,
            );
            if let Some(copy) = copy {
                copy.begin(&self.core, reading, over);
            }
            shared.announce(id);
            shared.check_read(id, &mut wakes);
            shared.process(&self.core, &mut wakes);
        }
        wake_all(wakes);
        Ok(Some(id))
    }

    /// The message, which is here whole.
    fn take_whole(&mut self) -> Option<Result<Message, Error>> {
        let arrival = self.arrival.take()?;
        let answers = arrival.finish(&self.core, &mut lock(&self.core.shared));
        if answers {
            self.core.send_out();
        }
        Some(Ok(arrival.into_message()))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.decline(ResetCode::Skipped, "");
    }
}
