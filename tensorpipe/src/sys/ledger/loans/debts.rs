//! The borrower's side of a ledger.

use super::{Entry, IDLE, LedgerWords, OFFERED, RETURNED, STATE, TAKEN, load, store, swap};
use crate::sync::Ordering;

/// The borrower's side.
#[derive(Debug)]
pub(crate) struct Debts<P>(pub(super) P);

impl<P: LedgerWords> Debts<P> {
    /// Over the words of a ledger.
    pub(in crate::sys::ledger) fn of(place: P) -> Self {
        Self(place)
    }

    /// Whether an entry can be one of this ledger.
    pub(crate) fn is_entry(entry: Entry) -> bool {
        entry.slot < P::SLOTS && entry.generation & STATE == 0
    }

    /// Takes an offer. `false`: it was withdrawn before, or is not the lender's.
    pub(crate) fn take(&self, entry: Entry) -> bool {
        let (from, to) = (entry.as_word(OFFERED), entry.as_word(TAKEN));
        // The word first: the lender wrote the number before it. A compare-and-swap reads the latest value.
        let is_open =
            load(&self.0, entry.slot) == Some(from) || swap(&self.0, entry.slot, from, from);
        let number = self.0.number(entry.slot);
        let number = number.map(|number| number.load(Ordering::Relaxed));
        is_open && number == Some(entry.number) && swap(&self.0, entry.slot, from, to)
    }

    /// Sends back what was taken. Nothing of it may be read here any more. The lender has it back when it pins it.
    pub(crate) fn send_back(&self, entry: Entry) {
        store(&self.0, entry.slot, entry.as_word(RETURNED));
    }

    /// Whether the lender has not yet received what was sent back.
    pub(crate) fn is_returned(&self, entry: Entry) -> bool {
        load(&self.0, entry.slot) == Some(entry.as_word(RETURNED))
    }

    /// Takes back what was sent back, if the lender has not received it. `false` if it has.
    pub(crate) fn keep(&self, entry: Entry) -> bool {
        let (from, to) = (entry.as_word(RETURNED), entry.as_word(TAKEN));
        swap(&self.0, entry.slot, from, to)
    }

    /// Ends a loan that was sent back, whether or not the lender received it.
    pub(crate) fn give_up(&self, entry: Entry) {
        let (from, to) = (entry.as_word(RETURNED), entry.as_word(IDLE));
        swap(&self.0, entry.slot, from, to);
    }

    /// Gives back what was taken. All reads of it must have happened before. Does nothing in a forked child: the parent has taken it.
    pub(crate) fn give_back(&self, entry: Entry) {
        store(&self.0, entry.slot, entry.as_word(IDLE));
    }
}
