//! The bound of a wait at a rendezvous. It needs no timer until the wait begins.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tensorpipe::ambient;
use tokio::runtime::Handle;
use tokio::time::Sleep;

use crate::context::CallContext;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Bound {
    /// `None` if beyond any clock.
    at: Option<Instant>,
    pub(super) after: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    runtime: Handle,
}

impl Bound {
    /// A bound that begins now. Within a handler it is at most the time that the call has left.
    pub(super) fn new(after: Duration, runtime: &Handle) -> Self {
        let outer = CallContext::current().and_then(|call| call.time_left());
        let after = outer.map_or(after, |left| left.min(after));
        Self {
            at: ambient::now().checked_add(after),
            after,
            timer: None,
            runtime: runtime.clone(),
        }
    }

    /// The time that is left.
    pub(super) fn left(&self) -> Duration {
        match self.at {
            Some(at) => at.saturating_duration_since(ambient::now()),
            None => self.after,
        }
    }

    /// Ready when time is up.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(at) = self.at else {
            return Poll::Pending;
        };
        let runtime = &self.runtime;
        let timer = self.timer.get_or_insert_with(|| {
            // The wait may be polled on a thread without a runtime.
            let _runtime = runtime.enter();
            Box::pin(tokio::time::sleep_until(at.into()))
        });
        timer.as_mut().poll(cx)
    }
}
