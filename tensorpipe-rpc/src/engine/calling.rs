//! Making a call: encoding it, and deciding when its message leaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpipe::engine::{EnginePipe, Outbound, When};
use tensorpipe::{Error, Pipe, ResetCode};

use super::slot::CallSlot;
use super::streams::{CallStreams, Required};
use super::{Engine, Outcome, outbound, spill_large_body};
use crate::codec::{Encoded, TensorNames};
use crate::error::CallError;
use crate::header::{Header, PLACES, TraceContext, WAITS};
use crate::observe::{CallStats, CallTrace};
use crate::placement::{CallPlacement, ReceivePlacement, naming};
use crate::remote::EncodedReferences;
use crate::schema::Method;

/// When a call must end, and how long it had in all. `None` if that is beyond any clock.
pub(crate) type Deadline = Option<(Instant, Duration)>;

/// What the caller settled for a call of a service's method, wherever and however often it is made. Calls that its handler makes
/// inherit only the deadline and the trace.
#[derive(Clone)]
pub(crate) struct CallOptions {
    /// The service's name.
    pub(crate) service: &'static str,
    pub(crate) method: &'static Method,
    pub(crate) deadline: Deadline,
    /// The trace that the call belongs to.
    pub(crate) trace: TraceContext,
    /// Its caller asked for figures.
    pub(crate) wants_stats: bool,
    /// Where its tensors are to land, if its caller said so.
    pub(crate) places: Option<Arc<CallPlacement>>,
    /// If its caller said so, its tensors go over one of these channels.
    pub(crate) required: Option<Arc<Vec<String>>>,
}

/// A call that is about to be encoded.
pub(crate) struct Beginning {
    pub(crate) id: u64,
    pub(crate) trace: Option<Arc<CallTrace>>,
    pub(crate) header: Vec<u8>,
}

/// What a slot holds for its call.
#[derive(Default)]
pub(crate) struct CallData {
    /// Whether the call has tensors or payloads, which may leave long after the rest.
    pub(super) has_parts: bool,
    /// Argument names, for errors about a tensor.
    owners: TensorNames,
    /// Its streams, if its method has some.
    pub(crate) streams: Option<Arc<CallStreams>>,
    /// References among its arguments: their owner keeps the values until this call is answered.
    references: Option<Box<EncodedReferences>>,
    /// Set if the caller, a span or a metric wants to know what becomes of the call.
    pub(crate) trace: Option<Arc<CallTrace>>,
    /// Where its results are to land, if its caller said so.
    pub(super) receive_placement: Option<Arc<ReceivePlacement>>,
}

impl CallData {
    /// The figures of this call, if its caller asked for them.
    pub(crate) fn stats(&self, pipe: &Pipe) -> CallStats {
        let Some(trace) = &self.trace else {
            return CallStats::default();
        };
        let streams = self.streams.as_ref();
        match streams.and_then(|streams| Some((streams.traffic.as_ref()?, streams.kinds))) {
            Some((traffic, kinds)) => trace.stats_with(traffic, kinds, pipe),
            None => trace.stats(),
        }
    }

    /// Whether its arguments cannot be sent again to another server.
    pub(super) fn is_sent_once(&self) -> bool {
        self.streams.is_some() || self.references.is_some()
    }

    /// Puts the argument's name into an error about its message, in place of the tensor's number.
    pub(super) fn naming(&self, error: Error) -> Error {
        naming(error, |tensor| self.owners.name(tensor))
    }
}

/// A message that the peer answers.
pub(crate) struct Request {
    pub(crate) id: u64,
    /// The method that errors name.
    pub(crate) method: &'static Method,
    pub(crate) encoded: Encoded,
    pub(crate) header_len: usize,
    pub(crate) deadline: Deadline,
    /// References among its arguments.
    pub(crate) references: Option<Box<EncodedReferences>>,
    pub(crate) trace: Option<Arc<CallTrace>>,
    pub(crate) places: Option<Arc<CallPlacement>>,
    pub(crate) required: Option<Arc<Vec<String>>>,
}

impl Engine {
    /// Begins a call of the service with this number at the peer, `left` before its deadline. Arguments are encoded behind its
    /// header.
    #[inline]
    pub(crate) fn begin_call(
        &self,
        service: u32,
        options: &CallOptions,
        left: Option<Duration>,
    ) -> Beginning {
        let id = self.calls.next_id();
        let method = options.method;
        let (trace, belongs_to) = CallTrace::of(
            id,
            self,
            options.service,
            method,
            options.wants_stats,
            options.trace,
        );
        let header = Header::call(id, service, method.id, micros(left), belongs_to);
        let header = header.with_stats(options.wants_stats).to_vec();
        Beginning { id, trace, header }
    }

