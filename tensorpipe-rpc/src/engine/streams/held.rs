//! The outcome of a call whose reply is a stream, kept while bytes of its items are on their way.
//!
//! One thread brings the outcome and another the last item. Each first does its part and then looks for the other's, so at least one
//! of them finds both; the lock lets one take the outcome.

use super::Outcome;
use super::inbox::Inbox;
use crate::lock::{Mutex, lock};

/// See the module's documentation.
#[derive(Default)]
pub(super) struct HeldOutcome {
    outcome: Mutex<Option<Outcome>>,
}

impl HeldOutcome {
    /// Keeps the outcome until all items are here. Gives it back if they are.
    pub(super) fn hold(&self, outcome: Outcome, inbox: &Inbox) -> Option<Outcome> {
        *lock(&self.outcome) = Some(outcome);
        self.release(inbox)
    }

    /// The outcome, once all items are here.
    pub(super) fn release(&self, inbox: &Inbox) -> Option<Outcome> {
        if inbox.is_incomplete() {
            return None;
        }
        self.take()
    }

    /// The outcome, whether or not items are still on their way.
    pub(super) fn take(&self) -> Option<Outcome> {
        lock(&self.outcome).take()
    }
}
