//! Incoming messages, from their head until the application is done with them.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::flow::{AHEAD_PART, AtOnce};
use super::outgoing::credit_of;
use super::pipe::{Event, OpId};
use super::wire::descriptor::{Carriage, Head};
use super::wire::frame::Reason;
use super::wire::hello::Amount;

/// What the application decided about a message that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// Its eager parts are still coming in.
    Arriving,
    /// The application has not decided.
    Undecided,
    /// It is being read: bulk parts may come.
    Reading,
    /// It is not wanted, and the writer was told; what is on its way is thrown away until the writer confirms. Keeps
    /// its credit until then, which bounds how many there are.
    Refused,
}

/// A part of a message that did not come whole.
#[derive(Debug)]
pub(super) struct InPart<D> {
    pub(super) len: u64,
    pub(super) carriage: Carriage,
    /// Bytes received on the pipe's own connection.
    pub(super) got: u64,
    /// What may come of it on the pipe's own connection: all of it, or the pieces that its lane waits for.
    pub(super) expected: SmallVec<[InPiece<D>; 1]>,
    /// What still comes of it is thrown away.
    pub(super) unwanted: bool,
    /// The writer's lane has sent a frame about it: on a channel that sends at once it may do so once.
    pub(super) lane_frame_seen: bool,
    pub(super) done: bool,
}

/// A part, or a piece of one. `D` is the driver's handle on the memory that it goes into.
#[derive(Debug)]
pub(super) struct InPiece<D> {
    /// As in [`OpId`].
    pub(super) piece: u16,
    pub(super) len: u64,
    pub(super) got: u64,
    pub(super) dest: Option<D>,
}

impl<D> InPart<D> {
    /// Where `op`, which is this part or a piece of it, stands in `expected`.
    pub(super) fn find(&self, op: OpId) -> Option<usize> {
        let mut expected = self.expected.iter();
        expected.position(|piece| piece.piece == op.piece)
    }

    /// Its bytes come in the frame of its message.
    pub(super) fn rides(&self) -> bool {
        self.carriage == Carriage::Eager && self.len > 0
    }

    /// Returns how many of its bytes have come.
    pub(super) fn unwant(&mut self) -> u64 {
        self.expected.iter_mut().for_each(|piece| piece.dest = None);
        self.unwanted = true;
        self.got
    }
}

impl<D> InPiece<D> {
    pub(super) fn new(piece: u16, len: u64, dest: Option<D>) -> Self {
        let got = 0;
        Self {
            piece,
            len,
            got,
            dest,
        }
    }
}

/// A message that the application is not done with.
#[derive(Debug)]
pub(super) struct InMessage<D> {
    /// Empty for a message that was whole when it came: the driver has all of it.
    pub(super) parts: Vec<InPart<D>>,
    pub(super) disposition: Disposition,
    pub(super) credit: Amount,
}

impl<D> InMessage<D> {
    /// A message whose head is here. Its writer computes the same credit from it.
    pub(super) fn new(head: &Head, at_once: AtOnce) -> Self {
        let metadata = head.metadata_len();
        Self {
            parts: Vec::new(),
            disposition: Disposition::Undecided,
            credit: Amount {
                messages: 1,
                bytes: head.eager_len() + credit_of(metadata, head.carriages().len()),
                ahead: ahead_credit(head, at_once),
            },
        }
    }

    /// Called if some of the message is not here yet.
    pub(super) fn expect_parts(&mut self, head: &Head, at_once: AtOnce) {
        let part = |(i, carriage)| {
            let len = head.part_len(i);
            let ahead = comes_ahead(&carriage, at_once).then(|| InPiece::new(0, len, None));
            InPart {
                len,
                carriage,
                got: 0,
                expected: ahead.into_iter().collect(),
                unwanted: false,
                lane_frame_seen: false,
                done: len == 0,
            }
        };
        self.disposition = Disposition::Arriving;
        let carriages = head.carriages().iter().copied();
        self.parts = carriages.enumerate().map(part).collect();
    }

    /// The eager parts are here.
    pub(super) fn mark_eager_received(&mut self) {
        for part in &mut self.parts {
            part.done |= part.carriage == Carriage::Eager;
        }
        self.disposition = Disposition::Undecided;
    }

    /// It was not refused.
    pub(super) fn is_wanted(&self) -> bool {
        self.disposition != Disposition::Refused
    }

    /// Whether the writer still waits for an answer about a bulk part, or sends it.
    pub(super) fn is_open(&self) -> bool {
        let bulk = |part: &InPart<D>| part.carriage != Carriage::Eager;
        self.parts.iter().any(|part| bulk(part) && !part.done)
    }

    /// Throws away its bulk parts: bytes that still come, and bytes that have come and were read by nobody. Returns how many bytes of them
    /// have come, unless they were counted before.
    pub(super) fn discard_parts(&mut self) -> u64 {
        let read = self.disposition == Disposition::Reading;
        let lost = |part: &&mut InPart<D>| {
            part.carriage != Carriage::Eager && !part.unwanted && !(read && part.done)
        };
        let lost = self.parts.iter_mut().filter(lost).map(InPart::unwant);
        lost.sum()
    }

