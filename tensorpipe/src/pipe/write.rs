//! Writing: a message becomes a descriptor and parts, each assigned to a channel.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::core::Core;
use super::shared::{LaneSlot, Shared};
use super::waiter::{Interest, Waiter, wake_all};
use crate::descriptor::{Descriptor, PayloadDescriptor, TensorDescriptor};
use crate::device::{Buffer, Device};
use crate::error::{Error, Misuse, ResetCode};
use crate::message::Message;
use crate::proto::OutgoingPart;
use crate::route::{ChannelChoice, Way};
use crate::sync::lock;

/// A write under way. See [`Pipe::write`](super::Pipe::write).
pub struct Write {
    waiter: Waiter,
    id: Option<u64>,
    refused: Option<Error>,
}

impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Write")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Write {
    pub(super) fn start(core: Arc<Core>, message: Message) -> Self {
        let queued = enqueue(&core, message, true, |_| ());
        if queued.is_ok() {
            core.drive();
        }
        Self {
            waiter: Waiter::new(core),
            id: queued.as_ref().ok().copied(),
            refused: queued.err(),
        }
    }

    /// The message's number, unless it was refused at once.
    pub fn id(&self) -> Option<u64> {
        self.id
    }

    /// Takes the message back: what has not left does not leave, and the peer hears of it.
    pub fn cancel(self) {
        if let Some(id) = self.id {
            reset(
                self.waiter.core(),
                id,
                ResetCode::Cancelled,
                "the write was cancelled",
            );
        }
    }
}

impl Future for Write {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(refused) = self.refused.take() {
            return Poll::Ready(Err(refused));
        }
        let Some(id) = self.id else {
            return Poll::Ready(Err(Misuse::Other(
                "a write was polled after it had ended".to_owned(),
            )
            .into()));
        };
        let result = std::task::ready!(self.waiter.poll(cx, Interest::Write(id), |shared| {
            let result = shared.writes.get_mut(&id)?.take()?;
            shared.writes.remove(&id);
            Some(result)
        }));
        self.id = None;
        Poll::Ready(result)
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            lock(&self.waiter.core().shared).writes.remove(&id);
        }
    }
}

/// Queues a message; `watched` remembers how it ends, `note` hears its number while nobody else can know it.
pub(super) fn enqueue(
    core: &Core,
    message: Message,
    watched: bool,
    note: impl FnOnce(u64),
) -> Result<u64, Error> {
    let mut guard = lock(&core.shared);
    let shared = &mut *guard;
    if let Some(error) = &shared.ended {
        return Err(error.clone());
    }
    if shared.linger_until.is_some() {
        return Err(Error::Closed {
            pipe: core.name.clone(),
            by_peer: false,
        });
    }
    if shared.state.peer_ignores_from().is_some() {
        let reason = shared.peer_goes_because.clone();
        return Err(Error::GoingAway {
            pipe: core.name.clone(),
            reason,
        });
    }
    if shared.state.unwritten() >= core.queued_writes {
        return Err(Misuse::TooManyWrites(core.queued_writes).into());
    }
    let (descriptor, parts) = dissect(shared, message)?;
    let id = shared.state.write(descriptor, parts)?;
    if watched {
        shared.writes.insert(id, None);
    }
    note(id);
    Ok(id)
}

pub(super) fn reset(core: &Arc<Core>, id: u64, code: ResetCode, reason: &str) {
    let mut wakes = Vec::new();
    {
        let mut shared = lock(&core.shared);
        if shared.ended.is_some() {
            return;
        }
        shared.state.reset(id, code, reason);
        let error = Error::Reset {
            code,
            reason: reason.into(),
        };
        shared.end_write(id, Err(error), &mut wakes);
        shared.process(core, &mut wakes);
    }
    wake_all(wakes);
    core.drive();
}

