//! A message that has been announced: its descriptor is known, the reader decides.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::budget::Reservation;
use super::core::Core;
use super::reading::{Reading, build};
use super::waiter::{Interest, Waiter};
use crate::channels::Want;
use crate::descriptor::Descriptor;
use crate::device::{Buffer, Device};
use crate::error::{Error, Misuse, ResetCode};
use crate::message::{Allocation, Message, Place};
use crate::proto::OpId;
use crate::stop;
use crate::sync::lock;

/// What a dropped read still lets come in, in bytes; above, the writer is told to stop.
const DRAIN_UP_TO: u64 = 64 << 10;

/// A message that is there but for its bulk parts.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) id: u64,
    descriptor: Descriptor,
    eager: Vec<(u16, Buffer)>,
}

impl Arrival {
    pub(super) fn new(id: u64, descriptor: Descriptor, eager: Vec<(u16, Buffer)>) -> Self {
        Self {
            id,
            descriptor,
            eager,
        }
    }

    /// Whether all its bytes are here.
    pub(super) fn is_whole(&self) -> bool {
        let eager: usize = self.eager.iter().map(|(_, buffer)| buffer.len()).sum();
        self.descriptor.byte_len() == eager as u64
    }
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
        self.read_into(Allocation::default())
    }

    /// The same into memory of the caller's. Places that the allocation does not mention are [`Place::Pool`].
    ///
    /// # Errors
    /// The future gives [`Misuse::Allocation`] where a place does not fit; the message is then skipped.
    pub fn read_into(mut self, allocation: Allocation) -> Read {
        let core = self.core.clone();
        let result = self.start(allocation, false);
        if matches!(result, Ok(Some(_))) {
            core.drive();
            stop::at(stop::GRANT_SENT);
        }
        let id = result.as_ref().ok().copied().flatten();
        Read {
            id,
            ready: result.err().map(Err),
            waiter: Waiter::new(core),
        }
        .with(self)
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

    fn decline(&mut self, code: ResetCode, reason: &str) {
        if let Some(arrival) = self.arrival.take() {
            let mut wakes = Vec::new();
            {
                let mut shared = lock(&self.core.shared);
                shared.state.refuse(arrival.id, code, reason);
                shared.reads.remove(&arrival.id);
                shared.process(&self.core, &mut wakes);
            }
            wakes.into_iter().for_each(Waker::wake);
            self.core.drive();
        }
    }

    /// Starts reading. `None`: the message is whole and still in `arrival`.
    fn start(&mut self, allocation: Allocation, pushed: bool) -> Result<Option<u64>, Error> {
        let Some(arrival) = &self.arrival else {
            return Ok(None);
        };
        let id = arrival.id;
        if allocation.payloads.is_empty() && allocation.tensors.is_empty() && arrival.is_whole() {
            return Ok(None);
        }
        let plan = Plan::new(&arrival.descriptor, allocation)?;
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
            let Some(arrival) = self.arrival.take() else {
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
            for (part, place) in plan.places {
                let op = OpId {
                    message: id,
                    part,
                    outgoing: false,
                };
                match (shared.state.bulk_channel(id, part), place) {
                    // Its bytes are here or on their way into pooled memory: copied in the end.
                    (None | Some((_, true)), Place::Into(dest)) => places.push((part, dest)),
                    (None | Some((_, true)), _) => {}
                    (Some((channel, false)), Place::Into(dest)) => {
                        own.push(part);
                        shared.with_lane(channel, |lane, io| lane.recv(op, Want::Into(dest), io));
                    }
                    (Some((channel, false)), Place::Pool) => {
                        let len = arrival.part_len(part);
                        let want = Want::Adopt {
                            len,
                            device: arrival.device(part),
                        };
                        shared.with_lane(channel, |lane, io| lane.recv(op, want, io));
                    }
                    (Some(_), Place::Skip) => {}
                }
            }
            let reading = shared.reads.entry(id).or_insert_with(Reading::ahead);
            reading.reserve(Reservation::new(&self.core.budget), own);
            reading.start(
                arrival.descriptor,
                arrival.eager,
                places,
                plan.skipped,
                pushed,
            );
            shared.check_read(id, &mut wakes);
            shared.process(&self.core, &mut wakes);
        }
        wakes.into_iter().for_each(Waker::wake);
        Ok(Some(id))
    }

    /// The message, which is here whole.
    fn take_whole(&mut self) -> Option<Result<Message, Error>> {
        let arrival = self.arrival.take()?;
        let answers = {
            let mut shared = lock(&self.core.shared);
            shared.state.grant(arrival.id, &[]);
            shared.state.finish(arrival.id);
            shared.state.has_control()
        };
        if answers {
            // Credit, or the answer to a flush.
            self.core.drive();
        }
        Some(build(arrival.descriptor, arrival.eager, Vec::new()))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.decline(ResetCode::Skipped, "");
    }
}

impl Arrival {
    fn part_len(&self, part: u16) -> u64 {
        let payloads = &self.descriptor.payloads;
        let part = usize::from(part);
        payloads.get(part).map_or_else(
            || self.descriptor.tensors[part - payloads.len()].byte_len(),
            |p| p.len,
        )
    }

