//! The watcher of deadlines: one task for a whole connection.
//!
//! It checks them at `check_at` or before, which is never later than the first deadline in the tables.
//!
//! A thread of tokio's keeps the task that it has woken last to itself. Whoever makes a call wakes the watcher, and may block its thread
//! next: then no call of the connection would hear of its deadline. So something else is woken behind the watcher.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use tensorpipe::ResetCode;
use tensorpipe::ambient;
use tensorpipe::engine::EnginePipe;
use tokio::runtime::Handle;

use super::table::Calls;
use super::{CallSlot, Engine};
use crate::caught::ignore_panic;
use crate::error::CallError;

impl Calls {
    /// Fails calls whose time is up. One task for a whole connection: a timer for each call would cost more than the call.
    pub(crate) fn watch_deadlines(engine: &Arc<Engine>) {
        let runtime = engine.pipe.runtime().clone();
        let (calls, engine) = (engine.calls.clone(), Arc::downgrade(engine));
        runtime.spawn(async move {
            // Holds the engine only while it checks, so this task does not keep a connection open.
            while let Some(check_at) = check_deadlines(&engine) {
                let told = woken_anywhere(calls.earlier.notified());
                match check_at {
                    None => told.await,
                    Some(at) => drop(tokio::time::timeout_at(at.into(), told).await),
                }
            }
        });
    }

    /// The watcher of deadlines checks them at `at` or before.
    pub(super) fn check_by(&self, at: Option<Instant>) {
        let Some(at) = at else { return };
        let earlier = self.table().check_by(at);
        if earlier {
            self.earlier.notify_one();
        }
    }
}

/// As `work`, whose task any thread of its runtime may run once it is woken.
async fn woken_anywhere<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let poll = |cx: &mut Context<'_>| {
        let waker = Arc::new(Anywhere(cx.waker().clone())).into();
        work.as_mut().poll(&mut Context::from_waker(&waker))
    };
    poll_fn(poll).await
}

/// Wakes a task, then an empty one, which takes the place of the last.
struct Anywhere(Waker);

impl Wake for Anywhere {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
        if let Ok(here) = Handle::try_current() {
            here.spawn(async {});
        }
    }
}

/// Fails calls that are due. Returns when to check next, `Some(None)` if only when notified, `None` when the connection is gone.
fn check_deadlines(engine: &Weak<Engine>) -> Option<Option<Instant>> {
    let engine = engine.upgrade()?;
    let now = ambient::now();
    let next = engine.fail_due(now);
    let Some(received) = engine.give_up_receiving(now) else {
        return Some(next);
    };
    let mut table = engine.calls.table();
    table.check_by(received);
    Some(table.check_at)
}

impl Engine {
    /// Fails calls made here whose deadline has passed. Returns the next deadline.
    pub(super) fn fail_due(&self, now: Instant) -> Option<Instant> {
        let (due, next) = self.calls.take_due(now);
        for (slot, after) in due {
            ignore_panic(move || self.fail_late(&slot, after));
        }
        next
    }

    fn fail_late(&self, slot: &CallSlot, after: Duration) {
        let moving = self.is_moving(slot);
        // Counted before the caller learns of it.
        self.calls.missed_deadline(slot);
        slot.fail(CallError::late(after, moving));
        self.reset_call(slot, ResetCode::Deadline, "its deadline passed");
        if let Some(streams) = &slot.streams {
            self.discard_outcome(slot.id, streams.take_held());
        }
    }
}
