//! Observability: figures of single calls, spans that connect processes, and metrics.
//!
//! None of it costs a call anything unless somebody watches: a caller who asks ([`CallStats`]), a subscriber of `tracing`, or the
//! feature `metrics`. A watched call has a trace at each end, to which the engine reports what happens.
//!
//! # Figures of one call
//!
//! [`CallStats`] shows where a call's time went, and which bytes were copied. It also covers streams, failed calls, and calls that
//! were sent several times over [`Replicas`](crate::Replicas).
//!
//! # Spans
//!
//! With a subscriber that takes spans of level INFO of the target `tensorpipe_rpc`, each call is a span at both ends:
//!
//! | span | where | from, to |
//! |---|---|---|
//! | `rpc.call` | the caller | made, answered or dropped |
//! | `rpc.handle` | the server | admitted, answered; entered while the handler is polled |
//!
//! Their fields are `service`, `method`, `call` (its number on the connection), `peer` (the name of the other end's context) and
//! `identity` (who that end has proved to be, if it has).
//! `trace_id` has 32 hexadecimal digits, `span_id` and `parent` have 16; 0 is none. `rpc.call` continues the trace of the handler
//! that makes the call, or that of `with_trace`; otherwise it begins a new one. The identity of the span travels in the call's
//! header. So the `parent` of `rpc.handle` is the `span_id` of its `rpc.call`, and that of a nested `rpc.call` is the `span_id` of
//! the `rpc.handle` around it. To `tracing` itself `rpc.handle` has no parent: that one is in another process.
//!
//! A failed call is an event in its span, with the fields `outcome` (as in the metrics) and `error`. Its level is ERROR if an end
//! broke its contract (a panic, a result that cannot be sent or decoded). It is WARN if arguments, time, capacity or the connection
//! were the cause, and DEBUG for the method's own error and for dropped calls. If many calls of one method fail in the same way,
//! only the first five in ten seconds have that level; the others are DEBUG. A WARN with the next one tells how many they were. Where no subscriber
//! takes spans, as with `RUST_LOG=warn`, the event has the fields `span`, `service`, `method` and `peer` itself. An attempt over
//! [`Replicas`](crate::Replicas) that fails is DEBUG: if the call is not sent again, that is told once, also if no server can be called.
//!
//! For OpenTelemetry: the ids have its sizes. A layer that makes OpenTelemetry spans takes `trace_id`, `span_id` and `parent` from
//! the fields of `rpc.call` and `rpc.handle`. If you have an OpenTelemetry context of your own, pass its ids to a client with
//! `with_trace`, and read a handler's from [`CallContext::trace`](crate::CallContext::trace).
//!
//! # What is logged besides
//!
//! Events of `tracing`, whose targets begin with `tensorpipe`:
//!
//! | level | at a server | at a client |
//! |---|---|---|
//! | INFO | where it listens; a client that is gone without a goodbye; that it shuts down, and has | a replica that is there; one that is gone, while others are there |
//! | WARN | a handshake that fails: no token or another one, a certificate that is not trusted, bytes of another protocol, silence; a peer over the network that had to prove nothing | no pipe to a URL after two seconds, and why; for a replica also once a minute while that lasts, and when it is there again; a replica is given up; the last one is gone |
//! | WARN | a client whose service is not there, or is defined otherwise; a call that is refused or not allowed | a replica that serves something else |
//! | WARN | a handler that has kept its thread for a second without an `await`, or keeps it for five and perhaps for ever, with `thread`, its number for `gdb` and `perf`; calls that a shutdown gives up | |
//! | WARN | a runtime that does not run; a transport or channel that cannot be used though it was chosen; tensors that are copied though they could be lent | the same |
//! | ERROR | whatever decides on calls panicked | |
//!
//! What a peer can cause is said five times in ten seconds for each cause; `more` says how often it was held back before.
//!
//! # Metrics
//!
//! With the feature `metrics`, through the facade of that name. Without a recorder nothing is kept. The labels are `service`,
//! `method` and `outcome`, all from this process's own code.
//!
//! | name | kind | labels | what |
//! |---|---|---|---|
//! | `tensorpipe_client_calls_started` | counter | service, method | calls made |
//! | `tensorpipe_client_calls_finished` | counter | service, method, outcome | calls answered, failed or dropped |
//! | `tensorpipe_client_calls_in_flight` | gauge | service, method | calls whose callers have taken no answer yet |
//! | `tensorpipe_client_call_seconds` | histogram | service, method | from made to answered or finished |
//! | `tensorpipe_server_calls_started` | counter | service, method | handlers made |
//! | `tensorpipe_server_calls_finished` | counter | service, method, outcome | handlers ended |
//! | `tensorpipe_server_calls_in_flight` | gauge | service, method | handlers there are |
//! | `tensorpipe_server_handler_seconds` | histogram | service, method | from a handler's first poll to its end; a batched call's wait for its batch is before, and one that ends there is not among them |
//! | `tensorpipe_server_calls_refused` | counter | outcome | calls refused on their header |
//! | `tensorpipe_stream_items_sent` | counter | | items of streams, from here |
//! | `tensorpipe_stream_items_received` | counter | | items of streams, to here |
//! | `tensorpipe_references_held` | gauge | | values here that others refer to |
//! | `tensorpipe_replica_connects` | counter | | connections made to replicas, the first ones and those after a loss |
//! | `tensorpipe_replicas_lost` | counter | | replicas that were there and are gone |
//! | `tensorpipe_pipes_open` | gauge | | pipes that carry calls |
//! | `tensorpipe_pipe_bytes_out`, `_in`, `_copied`, `_lent`, `_borrowed` | counters | | [`PipeStats`](tensorpipe::PipeStats) of those pipes |
//!
//! Outcomes: `ok`, `service_error`, `panicked`, `overloaded`, `denied`, `unimplemented`, `deadline`, `shutting_down`, `encode`,
//! `bad_arguments`, `bad_reply`, `decode`, `connection`, `unavailable`, `unresolved`, `no_place`, `cancelled`, `other`. The metrics
//! of pipes are updated whenever a call is answered, and when a pipe ends.
//!
//! # What it costs
//!
//! A call that nobody watches costs two reads of a flag and a level. The reader of each message counts copied bytes for both ends.
//! So a server can send its figures in the reply's header, before it knows how that reply will travel. Clocks of different ends are
//! never compared.
//!
//! Spans cost more than that: where `tracing_subscriber::fmt` takes INFO, an empty call over `shm` takes about twice as long. The filter
//! `info,tensorpipe_rpc=warn` leaves the spans out; failed calls are still logged.

mod attempts;
mod calling;
mod handling;
#[cfg(feature = "metrics")]
pub(crate) mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "no_metrics.rs"]
pub(crate) mod metrics;
mod outcome;
mod repeated;
mod server_stats;
mod spans;
mod stats;
mod stream_traffic;

pub(crate) use attempts::Attempts;
pub(crate) use calling::{CallTrace, tell_failed, tell_last_failed};
pub(crate) use handling::{HandlerTrace, instrument};
pub(crate) use outcome::of_failure;
pub(crate) use repeated::should_log;
pub(crate) use server_stats::ServerStats;
pub(crate) use spans::failed_without_span;
pub use stats::{Attempt, CallStats, ServerTimes, StreamStats, TransferStats};
pub(crate) use stream_traffic::StreamTraffic;
