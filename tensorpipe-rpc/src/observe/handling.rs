//! The trace of a call handled here, if somebody watches it.
//!
//! The end is reported once, by whoever answers the caller, or else by whoever drops the handler.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tensorpipe::MessageStats;
use tensorpipe::ambient;
use tracing::Span;

use super::outcome::{self, Verdict};
use super::spans::{self, Named};
use super::{ServerStats, StreamTraffic, metrics};
use crate::codec::Reply;
use crate::context::{CallContext, Caller};
use crate::header::{Header, Kind, STATS, TraceContext};
use crate::lock::lock;
use crate::schema::Method;
use crate::service::HandlerFuture;

/// How a call ended that nobody waits for.
pub(super) const GIVEN_UP: &str = "nobody waits for it any more";

/// See the module's documentation.
pub(crate) struct HandlerTrace {
    service: &'static str,
    method: &'static str,
    /// The caller asked for figures.
    wants_stats: bool,
    span: Span,
    /// The trace context of calls that the handler makes.
    pub(crate) outgoing_trace: TraceContext,
    /// When the call's header came.
    arrived: Instant,
    so_far: Mutex<SoFar>,
}

#[derive(Default)]
struct SoFar {
    server_stats: ServerStats,
    /// When the arguments were complete.
    complete: Option<Instant>,
    /// When the handler was first polled.
    begun: Option<Instant>,
    /// How long the handler took, once it is ready.
    took: Option<Duration>,
    /// A handler was made, whose end is counted.
    is_made: bool,
    /// The end was reported.
    has_ended: bool,
    /// The call waits for its batch, which reports when the handler begins.
    awaits_batch: bool,
}

impl HandlerTrace {
    /// The trace of an admitted call, if somebody watches.
    #[inline]
    pub(crate) fn of(
        header: &Header,
        service: &'static str,
        method: &'static Method,
        caller: &Caller,
        arrived: Instant,
    ) -> Option<Box<Self>> {
        let wanted = header.flags & STATS != 0 || metrics::ON || spans::enabled();
        wanted.then(|| Self::begin(header, service, method, caller, arrived))
    }

    #[cold]
    fn begin(
        header: &Header,
        service: &'static str,
        method: &'static Method,
        caller: &Caller,
        arrived: Instant,
    ) -> Box<Self> {
        let wants_stats = header.flags & STATS != 0;
        let named = Named {
            service,
            method,
            call: header.call,
            peer: &caller.peer().name,
            identity: caller.identity(),
        };
        let (span, outgoing_trace) = match spans::enabled() {
            true => named.server_span(header.trace),
            false => (Span::none(), header.trace),
        };
        Box::new(Self {
            service,
            method: method.name,
            wants_stats,
            span,
            outgoing_trace,
            arrived,
            so_far: Mutex::default(),
        })
    }

    /// Whether a subscriber hears of the call by its span.
    pub(crate) fn has_span(&self) -> bool {
        !self.span.is_disabled()
    }

    /// The call's message is complete. `transfer` says how it travelled.
    pub(crate) fn complete(&self, transfer: MessageStats) {
        if self.wants_stats {
            let now = ambient::now();
            let mut so_far = lock(&self.so_far);
            so_far.complete = Some(now);
            so_far.server_stats.times.receiving = now - self.arrived;
            so_far.server_stats.request = Some(transfer);
        }
    }

    /// The call's future is polled for the first time.
    fn polled(&self) {
        let mut so_far = lock(&self.so_far);
        if !so_far.awaits_batch {
            so_far.record_start(ambient::now());
        }
    }

    /// The call is going to wait for its batch.
    pub(crate) fn expect_batch(&self) {
        lock(&self.so_far).awaits_batch = true;
    }

    /// The handler is about to be polled for the first time.
    pub(crate) fn record_start(&self, now: Instant) {
        lock(&self.so_far).record_start(now);
    }

    /// The handler is ready. How the call ends is known once the reply is on its way, or cannot be sent.
    fn ready(&self, reply: &mut Reply, context: &CallContext) {
        {
            let mut so_far = lock(&self.so_far);
            so_far.took = so_far.begun.map(ambient::since);
        }
        if let Some(server_stats) = context.server_stats() {
            reply.measured(server_stats);
        }
    }

    /// The handler's result is on its way to the caller.
    pub(crate) fn answered(&self, kind: Kind) {
        match kind {
            Kind::ServiceError => self.failed(outcome::SERVICE_ERROR, &"the method's own"),
            _ => self.end(None, &""),
        }
    }

    /// The call has failed.
    pub(crate) fn failed(&self, verdict: Verdict, error: &dyn fmt::Display) {
        self.end(Some(verdict), error);
    }

