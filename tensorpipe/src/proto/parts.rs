//! Bytes of parts that come on the pipe's own connection: eager ones behind their head, chunks of streams.

use super::input::Bulk;
use super::pipe::{Event, OpId, PipeState};
use super::wire::descriptor::{Carriage, Head};

impl<S: Clone, D> PipeState<S, D> {
    /// The memory of a part, to write received bytes into, and how many it has. `None`: throw them away.
    pub(crate) fn take_dest(&mut self, op: OpId) -> Option<(D, u64)> {
        let part = self.incoming.part_mut(op)?;
        if op.piece == 0 {
            return Some((part.dest.take()?, part.got));
        }
        let mut pieces = part.pieces.iter_mut();
        let piece = pieces.find(|piece| piece.piece == op.piece)?;
        Some((piece.dest.take()?, piece.got))
    }

    /// What [`Input::Bulk`](super::Input) announced is there; the memory comes back with it. Returns the message of which that
    /// was the last in its frame.
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

    /// Whether parts of this message come without a go-ahead: they need memory before anything else is looked at.
    pub(crate) fn comes_ahead(&self, message: u64) -> bool {
        let message = self.incoming.get(message);
        message.is_some_and(|message| message.credit.ahead > 0)
    }

    /// The eager parts of a message that arrived, with their memory.
    pub(crate) fn take_parts(&mut self, message: u64) -> Vec<(u16, D)> {
        let message = self.incoming.get_mut(message);
        let parts = message.into_iter().flat_map(|message| &mut message.parts);
        let eager = parts.enumerate().filter(|(_, part)| part.rides());
        let filled = eager.filter_map(|(i, part)| Some((i as u16, part.dest.take()?)));
        filled.collect()
    }

    /// The bytes of an arriving message's eager parts may come: into `memory` of so many bytes each.
    pub(crate) fn start_eager(&mut self, message: u64, mut memory: impl FnMut(u64) -> D) {
        let incoming = self.incoming.get_mut(message);
        let parts = incoming.into_iter().flat_map(|message| &mut message.parts);
        for part in parts.filter(|part| part.rides()) {
            part.dest = Some(memory(part.len));
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
        let dest = dest.filter(|_| !part.unwanted);
        if refused || part.unwanted {
            self.dropped += len;
        }
        if op.piece > 0 {
            let at = part.pieces.iter().position(|piece| piece.piece == op.piece);
            let Some(at) = at.filter(|_| !refused) else {
                return;
            };
            let piece = &mut part.pieces[at];
            piece.got += len;
            piece.dest = dest;
            if piece.got == piece.len {
                let dest = part.pieces.swap_remove(at).dest;
                self.events.push_back(Event::StreamReceived { op, dest });
            }
            return;
        }
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

    /// Goes on with the first non-empty eager part from `part`, or with the next frame: then returns the message, whose own
    /// is over.
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
        self.incoming.get_mut(number)?.has_eager();
        Some(number)
    }

    /// The bytes of its parts that ride were here with its head.
    pub(crate) fn has_eager(&mut self, message: u64) {
        if let Some(message) = self.incoming.get_mut(message) {
            message.has_eager();
        }
    }
}
