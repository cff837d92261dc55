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
        // The word first: its number was written before it. An exchange finds the latest.
        let is_open =
            load(&self.0, entry.slot) == Some(from) || swap(&self.0, entry.slot, from, from);
        let number = self.0.number(entry.slot);
        let number = number.map(|number| number.load(Ordering::Relaxed));
        is_open && number == Some(entry.number) && swap(&self.0, entry.slot, from, to)
    }

    /// Sends back what was taken, of which nothing is read here any more: its lender has it back when it pins it.
    pub(crate) fn send_back(&self, entry: Entry) {
        store(&self.0, entry.slot, entry.as_word(RETURNED));
    }

    /// Whether what was sent back has not come there.
    pub(crate) fn is_returned(&self, entry: Entry) -> bool {
        load(&self.0, entry.slot) == Some(entry.as_word(RETURNED))
    }

    /// What was sent back has not come there, and is not to any more. `false` if it has.
    pub(crate) fn keep(&self, entry: Entry) -> bool {
        let (from, to) = (entry.as_word(RETURNED), entry.as_word(TAKEN));
        swap(&self.0, entry.slot, from, to)
    }

    /// What was sent back may not have come there: the lender has it back in any case.
    pub(crate) fn give_up(&self, entry: Entry) {
        let (from, to) = (entry.as_word(RETURNED), entry.as_word(IDLE));
        swap(&self.0, entry.slot, from, to);
    }

    /// Gives back what was taken. Everything read from it was read before. In a forked child nothing happens: the parent has
    /// taken it.
    pub(crate) fn give_back(&self, entry: Entry) {
        store(&self.0, entry.slot, entry.as_word(IDLE));
    }
}
