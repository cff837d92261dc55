//! The trace of a call made here, if somebody watches it.
//!
//! The task that drives the pipe reports what happens, and whoever decodes the answer how that went. The end is reported once;
//! later reports change nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::Wake;
use std::time::{Duration, Instant};

use tensorpipe::ambient;
use tensorpipe::engine::EnginePipe;
use tensorpipe::{Identity, MessageStats, Pipe, route::Diverted};
use tracing::{Level, Span};

use super::handling::GIVEN_UP;
use super::outcome::{self, Verdict};
use super::spans::{self, Named, failed_without_span};
use super::{Attempt, CallStats, ServerStats, StreamTraffic, TransferStats, metrics};
use crate::engine::{Engine, Outcome};
use crate::error::CallError;
use crate::header::{Header, TraceContext};
use crate::lock::lock;
use crate::schema::{Method, Streams};

/// See the module's documentation.
pub(crate) struct CallTrace {
    service: &'static str,
    method: &'static str,
    made: Instant,
    /// The caller asked for figures.
    pub(crate) wants_stats: bool,
    /// If this attempt fails, the call may be sent again: its caller's task knows, and reports the failure.
    is_attempt: AtomicBool,
    span: Span,
    stats: Mutex<CallStats>,
    /// How long the answer took, and how the call ends if it can be decoded.
    answered: OnceLock<(Duration, Option<Verdict>)>,
    ended: AtomicBool,
    /// Tensors of the call's message that went another way than planned. Only if the caller asked for figures.
    diverted: Option<Diverted>,
}

/// Woken when a call's message begins to leave.
struct Leaves(Weak<CallTrace>);

impl Wake for Leaves {
    fn wake(self: Arc<Self>) {
        if let Some(trace) = self.0.upgrade() {
            lock(&trace.stats).queue = ambient::since(trace.made);
        }
    }
}

impl CallTrace {
    /// The trace of a call that is about to be made, if somebody watches, and the trace context that it sends.
    #[inline]
    pub(crate) fn of(
        id: u64,
        engine: &Engine,
        service: &'static str,
        method: &'static Method,
        wants_stats: bool,
        parent: TraceContext,
    ) -> (Option<Arc<Self>>, TraceContext) {
        match wants_stats || metrics::ON || spans::enabled() {
            true => Self::begin(id, engine, service, method, wants_stats, parent),
            false => (None, parent),
        }
    }

    #[cold]
    fn begin(
        call: u64,
        engine: &Engine,
        service: &'static str,
        method: &'static Method,
        wants_stats: bool,
        parent: TraceContext,
    ) -> (Option<Arc<Self>>, TraceContext) {
        let identity = engine.pipe.route().identity.as_ref();
        let identity = identity.map(Identity::to_string);
        let named = Named {
            service,
            method,
            call,
            peer: engine.pipe.peer_name(),
            identity: identity.as_deref(),
        };
        let (span, belongs_to) = match spans::enabled() {
            true => named.client_span(parent),
            false => (Span::none(), parent),
        };
        metrics::call_started(service, method.name);
        let attempt = Attempt {
            url: engine.peer_url.get().cloned(),
            ..Attempt::default()
        };
        let stats = CallStats {
            attempts: Vec::from_iter(wants_stats.then_some(attempt)),
            ..CallStats::default()
        };
        let trace = Self {
            service,
            method: method.name,
            made: ambient::now(),
            wants_stats,
            is_attempt: AtomicBool::new(false),
            span,
            stats: Mutex::new(stats),
            answered: OnceLock::new(),
            ended: AtomicBool::new(false),
            diverted: wants_stats.then(Diverted::default),
        };
        (Some(Arc::new(trace)), belongs_to)
    }

    /// This is one attempt of a call that may be sent again.
    pub(crate) fn set_attempt(&self) {
        self.is_attempt.store(true, Ordering::Relaxed);
    }

    /// The list to which the pipe adds tensors that go another way than planned.
    pub(crate) fn diverted(&self) -> Option<Diverted> {
        self.diverted.clone()
    }

    /// The call's message is encoded, and has this many bytes.
    pub(crate) fn becomes(&self, bytes: u64) {
        if self.wants_stats {
            lock(&self.stats).request.bytes = bytes;
        }
    }

    /// Message number `message` is queued.
    pub(crate) fn queued(self: &Arc<Self>, message: u64, pipe: &Pipe) {
        if self.wants_stats {
            let leaves = Arc::new(Leaves(Arc::downgrade(self)));
            if pipe
                .poll_sending(message, &leaves.clone().into())
                .is_ready()
            {
                leaves.wake();
            }
        }
    }

    /// The reply's metadata is here. `parts` bytes follow.
    pub(crate) fn reply_arrives(&self, header: &Header, metadata: &[u8], parts: u64, pipe: &Pipe) {
        if !self.wants_stats {
            return;
        }
        let mut stats = lock(&self.stats);
        stats.reply.bytes = metadata.len() as u64 + parts;
        if let Some(server_stats) = ServerStats::find(header, metadata) {
            stats.server = Some(server_stats.times);
            if let Some(transfer) = server_stats.request {
                stats.request.record(transfer, pipe);
            }
            if let Some(argument) = server_stats.argument {
                let taken = stats.argument.get_or_insert_default();
                taken.items = argument.items;
                taken.transfer.record(argument.transfer, pipe);
            }
        }
    }

    /// The reply is complete. `transfer` says how it travelled.
    pub(crate) fn reply_received(&self, transfer: MessageStats, pipe: &Pipe) {
        if self.wants_stats {
            lock(&self.stats).reply.record(transfer, pipe);
        }
    }

