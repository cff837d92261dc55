//! What comes in: frames are cut out of the byte stream, checked against what was granted, and acted on.
//!
//! Only heads and control frames pass through here; of eager parts and DATA frames it is said where the bytes go.

use std::time::Instant;

use super::output::DATA_FIELDS;
use super::pipe::{Event, OpId, PipeState};
use super::read::{Disposition, InMessage};
use super::wire::codec::Reader;
use super::wire::descriptor::{Carriage, Head};
use super::wire::frame::{CONTROL_MAX, Control, HEADER_LEN, Header, Kind};
use super::write::Stage;
use crate::error::{PeerFault, ResetCode};

/// What the bytes that follow are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// At least this many bytes are needed at the front of the next call's input. Where they are there already, call
    /// again once the events are acted on: one of them asks for memory that comes next.
    NeedMore(usize),
    /// The head of this message is there and has eager parts: give them memory with `set_dest`, then go on.
    Head { message: u64 },
    /// The next `len` bytes belong to a part, or to nobody.
    Bulk { target: Option<OpId>, len: u64 },
}

#[derive(Debug, Default)]
pub(super) struct Parser {
    state: State,
    /// A message has come whose bulk parts follow without a go-ahead: they need memory first.
    pause: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Header,
    /// Throwing away the rest of a frame.
    Skip { left: u64 },
    /// The eager parts of a message, this one with so much still to come.
    Eager { message: u64, part: u16, left: u64 },
    /// A chunk of a stream.
    Data { op: OpId, left: u64 },
}

impl State {
    fn skip(left: u64) -> Self {
        if left == 0 {
            Self::Header
        } else {
            Self::Skip { left }
        }
    }
}

impl<S: Clone, D> PipeState<S, D> {
    /// Consumes whole frames from `input`. Returns how many bytes were used and what the following ones are.
    pub(crate) fn handle(
        &mut self,
        input: &[u8],
        now: Instant,
    ) -> Result<(usize, Input), PeerFault> {
        let mut used = 0;
        self.parser.pause = false;
        if !input.is_empty() {
            self.heard(now);
        }
        loop {
            match self.parser.state {
                State::Skip { left } => {
                    return Ok((
                        used,
                        Input::Bulk {
                            target: None,
                            len: left,
                        },
                    ));
                }
                State::Data { op, left } => {
                    return Ok((
                        used,
                        Input::Bulk {
                            target: Some(op),
                            len: left,
                        },
                    ));
                }
                State::Eager {
                    message,
                    part,
                    left,
                } => {
                    let op = OpId {
                        message,
                        part,
                        outgoing: false,
                    };
                    return Ok((
                        used,
                        Input::Bulk {
                            target: Some(op),
                            len: left,
                        },
                    ));
                }
                State::Header if self.parser.pause => {
                    return Ok((used, Input::NeedMore(HEADER_LEN)));
                }
                State::Header => match self.frame(&input[used..])? {
                    Frame::Done(len) => used += len,
                    Frame::NeedMore(len) => return Ok((used, Input::NeedMore(len))),
                    Frame::Head(len, message) => return Ok((used + len, Input::Head { message })),
                },
            }
        }
    }

    /// Memory for an eager part.
    pub(crate) fn set_dest(&mut self, op: OpId, dest: D) {
        if let Some(message) = self.incoming.messages.get_mut(&op.message) {
            message.parts[usize::from(op.part)].dest = Some(dest);
        }
    }

    /// The memory of a part, to write received bytes into, and how many it has. `None`: throw them away.
    pub(crate) fn take_dest(&mut self, op: OpId) -> Option<(D, u64)> {
        let part = self
            .incoming
            .messages
            .get_mut(&op.message)?
            .parts
            .get_mut(usize::from(op.part))?;
        Some((part.dest.take()?, part.got))
    }

    /// `len` bytes of what [`Input::Bulk`] announced are there; the memory comes back with them.
    pub(crate) fn bulk_received(&mut self, len: u64, dest: Option<D>) {
        match &mut self.parser.state {
            State::Header => debug_assert_eq!(len, 0),
            State::Skip { left } => {
                *left -= len;
                if *left == 0 {
                    self.parser.state = State::Header;
                }
            }
            State::Data { op, left } => {
                let op = *op;
                *left -= len;
                if *left == 0 {
                    self.parser.state = State::Header;
                }
                self.part_bytes(op, len, dest);
            }
            State::Eager {
                message,
                part,
                left,
            } => {
                let op = OpId {
                    message: *message,
                    part: *part,
                    outgoing: false,
                };
                *left -= len;
                let complete = *left == 0;
                self.part_bytes(op, len, dest);
                if complete {
                    self.next_eager(op.message, op.part + 1);
                }
            }
        }
    }

