//! The batched methods of a service, for generated code and for the service's owner.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use tensorpipe::Tensor;

use super::batcher::{BatchFuture, Batcher, Handler};
use super::gathered::Gathered;
use super::key::BatchKey;
use super::queue::Rules;
use super::stats::BatchStats;
use crate::codec::Reply;
use crate::context::{CallContext, own_bytes};
use crate::header::FailureCode;
use crate::service::{HandlerFuture, unknown_method};

/// The batching statistics of one service's methods. Cheap to clone. `FooService::batches` gives one, which stays valid after the
/// service is given to a server.
#[derive(Clone, Debug)]
pub struct Batches {
    /// A short list, searched linearly.
    methods: Arc<[(usize, Arc<Batcher>)]>,
}

/// A batched method, as its attribute describes it. For generated code.
#[derive(Clone, Copy, Debug)]
pub struct BatchedMethod {
    /// Its position in the schema.
    pub index: usize,
    /// Its name.
    pub name: &'static str,
    /// See [`crate::batch`].
    pub max_size: u64,
    /// In nanoseconds.
    pub max_wait: u64,
    /// See [`crate::batch`].
    pub concurrency: usize,
}

impl Batches {
    /// For generated code.
    #[doc(hidden)]
    pub fn new(service: &'static str, methods: &[BatchedMethod]) -> Self {
        let batchers = methods.iter().map(|method| {
            let rules = Rules {
                max_size: method.max_size.max(1),
                max_wait: Duration::from_nanos(method.max_wait),
                concurrency: method.concurrency.max(1),
            };
            (
                method.index,
                Arc::new(Batcher::new(service, method.name, rules)),
            )
        });
        Self {
            methods: batchers.collect(),
        }
    }

    /// The statistics of a method; `None` if there is no batched method of this name.
    pub fn stats(&self, method: &str) -> Option<BatchStats> {
        let mut batchers = self.methods.iter().map(|(_, batcher)| batcher);
        let batcher = batchers.find(|batcher| batcher.method == method)?;
        Some(batcher.stats())
    }

    /// The reply to one call of a batched method. For generated code.
    #[doc(hidden)]
    pub fn gather<const N: usize>(
        &self,
        method: usize,
        context: CallContext,
        key: BatchKey,
        named: [(&'static str, Tensor); N],
        handle: impl FnOnce([Tensor; N], Gathered) -> BatchFuture + Send + 'static,
    ) -> HandlerFuture {
        let mut handle = Some(handle);
        let once = move |tensors: [Tensor; N], gathered: Gathered| match handle.take() {
            Some(handle) => handle(tensors, gathered),
            None => Box::pin(ready(gathered.all(&Reply::unknown_method(method)))),
        };
        self.join(method, context, key, named, once, false)
    }

    /// As `gather`, for a method that may run again: if a batch of several calls fails, it runs for each of them alone. For
    /// generated code.
    #[doc(hidden)]
    pub fn gather_again<const N: usize>(
        &self,
        method: usize,
        context: CallContext,
        key: BatchKey,
        named: [(&'static str, Tensor); N],
        handle: impl FnMut([Tensor; N], Gathered) -> BatchFuture + Send + 'static,
    ) -> HandlerFuture {
        self.join(method, context, key, named, handle, true)
    }

    fn join<const N: usize>(
        &self,
        method: usize,
        context: CallContext,
        mut key: BatchKey,
        named: [(&'static str, Tensor); N],
        mut handle: impl FnMut([Tensor; N], Gathered) -> BatchFuture + Send + 'static,
        again: bool,
    ) -> HandlerFuture {
        let Some((_, batcher)) = self.methods.iter().find(|(index, _)| *index == method) else {
            return unknown_method(method);
        };
        let rows = match rows_of(batcher.method, &named) {
            Ok(rows) => rows,
            Err(text) => return Box::pin(ready(Reply::failed(FailureCode::BadArguments, text))),
        };
        let bytes = key.len() + own_bytes(named.iter().map(|(_, tensor)| tensor));
        let held = match context.hold(bytes) {
            Ok(held) => held,
            Err(error) => {
                return Box::pin(ready(Reply::failed(
                    FailureCode::Overloaded,
                    error.to_string(),
                )));
            }
        };
        key.of(context.caller().identity.as_ref());
        named.iter().for_each(|(_, tensor)| key.push(tensor));
        // Gathering needs an allocator that can copy on the tensors' device. Without one, the call runs alone.
        let mut devices = named.iter().map(|(_, tensor)| tensor.device());
        let gathers = |device| (context.allocator(device)).is_ok_and(|pool| pool.gathers());
        let exclusive = devices.any(|device| !device.is_cpu() && !gathers(device));
        let tensors = named.map(|(_, tensor)| tensor).into();
        let handle = move |tensors: Vec<Tensor>, gathered: Gathered| match tensors.try_into() {
            Ok(tensors) => handle(tensors, gathered),
            // A batch has one tensor for each tensor of a call, so this does not happen.
            Err(_) => Box::pin(ready(gathered.all(&Reply::unknown_method(method)))),
        };
        let handle = Handler {
            run: Box::new(handle),
            again,
            held,
        };
        if let Some(handler_trace) = &context.inner.handler_trace {
            handler_trace.expect_batch();
        }
        Box::pin(batcher.join(key, exclusive, tensors, rows, context, handle))
    }
}

/// The number of rows of a call's tensors. All must have the same number, or the call fits into no batch.
fn rows_of(method: &str, named: &[(&'static str, Tensor)]) -> Result<u64, String> {
    let mut first: Option<(&str, u64)> = None;
    for (name, tensor) in named {
        let Some(&rows) = tensor.shape().first() else {
            return Err(format!(
                "argument `{name}` of `{method}` has no dimensions, and calls are gathered along the first one; send one row \
                 as a tensor of shape [1]"
            ));
        };
        match first {
            None => first = Some((name, rows)),
            Some((other, wanted)) if wanted != rows => {
                return Err(format!(
                    "argument `{name}` of `{method}` has {rows} rows and `{other}` has {wanted}; send the same number, since \
                     calls are gathered along the first dimension"
                ));
            }
            Some(_) => {}
        }
    }
    Ok(first.map_or(0, |(_, rows)| rows))
}
