//! What leaves: control frames first, then messages and chunks of bulk data in turns, so that neither starves the other
//! and a control frame waits for one chunk at most.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;

use super::outgoing::{PART_CREDIT, Stage, send_ahead};
use super::pipe::{OpId, PipeState};
use super::wire::codec::Put;
use super::wire::frame::{Control, Header, Kind, OP_LEN};
use super::wire::hello::WireLimits;
use super::write::push_eager;
use crate::error::PeerFault;

/// So many frames that the peer has provoked may wait for the transport, or more if its credit is for more parts: a peer that provokes
/// more and does not read is at fault.
const ANSWERS_MAX: u64 = 1 << 16;

/// Messages sent in a row while bulk data waits, in bytes of their frames. Between 64 KiB and 1 MiB all measure the same.
const MESSAGE_BURST: u64 = 256 << 10;

/// A piece of what is to be sent, in order.
#[derive(Debug)]
pub(crate) enum Segment<S> {
    /// That many of the bytes appended to the transmit buffer.
    Control(usize),
    /// A range of a part's memory.
    Data { source: S, range: Range<u64> },
    /// Tell `written` when everything before it is with the transport.
    Mark(Mark),
}

/// See [`Segment::Mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// The head and eager parts of a message.
    Message(u64),
    /// The last chunk of a stream.
    Stream(OpId),
    /// FIN.
    Fin,
}

/// A part on its way in DATA frames.
#[derive(Debug)]
pub(super) struct Stream<S> {
    pub(super) op: OpId,
    pub(super) source: S,
    pub(super) len: u64,
    pub(super) offset: u64,
}

#[derive(Debug)]
pub(super) struct Outbox<S> {
    pub(super) control: VecDeque<Control>,
    /// How many of `control` this side sends of its own accord.
    own: usize,
    /// Frames of channels that nobody waits for: they may leave later.
    pub(super) delayed: VecDeque<Control>,
    pub(super) streams: VecDeque<Stream<S>>,
    /// Numbers of messages to be flushed, asked for once they are sent.
    pub(super) flush: VecDeque<u64>,
    /// The last of them, sent or not.
    pub(super) flush_asked: Option<u64>,
    /// Bytes of messages sent since the last chunk.
    burst: u64,
}

impl<S> Default for Outbox<S> {
    fn default() -> Self {
        Self {
            control: VecDeque::new(),
            own: 0,
            delayed: VecDeque::new(),
            streams: VecDeque::new(),
            flush: VecDeque::new(),
            flush_asked: None,
            burst: 0,
        }
    }
}

impl<S> Outbox<S> {
    pub(super) fn control(&mut self, frame: Control) {
        // Limits and answers to pings are states: the newest says it all.
        let replaces = |queued: &Control| {
            mem::discriminant(queued) == mem::discriminant(&frame)
                && matches!(frame, Control::Window(_) | Control::Pong(_))
        };
        // But a limit behind a RECALL must not replace one before it.
        let recall = |queued: &&mut Control| !matches!(queued, Control::Recall(_));
        let last = self.control.iter_mut().rev().take(4);
        match last.take_while(recall).find(|queued| replaces(queued)) {
            Some(queued) => *queued = frame,
            None => {
                self.own += usize::from(is_own(&frame));
                self.control.push_back(frame);
            }
        }
    }

    fn next_control(&mut self) -> Option<Control> {
        let frame = self.control.pop_front()?;
        self.own -= usize::from(is_own(&frame));
        Some(frame)
    }

    /// Queues `frame`, if there is one.
    pub(super) fn extend(&mut self, frame: Option<Control>) {
        if let Some(frame) = frame {
            self.control(frame);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.streams.is_empty() && self.flush.is_empty()
    }

    /// Fails if the peer makes this side queue frames, answers and go-aheads, without reading them. A peer that reads has at most one in
    /// the queue for each message, and for each part, of a window of `ours`.
    pub(super) fn check(&self, ours: &WireLimits) -> Result<(), PeerFault> {
        let answers = ANSWERS_MAX.max(ours.window_bytes / PART_CREDIT);
        let limit = answers.saturating_add(ours.window_messages);
        if (self.control.len() - self.own + self.delayed.len()) as u64 <= limit {
            return Ok(());
        }
        Err(PeerFault::CreditExceeded {
            what: "frames that want an answer",
            limit,
        })
    }
}

/// Whether this side sends it of its own accord, about a message that it has written. There may be many at once: one for each part of all
/// messages whose go-aheads have just come.
fn is_own(frame: &Control) -> bool {
    matches!(
        frame,
        Control::Channel { yours: false, .. } | Control::Reset { answer: false, .. }
    )
}

impl<S: Clone, D> PipeState<S, D> {
    /// Appends one frame to `out` and `segments`. Returns `false` when there is nothing to send. Delayed frames follow whatever is sent.
    pub(crate) fn poll_transmit(
        &mut self,
        out: &mut Vec<u8>,
        segments: &mut Vec<Segment<S>>,
    ) -> bool {
        let sends = self.transmit(out, segments);
        if sends {
            self.send_delayed();
        }
        sends
    }

