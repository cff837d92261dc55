//! The attempts of a call over replicas whose caller asked for figures.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::{CallStats, CallTrace};
use crate::lock::lock;
use tensorpipe::ambient;

/// See the module's documentation.
pub(crate) struct Attempts {
    made: Instant,
    /// Bounded by [`ReplicasBuilder::max_attempts`](crate::replicas::ReplicasBuilder::max_attempts).
    traces: Mutex<Vec<Arc<CallTrace>>>,
}

impl Attempts {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            made: ambient::now(),
            traces: Mutex::default(),
        })
    }

    /// Adds an attempt.
    pub(crate) fn add(&self, trace: Arc<CallTrace>) {
        lock(&self.traces).push(trace);
    }

    /// The figures after the call has ended: those of the last attempt, and a list of all attempts.
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
