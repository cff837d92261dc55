//! Which channel carries each part of a message.

use crate::channels::PartKind;
use crate::device::{Buffer, Device};
use crate::error::Misuse;
use crate::pipe::shared::{LaneSlot, Shared};
use crate::proto::OutgoingParts;
use crate::route::{ChannelChoice, PartRoute, Requirement, Routes};

/// Sets the channel of each part. `required`: each tensor goes over one of these channels.
pub(super) fn choose(
    shared: &Shared,
    routes: &Routes,
    required: Option<&[String]>,
    parts: &mut OutgoingParts<Buffer>,
) -> Result<(), Misuse> {
    let mut sender = Sender {
        lanes: &shared.lanes,
        choice: &shared.choice,
        routes,
        required,
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
                part.channel = sender.choose(&part.source, PartKind::Payload, payloads, target)?;
                payloads += 1;
            }
            Some(tensor) => {
                let target = &mut tensor.target;
                part.channel = sender.choose(&part.source, PartKind::Tensor, tensors, target)?;
                tensors += 1;
            }
        }
    }
    Ok(())
}

struct Sender<'a> {
    lanes: &'a [LaneSlot],
    choice: &'a ChannelChoice,
    routes: &'a Routes,
    /// The required channels of tensors.
    required: Option<&'a [String]>,
    /// Bytes of the parts so far that ride in the frame.
    riding: u64,
}

impl Sender<'_> {
    /// The channel for a part; `None`: it goes in the frame. Sets `target` if the writer named none and the peer's main memory is out of
    /// reach. `number` counts the parts of its kind, for errors.
    fn choose(
        &mut self,
        memory: &Buffer,
        kind: PartKind,
        number: usize,
        target: &mut Option<Device>,
    ) -> Result<Option<u8>, Misuse> {
        let (source, len) = (memory.device(), memory.len() as u64);
        let kind_of_memory = memory.memory().kind();
        let wanted = target.unwrap_or(Device::CPU);
        let lanes = self.lanes;
        let able = |channel: u8| {
            let slot = lanes.get(usize::from(channel));
            slot.is_some_and(|slot| slot.lane.carries(memory, kind))
        };
        let required = self.required.filter(|_| kind == PartKind::Tensor);
        let carries = |channel: u8| {
            able(channel) && required.is_none_or(|required| self.allows(channel, required))
        };
        // Memory that the CPU cannot read does not go in the frame, whatever its device is called.
        let riding = match memory.as_bytes() {
            Some(_) => self.riding,
            None => u64::MAX,
        };
        match self
            .choice
            .choose(source, kind_of_memory, wanted, len, riding, carries)
        {
            Some(PartRoute::Frame) => {
                self.riding += len;
                return Ok(None);
            }
            Some(PartRoute::Channel(channel)) => return Ok(Some(channel)),
            None => {}
        }
        let by_context = self.choice.required(source, wanted);
        let is_required = required.is_some() || by_context.is_some();
        // The writer named no target, so any device of the peer's will do. Exception: main memory for which a channel is required.
        let is_open = target.is_none() && !(source.is_cpu() && is_required);
        let anywhere = || {
            self.choice
                .alternative_target(source, kind_of_memory, len, carries)
        };
        let what = || match kind {
            PartKind::Payload => format!("payload {number}"),
            PartKind::Tensor => format!("tensor {number}"),
        };
        match is_open.then(anywhere).flatten() {
            Some((way, theirs)) => {
                *target = Some(theirs);
                Ok(match way {
                    PartRoute::Channel(channel) => Some(channel),
                    PartRoute::Frame => None,
                })
            }
            None if len == 0 => Ok(None),
            None if is_required => {
                let of_context = by_context.map(|one| &one.channels[..]);
                let channels = required.or(of_context).unwrap_or_default();
                let instead =
                    match self
                        .choice
                        .choose(source, kind_of_memory, wanted, len, riding, able)
                    {
                        Some(PartRoute::Channel(channel)) => Some(channel),
                        // A context that requires channels lists no others in its choice: searches the lanes.
                        _ => (0..lanes.len() as u8).find(|channel| {
                            let serves = lanes[usize::from(*channel)]
                                .pairs
                                .contains(&(source, wanted));
                            serves && able(*channel)
                        }),
                    };
                let instead = instead.map(|channel| lanes[usize::from(channel)].channel.name());
                let why_not = |name: &String| self.why_not(name, by_context, (source, wanted));
                let reasons: Vec<_> = channels.iter().map(why_not).collect();
                Err(Misuse::NotAsRequired {
                    what: format!("{} from {source} to {wanted}", what()).into(),
                    required: channels.join(" or ").into(),
                    instead: instead.unwrap_or("nothing").into(),
                    reason: reasons.join(", ").into(),
                })
            }
            None => Err(Misuse::OutOfReach {
                what: what(),
                device: wanted,
                reason: format!(
                    "no channel of this pipe moves tensors from {source} to {wanted}; `Pipe::route` says which there are and why not others{}",
                    match source.is_cpu() {
                        true => "",
                        false => ", `Tensor::to` copies to main memory what every peer takes",
                    }
                ),
            }),
        }
    }

    /// Whether a channel is one of these, and is not degraded.
    fn allows(&self, channel: u8, required: &[String]) -> bool {
        let at = usize::from(channel);
        let name = self.lanes.get(at).map(|slot| slot.channel.name());
        let is_named = name.is_some_and(|name| required.iter().any(|one| one == name));
        let route = || self.routes.now().channels.get(at);
        is_named && route().is_none_or(|channel| channel.degraded.sending().is_none())
    }

    /// Why a channel does not carry a part between these devices, about which the context requires this.
    fn why_not(
        &self,
        name: &str,
        by_context: Option<&Requirement>,
        pair: (Device, Device),
    ) -> String {
        let route = self.routes.now();
        if let Some(refusal) = route.refused.iter().find(|refusal| refusal.is_of(name)) {
            return format!("{name}: {}", refusal.reason);
        }
        let Some(channel) = route.channels.iter().find(|channel| channel.name == name) else {
            return format!("{name} is no channel of this pipe");
        };
        if let Some(required) = by_context.filter(|required| !required.allows(name)) {
            return format!("{name}: this context leaves it out, it requires {required}");
        }
        match channel.degraded.sending() {
            Some(reason) => format!("{name}: {reason}"),
            None if !channel.pairs.contains(&pair) => {
                format!("{name} does not reach from here to there")
            }
            None => format!("{name} does not take this memory"),
        }
    }
}
