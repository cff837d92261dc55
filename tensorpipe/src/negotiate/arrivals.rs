//! Pipes that wait to be accepted.
//!
//! A future that accepts may be polled once and then kept without being polled. So it holds nothing across its await, and each pipe wakes
//! all that wait: whoever is polled next gets it.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::pipe::Pipe;
use crate::sync::{Mutex, lock};
use crate::sys::fork::Owner;

#[derive(Default)]
struct Queue {
    owner: Owner,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    pipes: VecDeque<Pipe>,
    /// No more pipes come, or nobody accepts them.
    is_over: bool,
}

/// Where new pipes go. Dropping it ends the queue.
pub(crate) struct Arriving(Arc<Queue>);

/// Where new pipes are accepted. Dropping it closes those that nobody has accepted.
pub(crate) struct Arrived(Arc<Queue>);

/// The two ends of a queue.
pub(crate) fn arrivals() -> (Arriving, Arrived) {
    let queue = Arc::<Queue>::default();
    (Arriving(queue.clone()), Arrived(queue))
}

impl Queue {
    /// Ends the queue, and drops the pipes in it if nobody accepts them. Not in a forked child, where one of its parent's threads may have
    /// had the lock.
    fn end(&self, is_wanted: bool) {
        if self.owner.is_other_process() {
            return;
        }
        let unwanted = {
            let mut state = lock(&self.state);
            state.is_over = true;
            match is_wanted {
                true => VecDeque::new(),
                false => std::mem::take(&mut state.pipes),
            }
        };
        drop(unwanted);
        self.changed.notify_waiters();
    }
}

impl Arriving {
    /// If nobody accepts any more, the pipe is dropped and closes.
    pub(super) fn push(&self, pipe: Pipe) {
        let unwanted = {
            let mut state = lock(&self.0.state);
            match state.is_over {
                true => Some(pipe),
                false => {
                    state.pipes.push_back(pipe);
                    None
                }
            }
        };
        drop(unwanted);
        self.0.changed.notify_waiters();
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.0.end(true);
    }
}

impl Arrived {
    /// The next pipe; `None` after the last one. Cancel safe.
    pub(crate) async fn next(&self) -> Option<Pipe> {
        loop {
            // Registered before the look, so that no pipe is missed.
            let changed = self.0.changed.notified();
            {
                let mut state = lock(&self.0.state);
                match state.pipes.pop_front() {
                    None if !state.is_over => {}
                    next => return next,
                }
            }
            changed.await;
        }
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        self.0.end(false);
    }
}
