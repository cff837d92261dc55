//! What the work of the connection and the operations of a pipe have in common: its state, who drives, and how it ends.
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
    /// Who drives; the connection is in it.
    pub(in crate::pipe) driver: Driver<Io>,
    pub(crate) counters: Counters,
    /// What waits for the handler, as `shared` knows it.
    pub(in crate::pipe) deliveries: Arc<Waiting>,
}

impl Common {
    /// For how many messages I/O pauses, so that they can be delivered. While another thread is at it already (a handler
    /// that takes long), it goes on, as far as [`Common::has_too_many_deliveries`] lets it.
    pub(super) fn pauses_for(&self) -> usize {
        match self.deliveries.count() {
            0 => 0,
            _ if self.driver.delivery.is_held() => 0,
            deliveries => deliveries,
        }
    }

    /// Whether so much waits for the handler that no more is read. Whoever gives it the rest wakes somebody to go on.
    pub(super) fn has_too_many_deliveries(&self) -> bool {
        let too_many = self.deliveries.is_too_much();
        if too_many {
            // It is this side that does not listen.
            lock(&self.shared).state.heard(ambient::now());
        }
        too_many
    }

    /// How a pipe ends that ends with `error`: so that everybody can tell that it has.
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
