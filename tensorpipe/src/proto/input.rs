//! What comes in: frames are cut out of the byte stream, checked against what was granted, and acted on.
//!
//! Only heads and control frames pass through here. For eager parts and DATA frames it only says where the bytes go.

use std::ops::Range;
use std::time::Instant;

use super::incoming::InMessage;
use super::pipe::{OpId, PipeState};
use super::wire::descriptor::{Carriage, Head};
use super::wire::frame::{
    CHANNEL_MAX, CONTROL_MAX, Control, HEADER_LEN, Header, Kind, OP_LEN, check_len,
};
use crate::error::{PeerFault, ResetCode};

/// What the bytes that follow are for.
#[derive(Debug)]
pub(crate) enum Input {
    /// At least this many bytes are needed at the front of the next call's input.
    NeedMore(usize),
    /// The head of a message is here.
    Message(Arriving),
    /// The next bytes, so many, belong to [a part, or to nobody](PipeState::bulk_target).
    Bulk(u64),
}

/// A message whose head is here. If more of it is to come, the driver calls [`expect_parts`](PipeState::expect_parts); not if the head is
/// all of it, or the driver has the rest.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) message: u64,
    pub(crate) head: Head,
    /// How many eager bytes come next in the input, for the driver to take. `None`: they come as [`Input::Bulk`] once the driver has called
    /// [`start_eager`](PipeState::start_eager).
    pub(crate) here: Option<usize>,
}

/// A channel's frame about a part of a message that has just come.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) part: u16,
    pub(crate) channel: u8,
    /// The body of that frame, in the bytes behind the message's head.
    pub(crate) word: Range<usize>,
}

/// A message's parts up to this size together can be taken at once, in bytes. More would hold up others for too long. Between 8 and
/// 128 KiB all measure the same.
const WHOLE_UP_TO: u64 = 32 << 10;

/// Bytes that come next and are no frame's front.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bulk {
    /// Not 0.
    pub(super) len: u64,
    /// The operation that they belong to: a chunk of its stream, or all of it. `None`: the rest of a frame, to be thrown away.
    pub(super) op: Option<OpId>,
    /// They are an eager part, in the frame of their message.
    pub(super) rides: bool,
}

impl<S: Clone, D> PipeState<S, D> {
    /// Consumes whole frames from `input`. Returns how many bytes were used and what the following ones are.
    pub(crate) fn handle(
        &mut self,
        input: &[u8],
        now: Instant,
    ) -> Result<(usize, Input), PeerFault> {
        let mut used = 0;
        if !input.is_empty() {
            self.heard(now);
        }
        loop {
            if let Some(Bulk { len, .. }) = self.bulk {
                return Ok((used, Input::Bulk(len)));
            }
            let (len, next) = self.frame(&input[used..])?;
            used += len;
            if let Some(next) = next {
                return Ok((used, next));
            }
        }
    }

    /// The operation of the bytes that [`Input::Bulk`] announces.
    pub(crate) fn bulk_target(&self) -> Option<OpId> {
        self.bulk?.op
    }

    /// The next `len` bytes are of nobody, or of a stream.
    pub(super) fn expect_bulk(&mut self, len: u64, op: Option<OpId>) {
        self.bulk = (len > 0).then_some(Bulk {
            len,
            op,
            rides: false,
        });
    }

    /// One frame, or the front of one with bulk data, if it is there. Returns its length, and what follows from it.
    fn frame(&mut self, input: &[u8]) -> Result<(usize, Option<Input>), PeerFault> {
        let Some((header, rest)) = input.split_first_chunk::<HEADER_LEN>() else {
            return Ok((0, Some(Input::NeedMore(HEADER_LEN))));
        };
        let Header { len, kind, flags } = Header::decode(header)?;
        let Some(kind) = kind else {
            check_len(None, len, self.ours.chunk.max(CONTROL_MAX))?;
            self.expect_bulk(len.into(), None);
            return Ok((HEADER_LEN, None));
        };
        // Messages want an answer, too: their reader's go-ahead.
        self.outbox.check(&self.ours)?;
        match kind {
            Kind::Message => self.message_frame(len, rest),
            Kind::Data => self.data_frame(len, rest),
            _ => {
                check_len(Some(kind), len, kind.body_max())?;
                let Some(body) = rest.get(..len as usize) else {
                    return Ok((0, Some(Input::NeedMore(HEADER_LEN + len as usize))));
                };
                self.decode_control(kind, flags, body)?;
                Ok((HEADER_LEN + len as usize, None))
            }
        }
    }

