//! Wakes a connection after a while even if nothing arrives, so that it can do postponed work.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::wakers::Wakers;
use crate::sync::{AtomicBool, Ordering};

/// The alarm of one connection. It has a task while it is set, and costs nothing otherwise.
#[derive(Debug)]
pub(super) struct Alarm {
    runtime: Handle,
    wakers: Arc<Wakers>,
    rung: Arc<AtomicBool>,
    task: Option<AbortHandle>,
}

impl Alarm {
    /// An alarm that wakes `wakers`.
    ///
    /// # Panics
    /// Outside of a runtime; there, the socket could not be watched either.
    pub(super) fn new(wakers: Arc<Wakers>) -> Self {
        Self {
            runtime: Handle::current(),
            wakers,
            rung: Arc::default(),
            task: None,
        }
    }

    /// Rings after so long, unless it is set already. Returns whether it was newly set.
    pub(super) fn set(&mut self, after: Duration) -> bool {
        if self.task.is_some() {
            return false;
        }
        let (rung, wakers) = (self.rung.clone(), Arc::downgrade(&self.wakers));
        let task = self.runtime.spawn(async move {
            tokio::time::sleep(after).await;
            // Stored before the wake: a task that starts waiting meanwhile checks it afterwards.
            rung.store(true, Ordering::Release);
            if let Some(wakers) = wakers.upgrade() {
                wakers.wake_both();
            }
        });
        self.task = Some(task.abort_handle());
        true
    }

    /// Whether it has rung.
    pub(super) fn has_rung(&self) -> bool {
        self.task.is_some() && self.rung.load(Ordering::Acquire)
    }

    /// It has rung, and may be set again.
    pub(super) fn stop(&mut self) {
        self.rung.store(false, Ordering::Relaxed);
        self.task = None;
    }

    /// Cancels the alarm. Does nothing in a forked child, whose runtime belongs to the parent.
    pub(super) fn cancel(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}
