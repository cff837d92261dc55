//! Notices a story that waits for blocking work for ever. While tokio knows that one of its blocking threads works, the virtual clock stands
//! still: work that waits for time, or for a peer that does, never ends.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::Notify;

use crate::sync::{Arc, AtomicU64, Ordering};

/// How long a runtime's thread may sleep, in real time. It is counted in steps, so that time in which the process is stopped does not count.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) step: Duration,
    pub(super) steps: u32,
}

/// Under a virtual clock, only blocking work lets the runtime's thread sleep: otherwise the clock moves on to the next timer.
pub(super) struct Watchdog {
    /// Odd while the runtime's thread sleeps.
    turns: Arc<AtomicU64>,
    barks: Arc<Notify>,
}

impl Watchdog {
    /// For the runtime that `builder` is to build.
    pub(super) fn new(builder: &mut Builder) -> Self {
        let turns = Arc::new(AtomicU64::new(0));
        let (sleeps, wakes) = (turns.clone(), turns.clone());
        builder.on_thread_park(move || _ = sleeps.fetch_add(1, Ordering::Relaxed));
        builder.on_thread_unpark(move || _ = wakes.fetch_add(1, Ordering::Relaxed));
        Self {
            turns,
            barks: Arc::default(),
        }
    }

    /// Watches from another thread, if the system has one for it, until the returned guard is dropped.
    pub(super) fn watch(&self, bound: Bound) -> Sender<()> {
        let (guard, over) = mpsc::channel();
        let (turns, barks) = (self.turns.clone(), self.barks.clone());
        let watch = move || {
            let (mut before, mut steps) = (0, 0);
            while over.recv_timeout(bound.step) == Err(RecvTimeoutError::Timeout) {
                let now = turns.load(Ordering::Relaxed);
                let has_slept = now == before && now % 2 == 1;
                steps = if has_slept { steps + 1 } else { 0 };
                before = now;
                if steps == bound.steps {
                    return barks.notify_one();
                }
            }
        };
        let _ = std::thread::Builder::new().spawn(watch);
        guard
    }

    /// Waits until the runtime's thread has slept for too long.
    pub(super) async fn barks(&self) {
        self.barks.notified().await;
    }
}