    /// Not inlined, like all frames but messages: messages should not pay for it.
    #[inline(never)]
    fn decode_control(&mut self, kind: Kind, flags: u8, body: &[u8]) -> Result<(), PeerFault> {
        self.control_frame(Control::decode(kind, flags, body)?)
    }

    fn message_frame(
        &mut self,
        len: u32,
        rest: &[u8],
    ) -> Result<(usize, Option<Input>), PeerFault> {
        check_len(Some(Kind::Message), len, self.ours.frame_max())?;
        if self.closing.fin_received {
            return Err(Kind::Message.unexpected("after its FIN"));
        }
        let (head, head_len) = match Head::decode(rest, len, self.channels, &self.ours)? {
            Ok(decoded) => decoded,
            Err(need) => return Ok((0, Some(Input::NeedMore(HEADER_LEN + need)))),
        };
        self.at_once.check(&head)?;
        let incoming = InMessage::new(&head, self.at_once);
        self.receive_window.receive(incoming.credit)?;
        let message = self.incoming.push(incoming);
        let used = HEADER_LEN + head_len;
        let eager_len = u64::from(len) - head_len as u64;
        if self.closing.ignore_from.is_some_and(|from| message >= from) {
            self.ignore(message, &head, eager_len);
            return Ok((used, None));
        }
        let is_here = eager_len <= WHOLE_UP_TO && rest.len() >= len as usize;
        let arriving = Arriving {
            message,
            head,
            here: is_here.then_some(eager_len as usize),
        };
        Ok((used, Some(Input::Message(arriving))))
    }

    /// This side is going away: refuses the message, and throws away the bytes behind its head.
    #[cold]
    fn ignore(&mut self, message: u64, head: &Head, eager_len: u64) {
        self.expect_parts(message, head);
        self.refuse(message, ResetCode::Closing, "");
        self.expect_bulk(eager_len, None);
    }

    /// The channel frame right behind a message that has just come, if it is about the message's only bulk part and both frames are here
    /// whole. `rest` is the bytes behind the message's head.
    pub(crate) fn offered(&self, arriving: &Arriving, rest: &[u8]) -> Option<Offer> {
        let eager_len = arriving.here?;
        let mut bulk = None;
        for (part, carriage) in arriving.head.carriages().iter().enumerate() {
            if let Carriage::Bulk { channel, .. } = *carriage {
                let first = bulk.replace((part as u16, channel)).is_none();
                if !first || !self.at_once.contains(channel) {
                    return None;
                }
            }
        }
        let (part, channel) = bulk?;
        let behind = rest.get(eager_len..)?;
        let (header, body) = behind.split_first_chunk::<HEADER_LEN>()?;
        let header = Header::decode(header).ok()?;
        // No flags: it comes from the writer's lane.
        if header.kind != Some(Kind::Channel) || header.flags != 0 {
            return None;
        }
        let body = body.get(..header.len as usize)?;
        let (op, word) = body.split_first_chunk::<OP_LEN>()?;
        let usual = OpId::from_key(*op, false) == OpId::incoming(arriving.message, part)
            && word.len() <= CHANNEL_MAX;
        let start = eager_len + HEADER_LEN + OP_LEN;
        usual.then_some(Offer {
            part,
            channel,
            word: start..start + word.len(),
        })
    }

    #[inline(never)]
    fn data_frame(&mut self, len: u32, rest: &[u8]) -> Result<(usize, Option<Input>), PeerFault> {
        let limit = self.ours.chunk.saturating_add(OP_LEN as u32);
        check_len(Some(Kind::Data), len, limit)?;
        let Some(left) = len.checked_sub(OP_LEN as u32).map(u64::from) else {
            return Err(Kind::Data.truncated());
        };
        let Some(key) = rest.first_chunk() else {
            return Ok((0, Some(Input::NeedMore(HEADER_LEN + OP_LEN))));
        };
        let op = OpId::from_key(*key, false);
        let Some(part) = self.incoming.part(op) else {
            return Err(Kind::Data.unknown(op.message));
        };
        let (got, len) = match part.find(op) {
            Some(at) => (part.expected[at].got, part.expected[at].len),
            // It was on its way when it was refused.
            None if !self.is_wanted(op) => (part.got, part.len),
            None => return Err(Kind::Data.unknown(op.message)),
        };
        if left > len - got || left > part.len - part.got {
            return Err(PeerFault::LimitExceeded {
                what: "a part",
                found: got + left,
                limit: len,
            });
        }
        self.expect_bulk(left, Some(op));
        Ok((HEADER_LEN + OP_LEN, None))
    }
}
