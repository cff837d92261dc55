//! The protocol of loans, independent of where their words lie.
//!
//! A slot belongs to one `Loan`, is free, or is parked. A ledger without a free slot reaps: it takes slots from loans that are back, even
//! if their owner keeps the memory and has not checked yet.
//!
//! Invariant: once `Loan::is_back` returned true, nobody pins that memory any more, and it returns true for ever.
//!
//! Each loan has a number that only its two processes know. The lender derives it from its own key, so that a borrower cannot choose it.
//! The borrower reads it in the ledger, so that a third process cannot make offers in the lender's name.

// By its path, since `tensorpipe-loom` includes this file by its own path.
#[path = "loans/debts.rs"]
mod debts;

pub(crate) use self::debts::Debts;

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, Weak, lock};
use crate::sys::segment::{Segment, SegmentId};

const STATE: u32 = 0b11;
const IDLE: u32 = 0;
const OFFERED: u32 = 1;
const TAKEN: u32 = 2;
/// Taken, and sent back: the borrower does not read it any more.
const RETURNED: u32 = 3;

/// Where the words of a ledger lie, at either side.
pub(crate) trait LedgerWords {
    /// The number of slots: loans that one process can have of another at once.
    const SLOTS: u32;

    /// The word of a slot below `SLOTS`, initially zero. `None` in a forked child: it has no such mapping, and the loans are its
    /// parent's.
    fn word(&self, slot: u32) -> Option<&AtomicU32>;

    /// The number of the loan that the slot's word is about. The lender writes it before the word. `None` as above.
    fn number(&self, slot: u32) -> Option<&AtomicU64>;
}

fn load(place: &impl LedgerWords, slot: u32) -> Option<u32> {
    place.word(slot).map(|word| word.load(Ordering::Acquire))
}

fn store(place: &impl LedgerWords, slot: u32, value: u32) {
    if let Some(word) = place.word(slot) {
        word.store(value, Ordering::Release);
    }
}

fn swap(place: &impl LedgerWords, slot: u32, from: u32, to: u32) -> bool {
    let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
    let word = place.word(slot);
    word.is_some_and(|word| word.compare_exchange(from, to, set, fetch).is_ok())
}

/// A loan's place in a ledger, as it is sent to the borrower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) slot: u32,
    /// Which loan of this slot, already shifted to stand above the state.
    pub(crate) generation: u32,
    /// Nobody can guess it.
    pub(crate) number: u64,
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
    /// What the numbers of its loans are derived from.
    key: RandomState,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    /// All that have ever been used.
    used: Vec<Slot>,
    free: Vec<u32>,
}

/// The last loan of a slot.
#[derive(Debug)]
struct Slot {
    generation: u32,
    lent: Weak<Lent>,
    /// It is not among the free ones.
    busy: bool,
}

/// What a loan is about.
#[derive(Debug)]
struct Lent {
    segment: Arc<Segment>,
    range: Range<usize>,
    /// How many readers here pin memory that the borrower has sent back; [`BACK`], for ever, once the loan was found to be back.
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

    fn has_ended(&self) -> bool {
        self.pins.load(Ordering::SeqCst) == BACK
    }

    /// The borrower does not have it any more: the loan is back unless somebody here still reads it.
    fn end(&self) -> bool {
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        let ended = self.pins.compare_exchange(0, BACK, set, fetch);
        ended.map_or_else(|found| found == BACK, |_| true)
    }
}

/// An offer's memory and entry, for the end that made the offer.
#[derive(Debug)]
pub(crate) struct Open {
    lent: Arc<Lent>,
    entry: Entry,
}

/// Lent memory that its borrower has sent back. The loan is not back while this exists.
#[derive(Debug)]
pub(crate) struct Pinned {
    lent: Arc<Lent>,
    range: Range<usize>,
    /// The borrower has let go of it.
    returned: bool,
}

impl Pinned {
    /// Whether the loan would be over without this pin.
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

impl<P: LedgerWords> Ledger<P> {
    /// Over words that nobody has used.
    pub(super) fn of(place: P) -> Arc<Self> {
        Arc::new(Self {
            place,
            gone: AtomicBool::new(false),
            key: RandomState::new(),
            slots: Mutex::default(),
        })
    }

    pub(super) fn place(&self) -> &P {
        &self.place
    }

    /// Offers a range of a segment; `None` while [the maximum](LedgerWords::SLOTS) is lent.
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
        let (slot, generation) = self.next(&lent)?;
        let entry = Entry {
            slot,
            generation,
            number: self.number(slot, generation),
        };
        if let Some(number) = self.place.number(slot) {
            number.store(entry.number, Ordering::Relaxed);
        }
        store(&self.place, slot, entry.as_word(OFFERED));
        Some(Loan {
            ledger: self.clone(),
            entry,
            lent,
        })
    }

