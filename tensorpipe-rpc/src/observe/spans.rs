//! The spans of a call, and the ids that they carry from process to process.
//!
//! A subscriber that panics is ignored, so that no call misses its answer because of it.

use std::fmt;
use std::panic::resume_unwind;

use tensorpipe::ambient;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Span};

use super::outcome::Verdict;
use super::repeated::{Kind, should_log};
use crate::caught::{catch_panic, ignore_panic};
use crate::header::TraceContext;
use crate::schema::Method;

/// Whether a subscriber may want spans. Without one this reads one number.
pub(super) fn enabled() -> bool {
    Level::INFO <= LevelFilter::current()
}

/// The fields of a call's span.
pub(super) struct Named<'a> {
    pub(super) service: &'a str,
    pub(super) method: &'a Method,
    pub(super) call: u64,
    pub(super) peer: &'a str,
    /// The peer's proven identity.
    pub(super) identity: Option<&'a str>,
}

/// A span with the fields of `$named` and the id `$own`, within `$parent`. `$place` is its parent, where given, and its name.
macro_rules! span {
    ($named:expr, $own:expr, $parent:expr, $($place:tt)*) => {
        tracing::info_span!(
            target: "tensorpipe_rpc",
            $($place)*,
            service = $named.service,
            method = $named.method.name,
            call = $named.call,
            peer = $named.peer,
            identity = $named.identity,
            trace_id = %format_args!("{:032x}", $own.trace_id),
            span_id = %format_args!("{:016x}", $own.span_id),
            parent = %format_args!("{:016x}", $parent.span_id),
        )
    };
}

/// An event of this level and within this parent, if there is one, with these fields.
macro_rules! say {
    ($level:expr, [$($parent:tt)*], $($fields:tt)*) => {{
        macro_rules! at {
            ($constant:expr) => {
                tracing::event!(target: "tensorpipe_rpc", $($parent)* $constant, $($fields)*, "the call failed")
            };
        }
        match $level {
            Level::ERROR => at!(Level::ERROR),
            Level::WARN => at!(Level::WARN),
            _ => at!(Level::DEBUG),
        }
    }};
}

impl Named<'_> {
    /// The span of a call made here within `parent`, and the trace context that the call sends. That is `parent` itself if no
    /// subscriber wants the span.
    pub(super) fn client_span(&self, parent: TraceContext) -> (Span, TraceContext) {
        let own = next(parent);
        let span = made(|| span!(self, own, parent, "rpc.call"));
        let told = if span.is_disabled() { parent } else { own };
        (span, told)
    }

    /// The span of a call handled here, whose caller sent the trace context `caller`. Calls that the handler makes belong to it.
    pub(super) fn server_span(&self, caller: TraceContext) -> (Span, TraceContext) {
        let own = next(caller);
        let span = made(|| span!(self, own, caller, parent: None, "rpc.handle"));
        let parent = if span.is_disabled() { caller } else { own };
        (span, parent)
    }
}

/// A new span, or none if the subscriber panics over it.
fn made(make: impl FnOnce() -> Span) -> Span {
    catch_panic(make).unwrap_or_else(|_| Span::none())
}

/// Runs `work` in `span`.
pub(super) fn within<T>(span: &Span, work: impl FnOnce() -> T) -> T {
    let entered = catch_panic(|| span.enter()).ok();
    // Caught, because a subscriber that panics while another panic unwinds would abort the process.
    let done = catch_panic(work);
    ignore_panic(|| drop(entered));
    done.unwrap_or_else(|panic| resume_unwind(Box::new(panic)))
}

/// Ends a span.
pub(super) fn end(span: &mut Span) {
    let span = std::mem::replace(span, Span::none());
    ignore_panic(|| drop(span));
}

/// Reports in `span` how its call of `method` failed.
pub(super) fn failed(
    span: &Span,
    method: &'static str,
    (outcome, level): Verdict,
    error: &dyn fmt::Display,
) {
    // With `tracing`'s feature `log`, a disabled span has metadata, too.
    let Some(metadata) = span.metadata().filter(|_| !span.is_disabled()) else {
        return;
    };
    let error = Line(error);
    let level = level_of((metadata.name(), outcome, method), level);
    ignore_panic(|| say!(level, [parent: span,], outcome, %error));
}

/// Reports how a call failed that has no span, because no subscriber wants it.
#[cold]
pub(crate) fn failed_without_span(
    span: &'static str,
    service: &'static str,
    method: &'static str,
    peer: &str,
    (outcome, level): Verdict,
    error: &dyn fmt::Display,
) {
    if level > LevelFilter::current() {
        return;
    }
    let error = Line(error);
    let level = level_of((span, outcome, method), level);
    ignore_panic(|| say!(level, [], span, service, method, peer, outcome, %error));
}

/// The level for one of perhaps many failures alike.
fn level_of(kind: Kind, level: Level) -> Level {
    let tells = level < Level::DEBUG && should_log(kind);
    if tells { level } else { Level::DEBUG }
}

/// An error, cut to what fits into a line of a log. The caller gets all of it.
struct Line<'a>(&'a dyn fmt::Display);

/// How many bytes of an error are logged.
const LINE: usize = 400;

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        match text.get(..text.floor_char_boundary(LINE)) {
            Some(front) if front.len() < text.len() => write!(f, "{front}…"),
            _ => f.write_str(&text),
        }
    }
}

/// A new span id within `parent`. If that has no trace, a new trace begins.
fn next(parent: TraceContext) -> TraceContext {
    let trace_id = match parent.trace_id {
        0 => u128::from(random()) << 64 | u128::from(random()),
        known => known,
    };
    TraceContext {
        trace_id,
        span_id: random(),
    }
}

/// A random number, never 0.
fn random() -> u64 {
    ambient::random_u64().max(1)
}