    /// Sends a call. Its slot gets the outcome.
    pub(crate) fn call(&self, request: Request) -> Arc<CallSlot> {
        let Request {
            id,
            method,
            mut encoded,
            mut header_len,
            places,
            required,
            trace,
            ..
        } = request;
        let places = places.as_deref();
        let refused = self.refuses(method, places);
        if let (None, Some(places)) = (&refused, places) {
            header_len = name_places(places, &mut encoded, header_len);
        }
        spill_large_body(&mut encoded, header_len, &self.pipe.peer_limits());
        let placed = !encoded.targets.is_empty();
        let results = || places.and_then(|places| places.results.clone());
        let streams = method.streams.any().then(|| {
            let wants_stats = trace.as_ref().is_some_and(|trace| trace.wants_stats);
            let argument = places.and_then(|places| places.stream.clone());
            let (kinds, unread) = (method.streams, &self.unread);
            let mut streams =
                CallStreams::new(id, true, kinds, wants_stats, results(), argument, unread);
            streams.required = required.clone().map(Required::new).map(Box::new);
            Arc::new(streams)
        });
        let beside = CallData {
            has_parts: !encoded.tensors.is_empty() || !encoded.payloads.is_empty(),
            owners: std::mem::take(&mut encoded.owners),
            streams,
            references: request.references,
            trace,
            receive_placement: results(),
        };
        let slot = Arc::new(CallSlot::new(id, request.deadline, beside));
        if let Some(error) = refused {
            slot.fail(error);
            return slot;
        }
        let waits = encoded.metadata[2] & WAITS != 0;
        let sent = outbound(encoded, |outbound| {
            outbound.require(required);
            if let Some(trace) = &slot.trace {
                trace.becomes(outbound.byte_len());
                outbound.tell_diverted(trace.diverted());
            }
            self.at_once(|| self.send_call(&slot, outbound, waits))
        });
        if let Err(error) = sent {
            let failed = match slot.naming(error) {
                Error::GoingAway { .. } => CallError::ShuttingDown,
                error => CallError::of_pipe(error, placed, false),
            };
            self.calls.complete(&slot, Outcome::Failed(failed));
        }
        slot
    }

    /// The reason why a call cannot be made at all, if there is one.
    fn refuses(&self, method: &Method, places: Option<&CallPlacement>) -> Option<CallError> {
        if self.calls.is_draining() {
            return Some(CallError::ShuttingDown);
        }
        if method.streams.argument
            && let Err(misuse) = self.check_credit()
        {
            return Some(CallError::of_pipe(misuse.into(), false, false));
        }
        let misuse = places?.check(self.pipe.route()).err()?;
        Some(CallError::of_pipe(misuse.into(), true, false))
    }

    /// `waits`: whether the call waits for the result of another one.
    fn send_call(
        &self,
        slot: &Arc<CallSlot>,
        outbound: &mut Outbound<'_>,
        waits: bool,
    ) -> Result<(), Error> {
        self.send_releases(When::NextDrive);
        let under_way = self.calls.insert(slot);
        // A call that takes the result of another one is seldom the last of its chain.
        let when = if waits {
            When::NextDriveIfSyscall
        } else {
            When::Coalesce(under_way)
        };
        // The number is known before anybody can answer, refuse or cut off the message.
        let mut late = false;
        let numbered = |message| late = !slot.try_set_message(message);
        let submitted = self.pipe.submit(outbound, when, numbered)?;
        let message = submitted.id;
        // A waiting call is driven by its caller: it may be the last of the chain, so nothing else sends it.
        slot.set_skip_first_drive(submitted.batched && !waits);
        if late {
            self.pipe
                .reset(message, ResetCode::Deadline, "its deadline passed");
        } else if let Some(trace) = &slot.trace {
            trace.queued(message, &self.pipe);
        }
        Ok(())
    }
}

/// The time left as it travels: 0 means no deadline.
fn micros(left: Option<Duration>) -> u64 {
    left.map_or(0, |left| {
        u64::try_from(left.as_micros()).unwrap_or(u64::MAX).max(1)
    })
}

/// Names the targets of the arguments, and writes behind the header where results are to land. Returns the new header length. Not
/// inlined: calls without places should not pay for it.
#[inline(never)]
fn name_places(places: &CallPlacement, encoded: &mut Encoded, header_len: usize) -> usize {
    if let Some(arguments) = &places.arguments {
        arguments.name_targets(encoded);
    }
    let Some(results) = places.encode_results() else {
        return header_len;
    };
    encoded.metadata[2] |= PLACES;
    let len = header_len + results.len();
    encoded.metadata.splice(header_len..header_len, results);
    len
}
