//! Notices a story that waits for blocking work for ever. While tokio knows that one of its blocking threads works, the virtual clock stands
//! still: work that waits for time, or for a peer that does, never ends.

use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::sync::Notify;

use crate::ambient;
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
    /// The virtual time at which it began to, in nanoseconds. While the clock stands still the thread wakes for each timer in vain.
    clock: Arc<AtomicU64>,
    barks: Arc<Notify>,
}

impl Watchdog {
    /// For the runtime that `builder` is to build.
    pub(super) fn new(builder: &mut Builder) -> Self {
        let (turns, clock) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (sleeps, wakes, at) = (turns.clone(), turns.clone(), clock.clone());
        let begun = OnceLock::new();
        builder.on_thread_park(move || {
            let now = ambient::now();
            let time = now - *begun.get_or_init(|| now);
            at.store(time.as_nanos() as u64, Ordering::Relaxed);
            sleeps.fetch_add(1, Ordering::Relaxed);
        });
        builder.on_thread_unpark(move || _ = wakes.fetch_add(1, Ordering::Relaxed));
        Self {
            turns,
            clock,
            barks: Arc::default(),
        }
    }

    /// Watches from another thread, if the system has one for it, until the returned guard is dropped.
    pub(super) fn watch(&self, bound: Bound) -> Sender<()> {
        let (guard, over) = mpsc::channel();
        let (turns, clock) = (self.turns.clone(), self.clock.clone());
        let barks = self.barks.clone();
        let watch = move || {
            let (mut before, mut steps) = (0, 0);
            while over.recv_timeout(bound.step) == Err(RecvTimeoutError::Timeout) {
                let now = clock.load(Ordering::Relaxed);
                let sleeps = turns.load(Ordering::Relaxed) % 2 == 1;
                steps = if sleeps && now == before {
                    steps + 1
                } else {
                    0
                };
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