    /// Nobody waits for the call any more.
    pub(crate) fn cancelled(&self) {
        self.failed(outcome::CANCELLED, &GIVEN_UP);
    }

    /// Reports the end of the call. Later reports change nothing.
    fn end(&self, failed: Option<Verdict>, error: &dyn fmt::Display) {
        let (is_made, took) = {
            let mut so_far = lock(&self.so_far);
            if std::mem::replace(&mut so_far.has_ended, true) {
                return;
            }
            let took = so_far.took.or_else(|| so_far.begun.map(ambient::since));
            (so_far.is_made, took)
        };
        if is_made {
            let outcome = failed.map_or(outcome::OK, |(outcome, _)| outcome);
            metrics::handler_finished(self.service, self.method, outcome, took);
        }
        if let Some(verdict) = failed {
            spans::failed(&self.span, self.method, verdict, error);
        }
    }

    /// The measurements so far, if the caller asked.
    fn server_stats(&self, argument: Option<&StreamTraffic>) -> Option<ServerStats> {
        if !self.wants_stats {
            return None;
        }
        let now = ambient::now();
        let SoFar {
            mut server_stats,
            complete,
            begun,
            ..
        } = *lock(&self.so_far);
        let times = &mut server_stats.times;
        match (complete, begun) {
            (None, _) => times.receiving = now - self.arrived,
            (Some(complete), None) => times.waiting = now - complete,
            (Some(_), Some(begun)) => times.handling = now - begun,
        }
        server_stats.argument = argument.map(StreamTraffic::total_received);
        Some(server_stats)
    }
}

impl Drop for HandlerTrace {
    /// Counts the call as cancelled unless it has ended already.
    fn drop(&mut self) {
        self.cancelled();
        spans::end(&mut self.span);
    }
}

impl CallContext {
    /// The measurements of its call so far, if the caller asked.
    pub(crate) fn server_stats(&self) -> Option<ServerStats> {
        let inner = &self.inner;
        let streams = inner
            .streams
            .as_ref()
            .filter(|streams| streams.kinds.argument);
        let argument = streams.and_then(|streams| streams.traffic.as_ref());
        inner.handler_trace.as_ref()?.server_stats(argument)
    }
}

impl SoFar {
    fn record_start(&mut self, now: Instant) {
        if self.begun.replace(now).is_none()
            && let Some(complete) = self.complete
        {
            self.server_stats.times.waiting = now - complete;
        }
    }
}

/// Wraps the handler of a watched call, so that it reports what happens.
pub(crate) fn instrument(context: CallContext, handler: HandlerFuture) -> HandlerFuture {
    if let Some(handler_trace) = &context.inner.handler_trace {
        let has_ended = {
            let mut so_far = lock(&handler_trace.so_far);
            so_far.is_made = true;
            so_far.has_ended
        };
        // A stream may have broken while the arguments were decoded: then the call was answered, and nobody counts its end any more.
        if !has_ended {
            metrics::handler_started(handler_trace.service, handler_trace.method);
        }
    }
    Box::pin(Watched {
        context,
        handler,
        stage: Stage::Fresh,
    })
}

struct Watched {
    context: CallContext,
    handler: HandlerFuture,
    stage: Stage,
}

enum Stage {
    Fresh,
    /// A poll is running. If the future is dropped in this stage, that poll has panicked.
    Polling,
    Waiting,
    Ready,
}

impl Future for Watched {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Reply> {
        let this = &mut *self;
        let Some(handler_trace) = &this.context.inner.handler_trace else {
            return this.handler.as_mut().poll(cx);
        };
        if let Stage::Fresh = std::mem::replace(&mut this.stage, Stage::Polling) {
            handler_trace.polled();
        }
        let polled = spans::within(&handler_trace.span, || this.handler.as_mut().poll(cx));
        match polled {
            Poll::Pending => {
                this.stage = Stage::Waiting;
                Poll::Pending
            }
            Poll::Ready(mut reply) => {
                this.stage = Stage::Ready;
                handler_trace.ready(&mut reply, &this.context);
                Poll::Ready(reply)
            }
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let Some(handler_trace) = &self.context.inner.handler_trace else {
            return;
        };
        let late = |at| at <= ambient::now();
        match self.stage {
            // Whoever answers the caller reports how.
            Stage::Ready | Stage::Polling => {}
            Stage::Fresh | Stage::Waiting if self.context.deadline().is_some_and(late) => {
                handler_trace.failed(outcome::DEADLINE, &"its deadline passed");
            }
            Stage::Fresh | Stage::Waiting => handler_trace.cancelled(),
        }
    }
}
