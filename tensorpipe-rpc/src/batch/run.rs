//! One batch: from the tensors of its calls to the reply to each.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use tensorpipe::{Misuse, Tensor};

use super::batcher::{BatchFuture, Callers, Ending, Gathering};
use super::gathered::{Gathered, concatenate};
use crate::caught::caught;
use crate::codec::Reply;
use crate::context::CallContext;

/// A batch that is to be handled.
pub(super) struct Run {
    /// Ends the run, also one that its runtime drops.
    pub(super) ending: Ending,
    pub(super) calls: Vec<Gathering>,
    pub(super) callers: Arc<Callers>,
}

/// Runs the handler and answers everybody who still waits.
pub(super) async fn run(run: Run) {
    let Run {
        mut ending,
        calls,
        callers,
    } = run;
    let context = callers.context.clone();
    let rows = calls.iter().map(|call| call.rows);
    let gathered = Gathered::new(ending.method(), context.clone(), rows);
    let mut handle = None;
    let mut answers = Vec::with_capacity(calls.len());
    let mut tensors = Vec::with_capacity(calls.len());
    for call in calls {
        answers.push(call.answer);
        tensors.push(call.tensors);
        // Of the others only the tensors differ.
        handle.get_or_insert(call.handle);
    }
    let Some(handle) = handle else { return };
    let pool = context.pool().clone();
    let work: BatchFuture = Box::pin(async move {
        match columns(tensors, |column| concatenate(&pool, column)) {
            Ok(tensors) => handle(tensors, gathered).await,
            Err(misuse) => gathered.all(&Reply::overloaded(misuse.to_string())),
        }
    });
    tracing::trace!(
        method = ending.method(),
        calls = answers.len(),
        "a batch runs"
    );
    let begun = Instant::now();
    let replies = match to_end(&context, work).await {
        Ended::Cancelled => return,
        Ended::Replies(replies) => replies,
        Ended::Panicked(panic) => vec![Reply::panicked(panic); answers.len()],
    };
    ending.took = Some(begun.elapsed());
    // A place is free, for those who wait, before the answers are on their way.
    drop(ending);
    for (answer, reply) in answers.into_iter().zip(replies) {
        // Whoever has gone does not want it.
        let _ = answer.send(reply);
    }
}

/// From the tensors of each call to each tensor of all calls.
fn columns(
    calls: Vec<Vec<Tensor>>,
    join: impl Fn(Vec<Tensor>) -> Result<Tensor, Misuse>,
) -> Result<Vec<Tensor>, Misuse> {
    let width = calls.first().map_or(0, Vec::len);
    let mut columns: Vec<_> = (0..width)
        .map(|_| Vec::with_capacity(calls.len()))
        .collect();
    for tensors in calls {
        for (column, tensor) in columns.iter_mut().zip(tensors) {
            column.push(tensor);
        }
    }
    columns.into_iter().map(join).collect()
}

enum Ended {
    Replies(Vec<Reply>),
    Panicked(String),
    /// All callers have gone.
    Cancelled,
}

/// Polls the handler within its context until it ends or nobody waits for it any more.
async fn to_end(context: &CallContext, work: BatchFuture) -> Ended {
    let mut work = Some(Box::pin(context.clone().scope(work)));
    let ended = poll_fn(|cx| {
        if context.poll_cancelled(cx).is_ready() {
            return Poll::Ready(Ended::Cancelled);
        }
        let Some(work) = &mut work else {
            return Poll::Ready(Ended::Cancelled);
        };
        match caught(|| work.as_mut().poll(cx)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(replies)) => Poll::Ready(Ended::Replies(replies)),
            Err(panic) => Poll::Ready(Ended::Panicked(panic)),
        }
    });
    let ended = ended.await;
    if let Err(panic) = caught(|| drop(work.take())) {
        tracing::warn!(panic, "a handler panicked while it was dropped");
    }
    ended
}
