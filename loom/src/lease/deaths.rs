//! A borrower dies between any two of its steps. The lender reuses its memory only after the system has reported the death.

use loom::thread;

use super::{Borrower, filled, offered};
use crate::device::pool::Pool;
use crate::{check, death};

/// The lender writes, and asks for memory, while the borrower dies.
pub fn a_borrower_dies() {
    death::at_each_step(|dies| {
        check(None, move || {
            let (pool, borrower, mut buffer, offer) = offered(2);
            let reader = live(&dies, &borrower, move || offer.borrow());
            buffer.make_mut().expect("main memory");
            drop(buffer);
            drop(pool.take());
            reader.join().unwrap();
            pool.assert_whole();
            borrower.assert_settled();
        });
    });
}

/// One of two borrowers dies: the memory stays lent to the other one.
pub fn one_of_two_dies() {
    death::at_each_step(|dies| {
        check(3, move || {
            let (pool, borrowers) = (Pool::new(1), [Borrower::new(), Borrower::new()]);
            let buffer = filled(&pool);
            let [mortal, other] = [0, 1].map(|at: usize| borrowers[at].offer(&buffer));
            let (mortal, other) = mortal.zip(other).expect("free slots");
            let readers = [
                live(&dies, &borrowers[0], move || mortal.borrow()),
                thread::spawn(move || assert!(other.borrow())),
            ];
            drop(buffer);
            drop(pool.take());
            for reader in readers {
                reader.join().unwrap();
            }
            pool.assert_whole();
            borrowers.iter().for_each(Borrower::assert_settled);
        });
    });
}

/// A cancelled write withdraws its offer while the borrower dies.
pub fn a_borrower_dies_while_its_offer_is_withdrawn() {
    death::at_each_step(|dies| {
        check(None, move || {
            let (pool, borrower, mut buffer, offer) = offered(1);
            let entry = offer.entry;
            let reader = live(&dies, &borrower, move || offer.borrow());
            if borrower.ledger.withdraw(entry) {
                assert!(buffer.as_bytes_mut().is_some(), "nobody else has it");
            }
            drop(buffer);
            reader.join().unwrap();
            pool.assert_whole();
            borrower.assert_settled();
        });
    });
}

/// The borrower sends memory back and dies. The lender reads that memory.
pub fn a_borrower_dies_after_it_has_sent_back() {
    death::at_each_step(|dies| {
        check(3, move || {
            let (pool, borrower, buffer, offer) = offered(1);
            let entry = offer.entry;
            assert!(offer.debts.take(entry));
            let reader = live(&dies, &borrower, move || offer.finish());
            let lane = {
                let borrower = borrower.clone();
                thread::spawn(move || borrower.read_back(entry))
            };
            drop(buffer);
            drop(pool.take());
            reader.join().unwrap();
            lane.join().unwrap();
            pool.assert_whole();
            borrower.assert_settled();
        });
    });
}

/// The borrower sends memory back and dies. The message reaches the lender when the borrower is dying or dead.
pub fn a_borrower_dies_while_what_it_has_sent_back_is_on_its_way() {
    death::at_each_step(|dies| {
        check(3, move || {
            let (pool, borrower, mut buffer, offer) = offered(2);
            let entry = offer.entry;
            assert!(offer.debts.take(entry));
            let reader = live(&dies, &borrower, move || {
                offer.memory.read();
                offer.debts.send_back(entry);
                // The pipe ends before the borrower's lane has heard of an acknowledgement.
                offer.debts.give_up(entry);
            });
            let lane = {
                let borrower = borrower.clone();
                thread::spawn(move || borrower.read_back(entry))
            };
            buffer.make_mut().expect("main memory");
            drop(buffer);
            reader.join().unwrap();
            lane.join().unwrap();
            pool.assert_whole();
            borrower.assert_settled();
        });
    });
}

/// Runs a borrower's process to its end, and then reports the end to the lender.
fn live<T>(
    dies: &death::Dies,
    borrower: &Borrower,
    life: impl FnOnce() -> T + 'static,
) -> thread::JoinHandle<()> {
    let (dies, ledger) = (dies.clone(), borrower.ledger.clone());
    thread::spawn(move || {
        dies.live(|| drop(life()));
        ledger.close();
    })
}
