//! Messages whose tensors ride in their frame or are with a channel that sends at once: written from where their fields are, and
//! found whole, with no head kept in between.
//!
//! Invariant: the frames and the credit that they take are those of the long way ([`write`](PipeState::write),
//! `message_frame`), to which everything goes that is not as usual.

use std::ops::Range;

use super::flow::Amount;
use super::pipe::{OpId, PipeState};
use super::read::{Held, InMessage};
use super::wire::descriptor::{Carriage, FRONT, Head, TensorFields};
use super::wire::frame::{Body, CHANNEL_MAX, Control, HEADER_LEN, Header, Kind};
use super::write::{OutPart, OutParts, body_len_bound, credit_of};
use crate::error::PeerFault;

/// A tensor of a message that leaves at once.
#[derive(Debug)]
pub(crate) struct Leaving<'a> {
    pub(crate) fields: TensorFields<'a>,
    /// In bytes.
    pub(crate) len: u64,
    /// The channel that sends it at once; `None`: it rides.
    pub(crate) channel: Option<u8>,
}

impl Leaving<'_> {
    fn carriage(&self) -> Carriage {
        self.channel.map_or(Carriage::Eager, |channel| {
            let ahead = true;
            Carriage::Bulk { channel, ahead }
        })
    }
}

/// A message that is here but for one part, about which its channel's word is here, too.
#[derive(Debug)]
pub(crate) struct Offered {
    pub(crate) message: u64,
    pub(crate) head: Head,
    pub(crate) part: u16,
    pub(crate) channel: u8,
    /// The word, among the bytes that follow.
    pub(crate) body: Range<usize>,
    /// All of these: those of the parts that ride, and the word's frame.
    pub(crate) len: usize,
}

impl<S: Clone, D> PipeState<S, D> {
    /// Whether parts of this channel's leave with their message.
    pub(crate) fn sends_at_once(&self, channel: u8) -> bool {
        self.at_once.contains(channel)
    }

