//! Outgoing messages, from the application's `write` until every byte is handed over.
//!
//! A message is numbered when it is queued. One that is abandoned before it left becomes a hole: a RESET sent in its
//! turn, so that numbers on both sides stay in step.

use smallvec::SmallVec;

use super::flow::{AtOnce, SendWindow};
use super::numbered::Numbered;
use super::wire::descriptor::{Carriage, Carriages, Head};
use super::wire::hello::WireLimits;
use crate::descriptor::Descriptor;
use crate::error::{Misuse, ResetCode};

pub(super) type OutParts<S> = SmallVec<[OutPart<S>; 2]>;

/// A payload or tensor to be sent. `S` is the driver's handle on its memory.
#[derive(Debug)]
pub(crate) struct OutgoingPart<S> {
    pub(crate) source: S,
    /// The channel to use if it does not ride in the frame.
    pub(crate) channel: u8,
    /// Parts up to this size ride in the frame, as far as the reader's limits allow; 0 lets only empty ones.
    pub(crate) ride_up_to: u64,
}

#[derive(Debug)]
pub(super) struct OutPart<S> {
    pub(super) len: u64,
    pub(super) carriage: Carriage,
    /// `None` once it is handed over, skipped, or given to its channel.
    pub(super) source: Option<S>,
    pub(super) done: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Not sent yet.
    Queued(Head),
    /// Sent; bulk parts wait for the go-ahead.
    Sent,
    /// The go-ahead is there.
    Granted,
    /// Abandoned before it was sent.
    Hole(ResetCode, String),
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
    messages: Numbered<OutMessage<S>>,
    /// Number of the next to be written.
    next: u64,
    /// Number of the next to be sent.
    pub(super) next_sent: u64,
    /// One that [passed](Self::pass) and is not kept, of which a part is not with the transport yet.
    pub(super) in_part: Option<u64>,
}

impl<S> Default for Outgoing<S> {
    fn default() -> Self {
        Self {
            messages: Numbered::default(),
            next: 0,
            next_sent: 0,
            in_part: None,
        }
    }
}

impl<S> Outgoing<S> {
    /// Queues a message.
    pub(super) fn push(&mut self, head: Head, parts: OutParts<S>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.messages.push(
            number,
            OutMessage {
                stage: Stage::Queued(head),
                parts,
                written: false,
            },
        );
        number
    }

    /// Whether the next message would be the next to be sent.
    pub(super) fn is_sent(&self) -> bool {
        self.next_sent == self.next
    }

    /// Numbers a message that leaves without being queued. Nothing [else is](Self::is_sent).
    pub(super) fn pass(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.next_sent = self.next;
        number
    }

    /// Keeps a message that [passed](Self::pass), the last one, until its channels have handed over what they carry.
    pub(super) fn keep(&mut self, number: u64, parts: OutParts<S>) {
        self.messages.push(
            number,
            OutMessage {
                stage: Stage::Granted,
                parts,
                written: true,
            },
        );
    }

    /// The number that the next message will get.
    pub(super) fn next_number(&self) -> u64 {
        self.next
    }

    pub(super) fn message(&mut self, number: u64) -> Option<&mut OutMessage<S>> {
        self.messages.get_mut(number)
    }

    /// Whether this message is still to be handed over. A hole is not.
    pub(super) fn contains(&self, number: u64) -> bool {
        let message = self.messages.get(number);
        message.is_some_and(|message| !matches!(message.stage, Stage::Hole(..)))
            || self.in_part == Some(number)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<OutMessage<S>> {
        self.messages.remove(number)
    }

    /// The next message, if the window has room for it; marks it as sent.
    pub(super) fn next_to_send(&mut self, window: &mut SendWindow) -> Option<ToSend<'_, S>> {
        let number = self.next_sent;
        match &mut self.messages.get_mut(number)?.stage {
            Stage::Hole(code, text) => {
                let (code, text) = (*code, std::mem::take(text));
                self.next_sent += 1;
                self.remove(number);
                Some(ToSend::Hole(number, code, text))
            }
            Stage::Queued(head) => {
                if !window.take(body_len_bound(head)) {
                    return None;
                }
                let bulk =
                    head.sum(|carriage| matches!(carriage, Carriage::Bulk { ahead: false, .. }));
                if bulk > 0 && window.take_ahead(bulk) {
                    head.carriages.iter_mut().for_each(|carriage| {
                        if let Carriage::Bulk { ahead, .. } = carriage {
                            *ahead = true;
                        }
                    });
                }
                self.next_sent += 1;
                let message = self.messages.get_mut(number)?;
                let Stage::Queued(head) = std::mem::replace(&mut message.stage, Stage::Sent) else {
                    return None;
                };
                for (part, carriage) in message.parts.iter_mut().zip(&head.carriages) {
                    part.carriage = *carriage;
                }
                Some(ToSend::Message {
                    number,
                    head,
                    message,
                })
            }
            Stage::Sent | Stage::Granted => None,
        }
    }

