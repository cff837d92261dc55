//! Who has what of whom: one word for each loan, on a page that two processes share.
//!
//! The lender writes OFFERED; the borrower takes the offer by making it TAKEN, and gives it back by making it IDLE. An offer that is not
//! taken can be withdrawn. Offer, take and withdrawal are compare-and-swap on the same word, so that exactly one of the two wins, whatever
//! became of the messages between them. Giving back is one store, without a system call.
//!
//! A borrower that sends back what it has, and reads nothing of it any more, makes it RETURNED; the lender makes that IDLE when
//! the message is there. So none of them has to tell the other.
//!
//! Invariant: a slot is lent anew only when its word is IDLE, with the next generation: a late word about an earlier loan
//! changes nothing. A borrower that breaks this harms its own loans; the lender's memory stays what it is.
//!
//! What a borrower sends back to its lender is the lender's own memory. It is pinned there, and its loan is not back before the pins are
//! gone, whatever its word says.
//!
//! [`loans`] is all of that, apart from where the words lie; [`mapped`] puts them into a mapping. `tensorpipe-loom` runs the
//! first, with the memory that is lent, in every order of both processes' steps.

mod loans;
mod mapped;

pub(crate) use loans::{Entry, Open};

/// How many loans one process can have of another at once.
pub(crate) const LOANS: u32 = <mapped::Made as loans::LedgerWords>::SLOTS;

/// The lender's side, for one borrower.
pub(crate) type Ledger = loans::Ledger<mapped::Made>;
/// Something that is lent or offered.
pub(crate) type Loan = loans::Loan<mapped::Made>;
/// Memory that is lent, and was sent back by its borrower.
pub(crate) type Pinned = loans::Pinned;
/// The borrower's side.
pub(crate) type Debts = loans::Debts<mapped::Words>;
