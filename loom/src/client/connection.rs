//! Stand-in for a connection to a replica, with only the methods that the set of replicas calls.

use crate::error::ConnectError;
use crate::sync::{Arc, AtomicBool, Ordering};

#[derive(Clone, Default)]
pub(crate) struct Connection {
    ended: Arc<AtomicBool>,
}

impl Connection {
    /// Ends the pipe. A call may notice before the replica's task does.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub(super) fn unavailable_reason(&self) -> Option<ConnectError> {
        let ended = self.ended.load(Ordering::Acquire);
        ended.then_some(ConnectError::ShuttingDown)
    }

    pub(super) fn calls_in_flight(&self) -> usize {
        0
    }

    pub(super) fn missed_in_a_row(&self) -> u32 {
        u32::MAX
    }

    pub(super) fn pipe(&self) -> &Self {
        self
    }

    pub(super) fn name(&self) -> &str {
        "pipe"
    }
}
