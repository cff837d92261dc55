//! A message that has been announced: its descriptor is known, the reader decides.

pub(super) mod delayed_ack;
mod loan;
mod plan;
mod read;

use std::sync::{Arc, OnceLock};
use std::task::Waker;

use smallvec::SmallVec;

use self::delayed_ack::delay_ack;
use self::loan::LentAllocation;
use self::plan::Plan;
use self::read::Stage;
pub(super) use self::read::stop;
pub use self::read::{Read, ReadError, ReadInto};
use super::core::Core;
use super::lane_handle::{Copy, LaneHandle};
use super::shared::{Answer, Arrival, Recipient, Shared};
use super::stats::MessageStats;
use crate::channels::Want;
use crate::descriptor::Descriptor;
use crate::error::{Error, ResetCode};
use crate::message::{Allocation, Message, Place};
use crate::proto::OpId;
use crate::stop;
use crate::sync::lock;

/// A message whose [`Descriptor`] is known. Dropping it skips the message.
pub struct Incoming {
    core: Arc<Core>,
    /// `None` once the reader has decided.
    arrival: Option<Arrival>,
    /// Made when somebody asks for it.
    descriptor: OnceLock<Box<Descriptor>>,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("arrival", &self.arrival)
            .finish_non_exhaustive()
    }
}

