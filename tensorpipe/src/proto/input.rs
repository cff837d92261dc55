//! What comes in: frames are cut out of the byte stream, checked against what was granted, and acted on.
//!
//! Only heads and control frames pass through here; of eager parts and DATA frames it is said where the bytes go.

use std::time::Instant;

use bytes::Bytes;

use super::flow::Amount;
use super::output::DATA_FIELDS;
use super::pipe::{OpId, PipeState};
use super::read::{Disposition, Held, InMessage};
use super::straight::Offered;
use super::wire::codec::Reader;
use super::wire::descriptor::{Carriage, Head};
use super::wire::frame::{CONTROL_MAX, Control, HEADER_LEN, Header, Kind};
use super::write::body_len_bound;
use crate::descriptor::Descriptor;
use crate::error::{PeerFault, ResetCode};

/// What the bytes that follow are for.
#[derive(Debug)]
pub(crate) enum Input {
    /// At least this many bytes are needed at the front of the next call's input. Where they are there already, call
    /// again once the events are acted on: one of them asks for memory that comes next.
    NeedMore(usize),
    /// A message is there whole: the bytes of its parts are the next ones of the input, and used up with it.
    Whole {
        message: u64,
        descriptor: Descriptor,
    },
    /// A message of metadata alone is there.
    Bare { message: u64, metadata: Bytes },
    /// A message is there but for one part, about which its channel's word is there, too. If the channel has the part for that
    /// word, the message is whole, and all that follows of it is used up; if not, [`decline`](PipeState::decline) it, and go on
    /// as after [`Input::Head`], with nothing more used.
    Offered(Offered),
    /// The head of this message is there and has eager parts: give them memory with `set_dest`, then go on.
    Head { message: u64 },
    /// The next `len` bytes belong to a part, or to nobody.
    Bulk { target: Option<OpId>, len: u64 },
}

/// A message's parts up to this size together can be taken at once, in bytes. More would hold up others for too long.
const WHOLE_UP_TO: u64 = 32 << 10;

#[derive(Debug, Default)]
pub(super) struct Parser {
    pub(super) state: State,
    /// A message has come whose bulk parts follow without a go-ahead: they need memory first.
    pub(super) pause: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
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
                    let op = OpId::incoming(message, part);
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
                    Frame::Bare(len, message, metadata) => {
                        return Ok((used + len, Input::Bare { message, metadata }));
                    }
                    Frame::Offered(len, offered) => {
                        return Ok((used + len, Input::Offered(offered)));
                    }
                    Frame::Whole(len, message, descriptor) => {
                        let input = Input::Whole {
                            message,
                            descriptor,
                        };
                        return Ok((used + len, input));
                    }
                },
            }
        }
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
        // Messages want an answer, too: their reader's go-ahead.
        self.outbox.check(self.ours.window_messages)?;
        match kind {
            Kind::Message => self.message_frame(len, rest),
            Kind::Data => self.data_frame(len, rest),
            _ => {
                check_len(kind.name(), len, kind.body_max())?;
                let Some(body) = rest.get(..len as usize) else {
                    return Ok(Frame::NeedMore(HEADER_LEN + len as usize));
                };
                self.control_frame(Control::decode(kind, flags, body)?)?;
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
        if let Some(metadata) = self.bare(len, rest) {
            let (number, metadata) = self.bare_message(metadata)?;
            return Ok(Frame::Bare(HEADER_LEN + len as usize, number, metadata));
        }
        let (head, head_len) = match Head::decode(rest, len, self.channels, &self.ours)? {
            Ok(decoded) => decoded,
            Err(need) => return Ok(Frame::NeedMore(HEADER_LEN + need)),
        };
        self.at_once.check(&head)?;
        let eager_len = u64::from(len) - head_len as u64;
        let is_here = eager_len <= WHOLE_UP_TO
            && rest.len() >= len as usize
            && self.closing.ignore_from.is_none();
        if is_here && (head.carriages.iter()).all(|carriage| *carriage == Carriage::Eager) {
            let bytes = body_len_bound(&head);
            self.receive_window.receive(Amount::of_whole(bytes))?;
            let number = self.incoming.push(Held::Whole(bytes));
            let used = HEADER_LEN + head_len;
            return Ok(Frame::Whole(used, number, head.descriptor));
        }
        if is_here && let Some(offer) = self.offer_behind(&head, len, rest) {
            let offered = self.offered(head, head_len, offer)?;
            return Ok(Frame::Offered(HEADER_LEN + head_len, offered));
        }
        let message = InMessage::new(head, self.at_once);
        self.receive_window.receive(message.credit)?;
        let number = self.incoming.push(Held::Parts(Box::new(message)));
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
        let op = OpId::incoming(r.u64()?, r.u16()?);
        let left = u64::from(len) - DATA_FIELDS as u64;
        let unknown = PeerFault::UnknownMessage {
            frame,
            message: op.message,
        };
        let message = self
            .incoming
            .get(op.message)
            .ok_or_else(|| unknown.clone())?;
        let part = message
            .parts
            .get(usize::from(op.part))
            .ok_or_else(|| unknown.clone())?;
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
}

enum Frame {
    /// A frame (or the front of one with bulk data) of this many bytes was handled.
    Done(usize),
    NeedMore(usize),
    /// The front of a MESSAGE frame was handled: its eager parts need memory.
    Head(usize, u64),
    /// A MESSAGE frame of metadata alone was handled.
    Bare(usize, u64, Bytes),
    /// The front of a MESSAGE frame was handled: what follows is all here.
    Offered(usize, Offered),
    /// The front of a MESSAGE frame was handled, and all the bytes of its eager parts are there.
    Whole(usize, u64, Descriptor),
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