    /// The call has ended with this outcome. Whether an answer can be decoded is known once its caller takes it.
    pub(crate) fn ended(&self, outcome: &Outcome) {
        let is_answered = self.answered.get().is_some();
        match outcome {
            Outcome::Value(_) => self.answered(None),
            Outcome::ServiceError(_) => self.answered(Some(outcome::SERVICE_ERROR)),
            Outcome::Failed(_) | Outcome::NotBound(..) if is_answered => {}
            Outcome::Failed(error) if self.is_attempt.load(Ordering::Relaxed) => {
                self.attempt_failed(error);
            }
            Outcome::Failed(error) => self.failed(error),
            Outcome::NotBound(_, reason) => self.failed(&CallError::Other(reason.clone())),
        }
    }

    fn answered(&self, failed: Option<Verdict>) {
        let took = ambient::since(self.made);
        if self.answered.set((took, failed)).is_ok() {
            lock(&self.stats).round_trip = took;
        }
    }

    /// The caller has taken the answer, if there is one, and found no fault with it.
    pub(crate) fn taken(&self) {
        if let Some((_, failed)) = self.answered.get() {
            self.end(*failed, &"the method's own");
        }
    }

    /// The attempt failed. Whether the call is sent again is known later.
    pub(crate) fn attempt_failed(&self, error: &CallError) {
        let (outcome, _) = outcome::of_error(error);
        self.end(Some((outcome, Level::DEBUG)), error);
    }

    /// The call failed, or was not made.
    fn failed(&self, error: &CallError) {
        self.end(Some(outcome::of_error(error)), error);
    }

    /// The call was dropped.
    pub(crate) fn cancelled(&self) {
        self.end(Some(outcome::CANCELLED), &GIVEN_UP);
    }

    fn end(&self, failed: Option<Verdict>, error: &dyn std::fmt::Display) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let answered = self.answered.get();
        let took = answered.map_or_else(|| ambient::since(self.made), |(took, _)| *took);
        {
            let mut stats = lock(&self.stats);
            stats.round_trip = took;
            if let Some(attempt) = stats.attempts.last_mut() {
                attempt.took = took;
                attempt.error = failed.map(|_| error.to_string());
            }
        }
        let outcome = failed.map_or(outcome::OK, |(outcome, _)| outcome);
        metrics::call_finished(self.service, self.method, outcome, took);
        if let Some(verdict) = failed {
            spans::failed(&self.span, self.method, verdict, error);
        }
    }

    /// The figures so far, if the caller asked.
    pub(crate) fn stats(&self) -> CallStats {
        if !self.wants_stats {
            return CallStats::default();
        }
        let mut stats = lock(&self.stats).clone();
        stats.bound_queue();
        stats.request.diverted = self.diverted.as_ref().map_or_else(Vec::new, Diverted::all);
        stats
    }

    /// The figures of a call with streams, which carried this traffic.
    pub(crate) fn stats_with(
        &self,
        traffic: &StreamTraffic,
        kinds: Streams,
        pipe: &Pipe,
    ) -> CallStats {
        let mut stats = self.stats();
        if kinds.argument {
            let sent = traffic.total_sent();
            let argument = stats.argument.get_or_insert_default();
            if argument.items != sent.items {
                // The reader skipped some items, or has not yet reported on them.
                argument.transfer = TransferStats::default();
            }
            argument.items = sent.items;
            argument.transfer.bytes = sent.bytes;
        }
        if kinds.reply {
            let received = traffic.total_received();
            let result = stats.result.get_or_insert_default();
            result.items = received.items;
            result.transfer.bytes = received.bytes;
            result.transfer.record(received.transfer, pipe);
        }
        stats
    }
}

/// Reports how a call of this method failed: in its span, if it has one.
#[cold]
pub(crate) fn tell_failed(
    trace: Option<&Arc<CallTrace>>,
    method: &'static Method,
    peer: &str,
    error: &CallError,
) {
    if let Some(trace) = trace {
        trace.failed(error);
    }
    if trace.is_none_or(|trace| trace.span.is_disabled()) {
        tell_without_span(method, peer, error);
    }
}

/// Reports how a call failed that is not sent again: in the span of the last attempt, if the failure is that one's. `peer` is the
/// last that it was sent to.
#[cold]
pub(crate) fn tell_last_failed(
    last: Option<&Arc<CallTrace>>,
    method: &'static Method,
    peer: &str,
    error: &CallError,
) {
    match last.filter(|trace| !trace.span.is_disabled()) {
        Some(trace) => spans::failed(&trace.span, method.name, outcome::of_error(error), error),
        None => tell_without_span(method, peer, error),
    }
}

fn tell_without_span(method: &'static Method, peer: &str, error: &CallError) {
    let Method { service, name, .. } = method;
    let verdict = outcome::of_error(error);
    failed_without_span("rpc.call", service, name, peer, verdict, error);
}

impl Drop for CallTrace {
    /// Counts the call as cancelled unless it was answered, or has ended already.
    fn drop(&mut self) {
        self.taken();
        self.cancelled();
        spans::end(&mut self.span);
    }
}

impl TransferStats {
    fn record(&mut self, how: MessageStats, pipe: &Pipe) {
        let MessageStats {
            streamed,
            copied,
            copied_by_writer,
            channels,
            ..
        } = how;
        self.streamed = Some(streamed);
        self.copied = Some(copied);
        self.copied_by_writer = Some(copied_by_writer);
        let known = pipe.route().channels.iter().take(64).enumerate();
        let carried = known.filter(|(bit, _)| channels >> bit & 1 == 1);
        self.channels = carried.map(|(_, channel)| channel.name.clone()).collect();
    }
}