    /// Drops everything, sent or not.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.in_part = None;
        self.next_sent = self.next;
    }

    /// Whether everything is handed over but what is [in part](Self::in_part) with the transport.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Messages not yet handed over.
    pub(super) fn len(&self) -> usize {
        self.messages.len() + usize::from(self.in_part.is_some())
    }
}

/// Says how each part of a message travels, whose descriptor has been checked against the peer's limits.
pub(super) fn load<S>(
    descriptor: Descriptor,
    parts: impl IntoIterator<Item = OutgoingPart<S>>,
    peer: &WireLimits,
    at_once: AtOnce,
) -> (Head, OutParts<S>) {
    let mut head = Head {
        descriptor,
        carriages: Carriages::new(),
    };
    let mut riding = 0u64;
    let mut loaded = OutParts::new();
    for (i, part) in parts.into_iter().enumerate() {
        let len = head.part_len(i);
        let rides = len <= part.ride_up_to.min(u64::from(peer.eager_part))
            && riding + len <= u64::from(peer.eager_message);
        let carriage = if rides || len == 0 {
            riding += len;
            Carriage::Eager
        } else {
            Carriage::Bulk {
                channel: part.channel,
                ahead: at_once.contains(part.channel),
            }
        };
        head.carriages.push(carriage);
        loaded.push(OutPart {
            len,
            carriage,
            source: Some(part.source),
            done: carriage == Carriage::Eager,
        });
    }
    (head, loaded)
}

pub(super) enum ToSend<'a, S> {
    Hole(u64, ResetCode, String),
    Message {
        number: u64,
        head: Head,
        message: &'a mut OutMessage<S>,
    },
}

/// The credit that a head takes: the reader computes the same from what it decodes.
pub(super) fn body_len_bound(head: &Head) -> u64 {
    let d = &head.descriptor;
    let metadata = d.metadata.len()
        + d.payloads
            .iter()
            .map(|payload| payload.metadata.len())
            .sum::<usize>()
        + d.tensors
            .iter()
            .map(|tensor| tensor.metadata.len())
            .sum::<usize>();
    head.eager_len() + credit_of(metadata, head.carriages.len())
}

/// Parts are counted at a round figure, so that the credit does not depend on how fields are encoded.
pub(super) fn credit_of(metadata: usize, parts: usize) -> u64 {
    metadata as u64 + 64 * (1 + parts as u64)
}

/// Refuses what the peer has said it will not take.
pub(super) fn check(descriptor: &Descriptor, peer: &WireLimits) -> Result<(), Misuse> {
    let fits = |what, found: u64, limit: u64, field| {
        if found > limit {
            Err(Misuse::TooLarge {
                what,
                found,
                limit,
                field,
                side: "the peer",
            })
        } else {
            Ok(())
        }
    };
    let metadata = descriptor.metadata.len() as u64
        + descriptor
            .payloads
            .iter()
            .map(|payload| payload.metadata.len() as u64)
            .sum::<u64>()
        + descriptor
            .tensors
            .iter()
            .map(|tensor| tensor.metadata.len() as u64)
            .sum::<u64>();
    let parts = (descriptor.payloads.len() + descriptor.tensors.len()) as u64;
    fits("metadata", metadata, u64::from(peer.metadata), "metadata")?;
    fits(
        "number of payloads and tensors",
        parts,
        u64::from(peer.parts),
        "parts",
    )?;
    for payload in &descriptor.payloads {
        fits("a payload", payload.len, peer.payload, "payload")?;
    }
    for tensor in &descriptor.tensors {
        fits("a tensor", tensor.byte_len(), peer.tensor, "tensor")?;
    }
    fits("a message", descriptor.byte_len(), peer.message, "message")
}
