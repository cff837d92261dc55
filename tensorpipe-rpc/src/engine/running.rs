//! A handler on a task of its own, and how long handlers take.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tensorpipe::ambient;
use tensorpipe::engine::Polled;
use tokio::time::Sleep;

use super::Engine;
use super::admission::Admitted;
use crate::caught::{catch_panic_poll, drop_quietly};
use crate::service::HandlerFuture;

/// A method whose first poll takes longer than this runs on tasks of its own. For empty methods all between 5 and 80 µs measure the same.
const SHORT: Duration = Duration::from_micros(20);

/// The name of a handler in messages about panics.
pub(super) const A_HANDLER: &str = "a handler";

/// How long the polls of a method take.
pub(crate) struct Speed {
    /// The names under which it is polled.
    pub(super) watched: Polled,
    /// The running mean of the first polls, in nanoseconds. `u32::MAX` before the first.
    first: AtomicU32,
}

impl Speed {
    pub(crate) fn new(service: &'static str, method: &'static str) -> Self {
        Self {
            watched: Polled::named(service, method),
            first: AtomicU32::new(u32::MAX),
        }
    }

    pub(super) fn is_short(&self) -> bool {
        self.first.load(Ordering::Relaxed) < SHORT.as_nanos() as u32
    }

    /// Adds the time of a first poll. One long poll outweighs many short ones, because it held up a connection.
    pub(super) fn measured(&self, took: Duration) {
        let took = u32::try_from(took.as_nanos())
            .unwrap_or(u32::MAX - 1)
            .min(u32::MAX - 1);
        let mean = match self.first.load(Ordering::Relaxed) {
            u32::MAX => took,
            mean => mean - mean / 8 + took / 8,
        };
        self.first.store(mean, Ordering::Relaxed);
    }
}

/// A handler that was not ready at once, or takes long.
pub(super) struct Running {
    engine: Arc<Engine>,
    admitted: Admitted,
    handler: Option<HandlerFuture>,
    deadline: Option<Pin<Box<Sleep>>>,
    speed: Arc<Speed>,
    first: bool,
    answered: bool,
}

impl Running {
    pub(super) fn new(
        engine: Arc<Engine>,
        admitted: Admitted,
        handler: HandlerFuture,
        speed: Arc<Speed>,
    ) -> Self {
        let deadline = admitted
            .context
            .deadline()
            .map(|at| Box::pin(tokio::time::sleep_until(at.into())));
        Self {
            engine,
            admitted,
            handler: Some(handler),
            deadline,
            speed,
            first: true,
            answered: false,
        }
    }

    fn drop_handler(&mut self) {
        let handler = self.handler.take();
        self.speed
            .watched
            .watch(|| drop_quietly(handler, A_HANDLER));
    }
}

impl Future for Running {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.admitted.context.inner.cancel.poll(cx).is_ready() {
            // Nobody waits for a reply. Dropping the handler ends it at its await.
            this.drop_handler();
            this.engine.given_up(&this.admitted);
            return Poll::Ready(());
        }
        let Some(handler) = &mut this.handler else {
            return Poll::Ready(());
        };
        let begun = ambient::now();
        let poll = || this.speed.watched.watch(|| handler.as_mut().poll(cx));
        let polled = catch_panic_poll(poll);
        let took = ambient::since(begun);
        if std::mem::take(&mut this.first) {
            this.speed.measured(took);
        }
        this.speed.watched.took(took);
        if let Poll::Ready(ended) = polled {
            this.drop_handler();
            match ended {
                // Blocking work stops half way when it sees that the call is cancelled: that is no result.
                Ok(_) if this.admitted.context.inner.cancel.is_set() => {
                    this.engine.given_up(&this.admitted);
                }
                Ok(_) if this.admitted.context.is_cancelled() => {
                    this.engine.reply_deadline_exceeded(&this.admitted);
                }
                Ok(reply) => this.engine.reply(&this.admitted, reply),
                Err(panic) => this.engine.reply_panic(&this.admitted, panic),
            }
            this.answered = true;
            return Poll::Ready(());
        }
        let up = this
            .deadline
            .as_mut()
            .is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready());
        if up {
            this.admitted.context.inner.cancel.set();
            this.drop_handler();
            this.engine.reply_deadline_exceeded(&this.admitted);
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.answered {
            // Given up, perhaps because its runtime shuts down: work that the handler spawned may stop, too.
            self.admitted.context.inner.cancel.set();
            self.drop_handler();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_is_short_once_measured_and_long_after_one_slow_poll() {
        let speed = Speed::new("Store", "push");
        assert!(!speed.is_short(), "unknown: not on the connection's task");
        speed.measured(Duration::from_micros(2));
        assert!(speed.is_short());
        speed.measured(Duration::from_millis(10));
        assert!(!speed.is_short());
        (0..100).for_each(|_| speed.measured(Duration::from_micros(2)));
        assert!(speed.is_short());
    }
}
