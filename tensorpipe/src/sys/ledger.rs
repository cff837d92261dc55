//! Who has what of whom: one word for each loan, on a page that two processes share.
//!
//! The lender writes OFFERED; the borrower takes the offer by making it TAKEN, and gives it back by making it IDLE. An offer
//! that is not taken can be withdrawn. Offer, take and withdrawal are compare-and-swap on the same word, so that exactly one of
//! the two wins, whatever became of the messages between them; and giving back is one store, without a system call.
//!
//! Invariant: a slot is lent anew only when its word is IDLE, with the next generation: a late word about an earlier loan
//! changes nothing. A borrower that breaks this harms its own loans; the lender's memory stays what it is.
//!
//! What a borrower sends back to its lender is the lender's own memory: it is pinned there, and its loan is not back before
//! the pins are gone, whatever its word says.

#![allow(
    unsafe_code,
    reason = "words of a mapping are seen as atomics by both processes"
)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;

use super::memfd::{self, FIXED, Mapping};
use super::segment::Segment;
use crate::error::SystemError;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, Weak, lock};

/// Loans that one process can have of another at once.
pub(crate) const SLOTS: u32 = 4096;

const LEN: usize = SLOTS as usize * size_of::<AtomicU32>();

const STATE: u32 = 0b11;
const IDLE: u32 = 0;
const OFFERED: u32 = 1;
const TAKEN: u32 = 2;

/// The words, mapped by either side.
#[derive(Debug)]
struct Words(Mapping);

impl Words {
    /// `None` in a forked child: nothing is mapped there, and nothing of this is the child's.
    fn word(&self, slot: u32) -> Option<&AtomicU32> {
        assert!(slot < SLOTS, "slot {slot}");
        if !self.0.is_here() {
            return None;
        }
        // SAFETY: the mapping is LEN bytes long, its size is sealed, and the slot is below SLOTS.
        let word = unsafe { self.0.start().cast::<AtomicU32>().add(slot as usize) };
        // SAFETY: aligned as mappings are, initialised, only ever seen as atomics, and living as long as self.
        Some(unsafe { word.as_ref() })
    }

    fn load(&self, slot: u32) -> Option<u32> {
        self.word(slot).map(|word| word.load(Ordering::Acquire))
    }

    fn store(&self, slot: u32, value: u32) {
        if let Some(word) = self.word(slot) {
            word.store(value, Ordering::Release);
        }
    }

