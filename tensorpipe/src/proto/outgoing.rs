//! Outgoing messages, from the application's `write` until every byte is handed over.
//!
//! A message is numbered when it is queued. One that is abandoned before it left becomes a hole: a RESET sent in its
//! turn, so that numbers on both sides stay in step.

use bytes::Bytes;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::flow::{AHEAD_PART, AtOnce, SendWindow};
use super::output::Segment;
use super::pipe::OpId;
use super::wire::descriptor::{Carriage, Frame, TensorFields, set_ahead};
use super::wire::frame::Control;
use super::wire::hello::WireLimits;
use crate::error::Misuse;

/// The parts of one message, payloads first.
pub(crate) type OutgoingParts<S> = SmallVec<[OutgoingPart<S>; 4]>;

/// A payload or tensor to be sent. `S` is the driver's handle on its memory.
#[derive(Debug)]
pub(crate) struct OutgoingPart<S> {
    /// In bytes.
    pub(crate) len: u64,
    pub(crate) metadata: Bytes,
    /// `None` for a payload.
    pub(crate) tensor: Option<TensorFields>,
    /// The channel that carries it; `None`: its bytes go in the message's frame, as those of an empty part always do.
    pub(crate) channel: Option<u8>,
    pub(crate) source: S,
}

impl<S> OutgoingPart<S> {
    fn carriage(&self, at_once: AtOnce) -> Carriage {
        match self.channel {
            Some(channel) if self.len > 0 => {
                let ahead = at_once.contains(channel);
                Carriage::Bulk { channel, ahead }
            }
            _ => Carriage::Eager,
        }
    }
}

/// Where the next frame to leave is put: behind the bytes in `out`, with its eager parts in `segments`.
#[derive(Debug)]
pub(crate) struct Room<'a, S> {
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) segments: &'a mut Vec<Segment<S>>,
}

pub(super) type OutParts<S> = Vec<OutPart<S>>;

#[derive(Debug)]
pub(super) struct OutPart<S> {
    pub(super) len: u64,
    pub(super) carriage: Carriage,
    /// Where its flags stand in the frame.
    flags_at: u32,
    pub(super) is_tensor: bool,
    /// `None` once it is handed over, skipped, or given to its channel.
    pub(super) source: Option<S>,
    pub(super) done: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Not sent yet: its frame, up to the eager bytes, and the credit that it takes.
    Queued(Vec<u8>, u64),
    /// Sent; bulk parts wait for the go-ahead.
    Sent,
    /// The go-ahead is there, or none is needed.
    Granted,
    /// Abandoned before it was sent: this RESET is sent in its place.
    Hole(Box<Control>),
}

#[derive(Debug)]
pub(super) struct OutMessage<S> {
    pub(super) stage: Stage,
    pub(super) parts: OutParts<S>,
    /// The head and eager bytes are with the transport.
    pub(super) written: bool,
}

impl<S> OutMessage<S> {
    pub(super) fn is_done(&self) -> bool {
        self.written && self.parts.iter().all(|part| part.done)
    }
}

/// Outgoing messages by number. From `next_sent` on there is one, or a hole, for each number; below are those that are
/// not handed over yet, however far apart.
#[derive(Debug)]
pub(super) struct Outgoing<S> {
    pub(super) messages: FxHashMap<u64, OutMessage<S>>,
    /// Number of the next to be written.
    pub(super) next: u64,
    /// Number of the next to be sent.
    pub(super) next_sent: u64,
}

impl<S> Default for Outgoing<S> {
    fn default() -> Self {
        Self {
            messages: FxHashMap::default(),
            next: 0,
            next_sent: 0,
        }
    }
}

impl<S> Outgoing<S> {
    /// Keeps a message until all of it is handed over.
    pub(super) fn keep(&mut self, number: u64, stage: Stage, parts: OutParts<S>, written: bool) {
        let message = OutMessage {
            stage,
            parts,
            written,
        };
        self.messages.insert(number, message);
    }

    pub(super) fn message(&mut self, number: u64) -> Option<&mut OutMessage<S>> {
        self.messages.get_mut(&number)
    }

    pub(super) fn part(&mut self, op: OpId) -> Option<&mut OutPart<S>> {
        self.message(op.message)?
            .parts
            .get_mut(usize::from(op.part))
    }

