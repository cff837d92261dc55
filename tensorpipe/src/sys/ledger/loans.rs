//! Loans and their words, apart from where the words lie.
//!
//! Invariant: an entry is in one `Loan`, free, or parked; and once `Loan::is_back` has said so of memory, nobody pins it any more.

use std::ops::Range;

use crate::sync::{Arc, AtomicBool, AtomicU32, Mutex, Ordering, Weak, lock};
use crate::sys::segment::Segment;

const STATE: u32 = 0b11;
const IDLE: u32 = 0;
const OFFERED: u32 = 1;
const TAKEN: u32 = 2;
/// Taken, and sent back: nobody reads it at the borrower any more.
const RETURNED: u32 = 3;

/// Where the words of a ledger lie, at either side.
pub(crate) trait Place {
    /// How many: loans that one process can have of another at once.
    const SLOTS: u32;

    /// The word of a slot below `SLOTS`, zero at birth. `None` in a forked child: nothing is mapped there, and nothing of this
    /// is the child's.
    fn word(&self, slot: u32) -> Option<&AtomicU32>;
}

fn load(place: &impl Place, slot: u32) -> Option<u32> {
    place.word(slot).map(|word| word.load(Ordering::Acquire))
}

fn store(place: &impl Place, slot: u32, value: u32) {
    if let Some(word) = place.word(slot) {
        word.store(value, Ordering::Release);
    }
}

fn swap(place: &impl Place, slot: u32, from: u32, to: u32) -> bool {
    let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
    let word = place.word(slot);
    word.is_some_and(|word| word.compare_exchange(from, to, set, fetch).is_ok())
}

/// A loan's place in a ledger, as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) slot: u32,
    /// Which loan of this slot, already shifted to stand above the state.
    pub(crate) generation: u32,
}

impl Entry {
    const fn as_word(self, state: u32) -> u32 {
        self.generation | state
    }
}

/// The lender's side, for one borrower.
#[derive(Debug)]
pub(crate) struct Ledger<P> {
    place: P,
    /// The borrower's process has ended: everything is back.
    gone: AtomicBool,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// How many have ever been used.
    used: u32,
    free: Vec<Entry>,
    /// Let go of by the lender while they were out.
    parked: Vec<Entry>,
    /// By slot: what its last loan is about, with its generation.
    lent: Vec<(u32, Weak<Lent>)>,
}

/// What a loan is about.
#[derive(Debug)]
struct Lent {
    segment: Arc<Segment>,
    range: Range<usize>,
    /// How many read it here as what the borrower has sent back; [`BACK`] for ever once it was found back.
    pins: AtomicU32,
}

/// See [`Lent::pins`].
const BACK: u32 = u32::MAX;

impl Lent {
    fn contains(&self, range: &Range<usize>) -> bool {
        self.range.start <= range.start && range.start <= range.end && range.end <= self.range.end
    }

    fn pin(&self) -> bool {
        let more = |pins: u32| pins.checked_add(1).filter(|more| *more < BACK);
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        self.pins.fetch_update(set, fetch, more).is_ok()
    }

    /// The borrower has it no more: so it is back, if nobody reads it here.
    fn end(&self) -> bool {
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        let ended = self.pins.compare_exchange(0, BACK, set, fetch);
        ended.map_or_else(|found| found == BACK, |_| true)
    }
}

/// What an offer is about, for whoever made it.
#[derive(Debug)]
pub(crate) struct Open {
    lent: Arc<Lent>,
    entry: Entry,
}

/// Memory that is lent, and was sent back by its borrower. The loan is not back while this is there.
#[derive(Debug)]
pub(crate) struct Pinned {
    lent: Arc<Lent>,
    range: Range<usize>,
    /// The borrower has it no more.
    returned: bool,
}

