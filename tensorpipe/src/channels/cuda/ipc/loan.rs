//! A loan as a fence: lent memory counts as in use until the loan is back.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

use super::{Arc, CudaDevices, DeviceError};
use crate::device::Fence;
use crate::sys::ledger::Loan;
use crate::sys::segment::Segment;

/// See the module's documentation.
pub(super) struct LoanFence {
    /// `None` once it was found to be back.
    lent: Mutex<Option<Arc<Lent>>>,
    cuda: CudaDevices,
}

struct Lent {
    loan: Loan,
    /// Further allocations that the loan does not know about, kept as long as the loan.
    _behind: Vec<Arc<Segment>>,
}

impl LoanFence {
    /// `behind`: further allocations that the lent memory spans.
    pub(super) fn new(loan: Loan, behind: Vec<Arc<Segment>>, cuda: &CudaDevices) -> Self {
        Self {
            lent: Mutex::new(Some(Arc::new(Lent {
                loan,
                _behind: behind,
            }))),
            cuda: cuda.clone(),
        }
    }

    /// The loan, if it is not back.
    fn lent(&self) -> Option<Arc<Lent>> {
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        let back = lent.take_if(|lent| lent.loan.is_back());
        let found = lent.clone();
        drop(lent);
        // Here, without the lock: it keeps its segments no longer.
        drop(back);
        found
    }
}

impl Fence for LoanFence {
    fn reached(&self) -> Option<Result<(), DeviceError>> {
        self.lent().is_none().then_some(Ok(()))
    }

    fn when_reached(&self, act: Box<dyn FnOnce() + Send>) {
        let Some(lent) = self.lent() else {
            return act();
        };
        // The other process sends no notification: it only stores into the ledger.
        self.cuda.watch(move || lent.loan.is_back(), act);
    }

    fn is_queued(&self) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
