//! The feature `metrics`: names and labels are in the documentation of [`observe`](super).
//!
//! Labels come from this process's own code, never from a peer, so the program bounds their number. A recorder that panics is ignored.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ::metrics::{counter, gauge, histogram};
use tensorpipe::{Pipe, PipeStats};

use crate::caught::ignore_panic;
use crate::lock::lock;

/// Whether calls are counted.
pub(crate) const ON: bool = true;

pub(super) fn call_started(service: &'static str, method: &'static str) {
    ignore_panic(|| {
        counter!("tensorpipe_client_calls_started", "service" => service, "method" => method)
            .increment(1);
        gauge!("tensorpipe_client_calls_in_flight", "service" => service, "method" => method)
            .increment(1);
    });
}

pub(super) fn call_finished(
    service: &'static str,
    method: &'static str,
    outcome: &'static str,
    took: Duration,
) {
    ignore_panic(|| {
        counter!("tensorpipe_client_calls_finished", "service" => service, "method" => method, "outcome" => outcome).increment(1);
        gauge!("tensorpipe_client_calls_in_flight", "service" => service, "method" => method)
            .decrement(1);
        histogram!("tensorpipe_client_call_seconds", "service" => service, "method" => method)
            .record(took);
    });
}

pub(super) fn handler_started(service: &'static str, method: &'static str) {
    ignore_panic(|| {
        counter!("tensorpipe_server_calls_started", "service" => service, "method" => method)
            .increment(1);
        gauge!("tensorpipe_server_calls_in_flight", "service" => service, "method" => method)
            .increment(1);
    });
}

/// `took` is `None` if the handler never began, for example because it waited for its batch. Then no time is recorded.
pub(super) fn handler_finished(
    service: &'static str,
    method: &'static str,
    outcome: &'static str,
    took: Option<Duration>,
) {
    ignore_panic(|| {
        counter!("tensorpipe_server_calls_finished", "service" => service, "method" => method, "outcome" => outcome).increment(1);
        gauge!("tensorpipe_server_calls_in_flight", "service" => service, "method" => method)
            .decrement(1);
        if let Some(took) = took {
            histogram!("tensorpipe_server_handler_seconds", "service" => service, "method" => method)
                .record(took);
        }
    });
}

/// A call was refused on its header.
pub(crate) fn refused(outcome: &'static str) {
    ignore_panic(|| counter!("tensorpipe_server_calls_refused", "outcome" => outcome).increment(1));
}

pub(crate) fn items_sent(items: u64) {
    ignore_panic(|| counter!("tensorpipe_stream_items_sent").increment(items));
}

pub(crate) fn items_received(items: u64) {
    ignore_panic(|| counter!("tensorpipe_stream_items_received").increment(items));
}

pub(crate) fn references_given(count: usize) {
    ignore_panic(|| gauge!("tensorpipe_references_held").increment(count as f64));
}

pub(crate) fn references_released(count: usize) {
    ignore_panic(|| gauge!("tensorpipe_references_held").decrement(count as f64));
}

pub(crate) fn replica_connected() {
    ignore_panic(|| counter!("tensorpipe_replica_connects").increment(1));
}

pub(crate) fn replica_lost() {
    ignore_panic(|| counter!("tensorpipe_replicas_lost").increment(1));
}

/// The counters of one pipe that were already reported.
pub(crate) struct Meter {
    told: Mutex<PipeStats>,
    is_open: AtomicBool,
}

impl Meter {
    pub(crate) fn opened() -> Self {
        ignore_panic(|| gauge!("tensorpipe_pipes_open").increment(1));
        Self {
            told: Mutex::default(),
            is_open: AtomicBool::new(true),
        }
    }

    /// Reports what the pipe has done since the last time.
    pub(crate) fn read(&self, pipe: &Pipe) {
        if !self.is_open.load(Ordering::Relaxed) {
            return;
        }
        let (told, now) = {
            let mut told = lock(&self.told);
            let now = pipe.stats();
            (std::mem::replace(&mut *told, now), now)
        };
        ignore_panic(|| {
            counter!("tensorpipe_pipe_bytes_out").increment(now.bytes_out - told.bytes_out);
            counter!("tensorpipe_pipe_bytes_in").increment(now.bytes_in - told.bytes_in);
            counter!("tensorpipe_pipe_bytes_copied")
                .increment(now.bytes_copied - told.bytes_copied);
            counter!("tensorpipe_pipe_bytes_lent").increment(now.bytes_lent - told.bytes_lent);
            counter!("tensorpipe_pipe_bytes_borrowed")
                .increment(now.bytes_borrowed - told.bytes_borrowed);
        });
    }

    /// The pipe has ended, even if there are handles to it.
    pub(crate) fn closed(&self, pipe: &Pipe) {
        self.read(pipe);
        self.close();
    }

    /// Ends the reports.
    pub(crate) fn close(&self) {
        if self.is_open.swap(false, Ordering::Relaxed) {
            ignore_panic(|| gauge!("tensorpipe_pipes_open").decrement(1));
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.close();
    }
}
