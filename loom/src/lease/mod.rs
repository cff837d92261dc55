//! Memory that one process lends to others, which read it while its own wants to write.
//!
//! Everything that decides is real: the ledger, the block that is lent, the pool and the handles on them. Here is what lane and
//! exchange do with them, without the messages between them: what was offered is known at once.
//!
//! A borrower's process ends after its last step, and then the lender hears of it: as the system says it.

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
    /// Where what it was offered lies, as it would say in a message. No step of a model.
    segments: Arc<std::sync::Mutex<BTreeMap<u64, SegmentId>>>,
}

/// What it is told.
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

    /// Offers `buffer` to it, unless it has too much.
    fn offer(&self, buffer: &Buffer) -> Option<Offer> {
        self.open_offer(buffer).map(|(offer, _)| offer)
    }

    /// The same, with what its lane keeps.
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

    /// The lender reads what the borrower says to have sent back.
    fn read_back(&self, entry: Entry) -> bool {
        let Some(pinned) = self.pin(entry) else {
            return false;
        };
        let memory = Pinned::foreign(&pinned);
        memory.read();
        memory.read();
        true
    }

    /// Nothing is lent to it, and each slot is there once. The pool lets go of loans when it looks.
    fn assert_settled(&self) {
        assert!(!self.ledger.is_out());
        let pool = Pool::new(SLOTS as u64 + 1);
        let buffers: Vec<_> = (0..=SLOTS).map(|_| filled(&pool)).collect();
        let slots = buffers.iter().filter_map(|buffer| self.offer(buffer));
        assert_eq!(slots.count(), SLOTS, "a slot is lost, or there twice");
    }
}

impl Offer {
    /// Takes it, reads, and gives it back. `false`: it was withdrawn.
    fn borrow(&self) -> bool {
        self.debts.take(self.entry) && {
            self.finish();
            true
        }
    }

    /// The same, taken already.
    fn finish(&self) {
        self.memory.read();
        self.memory.read();
        self.debts.give_back(self.entry);
    }
}

/// Memory that was written to, of a pool that has some.
fn filled(pool: &Pool) -> Buffer {
    let buffer = pool.take().map(BufferMut::freeze);
    buffer.expect("none of it is in use")
}

/// Memory that was written to, of a pool with so much, and offered to a process.
fn offered(memory: u64) -> (Pool, Borrower, Buffer, Offer) {
    let (pool, borrower) = (Pool::new(memory), Borrower::new());
    let buffer = filled(&pool);
    let offer = borrower.offer(&buffer).expect("a free slot");
    (pool, borrower, buffer, offer)
}
