//! One process lends memory to others, which read it while the lender wants to write.
//!
//! All deciding code is real: the ledger, the lent block, the pool and the handles. The files here replace the lane and the
//! exchange, without messages between them: a borrower knows of an offer at once.
//!
//! A borrower's process ends after its last step. Only then does the lender hear of the end, as the system reports it.

pub mod deaths;
pub mod offers;
pub mod returns;
pub mod writes;

use std::collections::BTreeMap;

use crate::device::pool::{Pool, lend, segment};
use crate::device::{Buffer, BufferMut};
use crate::sync::Arc;
use crate::sys::ledger::{Debts, Entry, Ledger, Open, Pinned, SLOTS, both};
use crate::sys::segment::{Foreign, SegmentId};

/// A process that memory is lent to.
#[derive(Clone)]
struct Borrower {
    ledger: Arc<Ledger>,
    debts: Arc<Debts>,
    /// The segment of each offer, which a real borrower would name in a message. Access to this is no step of a model.
    segments: Arc<std::sync::Mutex<BTreeMap<u64, SegmentId>>>,
}

/// An offer, as the borrower receives it.
#[derive(Clone)]
struct Offer {
    debts: Arc<Debts>,
    entry: Entry,
    memory: Foreign,
}

impl Borrower {
    fn new() -> Self {
        let (ledger, debts) = both();
        Self {
            ledger,
            debts: Arc::new(debts),
            segments: Arc::default(),
        }
    }

    /// Offers `buffer` to the borrower. `None` if the ledger is full.
    fn offer(&self, buffer: &Buffer) -> Option<Offer> {
        self.open_offer(buffer).map(|(offer, _)| offer)
    }

    /// Like [`offer`](Self::offer); also returns the handle that the lender's lane keeps.
    fn open_offer(&self, buffer: &Buffer) -> Option<(Offer, Open)> {
        let memory = Foreign::of(segment(buffer));
        let (entry, open) = lend(buffer, &self.ledger)?;
        let mut segments = self.segments.lock().expect("no model panics with it");
        segments.insert(entry.number, segment(buffer).id());
        let offer = Offer {
            debts: self.debts.clone(),
            entry,
            memory,
        };
        Some((offer, open))
    }

    fn pin(&self, entry: Entry) -> Option<Pinned> {
        let segments = self.segments.lock().expect("as above");
        let segment = segments[&entry.number];
        drop(segments);
        self.ledger.pin(entry, segment, 0..1)
    }

    /// The lender reads memory that, as the borrower says, was sent back.
    fn read_back(&self, entry: Entry) -> bool {
        let Some(pinned) = self.pin(entry) else {
            return false;
        };
        let memory = Pinned::foreign(&pinned);
        memory.read();
        memory.read();
        true
    }

    /// Asserts that nothing is lent to the borrower, and that each slot of the ledger is free exactly once.
    fn assert_settled(&self) {
        assert!(!self.ledger.is_out());
        let pool = Pool::new(SLOTS as u64 + 1);
        let buffers: Vec<_> = (0..=SLOTS).map(|_| filled(&pool)).collect();
        let slots = buffers.iter().filter_map(|buffer| self.offer(buffer));
        assert_eq!(slots.count(), SLOTS, "a slot is lost, or there twice");
    }
}

impl Offer {
    /// Takes the offer, reads the memory, and gives it back. `false` if the offer was withdrawn.
    fn borrow(&self) -> bool {
        self.debts.take(self.entry) && {
            self.finish();
            true
        }
    }

    /// Reads the memory of an offer that is already taken, and gives it back.
    fn finish(&self) {
        self.memory.read();
        self.memory.read();
        self.debts.give_back(self.entry);
    }
}

/// Takes memory from the pool and freezes it.
fn filled(pool: &Pool) -> Buffer {
    let buffer = pool.take().map(BufferMut::freeze);
    buffer.expect("none of it is in use")
}

/// A pool of `memory` segments, a borrower, and one buffer that is offered to it.
fn offered(memory: u64) -> (Pool, Borrower, Buffer, Offer) {
    let (pool, borrower) = (Pool::new(memory), Borrower::new());
    let buffer = filled(&pool);
    let offer = borrower.offer(&buffer).expect("a free slot");
    (pool, borrower, buffer, offer)
}
