//! Pipes that wait to be accepted.
//!
//! A future that accepts may be polled once and then kept without being polled. So it holds nothing across its await, and each pipe wakes
//! all that wait: whoever is polled next gets it.
//!
//! A pipe that ends while it waits may still hold messages for whoever accepts it, and its listener may not be accepting. So each keeps its
//! permit until it has left the queue.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::{Notify, Semaphore};

use crate::pipe::{Pipe, PipePermit};
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
    pipes: VecDeque<(Pipe, Option<PipePermit>)>,
    /// No more pipes come, or nobody accepts them.
    is_over: bool,
}

/// Where new pipes go. Dropping it ends the queue.
pub(crate) struct Arriving {
    queue: Arc<Queue>,
    permits: Arc<Semaphore>,
}

/// Where new pipes are accepted. Dropping it closes those that nobody has accepted.
pub(crate) struct Arrived(Arc<Queue>);

/// The two ends of a queue for a listener that may have so many pipes, accepted or not.
pub(crate) fn arrivals(pipes: usize) -> (Arriving, Arrived) {
    let queue = Arc::<Queue>::default();
    let arriving = Arriving {
        queue: queue.clone(),
        permits: Arc::new(Semaphore::new(pipes)),
    };
    (arriving, Arrived(queue))
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
    /// A permit for a new pipe. If there is none left, those go that have ended while they waited, and brought nothing.
    pub(super) fn permit(&self) -> Option<PipePermit> {
        let permit = || self.permits.clone().try_acquire_owned().ok();
        let permit = permit().or_else(|| {
            self.drop_ended();
            permit()
        });
        permit.map(Arc::new)
    }

    fn drop_ended(&self) {
        let ended: VecDeque<_> = {
            let pipes = &mut lock(&self.queue.state).pipes;
            let is_ended = |(pipe, _): &(Pipe, Option<PipePermit>)| pipe.has_ended_empty();
            let (ended, waiting) = std::mem::take(pipes).into_iter().partition(is_ended);
            *pipes = waiting;
            ended
        };
        drop(ended);
    }

    /// If nobody accepts any more, the pipe is dropped and closes.
    pub(super) fn push(&self, pipe: Pipe, permit: Option<PipePermit>) {
        let unwanted = {
            let mut state = lock(&self.queue.state);
            match state.is_over {
                true => Some((pipe, permit)),
                false => {
                    state.pipes.push_back((pipe, permit));
                    None
                }
            }
        };
        drop(unwanted);
        self.queue.changed.notify_waiters();
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        self.queue.end(true);
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
                    next => return next.map(|(pipe, _)| pipe),
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
