//! The task of a pipe: drives it when nobody awaits an operation, keeps its clock, and sees its end through.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::task::unconstrained;
use tokio::time::Sleep;

use super::core::Core;
use super::driver::runtime::RuntimeGuard;
use super::driver::tuning::TICK;
use super::heartbeat;
use super::shared::{Shared, ShutdownState};
use crate::ambient;
use crate::sync::{Arc, lock};

pub(crate) fn spawn_background(core: &Arc<Core>) {
    core.runtime.spawn(Background::new(core.clone()));
    if let Err(error) = heartbeat::watch(core) {
        tracing::warn!(
            pipe = %core.name, %error,
            "whenever its runtime is blocked for `Timeouts::silence`, the peer will give it up"
        );
    }
}

struct Background {
    core: Arc<Core>,
    sleep: Pin<Box<Sleep>>,
    wake_at: Option<Instant>,
    /// That was set no later than for the next tick.
    ticks: bool,
    /// It is the one that polls the connection.
    polls: bool,
    /// A poll of it has begun and has not returned.
    is_polled: bool,
}

impl Future for Background {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.is_polled = true;
        let polled = self.run(cx);
        self.is_polled = false;
        polled
    }
}

impl Background {
    fn new(core: Arc<Core>) -> Self {
        Self {
            core,
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            wake_at: None,
            ticks: false,
            polls: false,
            is_polled: false,
        }
    }

    fn run(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let core = &self.core;
        let _home = RuntimeGuard::of(Some(core.id));
        let driver = &core.driver;
        if driver.drive_in_background(core, &mut self.polls, cx.waker()) {
            // Timeouts can wait for the next poll.
            return Poll::Pending;
        }
        if self.is_timer_right() {
            return Poll::Pending;
        }
        loop {
            let now = ambient::now();
            // The timer has expired, which this poll may be for.
            if self.wake_at.take_if(|set| *set <= now).is_some() && driver.wakers.is_ticking() {
                driver.tick(core);
            }
            let (is_over, closed, next) = {
                let shared = lock(&core.shared);
                (
                    shared.is_over(),
                    shared.closed_in_full(),
                    shared.next_timeout(),
                )
            };
            if is_over {
                return self.poll_shutdown(cx);
            }
            if let Some(closed) = closed {
                core.fail(closed);
                continue;
            }
            if next.is_some_and(|next| next <= now) {
                if driver.has_yielded() {
                    // Bytes that have come by now count before a timeout is judged.
                    driver.drive_now(core);
                }
                core.handle_timeout(now);
                core.drive();
                continue;
            }
            self.ticks = driver.wakers.is_ticking();
            let tick = self.ticks.then(|| now + TICK);
            let Some(wake_at) = [tick, next].into_iter().flatten().min() else {
                return Poll::Pending;
            };
            // A sleep that ends early is cheaper than one that is set anew with each message.
            if self.wake_at.is_none_or(|set| set > wake_at) {
                self.wake_at = Some(wake_at);
                self.sleep.as_mut().reset(wake_at.into());
            }
            // Set it also where this poll has no budget left: the next one may find that it is right.
            let timer = pin!(unconstrained(self.sleep.as_mut()));
            if timer.poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.wake_at = None;
            if driver.wakers.is_ticking() {
                driver.tick(core);
            }
        }
    }

    /// Whether the timer is set for what is due next, and has not expired. Costs no look at the clock, which most polls do not need.
    fn is_timer_right(&self) -> bool {
        let Some(wake_at) = self.wake_at else {
            return false;
        };
        if self.sleep.is_elapsed() || (self.core.driver.wakers.is_ticking() && !self.ticks) {
            return false;
        }
        let shared = lock(&self.core.shared);
        let is_due = || shared.next_timeout().is_some_and(|next| next < wake_at);
        !shared.is_over() && shared.closed_in_full().is_none() && !is_due()
    }

    /// Waits until the connection of the ended pipe has said goodbye, or its time is up: another thread may be held up with the connection.
    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            self.core.drive();
            let shutdown = lock(&self.core.shared).shutdown;
            let until = match shutdown {
                ShutdownState::Until(until) if until > ambient::now() => until,
                ShutdownState::Until(_) | ShutdownState::None => {
                    self.core.update(Shared::shutdown_done);
                    continue;
                }
                ShutdownState::Done => return Poll::Ready(()),
            };
            self.sleep.as_mut().reset(until.into());
            if self.sleep.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

/// The task has finished or panicked, or its runtime has shut down, with its timers and sockets.
impl Drop for Background {
    fn drop(&mut self) {
        if self.core.is_inherited() {
            // The pipe is the parent's: neither its locks nor its connection are touched, and the connection is not dropped either.
            std::mem::forget(self.core.clone());
            return;
        }
        // What has panicked may panic again, which would end the process here.
        if catch_unwind(AssertUnwindSafe(|| self.end())).is_err() {
            tracing::warn!(pipe = %self.core.name, "its connection or a channel panicked over its end");
        }
    }
}

impl Background {
    /// Ends the pipe, unless it has ended: nobody drives it any more when no operation does.
    fn end(&self) {
        let core = &self.core;
        core.driver.wakers.clear_background();
        if !lock(&core.shared).is_over() {
            core.fail(core.lost(match self.is_polled {
                true => "its task panicked: mend the connection or channel that the panic's message names",
                false => "the tokio runtime that it was made on has shut down",
            }));
        }
        // Nobody keeps the goodbye's deadline any more.
        core.update(Shared::shutdown_done);
        // Also for a pipe that had ended before: a thread in its last moments may have left the last call of the handler to this task.
        core.drive();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::task::coop::poll_proceed;

    use super::*;
    use crate::Message;
    use crate::pipe::tests::{Woken, memory_pair, soon};

    /// Both ends have worked, and one waits for what never comes: after a few checks nobody checks any more.
    #[tokio::test]
    async fn a_pipe_on_which_somebody_waits_for_ever_sleeps() {
        let (client, server) = memory_pair().await;
        client.write(Message::new("one")).await.unwrap();
        server.read().await.unwrap();
        let waiting = tokio::spawn({
            let server = server.clone();
            async move { server.read().await }
        });
        let ticks =
            || server.core().driver.wakers.is_ticking() || client.core().driver.wakers.is_ticking();
        soon(async {
            while ticks() || waiting.is_finished() {
                tokio::time::sleep(TICK).await;
            }
        })
        .await;
        client.write(Message::new("another")).await.unwrap();
        waiting.await.unwrap().unwrap();
    }

    /// A task may have done so much in one go that tokio lets its timers and channels wait: this one has to be set all the same.
    #[tokio::test]
    async fn its_timer_is_set_also_behind_a_handler_that_has_done_much() {
        let (client, _server) = memory_pair().await;
        let core = client.core();
        let mut task = Background::new(core.clone());
        let (woken, waker) = Woken::new();
        core.driver.wakers.keep_ticking();
        let mut poll = || Pin::new(&mut task).poll(&mut Context::from_waker(&waker));
        let before = poll_fn(|cx| {
            while let Poll::Ready(budget) = poll_proceed(cx) {
                budget.made_progress();
            }
            assert!(poll().is_pending());
            Poll::Ready(woken.count())
        })
        .await;
        tokio::task::yield_now().await;
        assert!(poll().is_pending());
        let before = woken.count().max(before);
        tokio::time::sleep(3 * TICK).await;
        assert!(woken.count() > before, "it has no timer");
    }
}
