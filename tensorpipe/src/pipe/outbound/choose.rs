//! Which channel carries each part of a message.

use crate::channels::PartKind;
use crate::device::{Buffer, Device};
use crate::error::Misuse;
use crate::pipe::shared::{LaneSlot, Shared};
use crate::proto::OutgoingParts;
use crate::route::{ChannelChoice, Way};

/// Says so of each of them.
pub(super) fn choose(shared: &Shared, parts: &mut OutgoingParts<Buffer>) -> Result<(), Misuse> {
    let mut sender = Sender {
        lanes: &shared.lanes,
        choice: &shared.choice,
        riding: 0,
    };
    let (mut payloads, mut tensors) = (0, 0);
    for part in parts {
        match &mut part.tensor {
            None if part.source.as_bytes().is_none() => {
                return Err(Misuse::NotOnCpu(part.source.device()));
            }
            None => {
                let target = &mut Some(Device::CPU);
                part.channel =
                    sender.choose(&part.source, (PartKind::Payload, payloads), target)?;
                payloads += 1;
            }
            Some(tensor) => {
                let which = (PartKind::Tensor, tensors);
                part.channel = sender.choose(&part.source, which, &mut tensor.target)?;
                tensors += 1;
            }
        }
    }
    Ok(())
}

struct Sender<'a> {
    lanes: &'a [LaneSlot],
    choice: &'a ChannelChoice,
    /// Bytes of the parts so far that ride in the frame.
    riding: u64,
}

impl Sender<'_> {
    /// The channel for a part; `None`: it rides. Says where it goes if its writer did not, and the peer's main memory is out of
    /// reach. Of its kind it is number `number`.
    fn choose(
        &mut self,
        memory: &Buffer,
        (kind, number): (PartKind, usize),
        target: &mut Option<Device>,
    ) -> Result<Option<u8>, Misuse> {
        let (source, len) = (memory.device(), memory.len() as u64);
        let place = (source, memory.memory().kind());
        let wanted = target.unwrap_or(Device::CPU);
        let lanes = self.lanes;
        let carries = |channel: u8| {
            let slot = lanes.get(usize::from(channel));
            slot.is_some_and(|slot| slot.lane.carries(memory, kind))
        };
        // What the CPU cannot read does not ride, whatever its device is called.
        let riding = match memory.as_bytes() {
            Some(_) => self.riding,
            None => u64::MAX,
        };
        match self.choice.choose(place, wanted, len, riding, carries) {
            Some(Way::Frame) => {
                self.riding += len;
                return Ok(None);
            }
            Some(Way::Channel(channel)) => return Ok(Some(channel)),
            None => {}
        }
        let required = self.choice.required(source, wanted);
        // A device that does not reach the peer's main memory, and a writer who does not mind where it goes. Of main memory that is what
        // is required.
        let is_open = target.is_none() && !(source.is_cpu() && required.is_some());
        let anywhere = || self.choice.elsewhere(place, len, carries);
        let what = || match kind {
            PartKind::Payload => format!("payload {number}"),
            PartKind::Tensor => format!("tensor {number}"),
        };
        match is_open.then(anywhere).flatten() {
            Some((way, theirs)) => {
                *target = Some(theirs);
                Ok(match way {
                    Way::Channel(channel) => Some(channel),
                    Way::Frame => None,
                })
            }
            None if len == 0 => Ok(None),
            None if let Some(required) = required => Err(Misuse::NotAsRequired {
                what: format!("{} from {source} to {wanted}", what()),
                required: required.to_string(),
            }),
            None => Err(Misuse::OutOfReach {
                what: what(),
                device: wanted,
                reason: format!(
                    "no channel of this pipe moves tensors from {source} to {wanted}; `Pipe::route` says which there are and why not others"
                ),
            }),
        }
    }
}
