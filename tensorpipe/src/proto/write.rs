//! Commands of the application and of channels about messages that this side writes.

use std::collections::VecDeque;

use super::outgoing::{self, OutPart, OutParts, OutgoingParts, Room, Stage};
use super::output::{Segment, Stream};
use super::pipe::{Event, OpId, PipeState};
use super::wire::descriptor::Carriage;
use super::wire::frame::{Control, Reason};
use crate::error::{Misuse, ResetCode};

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) number: u64,
    /// It is among the bytes to be sent; otherwise it is queued.
    pub(crate) sent: bool,
    /// It is [unwritten](PipeState::unwritten): a channel has to carry some of it, or it waits.
    pub(crate) pending: bool,
}

impl<S: Clone, D> PipeState<S, D> {
    /// Takes a message. If nothing is to be sent before it, its credit is there, and there is `room`, it leaves: its frame is
    /// put there. Else it is queued, for [`poll_transmit`](Self::poll_transmit). Takes the parts, unless it fails: if the
    /// peer would not take it, or after `close`.
    pub(crate) fn write(
        &mut self,
        metadata: &[u8],
        parts: &mut OutgoingParts<S>,
        room: Option<Room<'_, S>>,
    ) -> Result<Written, Misuse> {
        if self.closing.fin_requested {
            return Err(Misuse::Other(
                "this pipe is closing; write before `close`".to_owned(),
            ));
        }
        let credit = outgoing::check(metadata, parts, &self.peer)?;
        let leaves = room.is_some() && self.is_next() && self.send_window.take(credit);
        let number = self.outgoing.next;
        self.outgoing.next += 1;
        let (sent, pending) = match room.filter(|_| leaves) {
            None => {
                let mut frame = Vec::new();
                let parts = outgoing::put(metadata, parts, self.at_once, &mut frame);
                let queued = Stage::Queued(frame, credit);
                self.outgoing.keep(number, queued, parts, false);
                (false, true)
            }
            Some(Room { out, segments }) => {
                self.outgoing.next_sent = self.outgoing.next;
                let start = out.len();
                let parts = outgoing::put(metadata, parts, self.at_once, out);
                let out = &mut out[start..];
                let pending = !parts.is_empty() && self.send_parts(number, parts, out, segments);
                (true, pending)
            }
        };
        Ok(Written {
            number,
            sent,
            pending,
        })
    }

    /// Sends the parts of a message that leaves with `frame`. Returns whether a channel has to carry any of them.
    fn send_parts(
        &mut self,
        number: u64,
        mut parts: OutParts<S>,
        frame: &mut [u8],
        segments: &mut Vec<Segment<S>>,
    ) -> bool {
        outgoing::send_ahead(&mut self.send_window, &mut parts, frame);
        push_eager(&mut parts, segments);
        let pending = parts.iter().any(|part| !part.done);
        if pending {
            self.outgoing.keep(number, Stage::Sent, parts, true);
            self.start_ahead(number);
        }
        pending
    }

    /// Not all of a message that was sent is with the transport: [`Mark::Message`](super::Mark) will tell when it is.
    pub(crate) fn sent_in_part(&mut self, number: u64) {
        match self.outgoing.message(number) {
            Some(kept) => kept.written = false,
            None => (self.outgoing).keep(number, Stage::Granted, OutParts::new(), false),
        }
    }

    /// Whether nothing is to be sent before the next message.
    pub(crate) fn is_next(&self) -> bool {
        self.outgoing.next_sent == self.outgoing.next && self.outbox.is_empty()
    }

    /// Messages written and not yet handed over.
    pub(crate) fn unwritten(&self) -> usize {
        self.outgoing.messages.len()
    }

    /// Whether a written message is not yet handed over.
    pub(crate) fn is_writing(&self, message: u64) -> bool {
        self.outgoing.contains(message)
    }

    /// Whether this message has begun to leave, or never will.
    pub(crate) fn has_begun(&self, message: u64) -> bool {
        message < self.outgoing.next_sent
    }

    /// The number of the last message written, if there is one.
    pub(crate) fn last_written(&self) -> Option<u64> {
        self.outgoing.next.checked_sub(1)
    }

    /// Abandons a message, wherever it is: what has not left does not leave. The peer is told even of a message that it has, so that it can
    /// abandon what the message asked for.
    pub(crate) fn reset(&mut self, message: u64, code: ResetCode, text: &str) {
        let reset = Control::Reset {
            reason: Reason::new(message, code, text),
            answer: false,
        };
        if message < self.outgoing.next_sent {
            self.drop_outgoing(message);
            self.outbox.control(reset);
        } else if let Some(queued) = self.outgoing.message(message) {
            queued.stage = Stage::Hole(Box::new(reset));
            queued.parts.clear();
        }
    }

    /// The name of an outgoing part, for errors: its number among the payloads, or among the tensors.
    pub(crate) fn name_outgoing(&mut self, op: OpId) -> Option<String> {
        let at = usize::from(op.part);
        let parts = &self.outgoing.message(op.message)?.parts;
        let payloads = parts.iter().take_while(|part| !part.is_tensor).count();
        Some(match parts.get(at)?.is_tensor {
            true => format!("tensor {}", at - payloads),
            false => format!("payload {at}"),
        })
    }

