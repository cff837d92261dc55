//! Gathers the calls of one method: the queue, its timers, and the start of batches.
//!
//! It has no task of its own. Each waiting call has a timer for the moment when its batch should run. A call that arrives, fills a
//! batch, reaches its time, or ends a run also starts the batches that can run. So calls depend on no runtime but their own. When
//! the server of a call stops, no further calls come, so its batch is due at once.
//!
//! Invariant: each call is in the queue, or in a run, or has its answer. A dropped call leaves its place, and the last one to leave
//! a run cancels it.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tensorpipe::Tensor;
use tensorpipe::ambient;
use tensorpipe::engine::{Held, Polled};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::gathered::Gathered;
use super::key::BatchKey;
use super::queue::{BatchQueue, BatchSlot, Rules};
use super::run::{Run, run};
use super::stats::BatchStats;
use crate::caught::drop_quietly;
use crate::codec::Reply;
use crate::context::CallContext;
use crate::header::FailureCode;
use crate::lock::lock;

/// A batch being handled: one reply for each of its calls.
pub type BatchFuture = Pin<Box<dyn Future<Output = Vec<Reply>> + Send>>;

/// The call of the method, with the tensors of a batch.
pub(super) struct Handler {
    pub(super) run: Box<dyn FnMut(Vec<Tensor>, Gathered) -> BatchFuture + Send>,
    /// Whether it may run a second time, after a batch that failed.
    pub(super) again: bool,
    /// The call's part of the receive budget, until its batch runs.
    pub(super) held: Option<Held>,
}

impl Drop for Handler {
    /// Catches a panic of the caller's arguments. Otherwise it would unwind through other callers' calls.
    fn drop(&mut self) {
        let nothing = Box::new(|_, _| Box::pin(ready(Vec::new())) as BatchFuture);
        let run = std::mem::replace(&mut self.run, nothing);
        drop_quietly(run, "an argument of a batched call");
    }
}

/// A call that waits.
pub(super) struct BatchedCall {
    pub(super) tensors: Vec<Tensor>,
    pub(super) rows: u64,
    pub(super) context: CallContext,
    pub(super) answer: oneshot::Sender<Reply>,
    /// Holds this call's other arguments. A batch runs the handler of its first call; after a failure, each call may run its own.
    pub(super) handle: Handler,
}

/// Gathers the calls of one method.
pub(super) struct Batcher {
    pub(super) method: &'static str,
    /// The names under which a batch is polled.
    pub(super) watched: Polled,
    state: Mutex<State>,
}

struct State {
    queue: BatchQueue<Arc<BatchKey>, BatchedCall>,
    /// The run of each slot that is in one.
    in_run: FxHashMap<u64, Arc<Callers>>,
    stats: BatchStats,
}

/// The callers that still wait for a run.
pub(super) struct Callers {
    left: AtomicUsize,
    pub(super) context: CallContext,
}

impl fmt::Debug for Batcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher")
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

impl Batcher {
    pub(super) fn new(service: &'static str, method: &'static str, rules: Rules) -> Self {
        let state = State {
            queue: BatchQueue::new(rules),
            in_run: FxHashMap::default(),
            stats: BatchStats::default(),
        };
        Self {
            method,
            watched: Polled::named(service, method),
            state: Mutex::new(state),
        }
    }

    pub(super) fn stats(&self) -> BatchStats {
        let state = lock(&self.state);
        BatchStats {
            waiting: state.queue.waiting(),
            running: state.queue.running(),
            ..state.stats
        }
    }

    /// Adds a call, and returns a future of its answer. If `exclusive`, it shares its batch with no other.
    pub(super) fn join(
        self: &Arc<Self>,
        key: BatchKey,
        exclusive: bool,
        tensors: Vec<Tensor>,
        rows: u64,
        context: CallContext,
        handle: Handler,
    ) -> Waiting {
        let (answer, answered) = oneshot::channel();
        let deadline = context.deadline();
        let of = context.clone();
        let call = BatchedCall {
            tensors,
            rows,
            context,
            answer,
            handle,
        };
        let now = ambient::now();
        let slot = {
            let mut state = lock(&self.state);
            let queue = &mut state.queue;
            queue.join(now, Arc::new(key), rows, exclusive, deadline, call)
        };
        let waiting = Waiting {
            batcher: self.clone(),
            slot,
            of,
            answered,
            timer: None,
            is_due: false,
            is_over: false,
        };
        self.start(now);
        waiting
    }