    fn device(&self, part: u16) -> Device {
        let tensor = usize::from(part).checked_sub(self.descriptor.payloads.len());
        tensor
            .and_then(|tensor| self.descriptor.tensors[tensor].target)
            .unwrap_or(Device::CPU)
    }
}

/// A checked allocation: what is not simply pooled.
struct Plan {
    places: Vec<(u16, Place)>,
    skipped: Vec<u16>,
    default: bool,
}

impl Plan {
    fn new(descriptor: &Descriptor, allocation: Allocation) -> Result<Self, Misuse> {
        let misfit = |reason: String| Misuse::Allocation { reason };
        let (payloads, tensors) = (descriptor.payloads.len(), descriptor.tensors.len());
        if allocation.payloads.len() > payloads || allocation.tensors.len() > tensors {
            let (p, t) = (allocation.payloads.len(), allocation.tensors.len());
            return Err(misfit(format!(
                "{p} payloads and {t} tensors are placed, {payloads} and {tensors} come"
            )));
        }
        let mut plan = Self {
            places: Vec::with_capacity(payloads + tensors),
            skipped: Vec::new(),
            default: true,
        };
        let pad = |places: Vec<Place>, len: usize| {
            let missing = len - places.len();
            places
                .into_iter()
                .chain(std::iter::repeat_with(Place::default).take(missing))
        };
        let lens = descriptor
            .payloads
            .iter()
            .map(|payload| (payload.len, Device::CPU));
        let lens = lens.chain(
            descriptor
                .tensors
                .iter()
                .map(|t| (t.byte_len(), t.target.unwrap_or(Device::CPU))),
        );
        let places = pad(allocation.payloads, payloads).chain(pad(allocation.tensors, tensors));
        for (part, (place, (len, device))) in places.zip(lens).enumerate() {
            let what = if part < payloads {
                format!("payload {part}")
            } else {
                format!("tensor {}", part - payloads)
            };
            match &place {
                Place::Into(dest) if dest.len() as u64 != len => {
                    return Err(misfit(format!(
                        "{what} has {len} bytes, its place {}",
                        dest.len()
                    )));
                }
                Place::Into(dest) if dest.device() != device => {
                    return Err(misfit(format!(
                        "{what} goes to {device}, its place is on {}",
                        dest.device()
                    )));
                }
                Place::Skip => plan.skipped.push(part as u16),
                _ => {}
            }
            plan.default &= matches!(place, Place::Pool);
            plan.places.push((part as u16, place));
        }
        Ok(plan)
    }

    fn is_default(&self) -> bool {
        self.default
    }
}

/// A read under way. Dropping it gives the message up: what is still to come is thrown away, or, where it is more than
/// 64 KiB, the writer is told to stop. Memory of the caller's goes with it.
#[must_use = "a dropped read gives the message up"]
pub struct Read {
    waiter: Waiter,
    id: Option<u64>,
    ready: Option<Result<Message, Error>>,
}

impl std::fmt::Debug for Read {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Read")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Read {
    fn with(mut self, mut incoming: Incoming) -> Self {
        if self.id.is_none() && self.ready.is_none() {
            self.ready = incoming.take_whole();
        }
        self
    }
}

impl Future for Read {
    type Output = Result<Message, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(ready) = this.ready.take() {
            return Poll::Ready(ready);
        }
        let Some(id) = this.id else {
            return Poll::Ready(Err(Misuse::Other(
                "a read was polled after it had ended".to_owned(),
            )
            .into()));
        };
        let result = std::task::ready!(this.waiter.poll(cx, Interest::Read(id), |shared| {
            let result = shared.reads.get_mut(&id)?.take_result()?;
            shared.reads.remove(&id);
            Some(result)
        }));
        this.id = None;
        Poll::Ready(result)
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let core = self.waiter.core().clone();
        let mut wakes = Vec::new();
        {
            let mut shared = lock(&core.shared);
            match shared.reads.get_mut(&id) {
                None => return,
                Some(reading) if !reading.is_finished() => {
                    let left = shared.state.bytes_to_come(id);
                    if left > DRAIN_UP_TO {
                        shared
                            .state
                            .refuse(id, ResetCode::Cancelled, "the read was dropped");
                        shared.reads.remove(&id);
                    } else if let Some(reading) = shared.reads.get_mut(&id) {
                        reading.discard();
                    }
                }
                Some(_) => {
                    shared.reads.remove(&id);
                }
            }
            shared.process(&core, &mut wakes);
        }
        wakes.into_iter().for_each(Waker::wake);
        core.drive();
    }
}

/// Gives up a message that is being read for the handler.
pub(super) fn stop(core: &Arc<Core>, id: u64, code: ResetCode, reason: &str) {
    let mut wakes = Vec::new();
    {
        let mut shared = lock(&core.shared);
        if shared.reads.remove(&id).is_none() {
            return;
        }
        shared.state.refuse(id, code, reason);
        shared.process(core, &mut wakes);
    }
    wakes.into_iter().for_each(Waker::wake);
    core.drive();
}