    fn swap(&self, slot: u32, from: u32, to: u32) -> bool {
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let word = self.word(slot);
        word.is_some_and(|word| word.compare_exchange(from, to, set, fetch).is_ok())
    }
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
pub(crate) struct Ledger {
    words: Words,
    fd: OwnedFd,
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

/// Memory that is lent, and was sent back by its borrower. The loan is not back while this is there.
#[derive(Debug)]
pub(crate) struct Pinned {
    lent: Arc<Lent>,
    range: Range<usize>,
}

impl Pinned {
    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies within what is lent, which is written again only when the loan is back (the contract of
        // `Loan::is_back`), and that is not before this pin is gone.
        unsafe { self.lent.segment.bytes(self.range.clone()) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.lent.pins.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ledger {
    pub(crate) fn new() -> Result<Arc<Self>, SystemError> {
        let fd = memfd::create(c"tensorpipe-ledger", LEN, false)?;
        let words = Words(Mapping::new(fd.as_fd(), LEN, true)?);
        memfd::seal(&fd, FIXED)?;
        Ok(Arc::new(Self {
            words,
            fd,
            gone: AtomicBool::new(false),
            slots: Mutex::default(),
        }))
    }

    /// To be passed to the borrower.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Offers a range of a segment; `None` while too much is out.
    pub(crate) fn offer(
        self: &Arc<Self>,
        segment: &Arc<Segment>,
        range: Range<usize>,
    ) -> Option<Loan> {
        let lent = Arc::new(Lent {
            segment: segment.clone(),
            range,
            pins: AtomicU32::new(0),
        });
        let entry = lock(&self.slots).next(&self.words, &lent)?;
        self.words.store(entry.slot, entry.as_word(OFFERED));
        Some(Loan {
            ledger: self.clone(),
            entry,
            lent,
        })
    }

    /// A part of what the borrower has taken, to be read here while it may give it back. `None` if it has not taken that.
    pub(crate) fn pin(&self, entry: Entry, range: Range<usize>) -> Option<Pinned> {
        let lent = lock(&self.slots).lent(entry)?;
        let within = lent.range.start <= range.start
            && range.start <= range.end
            && range.end <= lent.range.end;
        if !within || !lent.pin() {
            return None;
        }
        let pinned = Pinned { lent, range };
        // After the pin, so that nobody finds it back in between.
        let taken = self.words.load(entry.slot) == Some(entry.as_word(TAKEN));
        taken.then_some(pinned)
    }

    /// Withdraws an offer. `false`: it was taken before.
    pub(crate) fn withdraw(&self, entry: Entry) -> bool {
        let (from, to) = (entry.as_word(OFFERED), entry.as_word(IDLE));
        self.words.swap(entry.slot, from, to)
    }

    /// Whether an offer is neither taken nor withdrawn.
    pub(crate) fn is_open(&self, entry: Entry) -> bool {
        self.words.load(entry.slot) == Some(entry.as_word(OFFERED))
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
        let is_taken = |word: u32| word & STATE == TAKEN;
        (0..used).any(|slot| self.words.load(slot).is_some_and(is_taken))
    }

    /// Whether the borrower has it no more.
    fn is_over(&self, entry: Entry) -> bool {
        self.words.load(entry.slot) == Some(entry.as_word(IDLE))
            || self.gone.load(Ordering::Acquire)
    }
}

impl Slots {
    /// An entry for a new loan.
    fn next(&mut self, words: &Words, lent: &Arc<Lent>) -> Option<Entry> {
        let last = self.unused(words)?;
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
    fn unused(&mut self, words: &Words) -> Option<Entry> {
        if let Some(free) = self.free.pop() {
            return Some(free);
        }
        if self.used < SLOTS {
            self.used += 1;
            let slot = self.used - 1;
            return Some(Entry {
                slot,
                generation: 0,
            });
        }
        let is_idle = |entry: &Entry| words.load(entry.slot) == Some(entry.as_word(IDLE));
        let found = self.parked.iter().position(is_idle)?;
        Some(self.parked.swap_remove(found))
    }
}

/// Something that is lent or offered. Dropping it forgets about it: the slot is used again when it is back.
#[derive(Debug)]
pub(crate) struct Loan {
    ledger: Arc<Ledger>,
    entry: Entry,
    lent: Arc<Lent>,
}

impl Loan {
    pub(crate) fn entry(&self) -> Entry {
        self.entry
    }

    /// Whether it was given back, withdrawn, or its borrower's process has ended, and nobody here reads it either. Its memory
    /// may be written only if so; then it stays so.
    pub(crate) fn is_back(&self) -> bool {
        self.ledger.is_over(self.entry) && self.lent.end()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
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
pub(crate) struct Debts(Words);

impl Debts {
    /// Maps what the lender has passed, if its size is as it must be; else why not, in words.
    pub(crate) fn map(fd: BorrowedFd<'_>) -> Result<Self, String> {
        let len = memfd::check(fd, FIXED)?;
        if len != LEN {
            return Err(format!("a ledger of {len} bytes instead of {LEN}"));
        }
        let mapping = Mapping::new(fd, len, true).map_err(|error| error.to_string())?;
        Ok(Self(Words(mapping)))
    }

    /// Whether an entry can be one of this ledger.
    pub(crate) fn is_entry(entry: Entry) -> bool {
        entry.slot < SLOTS && entry.generation & STATE == 0
    }

    /// Takes an offer. `false`: it was withdrawn before.
    pub(crate) fn take(&self, entry: Entry) -> bool {
        let (from, to) = (entry.as_word(OFFERED), entry.as_word(TAKEN));
        self.0.swap(entry.slot, from, to)
    }

    /// Gives back what was taken. Everything read from it was read before. In a forked child nothing happens: the parent has
    /// taken it.
    pub(crate) fn give_back(&self, entry: Entry) {
        self.0.store(entry.slot, entry.as_word(IDLE));
    }
}

#[cfg(test)]
mod tests;
