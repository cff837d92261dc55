//! Runs one batch: from the tensors of its calls to the reply to each.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tensorpipe::ambient;
use tensorpipe::engine::Polled;
use tensorpipe::{Device, Tensor};

use super::batcher::{BatchFuture, BatchedCall, Callers, Ending};
use super::gathered::{Gathered, concatenate};
use crate::caught::{catch_panic, catch_panic_poll, drop_quietly, ignore_panic};
use crate::codec::Reply;
use crate::context::CallContext;
use crate::header::FailureCode;

/// A batch that is to be handled.
pub(super) struct Run {
    /// Ends the run when it is dropped, even if the runtime drops the run.
    pub(super) ending: Ending,
    pub(super) calls: Vec<BatchedCall>,
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
    let mut calls = calls;
    // Calls that may run again alone keep their tensors. That copies handles, not bytes.
    let tensors = calls.iter_mut().map(|call| match call.handle.again {
        true => call.tensors.clone(),
        false => std::mem::take(&mut call.tensors),
    });
    let tensors = tensors.collect();
    // The first call's handler serves for all: calls of a batch differ only in their tensors.
    let Some(first) = calls.first_mut() else {
        return;
    };
    let joined = columns(tensors, &context).await;
    let made = catch_panic(|| match joined {
        Ok(tensors) => (first.handle.run)(tensors, gathered),
        Err(reason) => {
            let replies = gathered.all(&Reply::failed(FailureCode::Overloaded, reason));
            Box::pin(std::future::ready(replies)) as BatchFuture
        }
    });
    let (method, count) = (ending.method(), calls.len());
    ignore_panic(|| tracing::trace!(method, calls = count, "a batch runs"));
    let begun = ambient::now();
    for handler_trace in calls
        .iter()
        .filter_map(|call| call.context.inner.handler_trace.as_ref())
    {
        handler_trace.record_start(begun);
    }
    let ended = match made {
        Ok(work) => to_end(&context, ending.watched(), work).await,
        Err(panic) => Some(Err(panic)),
    };
    let Some(ended) = ended else { return };
    let mut replies = ended
        .unwrap_or_else(|panic| vec![Reply::failed(FailureCode::Panicked, panic); calls.len()]);
    ending.took = Some(ambient::since(begun));
    let failed = replies.first().is_some_and(Reply::is_of_the_method);
    if failed && calls.len() > 1 {
        for (call, reply) in calls.iter_mut().zip(&mut replies) {
            // One of the calls may be at fault: run each alone, so that the others do not fail with it.
            if call.handle.again && !call.answer.is_closed() {
                ending.reruns += 1;
                if let Some(own) = run_single(&context, &ending, call).await {
                    *reply = own;
                }
            }
        }
    }
    // End the run before the answers are sent, so that waiting calls find its place free.
    drop(ending);
    let mut handlers = Vec::with_capacity(calls.len());
    for (call, reply) in calls.into_iter().zip(replies) {
        // A caller that has gone does not want the reply.
        let _ = call.answer.send(reply);
        handlers.push(call.handle);
    }
    // They hold the callers' other arguments. No caller waits for the drop of another's.
    drop(handlers);
}

/// Runs the handler for one call of a batch that has failed. `None` if all callers have gone.
async fn run_single(
    context: &CallContext,
    ending: &Ending,
    call: &mut BatchedCall,
) -> Option<Reply> {
    let gathered = Gathered::new(ending.method(), context.clone(), [call.rows]);
    let tensors = std::mem::take(&mut call.tensors);
    let ended = match catch_panic(|| (call.handle.run)(tensors, gathered)) {
        Ok(work) => to_end(context, ending.watched(), work).await?,
        Err(panic) => Err(panic),
    };
    match ended {
        Ok(mut replies) => replies.pop(),
        Err(panic) => Some(Reply::failed(FailureCode::Panicked, panic)),
    }
}

/// Turns the tensors of each call into each tensor of all calls.
async fn columns(calls: Vec<Vec<Tensor>>, context: &CallContext) -> Result<Vec<Tensor>, String> {
    let width = calls.first().map_or(0, Vec::len);
    let mut columns: Vec<_> = (0..width)
        .map(|_| Vec::with_capacity(calls.len()))
        .collect();
    for tensors in calls {
        for (column, tensor) in columns.iter_mut().zip(tensors) {
            column.push(tensor);
        }
    }
    let mut joined = Vec::with_capacity(width);
    for mut column in columns {
        joined.push(match &column[..] {
            [_] => column.swap_remove(0),
            parts => {
                let device = parts.first().map_or(Device::CPU, Tensor::device);
                let pool = context.allocator(device);
                let pool = pool.map_err(|error| error.to_string())?;
                concatenate(&pool, column).await?
            }
        });
    }
    Ok(joined)
}

/// Polls the handler within its context until it ends, perhaps with a panic. `None` if all callers have gone.
async fn to_end(
    context: &CallContext,
    watched: Polled,
    work: BatchFuture,
) -> Option<Result<Vec<Reply>, String>> {
    let mut work = Box::pin(context.clone().scope(work));
    let ended = poll_fn(|cx| {
        if context.inner.cancel.poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        let begun = ambient::now();
        let polled = catch_panic_poll(|| watched.watch(|| work.as_mut().poll(cx)));
        watched.took(ambient::since(begun));
        polled.map(Some)
    });
    let ended = ended.await;
    watched.watch(|| drop_quietly(work, "a handler"));
    ended
}
