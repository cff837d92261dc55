//! A message becomes a descriptor and parts, each assigned to the channel that carries it.

use smallvec::SmallVec;

use super::shared::{LaneSlot, Shared};
use crate::descriptor::{Descriptor, PayloadDescriptor, TensorDescriptor};
use crate::device::{Buffer, Device};
use crate::error::Misuse;
use crate::message::Message;
use crate::proto::OutgoingPart;
use crate::route::{ChannelChoice, Way};
use crate::tensor::Shape;

type Parts = SmallVec<[OutgoingPart<Buffer>; 2]>;

pub(super) fn dissect(shared: &Shared, message: Message) -> Result<(Descriptor, Parts), Misuse> {
    let mut parts = SmallVec::with_capacity(message.payloads.len() + message.tensors.len());
    let mut payloads = Vec::with_capacity(message.payloads.len());
    let mut tensors = Vec::with_capacity(message.tensors.len());
    let mut sender = Sender::of(shared);
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
            shape: Shape::from(tensor.shape()),
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
pub(super) struct Sender<'a> {
    lanes: &'a [LaneSlot],
    choice: &'a ChannelChoice,
    /// Bytes of the parts so far that ride in the frame.
    riding: u64,
}

impl<'a> Sender<'a> {
    pub(super) fn of(shared: &'a Shared) -> Self {
        Self {
            lanes: &shared.lanes,
            choice: &shared.choice,
            riding: 0,
        }
    }

    /// The channel for a part, up to which size it rides in the frame, and the device where it goes. What rides has no channel: the
    /// protocol counts the frame's room as it is counted here.
    pub(super) fn choose(
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
        // What the CPU cannot read does not ride, whatever its device is called.
        let riding = match memory.as_bytes() {
            Some(_) => self.riding,
            None => u64::MAX,
        };
        match self.choice.choose(place, wanted, len, riding, carries) {
            Some(Way::Frame) => {
                self.riding += len;
                return Ok((0, u64::MAX, target));
            }
            Some(Way::Channel(channel)) => return Ok((channel, 0, target)),
            None => {}
        }
        // A device that does not reach the peer's main memory, and a writer who does not mind where it goes.
        let anywhere = || self.choice.elsewhere(place, len, carries);
        match target.is_none().then(anywhere).flatten() {
            Some((Way::Channel(channel), theirs)) => Ok((channel, 0, Some(theirs))),
            Some((Way::Frame, theirs)) => Ok((0, 0, Some(theirs))),
            None if len == 0 => Ok((0, 0, target)),
            None => Err(Misuse::Other(format!(
                "no channel of this pipe moves tensors from {source} to {wanted}; `Pipe::route` says which there are and why not others"
            ))),
        }
    }
}