impl Pinned {
    /// Whether the loan is over, but for this.
    pub(crate) fn is_returned(&self) -> bool {
        self.returned
    }

    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// Where it lies: it may be read there.
    pub(super) fn place(&self) -> (&Arc<Segment>, Range<usize>) {
        (&self.lent.segment, self.range.clone())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.lent.pins.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<P: Place> Ledger<P> {
    /// Over words that nobody has used.
    pub(super) fn of(place: P) -> Arc<Self> {
        Arc::new(Self {
            place,
            gone: AtomicBool::new(false),
            slots: Mutex::default(),
        })
    }

    pub(super) fn place(&self) -> &P {
        &self.place
    }

    /// Offers a range of a segment; `None` while too much is out.
    pub(crate) fn offer(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        range: Range<usize>,
    ) -> Option<Loan<P>> {
        let lent = Arc::new(Lent {
            segment: segment.clone(),
            range,
            pins: AtomicU32::new(0),
        });
        let entry = lock(&self.slots).next(&self.place, &lent)?;
        store(&self.place, entry.slot, entry.as_word(OFFERED));
        Some(Loan {
            ledger: self.clone(),
            entry,
            lent,
        })
    }

    /// A part of what the borrower has taken, to be read here while it may give it back. `None` if it has not taken that.
    pub(crate) fn pin(&self, entry: Entry, range: Range<usize>) -> Option<Pinned> {
        let lent = lock(&self.slots).lent(entry)?;
        if !lent.contains(&range) || !lent.pin() {
            return None;
        }
        let mut pinned = Pinned {
            lent,
            range,
            returned: false,
        };
        // After the pin, so that nobody finds it back in between.
        let word = load(&self.place, entry.slot)?;
        if word == entry.as_word(RETURNED) {
            pinned.returned = swap(&self.place, entry.slot, word, entry.as_word(IDLE));
        }
        (pinned.returned || word == entry.as_word(TAKEN)).then_some(pinned)
    }

    /// Withdraws an offer. `false`: it was taken before.
    pub(crate) fn withdraw(&self, entry: Entry) -> bool {
        let (from, to) = (entry.as_word(OFFERED), entry.as_word(IDLE));
        swap(&self.place, entry.slot, from, to)
    }

    /// Withdraws an offer, of which this part is to be read here instead. `None` if it was taken or withdrawn before.
    pub(crate) fn recall(&self, open: Open, range: Range<usize>) -> Option<Pinned> {
        let (lent, entry) = (open.lent, open.entry);
        if !lent.contains(&range) || !lent.pin() {
            return None;
        }
        // The pin is first, so that nobody finds it back in between.
        let pinned = Pinned {
            lent,
            range,
            returned: true,
        };
        self.withdraw(entry).then_some(pinned)
    }

    /// Whether an offer is neither taken nor withdrawn.
    pub(crate) fn is_open(&self, entry: Entry) -> bool {
        load(&self.place, entry.slot) == Some(entry.as_word(OFFERED))
    }

    /// The borrower's process has ended.
    pub(crate) fn close(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Whether the borrower has something that it has taken.
    pub(crate) fn is_out(&self) -> bool {
        if self.gone.load(Ordering::Acquire) {
            return false;
        }
        let used = lock(&self.slots).used;
        let is_taken = |word: u32| matches!(word & STATE, TAKEN | RETURNED);
        (0..used).any(|slot| load(&self.place, slot).is_some_and(is_taken))
    }

    /// Whether the borrower has it no more.
    fn is_over(&self, entry: Entry) -> bool {
        load(&self.place, entry.slot) == Some(entry.as_word(IDLE))
            || self.gone.load(Ordering::Acquire)
    }
}

impl Slots {
    /// An entry for a new loan.
    fn next(&mut self, place: &impl Place, lent: &Arc<Lent>) -> Option<Entry> {
        let last = self.unused(place)?;
        let entry = Entry {
            generation: last.generation.wrapping_add(STATE + 1),
            ..last
        };
        let slot = entry.slot as usize;
        if self.lent.len() <= slot {
            self.lent.resize(slot + 1, (0, Weak::new()));
        }
        self.lent[slot] = (entry.generation, Arc::downgrade(lent));
        Some(entry)
    }

    fn lent(&self, entry: Entry) -> Option<Arc<Lent>> {
        let (generation, lent) = self.lent.get(entry.slot as usize)?;
        lent.upgrade().filter(|_| *generation == entry.generation)
    }

    /// A slot with the last loan that it had.
    fn unused<P: Place>(&mut self, place: &P) -> Option<Entry> {
        if let Some(free) = self.free.pop() {
            return Some(free);
        }
        if self.used < P::SLOTS {
            self.used += 1;
            let slot = self.used - 1;
            return Some(Entry {
                slot,
                generation: 0,
            });
        }
        let is_idle = |entry: &Entry| load(place, entry.slot) == Some(entry.as_word(IDLE));
        let found = self.parked.iter().position(is_idle)?;
        Some(self.parked.swap_remove(found))
    }
}

/// Something that is lent or offered. Dropping it forgets about it: the slot is used again when it is back.
#[derive(Debug)]
pub(crate) struct Loan<P: Place> {
    ledger: Arc<Ledger<P>>,
    entry: Entry,
    lent: Arc<Lent>,
}

impl<P: Place> Loan<P> {
    pub(crate) fn entry(&self) -> Entry {
        self.entry
    }

    /// For whoever makes the offer.
    pub(crate) fn open(&self) -> Open {
        Open {
            lent: self.lent.clone(),
            entry: self.entry,
        }
    }

    /// Whether it was given back, withdrawn, or its borrower's process has ended, and nobody here reads it either. Its memory
    /// may be written only if so; then it stays so.
    pub(crate) fn is_back(&self) -> bool {
        self.ledger.is_over(self.entry) && self.lent.end()
    }
}

impl<P: Place> Drop for Loan<P> {
    fn drop(&mut self) {
        // Not here: a forked child, which touches no lock of its parent's.
        if load(&self.ledger.place, self.entry.slot).is_none() {
            return;
        }
        let back = self.is_back();
        let mut slots = lock(&self.ledger.slots);
        if back {
            slots.free.push(self.entry);
        } else {
            slots.parked.push(self.entry);
        }
    }
}

/// The borrower's side.
#[derive(Debug)]
pub(crate) struct Debts<P>(P);

impl<P: Place> Debts<P> {
    /// Over the words of a ledger.
    pub(super) fn of(place: P) -> Self {
        Self(place)
    }

    /// Whether an entry can be one of this ledger.
    pub(crate) fn is_entry(entry: Entry) -> bool {
        entry.slot < P::SLOTS && entry.generation & STATE == 0
    }

    /// Takes an offer. `false`: it was withdrawn before.
    pub(crate) fn take(&self, entry: Entry) -> bool {
        let (from, to) = (entry.as_word(OFFERED), entry.as_word(TAKEN));
        swap(&self.0, entry.slot, from, to)
    }

    /// Sends back what was taken, of which nothing is read here any more: its lender has it back when it [pins](Ledger::pin) it.
    pub(crate) fn send_back(&self, entry: Entry) {
        store(&self.0, entry.slot, entry.as_word(RETURNED));
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

// By its path, since `tensorpipe-loom` includes this file by its own.
#[cfg(test)]
#[path = "tests.rs"]
mod tests;