    /// The eager parts of a message that arrived, with their memory.
    pub(crate) fn take_parts(&mut self, message: u64) -> Vec<(u16, D)> {
        let Some(message) = self.incoming.messages.get_mut(&message) else {
            return Vec::new();
        };
        let eager = message
            .parts
            .iter_mut()
            .enumerate()
            .filter(|(_, part)| part.carriage == Carriage::Eager);
        eager
            .filter_map(|(i, part)| Some((i as u16, part.dest.take()?)))
            .collect()
    }

    /// The driver has given an arriving head's parts their memory: their bytes may come.
    pub(crate) fn start_eager(&mut self, message: u64) {
        self.next_eager(message, 0);
    }

    /// The lengths of the eager parts of an arriving message.
    pub(crate) fn eager_parts(&self, message: u64) -> impl Iterator<Item = (u16, u64)> + '_ {
        let parts = self
            .incoming
            .messages
            .get(&message)
            .map(|message| message.parts.as_slice())
            .unwrap_or_default();
        let eager = parts
            .iter()
            .enumerate()
            .filter(|(_, part)| part.carriage == Carriage::Eager && part.len > 0);
        eager.map(|(i, part)| (i as u16, part.len))
    }

    fn part_bytes(&mut self, op: OpId, len: u64, dest: Option<D>) {
        let Some(message) = self.incoming.messages.get_mut(&op.message) else {
            return;
        };
        let refused = message.disposition == Disposition::Refused;
        let part = &mut message.parts[usize::from(op.part)];
        part.got += len;
        if !refused {
            part.dest = dest;
        }
        if part.got == part.len && part.carriage != Carriage::Eager && !refused {
            let dest = part.dest.take();
            // Thrown away as it came: nobody waits for it.
            part.done |= dest.is_none();
            self.events.push_back(Event::StreamReceived { op, dest });
        }
    }

    /// Goes on with the first non-empty eager part from `part`, or with the next frame.
    fn next_eager(&mut self, number: u64, part: u16) {
        let Some(message) = self.incoming.messages.get_mut(&number) else {
            self.parser.state = State::Header;
            return;
        };
        let mut rest = message.parts.iter_mut().enumerate().skip(usize::from(part));
        if let Some((i, part)) =
            rest.find(|(_, part)| part.carriage == Carriage::Eager && part.len > 0)
        {
            self.parser.state = State::Eager {
                message: number,
                part: i as u16,
                left: part.len,
            };
            return;
        }
        for part in &mut message.parts {
            part.done |= part.carriage == Carriage::Eager;
        }
        self.parser.state = State::Header;
        message.disposition = Disposition::Undecided;
        if message.credit.ahead > 0 {
            self.events.push_back(Event::Ahead { message: number });
            self.parser.pause = true;
        }
        self.events.push_back(Event::Ready { message: number });
    }

    fn frame(&mut self, input: &[u8]) -> Result<Frame, PeerFault> {
        let Some((header, rest)) = input.split_first_chunk::<HEADER_LEN>() else {
            return Ok(Frame::NeedMore(HEADER_LEN));
        };
        let Header { len, kind, flags } = Header::decode(header)?;
        let Some(kind) = kind else {
            check_len("skipped", len, self.ours.chunk.max(CONTROL_MAX))?;
            self.parser.state = State::skip(u64::from(len));
            return Ok(Frame::Done(HEADER_LEN));
        };
        match kind {
            Kind::Message => self.message_frame(len, rest),
            Kind::Data => self.data_frame(len, rest),
            _ => {
                check_len(kind.name(), len, kind.body_max())?;
                let Some(body) = rest.get(..len as usize) else {
                    return Ok(Frame::NeedMore(HEADER_LEN + len as usize));
                };
                self.control_frame(Control::decode(kind, flags, body)?)?;
                self.outbox.check()?;
                Ok(Frame::Done(HEADER_LEN + len as usize))
            }
        }
    }

    fn message_frame(&mut self, len: u32, rest: &[u8]) -> Result<Frame, PeerFault> {
        check_len(Kind::Message.name(), len, self.ours.frame_max())?;
        if self.closing.fin_received {
            return Err(PeerFault::Unexpected {
                frame: Kind::Message.name(),
                when: "after its FIN",
            });
        }
        let (head, head_len) = match Head::decode(rest, len, self.channels, &self.ours)? {
            Ok(decoded) => decoded,
            Err(need) => return Ok(Frame::NeedMore(HEADER_LEN + need)),
        };
        let number = self.incoming.next;
        let message = InMessage::new(head);
        self.receive_window.receive(message.credit)?;
        self.incoming.next += 1;
        self.incoming.messages.insert(number, message);
        let eager_len = u64::from(len) - head_len as u64;
        if self.closing.ignore_from.is_some_and(|from| number >= from) {
            self.refuse(number, ResetCode::Closing, "");
            self.parser.state = State::skip(eager_len);
            return Ok(Frame::Done(HEADER_LEN + head_len));
        }
        if eager_len > 0 {
            return Ok(Frame::Head(HEADER_LEN + head_len, number));
        }
        self.next_eager(number, 0);
        Ok(Frame::Done(HEADER_LEN + head_len))
    }

    fn data_frame(&mut self, len: u32, rest: &[u8]) -> Result<Frame, PeerFault> {
        let frame = Kind::Data.name();
        check_len(
            frame,
            len,
            self.ours.chunk.saturating_add(DATA_FIELDS as u32),
        )?;
        if (len as usize) < DATA_FIELDS {
            return Err(PeerFault::Truncated { frame });
        }
        let Some(fields) = rest.get(..DATA_FIELDS) else {
            return Ok(Frame::NeedMore(HEADER_LEN + DATA_FIELDS));
        };
        let mut r = Reader::new(fields, frame);
        let op = OpId {
            message: r.u64()?,
            part: r.u16()?,
            outgoing: false,
        };
        let left = u64::from(len) - DATA_FIELDS as u64;
        let unknown = PeerFault::UnknownMessage {
            frame,
            message: op.message,
        };
        let message = self
            .incoming
            .messages
            .get(&op.message)
            .ok_or(unknown.clone())?;
        let part = message
            .parts
            .get(usize::from(op.part))
            .ok_or(unknown.clone())?;
        let refused = message.disposition == Disposition::Refused;
        if !part.expected && !refused {
            return Err(unknown);
        }
        if left > part.len - part.got {
            return Err(PeerFault::LimitExceeded {
                what: "a part",
                found: part.got + left,
                limit: part.len,
            });
        }
        self.parser.state = if left == 0 {
            State::Header
        } else {
            State::Data { op, left }
        };
        Ok(Frame::Done(HEADER_LEN + DATA_FIELDS))
    }

    fn control_frame(&mut self, frame: Control) -> Result<(), PeerFault> {
        match frame {
            Control::Grant { message, skip } => {
                self.check_sent("GRANT", message)?;
                match self.outgoing.message(message).map(|message| &message.stage) {
                    Some(Stage::Sent) => self.start_bulk(message, &skip)?,
                    Some(_) => {
                        return Err(PeerFault::Unexpected {
                            frame: "GRANT",
                            when: "twice for one message",
                        });
                    }
                    // Abandoned here in the meantime.
                    None => {}
                }
            }
            Control::Window {
                messages,
                bytes,
                ahead,
            } => {
                self.send_window.raise(super::flow::Amount {
                    messages,
                    bytes,
                    ahead,
                });
            }
            Control::Reset {
                message,
                answer: true,
                ..
            } => self.peer_confirmed(message)?,
            Control::Reset {
                message,
                code,
                text,
                answer: false,
            } => self.peer_reset(message, code, text)?,
            Control::Refuse {
                message,
                code,
                text,
            } => {
                self.check_sent("REFUSE", message)?;
                let under_way = self.drop_outgoing(message);
                // Always answered, so that the reader knows when nothing of it can come any more.
                self.outbox.control(Control::Reset {
                    message,
                    code,
                    text: String::new(),
                    answer: true,
                });
                // To skip what is handed over is no news.
                if under_way || code != ResetCode::Skipped {
                    self.events.push_back(Event::Refused {
                        message,
                        code,
                        text,
                    });
                }
            }
            Control::Flush { message } => {
                if message >= self.incoming.next {
                    return Err(PeerFault::UnknownMessage {
                        frame: "FLUSH",
                        message,
                    });
                }
                if let Some(message) = self.incoming.flush(message) {
                    self.outbox.control(Control::Flushed { message });
                }
            }
            Control::Flushed { message } => {
                self.check_sent("FLUSHED", message)?;
                self.events.push_back(Event::Flushed { message });
            }
            Control::Ping { nonce } => self.outbox.control(Control::Pong { nonce }),
            Control::Pong { .. } => {}
            Control::GoAway { next, text } => {
                if next > self.outgoing.next_sent {
                    return Err(PeerFault::UnknownMessage {
                        frame: "GOAWAY",
                        message: next,
                    });
                }
                let next = self
                    .closing
                    .peer_ignores_from
                    .map_or(next, |old| old.min(next));
                self.closing.peer_ignores_from = Some(next);
                self.events.push_back(Event::GoAway { next, text });
            }
            Control::Fin => {
                if std::mem::replace(&mut self.closing.fin_received, true) {
                    return Err(PeerFault::Unexpected {
                        frame: "FIN",
                        when: "twice",
                    });
                }
                self.outbox.control(Control::FinAck);
                self.events.push_back(Event::Fin);
            }
            Control::FinAck => {
                if !self.closing.fin_sent {
                    return Err(PeerFault::Unexpected {
                        frame: "FIN_ACK",
                        when: "without a FIN",
                    });
                }
                if std::mem::replace(&mut self.closing.fin_acked, true) {
                    return Err(PeerFault::Unexpected {
                        frame: "FIN_ACK",
                        when: "twice",
                    });
                }
                self.events.push_back(Event::FinAck);
            }
            Control::Channel {
                message,
                part,
                yours,
                body,
            } => {
                self.channel_frame(
                    OpId {
                        message,
                        part,
                        outgoing: yours,
                    },
                    body,
                )?;
            }
        }
        Ok(())
    }

    fn check_sent(&self, frame: &'static str, message: u64) -> Result<(), PeerFault> {
        if message < self.outgoing.next_sent {
            Ok(())
        } else {
            Err(PeerFault::UnknownMessage { frame, message })
        }
    }

    /// The writer has heard that a message is refused: nothing more comes of it.
    fn peer_confirmed(&mut self, message: u64) -> Result<(), PeerFault> {
        let refused = self.incoming.messages.get(&message);
        if refused.is_none_or(|message| message.disposition != Disposition::Refused) {
            return Err(PeerFault::Unexpected {
                frame: "RESET",
                when: "in answer to no REFUSE",
            });
        }
        self.release(message);
        Ok(())
    }

    fn peer_reset(&mut self, message: u64, code: ResetCode, text: String) -> Result<(), PeerFault> {
        if message > self.incoming.next {
            return Err(PeerFault::UnknownMessage {
                frame: "RESET",
                message,
            });
        }
        if message == self.incoming.next {
            if self.closing.fin_received {
                return Err(PeerFault::Unexpected {
                    frame: "RESET",
                    when: "of a message after its FIN",
                });
            }
            // A hole: the writer gave it up before it left.
            self.incoming.next += 1;
            self.count_read(message);
            return Ok(());
        }
        let Some(incoming) = self.incoming.messages.get_mut(&message) else {
            // Read long ago: whoever acts on it may want to stop.
            self.events.push_back(Event::Reset {
                message,
                code,
                text,
            });
            return Ok(());
        };
        if incoming.disposition == Disposition::Refused {
            // The REFUSE is still on its way to the writer, and will be answered.
            return Ok(());
        }
        for (part, channel) in incoming.abandon() {
            let op = OpId {
                message,
                part,
                outgoing: false,
            };
            self.events.push_back(Event::Cancel { op, channel });
        }
        self.events.push_back(Event::Reset {
            message,
            code,
            text,
        });
        self.release(message);
        Ok(())
    }

    fn channel_frame(&mut self, op: OpId, body: Vec<u8>) -> Result<(), PeerFault> {
        let frame = Kind::Channel.name();
        let unknown = PeerFault::UnknownMessage {
            frame,
            message: op.message,
        };
        let carriage = if op.outgoing {
            self.check_sent(frame, op.message)?;
            // A message abandoned in the meantime has no channel any more.
            let Some(message) = self.outgoing.message(op.message) else {
                return Ok(());
            };
            message
                .parts
                .get(usize::from(op.part))
                .map(|part| part.carriage)
        } else {
            if op.message >= self.incoming.next {
                return Err(unknown);
            }
            let Some(message) = self.incoming.messages.get(&op.message) else {
                return Ok(());
            };
            if message.disposition == Disposition::Refused {
                return Ok(());
            }
            message
                .parts
                .get(usize::from(op.part))
                .map(|part| part.carriage)
        };
        match carriage {
            Some(Carriage::Bulk { channel, .. }) => {
                self.events.push_back(Event::Channel { op, channel, body });
                Ok(())
            }
            _ => Err(unknown),
        }
    }
}

enum Frame {
    /// A frame (or the front of one with bulk data) of this many bytes was handled.
    Done(usize),
    NeedMore(usize),
    /// The front of a MESSAGE frame was handled: its eager parts need memory.
    Head(usize, u64),
}

fn check_len(frame: &'static str, len: u32, limit: u32) -> Result<(), PeerFault> {
    if len <= limit {
        return Ok(());
    }
    Err(PeerFault::FrameTooLarge {
        frame,
        len: u64::from(len),
        limit: u64::from(limit),
    })
}
