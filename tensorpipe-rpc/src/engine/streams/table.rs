//! The streams of the calls that one connection handles.

use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use crate::context::CallContext;
use crate::lock::lock;

/// By the number that the caller gave the call.
#[derive(Default)]
pub(crate) struct StreamTable {
    calls: Mutex<FxHashMap<u64, CallContext>>,
}

impl StreamTable {
    /// A call with streams begins. `None` if another of its number is under way.
    pub(crate) fn open(self: &Arc<Self>, call: u64, context: &CallContext) -> Option<Open> {
        let mut calls = lock(&self.calls);
        if calls.contains_key(&call) {
            return None;
        }
        calls.insert(call, context.clone());
        drop(calls);
        Some(Open {
            table: self.clone(),
            call,
        })
    }

    /// The call of that number, if it has streams.
    pub(super) fn context(&self, call: u64) -> Option<CallContext> {
        lock(&self.calls).get(&call).cloned()
    }
}

/// The streams of a call that is under way. Dropped when it has ended.
pub(crate) struct Open {
    table: Arc<StreamTable>,
    call: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        let context = lock(&self.table.calls).remove(&self.call);
        let Some(inner) = context.as_ref().map(|context| &context.inner) else {
            return;
        };
        // Whoever has the call has the engine.
        if let (Some(streams), Some(engine)) = (&inner.streams, inner.caller.engine()) {
            engine.close_streams(streams);
        }
    }
}