impl Incoming {
    pub(super) fn new(core: Arc<Core>, mut arrival: Arrival) -> Self {
        if !arrival.is_whole() {
            lock(&core.shared).complete(&mut arrival);
        }
        Self {
            core,
            arrival: Some(arrival),
            descriptor: OnceLock::new(),
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

    /// How the parts that are here have come; all of them, if the message [is here whole](Self::is_whole).
    pub fn stats(&self) -> MessageStats {
        self.arrival
            .as_ref()
            .map_or_else(MessageStats::default, Arrival::came)
    }

    /// Lengths, types, devices and metadata.
    pub fn descriptor(&self) -> &Descriptor {
        self.descriptor.get_or_init(|| {
            let head = self
                .arrival
                .as_ref()
                .map(|arrival| arrival.head.descriptor());
            Box::new(head.unwrap_or_default())
        })
    }

    /// Its metadata: what the [descriptor](Self::descriptor) has of it, without the rest.
    pub fn metadata(&self) -> &[u8] {
        self.arrival
            .as_ref()
            .map_or(&[], |arrival| &arrival.head.metadata)
    }

    /// Bytes of all its metadata: its own, and that of payloads and tensors.
    pub fn metadata_len(&self) -> usize {
        self.arrival
            .as_ref()
            .map_or(0, |arrival| arrival.head.metadata_len())
    }

    /// Bytes of all payloads and tensors together.
    pub fn byte_len(&self) -> u64 {
        self.arrival
            .as_ref()
            .map_or(0, |arrival| arrival.head.byte_len())
    }

    /// Reads all of it into pooled memory. The read is under way from now on, polled or not; dropping the future gives
    /// it up, and the pipe goes on.
    ///
    /// A tensor on a device may be here before its bytes are: [`Buffer::ready`](crate::Buffer::ready) is the fence behind which
    /// they are read. Tensors in main memory are here with their bytes.
    pub fn read(self) -> Read {
        Read(self.read_into(Allocation::default()))
    }

    /// Reads all of it into memory of the caller's. Places that the allocation does not mention are [`Place::Pool`]. If device memory in it
    /// was lent, and the peer still reads it, the read waits for that, and begins only when it is polled.
    ///
    /// # Errors
    /// The future gives a [`ReadError`], which holds the allocation. Where a place does not fit it is
    /// [`Misuse::Allocation`](crate::Misuse::Allocation) or [`Misuse::OutOfReach`](crate::Misuse::OutOfReach), and the message is
    /// skipped; else it is what ended the message or the pipe.
    pub fn read_into(self, mut allocation: Allocation) -> ReadInto {
        let core = self.core.clone();
        let loans = LentAllocation::of(&mut allocation, &core.runtime);
        let fences = allocation.held();
        let stage = match fences.is_empty() {
            true => self.begin(allocation),
            false => Stage::AwaitsMemory(Box::pin(async move {
                for fence in fences {
                    fence.when().await;
                }
                self.begin(allocation)
            })),
        };
        ReadInto::new(core, stage, loans)
    }

    /// Starts reading for a task that waits for the message.
    fn begin(mut self, allocation: Allocation) -> Stage {
        match self.start(allocation, Recipient::Waits) {
            Err(error) => Stage::Ended(Err(error)),
            Ok(None) => self.take_whole().map_or(Stage::Over, Stage::Ended),
            Ok(Some(id)) => {
                self.core.send_out();
                stop::at(stop::GRANT_SENT);
                Stage::Reading(id)
            }
        }
    }

    /// Has all of it read into pooled memory and given to the pipe's [`Handler`](crate::engine::Handler). `Some` if it was here
    /// whole: then the handler is not called. Else the handler may be called, on another thread, before this returns.
    pub fn accept(mut self) -> Option<Result<Message, Error>> {
        if self.is_whole() {
            return self.take_whole();
        }
        self.accept_into(Allocation::default())
    }

    /// As [`Incoming::accept`], with each part where the allocation says. If parts of a whole message have to be copied, the handler is
    /// called for it, too. On an error, memory in the allocation ([`Place::Into`]) is dropped.
    ///
    /// # Errors
    /// As [`Incoming::read_into`]; what is known at once is returned at once.
    pub fn accept_into(mut self, allocation: Allocation) -> Option<Result<Message, Error>> {
        match self.start(allocation, Recipient::Handler) {
            Err(error) => Some(Err(error)),
            Ok(None) => self.take_whole(),
            Ok(Some(id)) => self.accepted(id),
        }
    }

    /// A message is being read for the handler.
    fn accepted(&self, id: u64) -> Option<Result<Message, Error>> {
        let core = &self.core;
        let mut shared = lock(&core.shared);
        if shared.is_over() {
            // The handler is told of the pipe's end, and of nothing behind it: the result is returned here.
            return shared.take_read(id);
        }
        drop(shared);
        // The go-ahead leaves, and the handler is given what is complete already.
        self.drive_later();
        None
    }

    /// Has the pipe driven soon, wherever this is called; but not from here, where the caller may hold a lock that the handler needs.
    fn drive_later(&self) {
        self.core.driver.kick();
        if !self.core.is_handling() {
            self.core.driver.wakers.notify();
        }
    }

    /// Does not read it: the writer does not send what it has not sent yet, and sees no error.
    pub fn skip(self) {}

    /// Does not read it, for a reason that the writer gets as [`Error::Refused`].
    pub fn refuse(mut self, reason: &str) {
        self.decline(ResetCode::Refused, reason);
    }

    /// Does not read it, because there is too much to do here: the writer gets [`Error::Refused`] with [`ResetCode::Overloaded`], and may send
    /// it again later.
    pub fn refuse_overloaded(mut self, reason: &str) {
        self.decline(ResetCode::Overloaded, reason);
    }

    pub(super) fn decline(&mut self, code: ResetCode, reason: &str) {
        if let Some(arrival) = self.arrival.take() {
            self.core.update(|shared, wakes| {
                if let (ResetCode::Skipped, Some(answer)) = (code, arrival.answer()) {
                    shared.state.channel(answer.op, answer.body);
                }
                shared.state.refuse(arrival.id, code, reason);
                shared.reads.remove(&arrival.id);
                shared.process(wakes);
            });
            self.core.drive();
        }
    }

    /// Starts reading. `None`: the message is whole and still in `arrival`.
    fn start(&mut self, allocation: Allocation, reader: Recipient) -> Result<Option<u64>, Error> {
        let Some(arrival) = &mut self.arrival else {
            return Ok(None);
        };
        // Parts that came ahead meanwhile may make it whole. A handler was told that it is not whole, and is called, while the pipe lives.
        if !arrival.is_whole() {
            let mut shared = lock(&self.core.shared);
            if reader == Recipient::Waits || shared.is_over() {
                shared.complete(arrival);
            }
        }
        let all_pooled = allocation.payloads.is_empty() && allocation.tensors.is_empty();
        if all_pooled && arrival.is_whole() {
            return Ok(None);
        }
        let mut plan = Plan::new(&arrival.head, allocation)?;
        if arrival.is_whole() && plan.is_default {
            return Ok(None);
        }
        let Self { core, arrival, .. } = self;
        // Unused places, and an arrival that cannot be read, are dropped without the lock.
        let mut undone = None;
        let begun = core.update(|shared, wakes| {
            start_reading(core, arrival, &mut plan, &mut undone, reader, shared, wakes)
        });
        // If there was no memory for parts that came ahead, the writer is told.
        begun.inspect_err(|_| self.drive_later())
    }

    /// The message, which is here whole.
    fn take_whole(&mut self) -> Option<Result<Message, Error>> {
        let arrival = self.arrival.take()?;
        let answers = finish(&self.core, &mut lock(&self.core.shared), &arrival);
        if answers {
            self.core.send_out();
        }
        Some(arrival.into_message())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if self.arrival.is_some() && !self.core.is_inherited() {
            self.decline(ResetCode::Skipped, "");
        }
    }
}

/// Starts reading a message that is not whole, or has parts that go elsewhere; `None` if it was decided before. An arrival that cannot be
/// read any more goes into `undone`.
fn start_reading(
    core: &Arc<Core>,
    incoming: &mut Option<Arrival>,
    plan: &mut Plan,
    undone: &mut Option<Arrival>,
    reader: Recipient,
    shared: &mut Shared,
    wakes: &mut Vec<Waker>,
) -> Result<Option<u64>, Error> {
    let Some(arrival) = incoming else {
        return Ok(None);
    };
    let id = arrival.id;
    if shared.is_over() {
        shared.complete(arrival);
    }
    if let (Some(error), false) = (&shared.ended, arrival.is_whole()) {
        return Err(error.clone());
    }
    if !arrival.is_whole() && !shared.state.is_wanted(OpId::incoming(id, 0)) {
        let (code, reason) = match shared.state.take_reset(id) {
            Some(reason) => (reason.code, reason.text.as_str().into()),
            None => (ResetCode::Cancelled, "it is not there any more".into()),
        };
        *undone = incoming.take();
        return Err(Error::Reset { code, reason });
    }
    let is_here = |part| !matches!(shared.state.bulk_channel(id, part), Some((_, false)));
    plan.check_reach(&arrival.head, is_here, |part, from, to| {
        shared.reaches(id, part, from, to)
    })?;
    plan.check_copies(&arrival.head, is_here)?;
    let Some(mut arrival) = incoming.take() else {
        return Ok(None);
    };
    // There was no memory for parts that came ahead.
    if let Some(error) = shared.take_failed(id, reader) {
        shared.process(wakes);
        *undone = Some(arrival);
        return Err(error);
    }
    if !shared.state.grant(id, &plan.skipped) {
        // It was taken back, but is here whole.
        shared.state.take_reset(id);
    }
    let mut places = Vec::new();
    let mut copies = SmallVec::<[Copy; 1]>::new();
    // The read must exist while the lanes work: they count there what they do.
    shared.reading(id);
    for (part, place) in std::mem::take(&mut plan.places) {
        let op = OpId::incoming(id, part);
        let bulk = shared.state.bulk_channel(id, part);
        if matches!(place, Place::Skip) {
            continue;
        }
        if let Some((channel, _)) = bulk {
            shared.carried_by(id, channel);
        }
        let Some((channel, false)) = bulk else {
            // Its bytes are here or on their way into pooled memory: copied in the end.
            if let Place::Into(dest) = place {
                match arrival.take_large(part) {
                    Some(source) => {
                        shared.lane_stats.copied += source.len() as u64;
                        copies.push(Copy::new(op, source, dest));
                    }
                    None => places.push((part, dest)),
                }
            }
            continue;
        };
        let len = arrival.head.part_len(part.into());
        let want = match place {
            Place::Into(dest) => Want::Into(dest),
            Place::On(device) => Want::Adopt { len, device },
            Place::Pool | Place::Skip => Want::Adopt {
                len,
                device: arrival.head.device(part.into()),
            },
        };
        shared.with_lane(op, channel, |lane, io| lane.recv(op, want, io));
    }
    shared.lane_stats.borrowed += arrival.borrowed(&plan.skipped);
    // A copy that takes a while is answered when it is done: a writer that has the answer may close at once.
    match (arrival.answer(), &mut copies[..]) {
        (Some(answer), [copy]) if copy.takes_a_while() => copy.answer = Some(answer.body),
        (Some(answer), _) => shared.state.channel(answer.op, answer.body),
        (None, _) => {}
    }
    let over = shared.ended.is_some();
    let reading = shared.reading(id);
    reading.start(
        arrival,
        places,
        std::mem::take(&mut plan.skipped),
        std::mem::take(&mut plan.redirected),
        if over { Recipient::Waits } else { reader },
    );
    for copy in copies {
        // A part that came ahead has no answer: it is copied now, so that it is not lost if its writer closes meanwhile.
        if over || copy.answer.is_none() {
            // On a pipe that has ended, maybe with its runtime, the copy delays nobody else.
            reading.received(copy.op, copy.make());
        } else {
            copy.make_on_thread(LaneHandle::new(core), &core.runtime);
        }
    }
    shared.announce();
    shared.check_read(id, wakes);
    shared.process(wakes);
    Ok(Some(id))
}

/// The application reads a whole message. Returns whether there is something to send to the peer: credit, or the answer to a flush.
pub(super) fn finish(core: &Arc<Core>, shared: &mut Shared, arrival: &Arrival) -> bool {
    if let Some(Answer { op, body, urgent }) = arrival.answer() {
        shared.lane_stats.borrowed += arrival.borrowed(&[]);
        // A task that reads most likely writes soon, and its message takes the answer along.
        match urgent {
            false => delay_ack(core, shared, op, body),
            true => shared.state.channel(op, body),
        }
    }
    shared.state.take_whole(arrival.id);
    shared.state.has_control()
}