    /// Whether this message is still to be handed over. A hole is not.
    pub(super) fn contains(&self, number: u64) -> bool {
        let message = self.messages.get(&number);
        message.is_some_and(|message| !matches!(message.stage, Stage::Hole(..)))
    }

    /// Drops everything, sent or not.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.next_sent = self.next;
    }
}

/// Parts that wait for a go-ahead are sent without one, if there is credit for all of them; their flags in `frame`, the message's, say so.
pub(super) fn send_ahead<S>(window: &mut SendWindow, parts: &mut [OutPart<S>], frame: &mut [u8]) {
    let waits = |part: &&OutPart<S>| matches!(part.carriage, Carriage::Bulk { ahead: false, .. });
    let credit = parts.iter().filter(waits).map(|part| part.len + AHEAD_PART);
    if !window.take_ahead(credit.sum()) {
        return;
    }
    for part in parts {
        if let Carriage::Bulk { ahead, .. } = &mut part.carriage {
            *ahead = true;
            set_ahead(frame, part.flags_at);
        }
    }
}

/// Appends the frame of a message, up to the eager bytes, to `out`. Takes the parts, and returns what is kept of them.
#[inline]
pub(super) fn put<S>(
    metadata: &[u8],
    parts: &mut OutgoingParts<S>,
    at_once: AtOnce,
    out: &mut Vec<u8>,
) -> OutParts<S> {
    let mut frame = Frame::begin(out, metadata.len());
    if parts.is_empty() {
        frame.end(metadata, std::iter::empty());
        return OutParts::new();
    }
    let put = |part: &OutgoingPart<S>| {
        let carriage = part.carriage(at_once);
        OutPart {
            len: part.len,
            carriage,
            flags_at: frame.part(
                part.len,
                part.metadata.len(),
                carriage,
                part.tensor.as_ref(),
            ),
            is_tensor: part.tensor.is_some(),
            source: None,
            done: carriage == Carriage::Eager,
        }
    };
    let mut kept: OutParts<S> = parts.iter().map(put).collect();
    frame.end(metadata, parts.iter().map(|part| &*part.metadata));
    for (kept, part) in kept.iter_mut().zip(parts.drain(..)) {
        kept.source = Some(part.source);
    }
    kept
}

/// Credit that a message takes, and each of its parts, in bytes: a round figure, which does not depend on how fields are encoded.
pub(super) const PART_CREDIT: u64 = 64;

/// The credit of a message without its eager bytes.
pub(super) fn credit_of(metadata: usize, parts: usize) -> u64 {
    metadata as u64 + PART_CREDIT * (1 + parts as u64)
}

/// The credit that a message takes (its reader computes the same), or why the peer does not take the message.
pub(super) fn check<S>(
    metadata: &[u8],
    parts: &[OutgoingPart<S>],
    peer: &WireLimits,
) -> Result<u64, Misuse> {
    let fits = |what, found: u64, limit: u64, field| match found <= limit {
        true => Ok(()),
        false => Err(too_large(what, found, limit, field)),
    };
    let mut metas = metadata.len();
    let (mut eager, mut total) = (0u64, 0u64);
    for part in parts {
        let (what, limit, field) = match part.tensor {
            None => ("bytes of a payload", peer.payload, "payload"),
            Some(_) => ("bytes of a tensor", peer.tensor, "tensor"),
        };
        fits(what, part.len, limit, field)?;
        metas += part.metadata.len();
        total = total.saturating_add(part.len);
        if part.channel.is_none() {
            let limit = u64::from(peer.eager_part);
            fits("bytes of an eager part", part.len, limit, "eager_part")?;
            eager += part.len;
        }
    }
    let limit = u64::from(peer.metadata);
    fits("bytes of metadata", metas as u64, limit, "metadata")?;
    let what = "payloads and tensors of a message";
    fits(what, parts.len() as u64, u64::from(peer.parts), "parts")?;
    fits("bytes of a message", total, peer.message, "message")?;
    let limit = u64::from(peer.eager_message);
    fits("bytes of eager parts", eager, limit, "eager_message")?;
    Ok(eager + credit_of(metas, parts.len()))
}

/// Cold: the compiler moves calls of it out of the way.
#[cold]
fn too_large(what: &'static str, found: u64, limit: u64, field: &'static str) -> Misuse {
    Misuse::TooLarge {
        what,
        found,
        limit,
        field,
    }
}