    /// Pins a part of what the borrower has taken, to read it here while the borrower may give it back. `None` if the borrower has
    /// not taken that.
    pub(crate) fn pin(
        &self,
        entry: Entry,
        segment: SegmentId,
        range: Range<usize>,
    ) -> Option<Pinned> {
        if entry.number != self.number(entry.slot, entry.generation) {
            return None;
        }
        let lent = lock(&self.slots).lent(entry)?;
        if lent.segment.id() != segment || !lent.contains(&range) || !lent.pin() {
            return None;
        }
        let mut pinned = Pinned {
            lent,
            range,
            returned: false,
        };
        // Checked after the pin, so that the loan cannot be found back in between.
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

    /// Withdraws an offer, to read this part here instead. `None` if it was taken or withdrawn before.
    pub(crate) fn recall(&self, open: Open, range: Range<usize>) -> Option<Pinned> {
        let (lent, entry) = (open.lent, open.entry);
        if !lent.contains(&range) || !lent.pin() {
            return None;
        }
        // Pinned first, so that the loan cannot be found back in between.
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

    /// Whether the borrower holds anything that it has taken.
    pub(crate) fn is_out(&self) -> bool {
        if self.gone.load(Ordering::Acquire) {
            return false;
        }
        let used = lock(&self.slots).used.len() as u32;
        let is_taken = |word: u32| matches!(word & STATE, TAKEN | RETURNED);
        (0..used).any(|slot| load(&self.place, slot).is_some_and(is_taken))
    }

    /// Whether the borrower has let go of it.
    fn is_over(&self, slot: u32, generation: u32) -> bool {
        load(&self.place, slot) == Some(generation | IDLE) || self.gone.load(Ordering::Acquire)
    }

    /// The slot and generation of a new loan.
    fn next(&self, lent: &Arc<Lent>) -> Option<(u32, u32)> {
        let mut slots = lock(&self.slots);
        if slots.free.is_empty() {
            if slots.used.len() as u32 == P::SLOTS {
                self.reap(&mut slots);
            } else {
                slots.add();
            }
        }
        let slot = slots.free.pop()?;
        let last = slots.used.get_mut(slot as usize)?;
        let generation = last.generation.wrapping_add(STATE + 1);
        *last = Slot {
            generation,
            lent: Arc::downgrade(lent),
            busy: true,
        };
        Some((slot, generation))
    }

    /// Whether a slot is available for one more loan.
    pub(crate) fn has_room(&self) -> bool {
        let mut slots = lock(&self.slots);
        if slots.free.is_empty() && slots.used.len() >= P::SLOTS as usize {
            self.reap(&mut slots);
        }
        !slots.free.is_empty() || slots.used.len() < P::SLOTS as usize
    }

    /// Finds the slots whose loans are back: parked ones, and those whose owner has not checked.
    fn reap(&self, slots: &mut Slots) {
        let Slots { used, free } = slots;
        for (slot, last) in (0..).zip(used) {
            if last.busy && load(&self.place, slot) == Some(last.generation | IDLE) {
                let still_read = last.lent.upgrade().is_some_and(|lent| !lent.end());
                if !still_read {
                    last.busy = false;
                    free.push(slot);
                }
            }
        }
    }

    /// Only this ledger's owner can derive it.
    fn number(&self, slot: u32, generation: u32) -> u64 {
        self.key
            .hash_one(u64::from(slot) << 32 | u64::from(generation))
    }
}

impl Slots {
    fn add(&mut self) {
        self.free.push(self.used.len() as u32);
        self.used.push(Slot {
            generation: 0,
            lent: Weak::new(),
            busy: false,
        });
    }

    fn lent(&self, entry: Entry) -> Option<Arc<Lent>> {
        let slot = self.used.get(entry.slot as usize)?;
        let lent = slot.lent.upgrade();
        lent.filter(|_| slot.generation == entry.generation)
    }
}

/// Memory that is lent or offered. Dropping this forgets the loan: the slot is reused when the loan is back.
#[derive(Debug)]
pub(crate) struct Loan<P: LedgerWords> {
    ledger: Arc<Ledger<P>>,
    entry: Entry,
    lent: Arc<Lent>,
}

impl<P: LedgerWords> Loan<P> {
    pub(crate) fn entry(&self) -> Entry {
        self.entry
    }

    /// For the end that makes the offer.
    pub(crate) fn open(&self) -> Open {
        Open {
            lent: self.lent.clone(),
            entry: self.entry,
        }
    }

    /// Whether it was given back or withdrawn, or its borrower's process has ended, and nobody here reads it either. Its memory may
    /// be written only if this is true; then it stays true.
    pub(crate) fn is_back(&self) -> bool {
        let Entry {
            slot, generation, ..
        } = self.entry;
        // Checked first: a slot that was reaped belongs to another loan by now.
        self.lent.has_ended() || self.ledger.is_over(slot, generation) && self.lent.end()
    }
}

impl<P: LedgerWords> Drop for Loan<P> {
    fn drop(&mut self) {
        // A forked child must not touch its parent's lock.
        if load(&self.ledger.place, self.entry.slot).is_none() {
            return;
        }
        if !self.is_back() {
            // Parked: it is reaped once it is back.
            return;
        }
        let mut slots = lock(&self.ledger.slots);
        let Slots { used, free } = &mut *slots;
        let last = used.get_mut(self.entry.slot as usize);
        let ours = last.filter(|last| last.lent.as_ptr() == Arc::as_ptr(&self.lent));
        if let Some(last) = ours.filter(|last| last.busy) {
            last.busy = false;
            free.push(self.entry.slot);
        }
    }
}

// By its path, since `tensorpipe-loom` includes this file by its own.
#[cfg(test)]
#[path = "tests.rs"]
mod tests;
