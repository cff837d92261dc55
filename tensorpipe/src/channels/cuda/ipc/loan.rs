//! A loan as a fence: lent memory counts as in use until the loan is back.

use std::any::Any;

use super::{Arc, CudaDevices, DeviceError};
use crate::device::Fence;
use crate::sys::ledger::Loan;
use crate::sys::segment::Segment;

/// See the module's documentation.
pub(super) struct LoanFence {
    lent: Arc<Lent>,
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
            lent: Arc::new(Lent {
                loan,
                _behind: behind,
            }),
            cuda: cuda.clone(),
        }
    }
}

impl Fence for LoanFence {
    fn reached(&self) -> Option<Result<(), DeviceError>> {
        self.lent.loan.is_back().then_some(Ok(()))
    }

    fn when_reached(&self, act: Box<dyn FnOnce() + Send>) {
        if self.lent.loan.is_back() {
            return act();
        }
        let lent = self.lent.clone();
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
