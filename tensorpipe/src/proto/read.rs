//! Incoming messages, from their head until the application is done with them.

use std::collections::{BTreeSet, VecDeque};

use smallvec::SmallVec;

use super::flow::{Amount, AtOnce};
use super::numbered::Numbered;
use super::wire::descriptor::{Carriage, Head};
use super::write::body_len_bound;
use crate::descriptor::Descriptor;

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

/// `D` is the driver's handle on the memory that a part goes into.
#[derive(Debug)]
pub(super) struct InPart<D> {
    pub(super) len: u64,
    pub(super) carriage: Carriage,
    /// Bytes received on the pipe's own connection.
    pub(super) got: u64,
    /// Whether bytes on the pipe's own connection may come for it.
    pub(super) expected: bool,
    pub(super) dest: Option<D>,
    /// The writer's lane has said where it is: once, on a channel that sends at once.
    pub(super) told: bool,
    pub(super) done: bool,
}

#[derive(Debug)]
pub(super) struct InMessage<D> {
    /// Until the application takes it.
    pub(super) descriptor: Option<Descriptor>,
    pub(super) parts: SmallVec<[InPart<D>; 2]>,
    pub(super) disposition: Disposition,
    pub(super) credit: Amount,
}

impl Amount {
    /// The credit that a message takes which comes whole.
    pub(super) fn of_whole(bytes: u64) -> Self {
        Self {
            messages: 1,
            bytes,
            ahead: 0,
        }
    }
}

impl<D> Held<D> {
    pub(super) fn credit(&self) -> Amount {
        match self {
            Self::Whole(bytes) => Amount::of_whole(*bytes),
            Self::Parts(message) => message.credit,
        }
    }
}

impl<D> InMessage<D> {
    /// One that came whole and is refused since.
    pub(super) fn refused(bytes: u64) -> Self {
        Self {
            descriptor: None,
            parts: SmallVec::new(),
            disposition: Disposition::Refused,
            credit: Amount::of_whole(bytes),
        }
    }

    pub(super) fn new(head: Head, at_once: AtOnce) -> Self {
        // What a channel sends at once is no stream of bytes, unless its lane here asks for one.
        let ahead = |carriage: &Carriage| match carriage {
            Carriage::Bulk { channel, ahead } => *ahead && !at_once.contains(*channel),
            Carriage::Eager => false,
        };
        let credit = Amount {
            messages: 1,
            bytes: body_len_bound(&head),
            ahead: head.sum(ahead),
        };
        let parts = head
            .carriages
            .iter()
            .enumerate()
            .map(|(i, carriage)| InPart {
                len: head.part_len(i),
                carriage: *carriage,
                got: 0,
                expected: ahead(carriage),
                dest: None,
                told: false,
                done: head.part_len(i) == 0,
            });
        let parts = parts.collect();
        Self {
            parts,
            descriptor: Some(head.descriptor),
            disposition: Disposition::Arriving,
            credit,
        }
    }

    /// Whether the writer still waits for an answer about a bulk part, or sends it.
    pub(super) fn is_open(&self) -> bool {
        let bulk = |part: &InPart<D>| part.carriage != Carriage::Eager;
        self.parts.iter().any(|part| bulk(part) && !part.done)
    }

    /// Gives up all memory. Returns the parts that a channel may be at work on, with its number.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = (u16, u8)> + '_ {
        self.descriptor = None;
        let disposition = self.disposition;
        let parts = self.parts.iter_mut().enumerate();
        parts.filter_map(move |(i, part)| {
            part.dest = None;
            match (part.carriage, disposition) {
                (Carriage::Bulk { channel, .. }, Disposition::Reading)
                | (
                    Carriage::Bulk {
                        channel,
                        ahead: true,
                    },
                    Disposition::Undecided,
                ) if !part.done => Some((i as u16, channel)),
                _ => None,
            }
        })
    }
}

/// What is known of a message that the application is not done with.
#[derive(Debug)]
pub(super) enum Held<D> {
    /// It was here whole when it came, and the driver has all of it: what remains is its credit, in bytes.
    Whole(u64),
    Parts(Box<InMessage<D>>),
}

/// Incoming messages by number. Bounded by the credit given.
#[derive(Debug)]
pub(super) struct Incoming<D> {
    pub(super) messages: Numbered<Held<D>>,
    /// Number of the next head.
    pub(super) next: u64,
    /// Those of `messages` that the application has not called read for, in order.
    unread: VecDeque<u64>,
    /// Those of `unread` of which the peer wants to know when everything up to there was read.
    asked: BTreeSet<u64>,
}

impl<D> Default for Incoming<D> {
    fn default() -> Self {
        Self {
            messages: Numbered::default(),
            next: 0,
            unread: VecDeque::new(),
            asked: BTreeSet::new(),
        }
    }
}

impl<D> Incoming<D> {
    /// A head has come. Returns the message's number.
    pub(super) fn push(&mut self, message: Held<D>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.messages.push(number, message);
        self.unread.push_back(number);
        number
    }

    pub(super) fn get(&self, number: u64) -> Option<&InMessage<D>> {
        match self.messages.get(number)? {
            Held::Parts(message) => Some(message),
            Held::Whole(_) => None,
        }
    }

    /// A message of which there is more to know than that it is here.
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut InMessage<D>> {
        match self.messages.get_mut(number)? {
            Held::Parts(message) => Some(message),
            Held::Whole(_) => None,
        }
    }

    /// Whether a message came whole, and the application is not done with it.
    pub(super) fn is_whole(&self, number: u64) -> bool {
        matches!(self.messages.get(number), Some(Held::Whole(_)))
    }

    /// The application has called read for (or does not want) `number`. Returns the number to report as flushed, if due.
    pub(super) fn read(&mut self, number: u64) -> Option<u64> {
        self.set_read(number);
        if self.asked.is_empty() || !self.asked.remove(&number) {
            return None;
        }
        // A question waits for the last unread message before it: so there are never more of them than messages, and
        // none takes longer to answer than the other.
        match self.last_unread_before(number) {
            Some(before) => {
                self.asked.insert(before);
                None
            }
            None => Some(self.last_read()),
        }
    }

    fn set_read(&mut self, number: u64) {
        // Most are read in the order in which they came.
        if self.unread.front() == Some(&number) {
            self.unread.pop_front();
        } else if let Ok(at) = self.unread.binary_search(&number) {
            self.unread.remove(at);
        }
    }

    fn last_unread_before(&self, number: u64) -> Option<u64> {
        let before = self.unread.partition_point(|unread| *unread < number);
        self.unread.get(before.checked_sub(1)?).copied()
    }

    /// Questions that wait for an answer.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn questions(&self) -> usize {
        self.asked.len()
    }

    /// The peer asks about a message that has come. Returns the number to report at once, if everything is read.
    pub(super) fn flush(&mut self, number: u64) -> Option<u64> {
        match self.last_unread_before(number + 1) {
            Some(last) => {
                self.asked.insert(last);
                None
            }
            None => Some(self.last_read()),
        }
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.messages.clear();
        self.unread.clear();
        self.asked.clear();
    }

    /// How far reading has come: what is not there any more was read, refused, or never came. There is such a message.
    fn last_read(&self) -> u64 {
        self.unread.front().unwrap_or(&self.next).saturating_sub(1)
    }
}