    /// Whether `op` is a tensor of an outgoing message that is not handed over yet.
    pub(crate) fn is_tensor(&mut self, op: OpId) -> bool {
        op.outgoing && self.outgoing.part(op).is_some_and(|part| part.is_tensor)
    }

    /// The channel that carries an outgoing part.
    pub(crate) fn outgoing_channel(&mut self, op: OpId) -> Option<u8> {
        match self.outgoing.part(op)?.carriage {
            Carriage::Eager => None,
            Carriage::Bulk { channel, .. } => Some(channel),
        }
    }

    /// Sends a part on the pipe's own connection, in DATA frames between which control frames pass. Ignored if the
    /// message was abandoned meanwhile: its `Cancel` is among the events.
    pub(crate) fn stream(&mut self, op: OpId, source: S, len: u64) {
        debug_assert!(op.outgoing);
        // Abandoned since it was started: nothing may follow the RESET.
        if self.outgoing.part(op).is_some_and(|part| !part.done) {
            self.outbox.streams.push_back(Stream {
                op,
                source,
                len,
                offset: 0,
            });
        }
    }

    /// A channel has handed over a part.
    pub(crate) fn part_sent(&mut self, op: OpId) {
        if let Some(part) = self.outgoing.part(op) {
            part.done = true;
            part.source = None;
        }
        self.check_written(op.message);
    }

    /// Forgets an outgoing message; the channels at work on it hear of it.
    pub(super) fn drop_outgoing(&mut self, message: u64) -> bool {
        let Some(dropped) = self.outgoing.messages.remove(&message) else {
            return false;
        };
        let mut started = false;
        for (i, part) in dropped.parts.iter().enumerate() {
            if let Carriage::Bulk { channel, .. } = part.carriage
                && part.source.is_none()
                && !part.done
            {
                let op = OpId::outgoing(message, i as u16);
                self.events.push_back(Event::Cancel { op, channel });
                started = true;
            }
        }
        // Only parts that were started have streams: otherwise they need not be searched.
        if started {
            (self.outbox.streams).retain(|stream| stream.op.message != message);
        }
        true
    }

    pub(super) fn check_written(&mut self, message: u64) {
        let outgoing = self.outgoing.message(message);
        if outgoing.is_some_and(|outgoing| outgoing.is_done()) {
            self.outgoing.messages.remove(&message);
            self.events.push_back(Event::Written { message });
        }
    }

    /// Starts the bulk parts that wait for no go-ahead.
    pub(super) fn start_ahead(&mut self, message: u64) {
        let Some(outgoing) = self.outgoing.message(message) else {
            return;
        };
        let (mut started, mut waits) = (false, false);
        for (i, part) in outgoing.parts.iter_mut().enumerate() {
            match part.carriage {
                Carriage::Bulk { ahead: true, .. } => {
                    let op = OpId::outgoing(message, i as u16);
                    started |= part.start(op, &mut self.events);
                }
                Carriage::Bulk { ahead: false, .. } => waits = true,
                Carriage::Eager => {}
            }
        }
        if started && !waits {
            outgoing.stage = Stage::Granted;
        }
    }

    /// Starts the bulk parts of an outgoing message but for `skip`.
    pub(super) fn start_bulk(&mut self, message: u64, mut skip: Vec<u16>) {
        let Some(outgoing) = self.outgoing.message(message) else {
            return;
        };
        outgoing.stage = Stage::Granted;
        // There may be as many as the peer likes, so each part is looked up by binary search.
        skip.sort_unstable();
        for (i, part) in outgoing.parts.iter_mut().enumerate() {
            let op = OpId::outgoing(message, i as u16);
            match part.carriage {
                Carriage::Bulk { .. } if skip.binary_search(&op.part).is_ok() => {
                    part.done |= part.source.take().is_some();
                }
                _ => _ = part.start(op, &mut self.events),
            }
        }
        self.check_written(message);
    }
}

impl<S> OutPart<S> {
    /// Gives a bulk part to its channel, if it is still here.
    fn start<D>(&mut self, op: OpId, events: &mut VecDeque<Event<S, D>>) -> bool {
        let Carriage::Bulk { channel, .. } = self.carriage else {
            return false;
        };
        let Some(source) = self.source.take() else {
            return false;
        };
        events.push_back(Event::Start {
            op,
            channel,
            source,
        });
        true
    }
}

/// Queues the bytes of eager parts behind their frame. Returns how many these are.
pub(super) fn push_eager<S>(parts: &mut [OutPart<S>], segments: &mut Vec<Segment<S>>) -> u64 {
    let mut eager = 0;
    for part in parts {
        if part.carriage == Carriage::Eager
            && let Some(source) = part.source.take().filter(|_| part.len > 0)
        {
            let range = 0..part.len;
            segments.push(Segment::Data { source, range });
            eager += part.len;
        }
    }
    eager
}
