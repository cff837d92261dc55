//! Frame header and the small control frames.

use smallvec::SmallVec;

use super::codec::{Put, Reader};
use super::limits::Amount;
use crate::error::{PeerFault, ResetCode, TEXT_MAX};

/// Body length (`u32`), kind (`u8`), flags (`u8`), two bytes of zero.
pub(crate) const HEADER_LEN: usize = 8;

/// The longest body of a control frame but GRANT, in bytes. A CHANNEL frame's content is limited by it too.
pub(crate) const CONTROL_MAX: u32 = 16 << 10;

/// The longest content of a CHANNEL frame, in bytes.
pub(crate) const CHANNEL_MAX: usize = CONTROL_MAX as usize - OP_LEN;

/// Message, part and piece at the front of a CHANNEL or DATA body, in bytes.
pub(crate) const OP_LEN: usize = 12;

/// Flag: a receiver that does not know the kind skips the frame.
pub(crate) const OPTIONAL: u8 = 1;

/// Flag of CHANNEL and DATA-like frames: the operation belongs to a message of the frame's *receiver*.
pub(crate) const YOURS: u8 = 2;

/// Flag of RESET: it answers a REFUSE, and is the last that the reader hears of the message.
pub(crate) const ANSWER: u8 = 4;

/// Declares each kind of frame once: its code on the wire, and its name in errors and in WIRE.md.
macro_rules! kinds {
    ($($kind:ident = $code:literal $name:literal,)*) => {
        /// What a frame is. The discriminant is its code on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Kind {
            $($kind = $code,)*
        }

        impl Kind {
            fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Self::$kind),)*
                    _ => None,
                }
            }

            /// Its name in errors and in WIRE.md.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    Hello = 1 "HELLO",
    Answer = 2 "ANSWER",
    Reject = 3 "REJECT",
    Stay = 4 "STAY",
    Joined = 5 "JOINED",
    Key = 6 "KEY",
    Challenge = 7 "CHALLENGE",
    Proof = 8 "PROOF",
    Message = 16 "MESSAGE",
    Data = 17 "DATA",
    Grant = 18 "GRANT",
    Window = 19 "WINDOW",
    Reset = 20 "RESET",
    Refuse = 21 "REFUSE",
    Flush = 22 "FLUSH",
    Flushed = 23 "FLUSHED",
    Ping = 24 "PING",
    Pong = 25 "PONG",
    GoAway = 26 "GOAWAY",
    Fin = 27 "FIN",
    FinAck = 28 "FIN_ACK",
    Channel = 29 "CHANNEL",
    Recall = 30 "RECALL",
    Recalled = 31 "RECALLED",
}

/// Faults of a frame of this kind. The compiler moves calls of these out of the way of valid frames.
impl Kind {
    #[cold]
    pub(crate) fn unexpected(self, when: &'static str) -> PeerFault {
        let frame = self.name();
        PeerFault::Unexpected { frame, when }
    }

    #[cold]
    pub(crate) fn malformed(self, what: &'static str) -> PeerFault {
        let frame = self.name();
        PeerFault::Malformed { frame, what }
    }

    #[cold]
    pub(crate) fn truncated(self) -> PeerFault {
        let frame = self.name();
        PeerFault::Truncated { frame }
    }

    /// The frame names a message that is not under way.
    #[cold]
    pub(crate) fn unknown(self, message: u64) -> PeerFault {
        let frame = self.name();
        PeerFault::UnknownMessage { frame, message }
    }

    /// The longest body that a control frame of this kind may have, in bytes.
    pub(crate) fn body_max(self) -> u32 {
        match self {
            // A reader may skip as many parts as a message can have.
            Self::Grant => 10 + 2 * u16::MAX as u32,
            _ => CONTROL_MAX,
        }
    }
}

/// Fails if a body of `len` bytes is longer than `limit`. `None`: a kind that is to be skipped.
pub(crate) fn check_len(kind: Option<Kind>, len: u32, limit: u32) -> Result<(), PeerFault> {
    if len <= limit {
        return Ok(());
    }
    Err(PeerFault::FrameTooLarge {
        frame: kind.map_or("skipped", Kind::name),
        len: u64::from(len),
        limit: u64::from(limit),
    })
}

/// A decoded header. `kind` is `None` for one that is to be skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) len: u32,
    pub(crate) kind: Option<Kind>,
    pub(crate) flags: u8,
}

impl Header {
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, PeerFault> {
        let [a, b, c, d, code, flags, ..] = *bytes;
        let kind = Kind::from_code(code);
        if kind.is_none() && flags & OPTIONAL == 0 {
            return Err(PeerFault::UnknownFrame { kind: code });
        }
        Ok(Self {
            len: u32::from_le_bytes([a, b, c, d]),
            kind,
            flags,
        })
    }

    pub(crate) fn put(out: &mut Vec<u8>, kind: Kind, flags: u8, len: u32) {
        out.put_u32(len);
        out.put_u8(kind as u8);
        out.put_u8(flags);
        out.put_u16(0);
    }
}

/// Encodes a frame whose body `fill` writes.
pub(crate) fn put_frame(out: &mut Vec<u8>, kind: Kind, flags: u8, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    Header::put(out, kind, flags, 0);
    fill(out);
    let len = (out.len() - start - HEADER_LEN) as u32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

/// Which message is given up, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) message: u64,
    pub(crate) code: ResetCode,
    pub(crate) text: String,
}

