//! Messages of a few tensors that ride in their frame, or that their channel sends at once: they leave as those of metadata
//! alone do ([`bare`](super::bare)), with no descriptor in between.

use smallvec::SmallVec;

use super::bare::Appended;
use super::core::Core;
use super::leaving::When;
use super::sender::Sender;
use super::shared::Shared;
use crate::message::Message;
use crate::proto::{Leaving, OpId, TensorFields};

/// Tensors that have their places without an allocation.
const FEW: usize = 4;

/// Puts a message among the bytes to be sent, if nothing is to be sent before it but these; takes its tensors then.
pub(super) fn append<'a>(
    core: &'a Core,
    shared: &mut Shared,
    message: &mut Message,
    when: When,
) -> Option<Appended<'a>> {
    let few = message.payloads.is_empty() && message.tensors.len() <= FEW;
    if !few || !shared.state.is_next() {
        return None;
    }
    let mut leaving = SmallVec::<[Leaving<'_>; FEW]>::new();
    let mut channels = [None; FEW];
    let mut sender = Sender::of(shared);
    for (part, goes_by) in message.tensors.iter().zip(&mut channels) {
        let tensor = &part.tensor;
        let (channel, ride_up_to, target) = sender.choose(tensor.buffer(), part.target).ok()?;
        let rides = ride_up_to > 0;
        if !rides && !shared.state.sends_at_once(channel) {
            return None;
        }
        *goes_by = (!rides).then_some(channel);
        leaving.push(Leaving {
            fields: TensorFields {
                dtype: tensor.dtype(),
                shape: tensor.shape(),
                source: tensor.device(),
                target,
                metadata: &part.metadata,
            },
            len: tensor.buffer().len() as u64,
            channel: *goes_by,
        });
    }
    let mut appended = Appended::begin(core, when)?;
    let id = appended
        .put(|frames| (shared.state).write_straight(&message.metadata, &leaving, frames))?;
    drop(leaving);
    let mut lent = false;
    let parts = message.tensors.drain(..).zip(channels).enumerate();
    for (part, (tensor, channel)) in parts {
        let source = tensor.tensor.into_buffer();
        match channel {
            None if source.is_empty() => {}
            None => {
                let len = source.len() as u64;
                appended.io.push_data(source, 0..len);
            }
            Some(channel) => {
                lent = true;
                shared.start(OpId::outgoing(id, part as u16), channel, source);
            }
        }
    }
    appended.lent = lent;
    if lent || shared.state.has_late() {
        // What the channels say leaves with it, also that for which nobody waits.
        shared.state.send_late();
        appended.io.take_frames(shared);
    } else if !shared.leaving.is_empty() {
        shared.note_left();
    }
    Some(appended)
}

#[cfg(test)]
mod tests;
