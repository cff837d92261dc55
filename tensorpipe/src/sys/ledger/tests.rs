//! Stories of loans: who wins, what comes back, and what a late write can do.

use std::os::fd::AsFd;

use super::*;
use crate::sys::ledger::{Debts, Ledger, Loan};
use crate::sys::memfd::{self, FIXED};

const SLOTS: u32 = 4096;

/// Offers some memory.
fn offer(ledger: &Arc<Ledger>) -> Option<Loan> {
    let pieces = Segment::cut(8192, 8192).unwrap();
    ledger.offer(pieces[0].segment(), 4096..8192)
}

fn both() -> (Arc<Ledger>, Debts) {
    let ledger = Ledger::new().unwrap();
    let debts = Debts::map(ledger.fd()).unwrap();
    (ledger, debts)
}

#[test]
fn an_offer_is_taken_and_comes_back() {
    let (ledger, debts) = both();
    let loan = offer(&ledger).unwrap();
    assert!(!loan.is_back() && !ledger.is_out());
    assert!(debts.take(loan.entry()));
    assert!(!debts.take(loan.entry()), "taken twice");
    assert!(ledger.is_out() && !ledger.is_open(loan.entry()));
    assert!(!ledger.withdraw(loan.entry()), "it is taken");
    debts.give_back(loan.entry());
    assert!(loan.is_back() && !ledger.is_out());
}

#[test]
fn a_withdrawn_offer_cannot_be_taken_even_when_its_slot_is_lent_again() {
    let (ledger, debts) = both();
    let first = offer(&ledger).unwrap();
    let late = first.entry();
    assert!(ledger.withdraw(late) && first.is_back());
    drop(first);
    let second = offer(&ledger).unwrap();
    assert_eq!(second.entry().slot, late.slot);
    assert!(!debts.take(late));
    assert!(debts.take(second.entry()));
}

#[test]
fn slots_are_bounded_and_parked_ones_are_used_when_they_are_back() {
    let (ledger, debts) = both();
    let pieces = Segment::cut(4096, 4096).unwrap();
    let offer = |ledger: &Arc<Ledger>| ledger.offer(pieces[0].segment(), 0..4096);
    let next = |_| {
        assert!(ledger.has_room());
        offer(&ledger).unwrap()
    };
    let mut loans: Vec<_> = (0..SLOTS).map(next).collect();
    assert!(offer(&ledger).is_none() && !ledger.has_room());
    let parked = loans.pop().unwrap();
    let entry = parked.entry();
    assert!(debts.take(entry));
    drop(parked);
    assert!(
        offer(&ledger).is_none() && !ledger.has_room(),
        "it is still out"
    );
    debts.give_back(entry);
    assert!(ledger.has_room());
    assert_eq!(offer(&ledger).unwrap().entry().slot, entry.slot);
}

/// The owners keep what they have lent, and do not check.
#[test]
fn a_full_ledger_finds_the_loans_that_are_back() {
    let (ledger, debts) = both();
    let pieces = Segment::cut(4096, 4096).unwrap();
    let offer = |ledger: &Arc<Ledger>| ledger.offer(pieces[0].segment(), 0..4096);
    let kept: Vec<_> = (0..SLOTS).map(|_| offer(&ledger).unwrap()).collect();
    assert!(kept.iter().all(|loan| debts.take(loan.entry())));
    assert!(offer(&ledger).is_none());
    let back = &kept[7..10];
    back.iter().for_each(|loan| debts.give_back(loan.entry()));
    // One of them is pinned here, as sent back by its borrower.
    let read = kept[11].entry();
    let segment = pieces[0].segment().id();
    let pinned = ledger.pin(read, segment, 0..4096).unwrap();
    debts.give_back(read);
    let again: Vec<_> = std::iter::from_fn(|| offer(&ledger)).collect();
    let mut slots: Vec<_> = again.iter().map(|loan| loan.entry().slot).collect();
    slots.sort_unstable();
    assert_eq!(slots, [7, 8, 9]);
    // The first loans of these slots are over for ever, and do not release the slots again.
    assert!(back.iter().all(Loan::is_back) && !again[0].is_back());
    drop((kept, pinned));
    let rest = std::iter::from_fn(|| offer(&ledger));
    assert_eq!(rest.collect::<Vec<_>>().len(), 1);
}

#[test]
fn an_offer_of_another_number_is_not_taken() {
    let (ledger, debts) = both();
    let loan = offer(&ledger).unwrap();
    let entry = loan.entry();
    let guessed = Entry { number: 0, ..entry };
    assert!(!debts.take(guessed) && ledger.is_open(entry));
    assert!(debts.take(entry));
}

/// A process that knows one number knows no other: not of another slot, a later loan of this one, or another borrower's ledger.
#[test]
fn each_loan_has_a_number_of_its_own() {
    let (one, two) = (Ledger::new().unwrap(), Ledger::new().unwrap());
    let mut numbers = std::collections::HashSet::new();
    for ledger in [&one, &two] {
        for again in 0..3 {
            let loans: Vec<_> = (0..8).map(|_| offer(ledger).unwrap()).collect();
            for loan in &loans {
                let entry = loan.entry();
                assert!(numbers.insert(entry.number), "{entry:?}, round {again}");
                assert!(ledger.withdraw(entry));
            }
        }
    }
}

