//! An offer is either taken or withdrawn. Its slot is reused once the loan is back.

use std::sync::Mutex;

use loom::thread;

use super::{Borrower, Offer, filled, offered};
use crate::check;
use crate::device::pool::Pool;
use crate::sync::Arc;
use crate::sys::ledger::Pinned;

/// An offer in transit. Access to this is no step of a model, so it orders nothing.
#[derive(Clone, Default)]
struct Frame(Arc<Mutex<Option<Offer>>>);

impl Frame {
    fn put(&self, offer: Offer) {
        *self.0.lock().expect("nobody panics with it") = Some(offer);
    }

    fn take(&self) -> Option<Offer> {
        self.0.lock().expect("nobody panics with it").take()
    }
}

/// A cancelled write withdraws its offer while the reader takes it: exactly one of them succeeds.
pub fn an_offer_is_taken_or_withdrawn() {
    check(None, || {
        let (pool, borrower, mut buffer, offer) = offered(1);
        let entry = offer.entry;
        let reader = thread::spawn(move || offer.borrow());
        let withdrawn = borrower.ledger.withdraw(entry);
        let written = buffer.as_bytes_mut().is_some();
        assert!(written || !withdrawn, "nobody else has it");
        drop(buffer);
        assert_ne!(reader.join().unwrap(), withdrawn);
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// The peer asks for the bytes instead, while the borrower takes the offer after all: one of them gets the memory. The lender writes to it
/// again after both. The lane holds no handle on the memory.
pub fn an_offer_is_taken_or_read_at_home() {
    check(None, || {
        let (pool, borrower) = (Pool::new(1), Borrower::new());
        let buffer = filled(&pool);
        let (offer, open) = borrower.open_offer(&buffer).expect("a free slot");
        drop(buffer);
        let reader = thread::spawn(move || offer.borrow());
        let lane = {
            let borrower = borrower.clone();
            thread::spawn(move || {
                let pinned = borrower.ledger.recall(open, 0..1);
                pinned.is_some_and(|pinned| {
                    let memory = Pinned::foreign(&pinned);
                    memory.read();
                    memory.read();
                    true
                })
            })
        };
        drop(pool.take());
        assert_ne!(reader.join().unwrap(), lane.join().unwrap());
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// The reader hears of an offer over a path that orders nothing. Taking it from the ledger makes the earlier writes visible.
pub fn whoever_takes_sees_what_was_written() {
    check(None, || {
        let (pool, borrower) = (Pool::new(1), Borrower::new());
        let mut buffer = filled(&pool);
        let frame = Frame::default();
        let reader = {
            let frame = frame.clone();
            thread::spawn(move || frame.take().is_some_and(|offer| offer.borrow()))
        };
        buffer.as_bytes_mut().expect("it is not lent");
        frame.put(borrower.offer(&buffer).expect("a free slot"));
        drop(buffer);
        drop(pool.take());
        if !reader.join().unwrap() {
            frame
                .take()
                .map(|offer| borrower.ledger.withdraw(offer.entry));
        }
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// The ledger is full, and the owner keeps its handle on the lent memory. The slot is reused when the first loan is back; the owner
/// writes when it finds the memory free.
pub fn a_slot_is_reaped_while_its_owner_keeps_the_memory() {
    check(3, || {
        let (pool, borrower, mut buffer, offer) = offered(2);
        let first = {
            let debts = offer.debts.clone();
            thread::spawn(move || {
                assert!(
                    debts.take(offer.entry) && {
                        offer.finish();
                        true
                    }
                )
            })
        };
        let other = filled(&pool);
        let second = borrower.offer(&other);
        let second = second.map(|offer| thread::spawn(move || assert!(offer.borrow())));
        if let Some(bytes) = buffer.as_bytes_mut() {
            bytes[0] = 1;
        }
        first.join().unwrap();
        assert!(buffer.as_bytes_mut().is_some(), "it is back");
        if let Some(second) = second {
            second.join().unwrap();
        }
        drop((buffer, other));
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// The reader hears of an offer after it was withdrawn and its slot reused for another offer.
pub fn a_late_reader_takes_nothing_else() {
    check(None, || {
        let (pool, borrower, buffer, first) = offered(2);
        let entry = first.entry;
        let reader = thread::spawn(move || first.borrow());
        let withdrawn = borrower.ledger.withdraw(entry);
        drop(buffer);
        let other = filled(&pool);
        let second = borrower.offer(&other);
        assert!(second.is_some() || !withdrawn, "its slot is free");
        assert_ne!(reader.join().unwrap(), withdrawn);
        // Nobody but this reader knows of it.
        assert!(second.is_none_or(|second| second.borrow()));
        drop(other);
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// The same memory is lent repeatedly, each time with its content of that moment.
pub fn it_is_lent_again() {
    check(None, || {
        let (pool, borrower, buffer, first) = offered(1);
        let reader = {
            let debts = first.debts.clone();
            thread::spawn(move || {
                assert!(first.borrow());
                debts
            })
        };
        drop(buffer);
        let again = pool.take().map(|buffer| buffer.freeze());
        let second = again.as_ref().and_then(|buffer| borrower.offer(buffer));
        assert_eq!(
            again.is_some(),
            second.is_some(),
            "its slot is back with it"
        );
        reader.join().unwrap();
        assert!(second.is_none_or(|second| second.borrow()));
        drop(again);
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// The pool is dropped while memory is lent out: the slot waits until the memory is back.
pub fn a_slot_waits_for_its_borrower() {
    check(None, || {
        let (pool, other) = (Pool::new(1), Pool::new(1));
        let borrower = Borrower::new();
        let buffer = filled(&pool);
        let first = borrower.offer(&buffer).expect("a free slot");
        let reader = thread::spawn(move || assert!(first.borrow()));
        drop((pool, buffer));
        let buffer = filled(&other);
        let second = borrower.offer(&buffer);
        reader.join().unwrap();
        assert!(second.is_none_or(|second| second.borrow()));
        drop(buffer);
        other.assert_whole();
        borrower.assert_settled();
    });
}
