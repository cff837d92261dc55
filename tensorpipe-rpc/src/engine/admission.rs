//! Admission: whether a call is handled at all. Its header alone decides, before tensors that need a go-ahead move.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpipe::ambient;

use super::serving::{Listed, Serving};
use super::streams::{CallStreams, StreamGuard, StreamPermit};
use crate::context::CallContext;
use crate::header::{FailureCode, Header, Kind, PLACES, STATS};
use crate::observe::HandlerTrace;
use crate::placement::{Placement, ReceivePlacement, decode_results};
use crate::remote::Pending;
use crate::schema::{Method, Places};
use crate::server::{ConnectionQuota, ServerShared};

/// What is called: the positions of a service and of its method.
#[derive(Clone, Copy)]
pub(crate) struct MethodIndex {
    pub(crate) service: usize,
    pub(crate) method: usize,
}

/// A call that will be handled. Kept small, because it is moved from step to step.
pub(super) struct Admitted {
    /// The caller's number for it.
    pub(super) call: u64,
    /// `None` for a bind.
    pub(super) target: Option<MethodIndex>,
    pub(super) context: CallContext,
    /// When it was admitted; `None` once it has waited.
    pub(super) begun: Option<Instant>,
    /// Held until the call is answered.
    _streams: Option<Box<(StreamGuard, Option<StreamPermit>)>>,
    /// Lets later calls wait for this one's result.
    pub(super) pending: Option<Pending>,
    /// Set while it waits for other calls, or its handler runs on a task of its own.
    pub(super) listed: Option<Listed>,
    /// Where tensors of its result are to land.
    pub(super) placement: Option<Box<Placement>>,
    busy: Busy,
}

impl Admitted {
    /// Frees the call's place just before its answer is sent, because its caller may then make the next call at once. Returns
    /// `false` if it has an answer already, because its stream broke.
    pub(super) fn begin_answer(&self) -> bool {
        self.busy.leave();
        self.context.inner.held.end();
        let streams = &self.context.inner.streams;
        streams
            .as_ref()
            .is_none_or(|streams| streams.begin_answer())
    }

    /// Its caller gets no answer from here. The context may live on in the handler's own tasks.
    pub(super) fn nobody_waits(&self) {
        if let Some(trace) = &self.context.inner.handler_trace {
            trace.cancelled();
        }
    }
}

/// Where the calls of one connection are counted.
pub(super) struct Counts {
    pub(super) server: Arc<ServerShared>,
    /// Calls that are admitted and not about to be answered.
    pub(super) quota: Arc<ConnectionQuota>,
}

/// Counts a call. The limits count it until it is about to be answered; a shutdown waits until the answer is on its way.
struct Busy {
    counts: Arc<Counts>,
    has_left: Cell<bool>,
}

impl Busy {
    fn leave(&self) {
        if !self.has_left.replace(true) {
            self.counts.quota.leave();
            self.counts.server.calls.leave();
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.leave();
        self.counts.server.call_ended();
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.context.inner.held.end();
    }
}

impl Serving {
    /// The service's name, and the method.
    pub(super) fn called(&self, target: MethodIndex) -> (&'static str, &'static Method) {
        let schema = self.server.services[target.service].service.schema();
        (schema.service, &schema.methods[target.method])
    }

    /// Decides on the header alone.
    pub(super) fn admit(
        &self,
        header: &Header,
        metadata: &[u8],
    ) -> Result<Admitted, (FailureCode, String)> {
        let Counts { server, quota } = &*self.counts;
        let busy = quota.begin();
        server.calls.begin();
        let busy_guard = Busy {
            counts: self.counts.clone(),
            has_left: Cell::new(false),
        };
        // Counted before the check: either the shutdown sees this call, or this call sees the shutdown.
        if server.is_draining() {
            return Err((FailureCode::ShuttingDown, String::new()));
        }
        let target = match header.kind {
            Kind::Call => Some(server.find(header.service, header.method)?),
            _ => None,
        };
        let called = target.map(|target| self.called(target));
        if let Some((service, method)) = called {
            let allowed = server.allows(self.caller.peer(), service, method.name);
            allowed.map_err(|text| (FailureCode::Denied, text))?;
        }
        let limits = &server.limits;
        if busy >= limits.calls_per_connection {
            let text = format!(
                "{busy} calls of this connection are under way, the limit (`ServerLimits::calls_per_connection`)"
            );
            return Err((FailureCode::Overloaded, text));
        }
        if let Err(text) = server.has_room_for(quota, busy) {
            return Err((FailureCode::Overloaded, text));
        }
        let longest = u64::try_from(limits.longest_call.as_micros()).unwrap_or(u64::MAX);
        let left = match header.time_left_us {
            0 => longest,
            left => left.min(longest),
        };
        // A deadline beyond any clock is none.
        let now = ambient::now();
        let deadline = now.checked_add(Duration::from_micros(left));
        let places = called.map_or(Places::NOWHERE, |(_, method)| method.places);
        let placement = match places.result {
            Some(device) => Some(Box::new(Placement::All(device))),
            None if header.flags & PLACES != 0 => {
                let wanted = decode_results(header.places(metadata));
                let wanted = wanted.ok_or_else(|| {
                    let text = "where it wants tensors of its result makes no sense";
                    (FailureCode::BadArguments, text.to_owned())
                });
                Some(Box::new(wanted?))
            }
            None => None,
        };
        let streams = called.map(|(_, method)| method.streams).unwrap_or_default();
        let opened = streams.argument.then(|| self.unread.open()).transpose();
        let opened = opened.map_err(|most| {
            let text = format!(
                "{most} streams of this connection are open, as many as have room in `ServerLimits::unread_items`"
            );
            (FailureCode::Overloaded, text)
        })?;
        let caller = &self.caller;
        let handler_trace = called
            .and_then(|(service, method)| HandlerTrace::of(header, service, method, caller, now));
        let wants_stats = header.flags & STATS != 0;
        let ends = streams.any().then(|| {
            let (call, unread) = (header.call, &self.unread);
            let argument = places.stream.map(Placement::All).map(ReceivePlacement::new);
            let result = placement.as_deref().cloned();
            Arc::new(CallStreams::new(
                call,
                false,
                streams,
                wants_stats,
                argument,
                result,
                unread,
            ))
        });
        let context = CallContext::new(
            header.call,
            deadline,
            header.trace,
            self.caller.clone(),
            ends,
            handler_trace,
        );
        let open = streams.any().then(|| {
            let open = self.streams.open(header.call, &context);
            open.map(|open| Box::new((open, opened))).ok_or_else(|| {
                let text = "another call of this number is under way".to_owned();
                (FailureCode::BadArguments, text)
            })
        });
        let open = open.transpose()?;
        Ok(Admitted {
            call: header.call,
            target,
            context,
            begun: Some(now),
            _streams: open,
            pending: None,
            listed: None,
            placement,
            busy: busy_guard,
        })
    }
}