    fn transmit(&mut self, out: &mut Vec<u8>, segments: &mut Vec<Segment<S>>) -> bool {
        if let Some(control) = self.outbox.next_control() {
            put_control(&control, out, segments);
            return true;
        }
        if self.transmit_flush(out, segments) {
            return true;
        }
        let bulk_waits = !self.outbox.streams.is_empty();
        if (!bulk_waits || self.outbox.burst < MESSAGE_BURST)
            && self.transmit_message(out, segments)
        {
            return true;
        }
        self.outbox.burst = 0;
        self.transmit_chunk(out, segments)
            || (bulk_waits && self.transmit_message(out, segments))
            || self.transmit_fin(out, segments)
    }

    /// Whether a control frame waits to be sent.
    pub(crate) fn has_control(&self) -> bool {
        !self.outbox.control.is_empty()
    }

    /// The driver has given everything before `mark` to the transport.
    pub(crate) fn written(&mut self, mark: Mark) {
        match mark {
            Mark::Message(number) => {
                if let Some(message) = self.outgoing.message(number) {
                    message.written = true;
                    self.check_written(number);
                }
            }
            Mark::Stream(op) if self.outgoing.contains(op.message) => {
                self.events.push_back(super::Event::StreamSent { op });
            }
            Mark::Stream(_) | Mark::Fin => {}
        }
    }

    /// The next message, if there is credit for it, or the hole that it has become.
    fn transmit_message(&mut self, out: &mut Vec<u8>, segments: &mut Vec<Segment<S>>) -> bool {
        let number = self.outgoing.next_sent;
        let Some(message) = self.outgoing.message(number) else {
            return false;
        };
        match &mut message.stage {
            Stage::Hole(reset) => {
                put_control(reset, out, segments);
                self.outgoing.messages.remove(&number);
            }
            Stage::Queued(frame, credit) if self.send_window.take(*credit) => {
                let mut frame = mem::take(frame);
                message.stage = Stage::Sent;
                send_ahead(&mut self.send_window, &mut message.parts, &mut frame);
                out.extend_from_slice(&frame);
                segments.push(Segment::Control(frame.len()));
                let eager = push_eager(&mut message.parts, segments);
                segments.push(Segment::Mark(Mark::Message(number)));
                self.outbox.burst += frame.len() as u64 + eager;
                self.start_ahead(number);
            }
            Stage::Queued(..) | Stage::Sent | Stage::Granted => return false,
        }
        self.outgoing.next_sent += 1;
        true
    }

    fn transmit_chunk(&mut self, out: &mut Vec<u8>, segments: &mut Vec<Segment<S>>) -> bool {
        let Some(mut stream) = self.outbox.streams.pop_front() else {
            return false;
        };
        let start = out.len();
        let len = (stream.len - stream.offset).min(u64::from(self.peer.chunk));
        Header::put(out, Kind::Data, 0, len as u32 + OP_LEN as u32);
        out.put_bytes(&stream.op.key());
        segments.push(Segment::Control(out.len() - start));
        let range = stream.offset..stream.offset + len;
        stream.offset += len;
        if stream.offset < stream.len {
            let source = stream.source.clone();
            segments.push(Segment::Data { source, range });
            self.outbox.streams.push_back(stream);
        } else {
            let Stream { op, source, .. } = stream;
            segments.push(Segment::Data { source, range });
            segments.push(Segment::Mark(Mark::Stream(op)));
        }
        true
    }

    fn transmit_flush(&mut self, out: &mut Vec<u8>, segments: &mut Vec<Segment<S>>) -> bool {
        let left = |number: &mut u64| *number < self.outgoing.next_sent;
        let Some(message) = self.outbox.flush.pop_front_if(left) else {
            return false;
        };
        put_control(&Control::Flush(message), out, segments);
        true
    }

    fn transmit_fin(&mut self, out: &mut Vec<u8>, segments: &mut Vec<Segment<S>>) -> bool {
        if !self.closing.fin_requested
            || self.closing.fin_sent
            || !self.outgoing.messages.is_empty()
        {
            return false;
        }
        self.closing.fin_sent = true;
        put_control(&Control::Fin, out, segments);
        segments.push(Segment::Mark(Mark::Fin));
        true
    }
}

fn put_control<S>(control: &Control, out: &mut Vec<u8>, segments: &mut Vec<Segment<S>>) {
    let start = out.len();
    control.put(out);
    segments.push(Segment::Control(out.len() - start));
}
