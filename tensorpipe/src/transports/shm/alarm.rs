//! Wakes a connection after a while, though nothing comes: what it keeps for later is then looked at.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::wakers::Wakers;
use crate::sync::{AtomicBool, Ordering};

/// A connection's. A task while it is set, and nothing else.
#[derive(Debug)]
pub(super) struct Alarm {
    runtime: Handle,
    wakers: Arc<Wakers>,
    rung: Arc<AtomicBool>,
    task: Option<AbortHandle>,
}

impl Alarm {
    /// Of whoever is woken by `wakers`.
    ///
    /// # Panics
    /// Outside of a runtime, in which its socket could not be watched, either.
    pub(super) fn new(wakers: Arc<Wakers>) -> Self {
        Self {
            runtime: Handle::current(),
            wakers,
            rung: Arc::default(),
            task: None,
        }
    }

    /// Rings after so long, if it is not set already. Returns whether it was not.
    pub(super) fn set(&mut self, after: Duration) -> bool {
        if self.task.is_some() {
            return false;
        }
        let (rung, wakers) = (self.rung.clone(), Arc::downgrade(&self.wakers));
        let task = self.runtime.spawn(async move {
            tokio::time::sleep(after).await;
            // Before the wake: who begins to wait meanwhile looks afterwards.
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

    /// Rings no more. Not in a forked child, whose runtime is another process's.
    pub(super) fn cancel(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}
