//! A borrower sends lent memory back to its lender. The lender reads it unchanged, even though the borrower ends the loan meanwhile.

use loom::thread;

use super::{Offer, offered};
use crate::check;
use crate::sys::ledger::Pinned;

/// The borrower runs `finishes` on a taken offer. Meanwhile the lender's lane reads the memory, and its application writes.
fn read_back_while(finishes: fn(Offer)) {
    check(None, move || {
        let (pool, borrower, mut buffer, offer) = offered(2);
        let entry = offer.entry;
        assert!(offer.debts.take(entry));
        let finishing = thread::spawn(move || finishes(offer));
        let lane = {
            let borrower = borrower.clone();
            thread::spawn(move || borrower.read_back(entry))
        };
        buffer.make_mut().expect("main memory");
        drop(buffer);
        finishing.join().unwrap();
        lane.join().unwrap();
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// The borrower sends the memory back and ends its loan.
pub fn it_is_read_by_its_lender() {
    read_back_while(|offer| offer.finish());
}

/// The lender's application checks whether it may write. That check does not stop the lane from reading memory still on loan.
pub fn a_look_harms_nobody() {
    check(None, || {
        let (pool, borrower, mut buffer, offer) = offered(1);
        assert!(offer.debts.take(offer.entry));
        let lane = {
            let borrower = borrower.clone();
            thread::spawn(move || {
                assert!(borrower.read_back(offer.entry), "it is out");
                offer.finish();
            })
        };
        let _ = buffer.as_bytes_mut();
        drop(buffer);
        lane.join().unwrap();
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// Two lanes of the lender read the returned memory.
pub fn it_is_read_twice_by_its_lender() {
    check(3, || {
        let (pool, borrower, buffer, offer) = offered(1);
        let entry = offer.entry;
        assert!(offer.debts.take(entry));
        let lanes = [(), ()].map(|()| {
            let borrower = borrower.clone();
            thread::spawn(move || borrower.read_back(entry))
        });
        offer.finish();
        drop(buffer);
        drop(pool.take());
        for lane in lanes {
            lane.join().unwrap();
        }
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// A borrower sends memory back whose loan it has already ended. The lane refuses it, whatever the slot holds by then.
pub fn what_is_back_is_not_read() {
    check(None, || {
        let (pool, borrower, buffer, offer) = offered(1);
        let entry = offer.entry;
        assert!(offer.borrow());
        let lane = {
            let borrower = borrower.clone();
            thread::spawn(move || assert!(!borrower.read_back(entry)))
        };
        drop(buffer);
        if let Some(buffer) = pool.take() {
            let buffer = buffer.freeze();
            assert!(borrower.offer(&buffer).is_some_and(|offer| offer.borrow()));
        }
        lane.join().unwrap();
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// The borrower sends the memory back and stops reading it. Its message arrives, or its pipe ends first.
pub fn what_is_sent_back_is_its_lenders() {
    read_back_while(|offer| {
        offer.memory.read();
        offer.debts.send_back(offer.entry);
        // The borrower's lane drops the loan.
        offer.debts.give_up(offer.entry);
    });
}

/// Returned memory is lent again at once. Its sender, which has not yet heard of the arrival, must not touch the next loan.
pub fn a_late_sender_touches_no_other_loan() {
    check(None, || {
        let (pool, borrower, buffer, offer) = offered(1);
        let entry = offer.entry;
        assert!(offer.debts.take(entry));
        offer.debts.send_back(entry);
        let late = {
            let debts = offer.debts.clone();
            thread::spawn(move || debts.give_up(entry))
        };
        let _ = borrower.read_back(entry);
        drop(buffer);
        let again = pool.take().expect("it is back").freeze();
        let second = borrower.offer(&again).expect("its slot is free");
        assert!(second.borrow());
        late.join().unwrap();
        drop(again);
        pool.assert_whole();
        borrower.assert_settled();
    });
}

/// Two messages bring the memory back. The borrower sends the second after the lender has confirmed the first. The second ends
/// the loan, though the lender still reads the first.
pub fn two_messages_bring_it_back() {
    check(3, || {
        let (pool, borrower, buffer, offer) = offered(1);
        let entry = offer.entry;
        assert!(offer.debts.take(entry));
        let first = borrower.pin(entry).expect("it is taken");
        let (sender, lane) = (offer.debts.clone(), borrower.clone());
        let second = thread::spawn(move || {
            sender.send_back(entry);
            assert!(lane.read_back(entry), "its borrower has not got it");
            // The sender does not know that its message arrived.
            sender.give_up(entry);
        });
        let reader = thread::spawn(move || {
            Pinned::foreign(&first).read();
            drop(first);
        });
        drop(buffer);
        drop(pool.take());
        second.join().unwrap();
        reader.join().unwrap();
        pool.assert_whole();
        borrower.assert_settled();
    });
}
