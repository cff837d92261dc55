//! The spans of a call and the identities that they carry from process to process.

use std::fmt;

use tensorpipe::ambient;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Span};

use super::outcome::Verdict;
use super::repeated::should_log;
use crate::header::TraceContext;
use crate::schema::Method;

/// Whether a subscriber may want spans. Without one this reads one number.
pub(super) fn are_wanted() -> bool {
    Level::INFO <= LevelFilter::current()
}

/// What a span of a call says of itself.
pub(super) struct Named<'a> {
    pub(super) service: &'a str,
    pub(super) method: &'a Method,
    pub(super) call: u64,
    pub(super) peer: &'a str,
    /// What the peer has proved to be.
    pub(super) identity: Option<&'a str>,
}

/// A span of `$named`, of its own identity within that of `$around`; then its parent, if it says so, and its name.
macro_rules! span {
    ($named:expr, $own:expr, $around:expr, $($place:tt)*) => {
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
            parent = %format_args!("{:016x}", $around.span_id),
        )
    };
}

impl Named<'_> {
    /// The span of a call made here within `around`, and what the call tells the other end: the same, where no subscriber
    /// wants the span.
    pub(super) fn calling(&self, around: TraceContext) -> (Span, TraceContext) {
        let own = next(around);
        let span = span!(self, own, around, "rpc.call");
        let told = if span.is_disabled() { around } else { own };
        (span, told)
    }

    /// The span of a call that is handled here, of a caller who said `caller`. Calls that its handler makes belong to it.
    pub(super) fn handling(&self, caller: TraceContext) -> (Span, TraceContext) {
        let own = next(caller);
        let span = span!(self, own, caller, parent: None, "rpc.handle");
        let around = if span.is_disabled() { caller } else { own };
        (span, around)
    }
}

/// Says in `span` how its call of `method` failed.
pub(super) fn failed(
    span: &Span,
    method: &'static str,
    (outcome, level): Verdict,
    error: &dyn fmt::Display,
) {
    let Some(metadata) = span.metadata() else {
        return;
    };
    let tells = level < Level::DEBUG && should_log((metadata.name(), outcome, method));
    let level = if tells { level } else { Level::DEBUG };
    let error = Line(error);
    macro_rules! say {
        ($level:expr) => {
            tracing::event!(target: "tensorpipe_rpc", parent: span, $level, outcome, %error, "the call failed")
        };
    }
    match level {
        Level::ERROR => say!(Level::ERROR),
        Level::WARN => say!(Level::WARN),
        _ => say!(Level::DEBUG),
    }
}

/// As much of an error as a line of a log has room for: its caller has all of it.
struct Line<'a>(&'a dyn fmt::Display);

/// Bytes of an error in a log.
const LINE: usize = 120;

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        match text.get(..text.floor_char_boundary(LINE)) {
            Some(front) if front.len() < text.len() => write!(f, "{front}…"),
            _ => f.write_str(&text),
        }
    }
}

/// A span's own identity: within `around`, or, where that is none, of a new trace.
fn next(around: TraceContext) -> TraceContext {
    let trace_id = match around.trace_id {
        0 => u128::from(random()) << 64 | u128::from(random()),
        known => known,
    };
    TraceContext {
        trace_id,
        span_id: random(),
    }
}

/// Never 0.
fn random() -> u64 {
    ambient::number().max(1)
}