impl Reason {
    pub(crate) fn new(message: u64, code: ResetCode, text: &str) -> Self {
        let text = text.to_owned();
        Self {
            message,
            code,
            text,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.message);
        out.put_u8(self.code.code());
        out.put_text(cut(&self.text));
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, PeerFault> {
        Ok(Self {
            message: r.u64()?,
            code: ResetCode::from_code(r.u8()?),
            text: r.legible()?,
        })
    }
}

/// The content of a CHANNEL frame: in place, if it is short.
pub(crate) type Body = SmallVec<[u8; 48]>;

/// The frames that carry no bytes of the application's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// The reader wants the bulk parts of a message, except the skipped ones.
    Grant {
        message: u64,
        skip: Vec<u16>,
    },
    /// Cumulative limits: messages, frame bytes and bulk bytes ahead that may have been sent in all.
    Window(Amount),
    /// Lowers the limit of bulk bytes ahead to this, or to what has been sent if that is more.
    Recall(u64),
    /// Answers RECALL with the limit from now on.
    Recalled(u64),
    /// The writer abandons a message, or (`answer`) confirms that nothing more comes of one that was refused.
    Reset {
        reason: Reason,
        answer: bool,
    },
    /// The reader does not want a message, or no more of it.
    Refuse(Reason),
    /// Asks the peer to say when its application has called read for every message up to this one.
    Flush(u64),
    /// Answers FLUSH: it has.
    Flushed(u64),
    /// Asks for a PONG that repeats the number.
    Ping(u64),
    Pong(u64),
    /// No message from `next` on will be taken.
    GoAway {
        next: u64,
        text: String,
    },
    /// No message follows.
    Fin,
    /// All messages before the FIN have arrived here.
    FinAck,
    /// Bytes of a channel for one of its operations.
    Channel {
        op: [u8; OP_LEN],
        yours: bool,
        body: Body,
    },
}

impl Control {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Grant { message, skip } => put_frame(out, Kind::Grant, 0, |out| {
                out.put_u64(*message);
                out.put_u16(skip.len() as u16);
                skip.iter().for_each(|part| out.put_u16(*part));
            }),
            Self::Window(limit) => put_frame(out, Kind::Window, 0, |out| limit.put(out)),
            Self::Recall(ahead) => put_frame(out, Kind::Recall, 0, |out| out.put_u64(*ahead)),
            Self::Recalled(ahead) => put_frame(out, Kind::Recalled, 0, |out| out.put_u64(*ahead)),
            Self::Reset { reason, answer } => {
                let flags = if *answer { ANSWER } else { 0 };
                put_frame(out, Kind::Reset, flags, |out| reason.put(out));
            }
            Self::Refuse(reason) => put_frame(out, Kind::Refuse, 0, |out| reason.put(out)),
            Self::Flush(message) => put_frame(out, Kind::Flush, 0, |out| out.put_u64(*message)),
            Self::Flushed(message) => put_frame(out, Kind::Flushed, 0, |out| out.put_u64(*message)),
            Self::Ping(nonce) => put_frame(out, Kind::Ping, 0, |out| out.put_u64(*nonce)),
            Self::Pong(nonce) => put_frame(out, Kind::Pong, 0, |out| out.put_u64(*nonce)),
            Self::GoAway { next, text } => put_frame(out, Kind::GoAway, 0, |out| {
                out.put_u64(*next);
                out.put_text(cut(text));
            }),
            Self::Fin => put_frame(out, Kind::Fin, 0, |_| {}),
            Self::FinAck => put_frame(out, Kind::FinAck, 0, |_| {}),
            Self::Channel { op, yours, body } => {
                put_frame(out, Kind::Channel, if *yours { YOURS } else { 0 }, |out| {
                    out.put_bytes(op);
                    out.put_bytes(body);
                });
            }
        }
    }

    /// Decodes the body of a control frame. MESSAGE, DATA and the handshake's frames do not come here.
    pub(crate) fn decode(kind: Kind, flags: u8, body: &[u8]) -> Result<Self, PeerFault> {
        let mut r = Reader::new(body, kind);
        Ok(match kind {
            Kind::Grant => {
                let (message, count) = (r.u64()?, r.u16()?);
                let skip = r.list(count.into(), Reader::u16)?;
                Self::Grant { message, skip }
            }
            Kind::Window => Self::Window(Amount::take(&mut r)?),
            Kind::Recall => Self::Recall(r.u64()?),
            Kind::Recalled => Self::Recalled(r.u64()?),
            Kind::Reset => Self::Reset {
                reason: Reason::take(&mut r)?,
                answer: flags & ANSWER != 0,
            },
            Kind::Refuse => Self::Refuse(Reason::take(&mut r)?),
            Kind::Flush => Self::Flush(r.u64()?),
            Kind::Flushed => Self::Flushed(r.u64()?),
            Kind::Ping => Self::Ping(r.u64()?),
            Kind::Pong => Self::Pong(r.u64()?),
            Kind::GoAway => Self::GoAway {
                next: r.u64()?,
                text: r.legible()?,
            },
            Kind::Fin => Self::Fin,
            Kind::FinAck => Self::FinAck,
            Kind::Channel => {
                let op = r.array()?;
                let rest = r.remaining();
                Self::Channel {
                    op,
                    yours: flags & YOURS != 0,
                    body: Body::from_slice(r.bytes(rest)?),
                }
            }
            _ => return Err(kind.unexpected("on an open pipe")),
        })
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}
