//! Lent memory is never written. A writer gets the memory itself once it is back, and other memory before that.

use loom::thread;

use super::{Borrower, filled, offered};
use crate::check;
use crate::device::pool::Pool;
use crate::sync::Arc;

/// The lender writes to a buffer that it has lent: in place if the memory is back, else in a copy.
pub fn the_lender_writes() {
    check(None, || {
        let (pool, borrower, mut buffer, offer) = offered(2);
        let reader = thread::spawn(move || assert!(offer.borrow()));
        buffer.make_mut().expect("main memory");
        drop(buffer);
        reader.join().unwrap();
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// The lender drops lent memory and asks the pool for more. The pool has no other memory.
pub fn the_pool_hands_it_out_again() {
    check(None, || {
        let (pool, borrower, buffer, offer) = offered(1);
        let reader = thread::spawn(move || assert!(offer.borrow()));
        drop(buffer);
        let again = pool.take();
        reader.join().unwrap();
        drop(again);
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// Two processes read the same tensor. The memory is back when both are done.
pub fn two_read_the_same() {
    check(3, || {
        let (pool, borrowers) = (Pool::new(2), [Borrower::new(), Borrower::new()]);
        let mut buffer = filled(&pool);
        let readers = [0, 1].map(|at: usize| {
            let offer = borrowers[at].offer(&buffer).expect("a free slot");
            thread::spawn(move || assert!(offer.borrow()))
        });
        if buffer.as_bytes_mut().is_none() {
            buffer.make_mut().expect("main memory");
        }
        drop(buffer);
        for reader in readers {
            reader.join().unwrap();
        }
        pool.assert_whole();
        borrowers.iter().for_each(Borrower::assert_settled);
    });
}

/// Two threads of the lender take memory while another process reads: none gets memory that is in use.
pub fn two_want_memory() {
    check(3, || {
        let (pool, borrower) = (Arc::new(Pool::new(2)), Borrower::new());
        let buffer = filled(&pool);
        let offer = borrower.offer(&buffer).expect("a free slot");
        let reader = thread::spawn(move || assert!(offer.borrow()));
        let other = {
            let pool = pool.clone();
            thread::spawn(move || drop(pool.take()))
        };
        drop(buffer);
        drop(pool.take());
        reader.join().unwrap();
        other.join().unwrap();
        pool.assert_whole();
        borrower.assert_settled();
    });
}