    /// Starts the batches that are to run now.
    fn start(self: &Arc<Self>, now: Instant) {
        if !lock(&self.state).queue.start_dispatch(now) {
            return;
        }
        loop {
            let (batch, callers) = {
                let mut state = lock(&self.state);
                let Some(batch) = state.queue.next() else {
                    return;
                };
                let callers = Arc::new(Callers {
                    left: AtomicUsize::new(batch.len()),
                    context: context_of(&batch),
                });
                state.stats.runs += 1;
                for (slot, call) in &batch {
                    state.stats.calls += 1;
                    state.stats.rows = state.stats.rows.saturating_add(call.rows);
                    state.in_run.insert(*slot, callers.clone());
                }
                (batch, callers)
            };
            let slots = batch.iter().map(|(slot, _)| *slot).collect();
            let calls = batch.into_iter().map(|(_, mut call)| {
                call.handle.held = None;
                call
            });
            let calls = calls.collect();
            let ending = Ending {
                batcher: self.clone(),
                slots,
                took: None,
                reruns: 0,
            };
            let runtime = callers.context.inner.caller.runtime.clone();
            runtime.spawn(run(Run {
                ending,
                calls,
                callers,
            }));
        }
    }

    fn leave(&self, slot: u64) {
        let (call, callers) = {
            let mut state = lock(&self.state);
            (state.queue.leave(slot), state.in_run.remove(&slot))
        };
        // A call holds values of the user's, so drop it outside the lock.
        drop(call);
        if let Some(callers) = callers
            && callers.left.fetch_sub(1, Ordering::AcqRel) == 1
        {
            callers.context.inner.cancel.set();
        }
    }
}

/// The context of a batch: its first call's, with the latest deadline of all.
fn context_of(batch: &[(u64, BatchedCall)]) -> CallContext {
    let deadlines = batch.iter().map(|(_, call)| call.context.deadline());
    let latest = deadlines.reduce(|a, b| Some(a?.max(b?))).flatten();
    batch[0].1.context.of_batch(latest)
}

/// Ends a run when it is dropped, whether the run finished or not.
pub(super) struct Ending {
    batcher: Arc<Batcher>,
    slots: Vec<u64>,
    /// How long the handler took, if it ended.
    pub(super) took: Option<Duration>,
    /// Calls of the batch that have run once more, each alone.
    pub(super) reruns: u64,
}

impl Ending {
    pub(super) fn method(&self) -> &'static str {
        self.batcher.method
    }

    pub(super) fn watched(&self) -> Polled {
        self.batcher.watched
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.batcher.state);
            state.queue.ended(self.took);
            state.stats.reruns += self.reruns;
            for slot in &self.slots {
                state.in_run.remove(slot);
            }
        }
        self.batcher.start(ambient::now());
    }
}

/// A call that waits for its answer. Dropping it leaves the batch.
pub(super) struct Waiting {
    batcher: Arc<Batcher>,
    slot: BatchSlot,
    /// The context of this call.
    of: CallContext,
    answered: oneshot::Receiver<Reply>,
    timer: Option<Pin<Box<Sleep>>>,
    is_due: bool,
    is_over: bool,
}

impl Future for Waiting {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply> {
        let this = &mut *self;
        if let Poll::Ready(reply) = Pin::new(&mut this.answered).poll(cx) {
            this.is_over = true;
            let gone = || {
                Reply::failed(
                    FailureCode::Panicked,
                    "the runtime that ran its batch has ended".to_owned(),
                )
            };
            return Poll::Ready(reply.unwrap_or_else(|_| gone()));
        }
        if !this.is_due && this.of.server_stops() {
            this.is_due = true;
            this.timer = None;
            lock(&this.batcher.state).queue.flush(this.slot.number);
            this.batcher.start(ambient::now());
        }
        if !this.is_due {
            let due = this.slot.due;
            let new = || Box::pin(tokio::time::sleep_until(due.into()));
            let timer = this.timer.get_or_insert_with(new);
            if timer.as_mut().poll(cx).is_ready() {
                this.is_due = true;
                this.timer = None;
                this.batcher.start(ambient::now().max(due));
            }
        }
        Poll::Pending
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.is_over {
            self.batcher.leave(self.slot.number);
        }
    }
}
