//! Incoming messages, from their head until the application is done with them.

use std::collections::{BTreeMap, BTreeSet};

use smallvec::SmallVec;

use super::flow::Amount;
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
    /// It is not wanted; what is on its way is thrown away until the writer confirms.
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

impl<D> InMessage<D> {
    pub(super) fn new(head: Head) -> Self {
        let credit = Amount {
            messages: 1,
            bytes: body_len_bound(&head),
            ahead: head.ahead_len(),
        };
        let parts = head
            .carriages
            .iter()
            .enumerate()
            .map(|(i, carriage)| InPart {
                len: head.part_len(i),
                carriage: *carriage,
                got: 0,
                expected: false,
                dest: None,
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

    /// Whether a part is or may be on its way.
    pub(super) fn in_transit(&self) -> bool {
        let granted = self.disposition == Disposition::Reading;
        self.parts.iter().any(|part| match part.carriage {
            Carriage::Eager => false,
            Carriage::Bulk { ahead, .. } => !part.done && (granted || ahead),
        })
    }
}

/// Incoming messages by number. Bounded by the credit given.
#[derive(Debug)]
pub(super) struct Incoming<D> {
    pub(super) messages: BTreeMap<u64, InMessage<D>>,
    /// Number of the next head.
    pub(super) next: u64,
    /// First message that the application has not called read for.
    unread: u64,
    /// Messages behind `unread` that it has.
    read_early: BTreeSet<u64>,
    /// The peer wants to know when everything up to each of these was read.
    flush: BTreeSet<u64>,
}

impl<D> Default for Incoming<D> {
    fn default() -> Self {
        Self {
            messages: BTreeMap::new(),
            next: 0,
            unread: 0,
            read_early: BTreeSet::new(),
            flush: BTreeSet::new(),
        }
    }
}

impl<D> Incoming<D> {
    /// The application has called read for (or does not want) `number`. Returns the number to report as flushed, if due.
    pub(super) fn read(&mut self, number: u64) -> Option<u64> {
        if number == self.unread {
            self.unread += 1;
            while self.read_early.remove(&self.unread) {
                self.unread += 1;
            }
        } else if number > self.unread {
            self.read_early.insert(number);
        }
        self.flushed()
    }

    /// The peer asks. Returns the number to report at once, if everything is read.
    pub(super) fn flush(&mut self, number: u64) -> Option<u64> {
        self.flush.insert(number);
        self.flushed()
    }

    fn flushed(&mut self) -> Option<u64> {
        // One answer tells how far reading has come: it serves every question up to there.
        if self.flush.first().is_none_or(|asked| *asked >= self.unread) {
            return None;
        }
        self.flush = self.flush.split_off(&self.unread);
        Some(self.unread - 1)
    }
}