#[test]
fn with_its_borrower_gone_everything_is_back() {
    let (ledger, debts) = both();
    let (one, two) = (offer(&ledger).unwrap(), offer(&ledger).unwrap());
    assert!(debts.take(one.entry()));
    ledger.close();
    assert!(one.is_back() && two.is_back() && !ledger.is_out());
}

#[test]
fn what_is_sent_back_is_pinned_until_its_lender_has_read_it() {
    let (ledger, debts) = both();
    let loan = offer(&ledger).unwrap();
    let entry = loan.entry();
    let id = loan.lent.segment.id();
    assert!(ledger.pin(entry, id, 4096..5000).is_none(), "not taken");
    assert!(debts.take(entry));
    let reversed = Range {
        start: 9000,
        end: 8000,
    };
    for outside in [0..10, 4095..5000, 8000..8193, reversed] {
        assert!(ledger.pin(entry, id, outside).is_none());
    }
    let guessed = Entry {
        number: entry.number ^ 1,
        ..entry
    };
    assert!(ledger.pin(guessed, id, 4096..5000).is_none());
    assert!(ledger.pin(entry, [0; 16], 4096..5000).is_none());
    let pin = |range| ledger.pin(entry, id, range);
    let (one, two) = (pin(4096..5000), pin(4096..8192));
    assert_eq!(one.as_ref().unwrap().bytes(), Some(&[0; 904][..]));
    debts.give_back(entry);
    assert!(!loan.is_back(), "it is read here");
    drop(one);
    assert!(!loan.is_back());
    drop(two);
    assert!(loan.is_back());
    // A borrower that claims to have it still.
    store(&debts.0, entry.slot, entry.as_word(TAKEN));
    assert!(pin(4096..5000).is_none() && loan.lent.end());
    let old = Entry {
        generation: 0,
        ..entry
    };
    assert!(ledger.pin(old, id, 4096..5000).is_none());
}

#[test]
fn memory_of_another_size_is_no_ledger() {
    let fd = memfd::create(c"short", 4096, false).unwrap();
    memfd::seal(&fd, FIXED).unwrap();
    assert!(Debts::map(fd.as_fd()).unwrap_err().contains("4096 bytes"));
    let wild = Entry {
        slot: SLOTS,
        generation: 4,
        number: 0,
    };
    assert!(
        !Debts::is_entry(wild)
            && !Debts::is_entry(Entry {
                slot: 0,
                generation: 5,
                number: 0
            })
    );
}

#[test]
fn what_was_sent_back_is_its_lenders_when_it_is_there() {
    let (ledger, debts) = both();
    let loan = offer(&ledger).unwrap();
    let entry = loan.entry();
    let id = loan.lent.segment.id();
    assert!(debts.take(entry) && !debts.is_returned(entry));
    let pinned = ledger.pin(entry, id, 4096..5000).unwrap();
    assert!(
        !pinned.is_returned() && pinned.len() == 904,
        "its borrower has it"
    );
    drop(pinned);
    debts.send_back(entry);
    assert!(ledger.is_out() && !loan.is_back(), "it is on its way");
    assert!(debts.is_returned(entry));
    let pinned = ledger.pin(entry, id, 4096..5000).unwrap();
    assert!(pinned.is_returned() && !ledger.is_out());
    assert!(!debts.is_returned(entry) && !debts.keep(entry), "it came");
    assert!(!loan.is_back(), "it is read here");
    drop(pinned);
    assert!(loan.is_back());
    // A sender that was not told changes nothing about the next loan.
    drop(loan);
    let next = offer(&ledger).unwrap();
    assert_eq!(next.entry().slot, entry.slot);
    debts.give_up(entry);
    assert!(debts.take(next.entry()));
    debts.send_back(next.entry());
    assert!(
        debts.keep(next.entry()) && ledger.is_out(),
        "it is taken, as before"
    );
    debts.send_back(next.entry());
    debts.give_up(next.entry());
    assert!(next.is_back(), "its message did not come");
    let id = next.lent.segment.id();
    assert!(ledger.pin(next.entry(), id, 4096..5000).is_none());
}

#[test]
fn an_offer_is_recalled_once_and_only_before_it_is_taken() {
    let (ledger, debts) = both();
    let loan = offer(&ledger).unwrap();
    let pinned = ledger.recall(loan.open(), 4096..5000).unwrap();
    assert!(!debts.take(loan.entry()) && !loan.is_back());
    drop(pinned);
    assert!(loan.is_back());
    assert!(ledger.recall(loan.open(), 4096..5000).is_none());
    let loan = offer(&ledger).unwrap();
    assert!(ledger.recall(loan.open(), 0..5000).is_none(), "outside");
    assert!(debts.take(loan.entry()));
    assert!(ledger.recall(loan.open(), 4096..5000).is_none());
    debts.give_back(loan.entry());
    assert!(loan.is_back());
}

#[test]
fn a_forked_child_forgets_a_loan_whoever_has_the_lock() {
    let (ledger, debts) = both();
    let mut loan = offer(&ledger);
    let held = lock(&ledger.slots);
    assert!(crate::sys::fork::tests::a_child_drops(&mut loan));
    drop(held);
    assert!(debts.take(loan.unwrap().entry()), "it is still offered");
}
