//! A ledger whose words are loom's.

use super::segment::Foreign;
use crate::sync::{Arc, AtomicU32, AtomicU64};

#[expect(dead_code, reason = "how a borrower is watched is not modelled")]
#[path = "../../../tensorpipe/src/sys/ledger/loans.rs"]
mod loans;

pub(crate) use loans::{Entry, Open};

pub(crate) type Ledger = loans::Ledger<Words>;
pub(crate) type Loan = loans::Loan<Words>;
pub(crate) type Debts = loans::Debts<Words>;
pub(crate) use loans::Pinned;

/// Few, so that each is used again.
pub(crate) const SLOTS: usize = <Words as loans::LedgerWords>::SLOTS as usize;

/// The page that both processes have mapped.
#[derive(Clone, Debug)]
pub(crate) struct Words {
    words: Arc<[AtomicU32; SLOTS]>,
    numbers: Arc<[AtomicU64; SLOTS]>,
}

impl loans::LedgerWords for Words {
    const SLOTS: u32 = 1;

    fn word(&self, slot: u32) -> Option<&AtomicU32> {
        Some(&self.words[slot as usize])
    }

    fn number(&self, slot: u32) -> Option<&AtomicU64> {
        Some(&self.numbers[slot as usize])
    }
}

/// Both sides of a new ledger.
pub(crate) fn both() -> (Arc<Ledger>, Debts) {
    let words = Words {
        words: Arc::new(std::array::from_fn(|_| AtomicU32::default())),
        numbers: Arc::new(std::array::from_fn(|_| AtomicU64::default())),
    };
    (Ledger::of(words.clone()), Debts::of(words))
}

impl Pinned {
    /// The lender's reading of what was sent back.
    pub(crate) fn foreign(&self) -> Foreign {
        Foreign::of(self.place().0)
    }
}