    /// Appends the frame of a message, up to the bytes that ride, to `out` if it may leave at once, and returns its number.
    /// `None`, with nothing done: it takes the long way, which also says what is wrong with it. What channels send is kept
    /// until they have handed it over.
    pub(crate) fn write_straight(
        &mut self,
        metadata: &[u8],
        tensors: &[Leaving<'_>],
        out: &mut Vec<u8>,
    ) -> Option<u64> {
        let (mut eager, mut total, mut metas) = (0u64, 0u64, metadata.len());
        for tensor in tensors {
            metas += tensor.fields.metadata.len();
            total = total.checked_add(tensor.len)?;
            let fits = match tensor.channel {
                None => {
                    eager += tensor.len;
                    tensor.len <= u64::from(self.peer.eager_part)
                }
                Some(channel) => tensor.len > 0 && self.at_once.contains(channel),
            };
            if !fits || tensor.len > self.peer.tensor {
                return None;
            }
        }
        let peer = &self.peer;
        if self.closing.asked
            || metas as u64 > u64::from(peer.metadata)
            || tensors.len() as u64 > u64::from(peer.parts)
            || total > peer.message
            || eager > u64::from(peer.eager_message)
            || !self.is_next()
            || !(self.send_window).take(eager + credit_of(metas, tensors.len()))
        {
            return None;
        }
        put(metadata, tensors, eager, out);
        let number = self.outgoing.pass();
        if tensors.iter().any(|tensor| tensor.channel.is_some()) {
            let parts = tensors.iter().map(|tensor| OutPart {
                len: tensor.len,
                carriage: tensor.carriage(),
                source: None,
                done: tensor.channel.is_none(),
            });
            self.outgoing.keep(number, OutParts::from_iter(parts));
        }
        Some(number)
    }

    /// Whether this head, which was decoded from the front of a body of `len` bytes, lacks one part only, about which the
    /// frame behind it speaks: which part, by which channel, and where the word is in `rest`, which begins with the body.
    pub(super) fn offer_behind(
        &self,
        head: &Head,
        len: u32,
        rest: &[u8],
    ) -> Option<(u16, u8, Range<usize>)> {
        let mut bulk = None;
        for (part, carriage) in head.carriages.iter().enumerate() {
            if let Carriage::Bulk { channel, .. } = *carriage {
                let first = bulk.replace((part as u16, channel)).is_none();
                if !first || !self.at_once.contains(channel) {
                    return None;
                }
            }
        }
        let (part, channel) = bulk?;
        let (header, body) = rest
            .get(len as usize..)?
            .split_first_chunk::<HEADER_LEN>()?;
        let header = Header::decode(header).ok()?;
        // No flags: it comes from the writer's lane.
        if header.kind != Some(Kind::Channel) || header.flags != 0 {
            return None;
        }
        let body = body.get(..header.len as usize)?;
        let (op, word) = body.split_first_chunk::<OP_LEN>()?;
        let [message @ .., a, b] = *op;
        let usual = u64::from_le_bytes(message) == self.incoming.next
            && u16::from_le_bytes([a, b]) == part
            && word.len() <= CHANNEL_MAX;
        let start = len as usize + HEADER_LEN + OP_LEN;
        usual.then_some((part, channel, start..start + word.len()))
    }

    /// Takes note of such a message as one that is here whole, which it is if its channel [has the part](Self::decline).
    pub(super) fn offered(
        &mut self,
        head: Head,
        head_len: usize,
        (part, channel, body): (u16, u8, Range<usize>),
    ) -> Result<Offered, PeerFault> {
        let bytes = body_len_bound(&head);
        self.receive_window.receive(Amount::of_whole(bytes))?;
        Ok(Offered {
            message: self.incoming.push(Held::Whole(bytes)),
            head,
            part,
            channel,
            body: body.start - head_len..body.end - head_len,
            len: body.end - head_len,
        })
    }

    /// Its channel does not have the part yet: the message comes as any other does, from its head on.
    pub(crate) fn decline(&mut self, message: u64, head: Head) {
        if let Some(held) = self.incoming.messages.get_mut(message) {
            *held = Held::Parts(Box::new(InMessage::new(head, self.at_once)));
        }
    }

    /// As [`channel`](Self::channel), about what nobody waits for: it is sent when [`send_late`](Self::send_late) says so.
    pub(crate) fn channel_late(&mut self, op: OpId, body: impl Into<Body>) {
        let body = body.into();
        self.outbox.late.push_back(Control::Channel {
            message: op.message,
            part: op.part,
            yours: !op.outgoing,
            body,
        });
    }

    /// Whether there is something for which nobody waits.
    pub(crate) fn has_late(&self) -> bool {
        !self.outbox.late.is_empty()
    }

    /// There is time for what nobody waits for.
    pub(crate) fn send_late(&mut self) {
        while let Some(late) = self.outbox.late.pop_front() {
            self.outbox.control(late);
        }
    }
}

/// Message number and part number at the front of a CHANNEL body, in bytes.
const OP_LEN: usize = 10;

fn put(metadata: &[u8], tensors: &[Leaving<'_>], eager: u64, out: &mut Vec<u8>) {
    let start = out.len();
    let mut front = [0; FRONT];
    front[4] = Kind::Message as u8;
    front[12..16].copy_from_slice(&(metadata.len() as u32).to_le_bytes());
    front[18..20].copy_from_slice(&(tensors.len() as u16).to_le_bytes());
    out.extend_from_slice(&front);
    for tensor in tensors {
        tensor.fields.put(out, tensor.carriage());
    }
    let fields_len = (out.len() - start - HEADER_LEN - 4) as u32;
    out[start + 8..start + 12].copy_from_slice(&fields_len.to_le_bytes());
    out.extend_from_slice(metadata);
    for tensor in tensors {
        out.extend_from_slice(tensor.fields.metadata);
    }
    let body = (out.len() - start - HEADER_LEN) as u64 + eager;
    out[start..start + 4].copy_from_slice(&(body as u32).to_le_bytes());
}

#[cfg(test)]
mod tests;
