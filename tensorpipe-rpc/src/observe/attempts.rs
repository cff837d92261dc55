//! A call over replicas, of which its caller wants to know: each time that it was sent.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::{CallStats, CallTrace};
use crate::lock::lock;
use tensorpipe::ambient;

/// See the module's documentation.
pub(crate) struct Attempts {
    made: Instant,
    /// Bounded by [`ReplicasBuilder::tries`](crate::replicas::ReplicasBuilder::tries).
    traces: Mutex<Vec<Arc<CallTrace>>>,
}

impl Attempts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            made: ambient::now(),
            traces: Mutex::default(),
        })
    }

    /// It is sent once more.
    pub(crate) fn add(&self, trace: Arc<CallTrace>) {
        lock(&self.traces).push(trace);
    }

    /// What is known now that it has ended: of the last attempt, and how often it was made.
    pub(crate) fn stats(&self) -> CallStats {
        let round_trip = ambient::since(self.made);
        let each = lock(&self.traces);
        let mut attempts = Vec::with_capacity(each.len());
        let mut last = CallStats::default();
        for trace in &*each {
            last = trace.stats();
            attempts.append(&mut last.attempts);
        }
        CallStats {
            round_trip,
            attempts,
            ..last
        }
    }
}