fn dissect(
    shared: &Shared,
    message: Message,
) -> Result<(Descriptor, Vec<OutgoingPart<Buffer>>), Misuse> {
    let mut parts = Vec::with_capacity(message.payloads.len() + message.tensors.len());
    let mut payloads = Vec::with_capacity(message.payloads.len());
    let mut tensors = Vec::with_capacity(message.tensors.len());
    let mut sender = Sender {
        lanes: &shared.lanes,
        choice: &shared.choice,
        riding: 0,
    };
    for payload in message.payloads {
        if payload.data.as_bytes().is_none() {
            return Err(Misuse::NotOnCpu(payload.data.device()));
        }
        let (channel, ride_up_to, _) = sender.choose(&payload.data, Some(Device::CPU))?;
        payloads.push(PayloadDescriptor {
            len: payload.data.len() as u64,
            metadata: payload.metadata,
        });
        parts.push(OutgoingPart {
            source: payload.data,
            channel,
            ride_up_to,
        });
    }
    for part in message.tensors {
        let tensor = part.tensor;
        let (channel, ride_up_to, target) = sender.choose(tensor.buffer(), part.target)?;
        tensors.push(TensorDescriptor {
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            source: tensor.device(),
            target,
            metadata: part.metadata,
        });
        parts.push(OutgoingPart {
            source: tensor.into_buffer(),
            channel,
            ride_up_to,
        });
    }
    Ok((
        Descriptor {
            metadata: message.metadata,
            payloads,
            tensors,
        },
        parts,
    ))
}

/// Chooses for the parts of one message.
struct Sender<'a> {
    lanes: &'a [LaneSlot],
    choice: &'a ChannelChoice,
    /// Bytes of the parts so far that may ride in the frame.
    riding: u64,
}

impl Sender<'_> {
    /// The channel for a part, up to which size it rides in the frame, and the device where it goes.
    fn choose(
        &mut self,
        memory: &Buffer,
        target: Option<Device>,
    ) -> Result<(u8, u64, Option<Device>), Misuse> {
        let (source, len) = (memory.device(), memory.len() as u64);
        let place = (source, memory.memory().kind());
        let wanted = target.unwrap_or(Device::CPU);
        let lanes = self.lanes;
        let carries = |channel: u8| {
            let slot = lanes.get(usize::from(channel));
            slot.is_some_and(|slot| slot.lane.carries(memory))
        };
        let (channel, rides) = match self.choice.choose(place, wanted, len, carries) {
            Some(Way::Channel(channel)) => (Some(channel), false),
            // What the CPU cannot read does not ride, whatever its device is called.
            Some(Way::Frame { otherwise }) => (otherwise, memory.as_bytes().is_some()),
            None => (None, false),
        };
        if rides {
            self.riding += len;
        }
        // What rides in the frame for certain needs nobody to carry it.
        let alone = rides && self.riding <= self.choice.frame().message;
        if let Some(channel) = channel.or_else(|| alone.then_some(0)) {
            return Ok((channel, if rides { u64::MAX } else { 0 }, target));
        }
        // A device that does not reach the peer's main memory, and a writer who does not mind where it goes.
        let anywhere = || self.choice.elsewhere(place, len, carries);
        match target.is_none().then(anywhere).flatten() {
            Some((
                Way::Channel(channel)
                | Way::Frame {
                    otherwise: Some(channel),
                },
                theirs,
            )) => Ok((channel, 0, Some(theirs))),
            _ if len == 0 => Ok((0, u64::MAX, target)),
            _ => Err(Misuse::Other(format!(
                "no channel of this pipe moves tensors from {source} to {wanted}; `Pipe::route` says which there are and why not others"
            ))),
        }
    }
}

/// Waits until the peer's application has read. See [`Pipe::flush`](super::Pipe::flush).
pub struct Flush {
    waiter: Waiter,
    /// Everything before this message.
    until: u64,
}

impl std::fmt::Debug for Flush {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flush")
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

impl Flush {
    pub(super) fn start(core: Arc<Core>) -> Self {
        let until = {
            let mut shared = lock(&core.shared);
            let last = shared.state.last_written();
            if let Some(last) = last {
                shared.state.flush(last);
            }
            last.map_or(0, |last| last + 1)
        };
        core.drive();
        Self {
            waiter: Waiter::new(core),
            until,
        }
    }
}

impl Future for Flush {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let until = self.until;
        let name = self.waiter.core().name.clone();
        self.waiter
            .poll(cx, Interest::Flush, |shared: &mut Shared| {
                if shared.ignored_from.is_some_and(|ignored| ignored < until) {
                    return Some(Err(Error::GoingAway {
                        pipe: name.clone(),
                        reason: shared.peer_goes_because.clone(),
                    }));
                }
                if shared.flushed_to >= until {
                    return Some(Ok(()));
                }
                shared.ended.clone().map(Err)
            })
    }
}
