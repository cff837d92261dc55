//! What both the connection's work and the operations of a pipe use: the shared state, the driver, and the errors that end it.
//!
//! Two locks: `shared`, held for short sections without system calls, and the driver's work ([`Io`]), taken only by trying. The table of
//! locks in ARCHITECTURE.md says more.

use super::Io;
use crate::ambient;
use crate::error::Error;
use crate::pipe::driver::Driver;
use crate::pipe::shared::{Shared, Waiting};
use crate::pipe::stats::Counters;
use crate::sync::{Arc, Mutex, lock};

/// See the module's documentation.
pub(crate) struct Common {
    pub(crate) name: Arc<str>,
    pub(crate) shared: Mutex<Shared>,
    /// The driver, which has the connection.
    pub(in crate::pipe) driver: Driver<Io>,
    pub(crate) counters: Counters,
    /// Counts of the queue for the handler, readable without the lock of `shared`.
    pub(in crate::pipe) deliveries: Arc<Waiting>,
}

impl Common {
    /// For how many messages I/O pauses, so that they can be delivered. While another thread delivers (to a slow handler), I/O goes on, as
    /// far as [`Common::has_too_many_deliveries`] lets it.
    pub(super) fn deliveries_due(&self) -> usize {
        match self.deliveries.count() {
            0 => 0,
            _ if self.driver.delivery.is_held() => 0,
            deliveries => deliveries,
        }
    }

    /// Whether so much waits for the handler that the pipe stops reading. The thread that calls the handler wakes a task when reading may
    /// go on.
    pub(super) fn has_too_many_deliveries(&self) -> bool {
        let too_many = self.deliveries.is_too_much();
        if too_many {
            // The peer is not silent: this side does not read.
            lock(&self.shared).state.heard(ambient::now());
        }
        too_many
    }

    /// The error that operations get when `error` ends the pipe: always one that says that the pipe has ended.
    pub(in crate::pipe) fn ending(&self, error: Error) -> Error {
        if error.ends_pipe() {
            return error;
        }
        Error::Ended {
            pipe: self.name.clone(),
            reason: error.to_string().into(),
        }
    }

    pub(crate) fn lost(&self, reason: impl Into<Arc<str>>) -> Error {
        Error::Lost {
            pipe: self.name.clone(),
            reason: reason.into(),
        }
    }
}