    /// Gives up all memory of message `number`. Channels that may be at work on its parts hear of it.
    pub(super) fn abandon<S>(&mut self, number: u64, events: &mut VecDeque<Event<S, D>>) {
        for (i, part) in (0..).zip(&mut self.parts) {
            part.expected.clear();
            let Carriage::Bulk { channel, ahead } = part.carriage else {
                continue;
            };
            let works = match self.disposition {
                Disposition::Reading => true,
                Disposition::Undecided => ahead,
                Disposition::Arriving | Disposition::Refused => false,
            };
            if works && !part.done {
                let op = OpId::incoming(number, i);
                events.push_back(Event::Cancel { op, channel });
            }
        }
    }
}

/// Whether bytes come without a go-ahead. What a channel sends at once is no stream of bytes, unless its lane here asks for one.
fn comes_ahead(carriage: &Carriage, at_once: AtOnce) -> bool {
    match carriage {
        Carriage::Bulk { channel, ahead } => *ahead && !at_once.contains(*channel),
        Carriage::Eager => false,
    }
}

/// The credit that what comes ahead takes.
fn ahead_credit(head: &Head, at_once: AtOnce) -> u64 {
    let ahead = |carriage: &Carriage| comes_ahead(carriage, at_once);
    let parts = head.carriages().iter().filter(|carriage| ahead(carriage));
    head.sum(ahead)
        .saturating_add(AHEAD_PART * parts.count() as u64)
}

/// Incoming messages by number, as this side counts them. Bounded by the credit given.
#[derive(Debug)]
pub(super) struct Incoming<D> {
    pub(super) messages: FxHashMap<u64, InMessage<D>>,
    /// Number of the next head.
    pub(super) next: u64,
    /// Those of `messages` that the application has not called read for, in order.
    unread: VecDeque<Unread>,
    /// The reasons of messages that the writer took back before the application had decided. They are gone from `messages`; kept until it
    /// decides.
    pub(super) reset_reasons: FxHashMap<u64, Reason>,
}

#[derive(Debug)]
struct Unread {
    number: u64,
    /// The peer wants to know when everything up to here was read.
    flush_requested: bool,
}

impl<D> Default for Incoming<D> {
    fn default() -> Self {
        Self {
            messages: FxHashMap::default(),
            next: 0,
            unread: VecDeque::new(),
            reset_reasons: FxHashMap::default(),
        }
    }
}

impl<D> Incoming<D> {
    /// A head has come. Returns the message's number.
    pub(super) fn push(&mut self, message: InMessage<D>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.messages.insert(number, message);
        self.unread.push_back(Unread {
            number,
            flush_requested: false,
        });
        number
    }

    pub(super) fn get(&self, number: u64) -> Option<&InMessage<D>> {
        self.messages.get(&number)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut InMessage<D>> {
        self.messages.get_mut(&number)
    }

    pub(super) fn part(&self, op: OpId) -> Option<&InPart<D>> {
        self.get(op.message)?.parts.get(usize::from(op.part))
    }

    pub(super) fn part_mut(&mut self, op: OpId) -> Option<&mut InPart<D>> {
        let message = self.get_mut(op.message)?;
        message.parts.get_mut(usize::from(op.part))
    }

    /// The application has called read for (or does not want) `number`. Returns the number to report as flushed, if due.
    pub(super) fn read(&mut self, number: u64) -> Option<u64> {
        let number_of = |unread: &Unread| unread.number;
        let (at, read) = match self.unread.front().map(number_of) {
            // Most are read in order.
            Some(first) if first == number => (0, self.unread.pop_front()?),
            _ => {
                let at = self.unread.binary_search_by_key(&number, number_of).ok()?;
                (at, self.unread.remove(at)?)
            }
        };
        if read.flush_requested {
            self.ask(at)
        } else {
            None
        }
    }

    /// The peer asks about a message that has come. Returns the number to report at once, if everything is read.
    pub(super) fn flush(&mut self, number: u64) -> Option<u64> {
        let upto = |unread: &Unread| unread.number <= number;
        self.ask(self.unread.partition_point(upto))
    }

    /// The question waits at the last of the first `count` unread messages: so there are never more questions than messages, and each takes
    /// equally long to answer. Without such a message the answer is how far reading has come: all messages before the first unread one were
    /// read, refused, or never came.
    fn ask(&mut self, count: usize) -> Option<u64> {
        if let Some(last) = count.checked_sub(1) {
            self.unread[last].flush_requested = true;
            return None;
        }
        let unread = self.unread.front().map(|unread| unread.number);
        Some(unread.unwrap_or(self.next).saturating_sub(1))
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.unread.clear();
        self.reset_reasons.clear();
    }
}
