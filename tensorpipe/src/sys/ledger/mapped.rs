//! A ledger's words in a mapping that both processes share, and the bytes of lent memory.

#![allow(
    unsafe_code,
    reason = "words of a mapping are seen as atomics by both processes"
)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::loans::{Debts, Ledger, LedgerWords, Pinned};
use crate::error::SystemError;
use crate::sync::{Arc, AtomicU32, AtomicU64};
use crate::sys::memfd::{self, FIXED, Mapping};

/// First all words, then all numbers.
const WORDS: usize = Words::SLOTS as usize * size_of::<AtomicU32>();
const LEN: usize = WORDS + Words::SLOTS as usize * size_of::<AtomicU64>();

/// The words, mapped by either side.
#[derive(Debug)]
pub(crate) struct Words(Mapping);

impl LedgerWords for Words {
    const SLOTS: u32 = 4096;

    fn word(&self, slot: u32) -> Option<&AtomicU32> {
        assert!(slot < Self::SLOTS, "slot {slot}");
        if !self.0.is_here() {
            return None;
        }
        // SAFETY: the mapping is LEN bytes long, its size is sealed, the words come first, and the slot is below SLOTS.
        let word = unsafe { self.0.start().cast::<AtomicU32>().add(slot as usize) };
        // SAFETY: aligned as mappings are, initialised, only ever seen as atomics, and living as long as self.
        Some(unsafe { word.as_ref() })
    }

    fn number(&self, slot: u32) -> Option<&AtomicU64> {
        assert!(slot < Self::SLOTS, "slot {slot}");
        if !self.0.is_here() {
            return None;
        }
        // SAFETY: the mapping is LEN bytes long, its size is sealed, and the numbers lie behind its WORDS bytes of words.
        let numbers = unsafe { self.0.start().byte_add(WORDS) };
        // SAFETY: the slot is below SLOTS.
        let number = unsafe { numbers.cast::<AtomicU64>().add(slot as usize) };
        // SAFETY: aligned as WORDS is, initialised, only ever seen as atomics, and living as long as self.
        Some(unsafe { number.as_ref() })
    }
}

/// Words that this process has made.
#[derive(Debug)]
pub(crate) struct Made {
    words: Words,
    fd: OwnedFd,
}

impl LedgerWords for Made {
    const SLOTS: u32 = Words::SLOTS;

    fn word(&self, slot: u32) -> Option<&AtomicU32> {
        self.words.word(slot)
    }

    fn number(&self, slot: u32) -> Option<&AtomicU64> {
        self.words.number(slot)
    }
}

impl Ledger<Made> {
    pub(crate) fn new() -> Result<Arc<Self>, SystemError> {
        let fd = memfd::create(c"tensorpipe-ledger", LEN, false)?;
        let words = Words(Mapping::new(fd.as_fd(), LEN, true)?);
        memfd::seal(&fd, FIXED)?;
        Ok(Self::of(Made { words, fd }))
    }

    /// To be passed to the borrower.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.place().fd.as_fd()
    }
}

impl Debts<Words> {
    /// Maps the ledger that the lender has passed, if its size is right; otherwise the reason in words.
    pub(crate) fn map(fd: BorrowedFd<'_>) -> Result<Self, String> {
        let len = memfd::check(fd, FIXED).map_err(|unfit| unfit.to_string())?;
        if len != LEN {
            return Err(format!("a ledger of {len} bytes instead of {LEN}"));
        }
        let mapping = Mapping::new(fd, len, true).map_err(|error| error.to_string())?;
        Ok(Self::of(Words(mapping)))
    }
}

impl Pinned {
    /// `None` for a device's memory.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        let (segment, range) = self.place();
        // SAFETY: the range lies within what is lent. That is written again only when the loan is back (the contract of
        // `Loan::is_back`), which is not before this pin is gone.
        unsafe { segment.bytes(range) }
    }
}
