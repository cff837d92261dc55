//! What a borrower sends back is the lender's own memory: it is read there as it was lent, though the borrower gives it back.

use loom::thread;

use super::offered;
use crate::check;

/// The borrower sends it back and gives it back; the lender's lane reads it, and its application wants to write.
pub fn it_is_read_by_its_lender() {
    check(None, || {
        let (pool, borrower, mut buffer, offer) = offered(2);
        let entry = offer.entry;
        assert!(offer.debts.take(entry));
        let reader = thread::spawn(move || offer.finish());
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
}

/// The lender's application looks whether it may write: that does not keep the lane from what the borrower still has.
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

/// Two lanes read it.
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

/// Sent back when it is the lender's again: the lane finds that nothing of it is the borrower's, whatever is in its slot.
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
