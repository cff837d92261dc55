//! The bound of a wait at a rendezvous. It needs no timer until the wait begins.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tensorpipe::ambient;
use tokio::runtime::Handle;

use crate::context::CallContext;
use crate::timer::Sleep;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Bound {
    sleep: Sleep,
    pub(super) after: Duration,
}

impl Bound {
    /// A bound that begins now. Within a handler it is at most the time that the call has left.
    pub(super) fn new(after: Duration, runtime: &Handle) -> Self {
        let outer = CallContext::current().and_then(|call| call.time_left());
        let after = outer.map_or(after, |left| left.min(after));
        Self {
            sleep: Sleep::new(runtime, ambient::now().checked_add(after)),
            after,
        }
    }

    /// The same bound, for another task.
    pub(super) fn again(&self) -> Self {
        Self {
            sleep: self.sleep.again(),
            after: self.after,
        }
    }

    /// The time that is left.
    pub(super) fn left(&self) -> Duration {
        match self.sleep.until() {
            Some(until) => until.saturating_duration_since(ambient::now()),
            None => self.after,
        }
    }

    /// Ready when time is up.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.sleep).poll(cx)
    }

    /// Waits for `work`; `None` when time is up before.
    pub(super) async fn within<T>(self, work: impl Future<Output = T>) -> Option<T> {
        self.sleep.or(work).await
    }
}
