//! Commands of the application and of channels about messages that the peer writes. Also the bytes of their parts that come on the pipe's
//! own connection: eager ones behind their head, chunks of streams.

use super::incoming::{Disposition, InMessage, InPiece};
use super::input::Bulk;
use super::pipe::{Event, OpId, PipeState};
use super::wire::descriptor::{Carriage, Head};
use super::wire::frame::{Control, Reason};
use crate::error::ResetCode;

impl<S: Clone, D> PipeState<S, D> {
    /// How a part of an incoming message travels: `None` in the frame, else the channel's number and whether its bytes come
    /// without a go-ahead.
    pub(crate) fn bulk_channel(&self, message: u64, part: u16) -> Option<(u8, bool)> {
        match self.incoming.part(OpId::incoming(message, part))?.carriage {
            Carriage::Eager => None,
            Carriage::Bulk { channel, ahead } => {
                Some((channel, ahead && !self.at_once.contains(channel)))
            }
        }
    }

    /// Length of a part of an incoming message, in bytes.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn part_len(&self, op: OpId) -> Option<u64> {
        self.incoming.part(op).map(|part| part.len)
    }

    /// Whether anybody still waits for bytes of a part.
    pub(crate) fn is_wanted(&self, op: OpId) -> bool {
        let message = self.incoming.get(op.message);
        message.is_some_and(InMessage::is_wanted)
    }

    /// The application reads a message, but for the bulk parts in `skip`. Returns `false` if it is not there any more:
    /// [`take_reset`](Self::take_reset) says why.
    /// A skipped part that comes without a go-ahead still comes, and is thrown away.
    pub(crate) fn grant(&mut self, message: u64, skip: &[u16]) -> bool {
        let Some(incoming) = self.incoming.get_mut(message) else {
            return false;
        };
        match incoming.disposition {
            Disposition::Undecided => incoming.disposition = Disposition::Reading,
            Disposition::Reading => return true,
            Disposition::Arriving | Disposition::Refused => return false,
        }
        let mut waits = false;
        let mut refused = Vec::new();
        for (i, part) in incoming.parts.iter_mut().enumerate() {
            let skipped = skip.contains(&(i as u16));
            match part.carriage {
                Carriage::Bulk { ahead: true, .. } if skipped => self.dropped += part.unwant(),
                Carriage::Bulk { ahead: false, .. } if skipped => {
                    part.done = true;
                    refused.push(i as u16);
                }
                Carriage::Bulk { ahead: false, .. } => waits = true,
                Carriage::Bulk { ahead: true, .. } | Carriage::Eager => {}
            }
        }
        if waits || !refused.is_empty() {
            self.outbox.control(Control::Grant {
                message,
                skip: refused,
            });
        }
        self.count_read(message);
        true
    }

    /// Why the writer took back a message that is gone, if the application had not decided on it by then. Returned once.
    pub(crate) fn take_reset(&mut self, message: u64) -> Option<Reason> {
        self.incoming.reset_reasons.remove(&message)
    }

    /// The application takes a message that is here whole, and that it has not refused: as by [`grant`](Self::grant) and
    /// [`finish`](Self::finish).
    pub(crate) fn take_whole(&mut self, message: u64) {
        self.incoming.reset_reasons.remove(&message);
        self.release(message);
    }

    /// The application does not want a message, or no more of it.
    pub(crate) fn refuse(&mut self, message: u64, code: ResetCode, text: &str) {
        self.incoming.reset_reasons.remove(&message);
        let Some(incoming) = self.incoming.get_mut(message) else {
            return;
        };
        if !incoming.is_wanted() {
            return;
        }
        // The writer always hears of a refusal, and answers; a skipped message for which it does not wait is of no
        // interest to it.
        let tell = incoming.is_open() || code != ResetCode::Skipped;
        incoming.abandon(message, &mut self.events);
        self.dropped += incoming.discard_parts();
        incoming.disposition = Disposition::Refused;
        if !tell {
            return self.release(message);
        }
        let refuse = Control::Refuse(Reason::new(message, code, text));
        self.outbox.control(refuse);
        self.count_read(message);
    }

    /// A message that comes ahead cannot be received, and the application has not decided on it yet: throws its parts away.
    pub(crate) fn discard_parts(&mut self, message: u64) {
        if let Some(incoming) = self.incoming.get_mut(message) {
            self.dropped += incoming.discard_parts();
        }
    }

    /// The application is done with a message: its credit goes back to the writer. Bulk parts that have not come are
    /// not wanted: the message is refused as [`ResetCode::Skipped`].
    pub(crate) fn finish(&mut self, message: u64) {
        match self.incoming.get(message) {
            Some(incoming) if !incoming.is_wanted() => {}
            Some(incoming) if incoming.is_open() => self.refuse(message, ResetCode::Skipped, ""),
            _ => self.release(message),
        }
    }

    /// Lets DATA frames fill `dest`, of `len` bytes. Returns `false` if the part is not wanted any more.
    pub(crate) fn expect(&mut self, op: OpId, dest: D, len: u64) -> bool {
        let message = self.incoming.get_mut(op.message);
        let wanted = message.filter(|message| message.is_wanted());
        let part = wanted.and_then(|message| message.parts.get_mut(usize::from(op.part)));
        let Some(part) = part.filter(|part| !part.done) else {
            return false;
        };
        match part.find(op) {
            Some(at) => part.expected[at].dest = Some(dest),
            None => part.expected.push(InPiece::new(op.piece, len, Some(dest))),
        }
        true
    }

    /// A part is complete at this side.
    pub(crate) fn part_received(&mut self, op: OpId) {
        if let Some(part) = self.incoming.part_mut(op) {
            part.done = true;
        }
    }

    /// Forgets an incoming message when nothing more of it comes; its credit goes back.
    pub(super) fn release(&mut self, message: u64) {
        let Some(released) = self.incoming.messages.remove(&message) else {
            return;
        };
        self.outbox
            .extend(self.receive_window.finish(released.credit));
        self.count_read(message);
    }

    pub(super) fn count_read(&mut self, message: u64) {
        let flushed = self.incoming.read(message).map(Control::Flushed);
        self.outbox.extend(flushed);
    }

    /// As [`channel`](Self::channel), for a frame that nobody waits for: it leaves after [`send_delayed`](Self::send_delayed).
    pub(crate) fn channel_delayed(&mut self, op: OpId, body: &[u8]) {
        self.outbox.delayed.push_back(Control::channel(op, body));
    }

    /// Whether there are frames that nobody waits for.
    pub(crate) fn has_delayed(&self) -> bool {
        !self.outbox.delayed.is_empty()
    }

    /// Has the frames sent that nobody waits for.
    pub(crate) fn send_delayed(&mut self) {
        while let Some(delayed) = self.outbox.delayed.pop_front() {
            self.outbox.control(delayed);
        }
    }

    /// The memory of a part, to write received bytes into, and how many it has. `None`: throw them away.
    pub(crate) fn take_dest(&mut self, op: OpId) -> Option<(D, u64)> {
        let part = self.incoming.part_mut(op)?;
        let at = part.find(op)?;
        let piece = &mut part.expected[at];
        Some((piece.dest.take()?, piece.got))
    }

    /// The bytes that [`Input::Bulk`](super::Input) announced have come, into `dest`. If they were the last of a message's frame, returns
    /// that message.
    pub(crate) fn bulk_received(&mut self, dest: Option<D>) -> Option<u64> {
        let Bulk { len, op, rides } = self.bulk.take()?;
        let op = op?;
        self.part_bytes(op, len, dest);
        if !rides {
            return None;
        }
        self.next_eager(op.message, op.part + 1)
    }

    /// Not all of this message, whose head has just come, is here.
    pub(crate) fn expect_parts(&mut self, message: u64, head: &Head) {
        if let Some(message) = self.incoming.get_mut(message) {
            message.expect_parts(head, self.at_once);
        }
    }

    /// Whether parts of this message come without a go-ahead: they need memory before anything else is done.
    pub(crate) fn comes_ahead(&self, message: u64) -> bool {
        let message = self.incoming.get(message);
        message.is_some_and(|message| message.credit.ahead > 0)
    }

    /// The eager parts of a message that arrived, with their memory.
    pub(crate) fn take_parts(&mut self, message: u64) -> Vec<(u16, D)> {
        let message = self.incoming.get_mut(message);
        let parts = message.into_iter().flat_map(|message| &mut message.parts);
        let eager = parts.enumerate().filter(|(_, part)| part.rides());
        let filled = eager.filter_map(|(i, part)| Some((i as u16, part.expected.pop()?.dest?)));
        filled.collect()
    }

    /// The bytes of an arriving message's eager parts may come: into `memory` of so many bytes each.
    pub(crate) fn start_eager(&mut self, message: u64, mut memory: impl FnMut(u64) -> D) {
        let incoming = self.incoming.get_mut(message);
        let parts = incoming.into_iter().flat_map(|message| &mut message.parts);
        for part in parts.filter(|part| part.rides()) {
            let dest = Some(memory(part.len));
            part.expected.push(InPiece::new(0, part.len, dest));
        }
        self.next_eager(message, 0);
    }

    fn part_bytes(&mut self, op: OpId, len: u64, dest: Option<D>) {
        let Some(message) = self.incoming.get_mut(op.message) else {
            return;
        };
        let refused = !message.is_wanted();
        let part = &mut message.parts[usize::from(op.part)];
        part.got += len;
        if refused || part.unwanted {
            self.dropped += len;
        }
        let Some(at) = part.find(op).filter(|_| !refused) else {
            return;
        };
        let piece = &mut part.expected[at];
        piece.got += len;
        piece.dest = dest.filter(|_| !part.unwanted);
        if piece.got < piece.len || part.carriage == Carriage::Eager {
            return;
        }
        let dest = piece.dest.take();
        if op.piece == 0 {
            // Thrown away as it came: nobody waits for it.
            part.done |= dest.is_none();
        } else {
            part.expected.swap_remove(at);
        }
        self.events.push_back(Event::StreamReceived { op, dest });
    }

    /// Expects the first non-empty eager part from `part` on. If there is none, the frame of the message is over: returns the message.
    fn next_eager(&mut self, number: u64, part: u16) -> Option<u64> {
        let parts = self.incoming.get(number)?.parts.iter().enumerate();
        let next = parts.skip(usize::from(part)).find(|(_, part)| part.rides());
        self.bulk = next.map(|(i, part)| Bulk {
            len: part.len,
            op: Some(OpId::incoming(number, i as u16)),
            rides: true,
        });
        if self.bulk.is_some() {
            return None;
        }
        self.incoming.get_mut(number)?.mark_eager_received();
        Some(number)
    }

    /// The eager parts of a message were here with its head.
    pub(crate) fn mark_eager_received(&mut self, message: u64) {
        if let Some(message) = self.incoming.get_mut(message) {
            message.mark_eager_received();
        }
    }
}
