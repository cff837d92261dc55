//! Who has borrowed what: one word for each loan, on a page that two processes share.
//!
//! The lender writes OFFERED. The borrower takes the offer by changing it to TAKEN, and gives it back by writing IDLE. The lender can
//! withdraw an offer that is not taken. Take and withdrawal are compare-and-swap on the same word, so exactly one of the two wins, whatever
//! became of the messages between them. Giving back is one store, without a system call.
//!
//! A borrower that sends a loan back, and reads nothing of it any more, writes RETURNED. The lender changes that to IDLE when the message
//! arrives. So neither has to tell the other.
//!
//! Invariant: a slot is lent anew only when its word is IDLE, and with the next generation. So a late write about an earlier loan changes
//! nothing. A borrower that breaks the protocol harms its own loans; the lender's memory stays intact.
//!
//! Memory that a borrower sends back is the lender's own. It is pinned while the lender reads it, and its loan does not count as back
//! before the pins are gone, whatever its word says.
//!
//! [`loans`] contains the protocol, independent of where the words lie; [`mapped`] puts them into a mapping. `tensorpipe-loom` runs
//! [`loans`], with the memory that is lent, in every order of both processes' steps.

mod loans;
mod mapped;

pub(crate) use loans::{Entry, Open};

/// How many loans one process can have of another at once.
pub(crate) const LOANS: u32 = <mapped::Made as loans::LedgerWords>::SLOTS;

/// The lender's side, for one borrower.
pub(crate) type Ledger = loans::Ledger<mapped::Made>;
/// Something that is lent or offered.
pub(crate) type Loan = loans::Loan<mapped::Made>;
/// Lent memory that its borrower has sent back.
pub(crate) type Pinned = loans::Pinned;
/// The borrower's side.
pub(crate) type Debts = loans::Debts<mapped::Words>;
