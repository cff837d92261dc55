//! What generated clients hold: a service, what its calls are made on, and what they have in common.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use tensorpipe::Context;

use super::connection::Connection;
use super::replicas::Joined;
use super::target::{Bound, Target};
use crate::call::{Call, Made, UnderWay};
use crate::codec::{EncodeError, Encoded, Encoder};
use crate::context::{CallContext, TraceContext};
use crate::engine::{CallSlot, CallStreams, Engine, Kept, Outgoing};
use crate::error::{CallError, ConnectError};
use crate::header::Header;
use crate::schema::{Method, Schema};

/// The time that a call has where nobody says otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// A client of one service on one connection or on replicas: what generated clients hold.
#[derive(Clone)]
pub struct ClientHandle {
    connection: Connection,
    /// The server's number for the service.
    service: u32,
    /// Then its calls go there, and not over the connection.
    replicas: Option<Joined>,
    deadline: Duration,
    trace: TraceContext,
}

impl fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.replicas {
            Some(joined) => joined.fmt(f),
            None => self.connection.fmt(f),
        }
    }
}

impl ClientHandle {
    /// Connects with the process's default context.
    ///
    /// # Errors
    /// As [`ClientHandle::on`], and when there is no pipe.
    pub async fn connect(schema: &'static Schema, url: &str) -> Result<Self, ConnectError> {
        Self::connect_with(Context::global(), schema, url).await
    }

    /// Connects with this context.
    ///
    /// # Errors
    /// As [`ClientHandle::on`], and when there is no pipe.
    pub async fn connect_with(
        context: &Context,
        schema: &'static Schema,
        url: &str,
    ) -> Result<Self, ConnectError> {
        Self::on(&Connection::connect_with(context, url).await?, schema).await
    }

    /// Asks for a service on a connection or replicas that are there.
    ///
    /// # Errors
    /// [`ConnectError::NoService`], [`ConnectError::Mismatch`], [`ConnectError::Unavailable`], or why there was no answer.
    pub async fn on(target: &dyn Target, schema: &'static Schema) -> Result<Self, ConnectError> {
        let Bound {
            connection,
            service,
            replicas,
        } = target.bind(schema).await?;
        Ok(Self {
            connection,
            service,
            replicas,
            deadline: DEFAULT_DEADLINE,
            trace: TraceContext::default(),
        })
    }

    /// The connection that calls are made on; of replicas, the one that had the service first, whatever became of it.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The same client; calls made through it have so much time.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self {
            deadline,
            ..self.clone()
        }
    }

    /// The same client; calls made through it belong to this trace, and so do the calls that they cause.
    pub fn with_trace(&self, trace: TraceContext) -> Self {
        Self {
            trace,
            ..self.clone()
        }
    }

    /// Calls a method that returns a `T`.
    pub fn call_value<T: DeserializeOwned>(
        &self,
        method: &'static Method,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> Call<T> {
        Call::of_value(method, self.call(method, encode))
    }

    /// Calls a method that returns a `Result<T, E>`.
    pub fn call_result<T: DeserializeOwned, E: DeserializeOwned>(
        &self,
        method: &'static Method,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> Call<T, E> {
        Call::of_result(method, self.call(method, encode))
    }

    fn call(
        &self,
        method: &'static Method,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> Result<Made, CallError> {
        match &self.replicas {
            // A stream is given away as it is sent: it cannot be sent again.
            Some(joined) if !method.streams.any() => {
                let (deadline, trace) = self.terms()?;
                // Each attempt has a header of its own.
                let header = Header::call(0, 0, method.id, 0, trace);
                let (encoded, header_len) = encoded(header, method, encode)?;
                let kept = Kept::new(encoded, header_len);
                Ok(Made::Surviving(joined.call(method, trace, deadline, kept)))
            }
            _ => {
                let (engine, slot) = self.call_once(method, encode)?;
                Ok(Made::Sent(UnderWay::new(engine, slot)))
            }
        }
    }

    /// Makes a call on one connection, with which it ends; of replicas, on one that is there.
    pub(crate) fn call_once(
        &self,
        method: &'static Method,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> Result<(Arc<Engine>, Arc<CallSlot>), CallError> {
        let (deadline, trace) = self.terms()?;
        let place;
        let (engine, service) = match &self.replicas {
            None => (&self.connection.engine, self.service),
            Some(joined) => {
                place = joined.here()?;
                (&place.live.connection.engine, place.service)
            }
        };
        let id = engine.calls.next_id();
        let left = micros(deadline.map(|(_, after)| after));
        let header = Header::call(id, service, method.id, left, trace);
        let (encoded, header_len) = encoded(header, method, encode)?;
        let streams = method.streams;
        let slot = engine.call(Outgoing {
            id,
            encoded,
            header_len,
            deadline,
            streams: streams.any().then(|| CallStreams::of_caller(id, streams)),
        });
        Ok((engine.clone(), slot))
    }

    /// When a call that is made now ends, and where it belongs.
    fn terms(&self) -> Result<(Deadline, TraceContext), CallError> {
        let now = Instant::now();
        let outer = CallContext::current();
        // A nested call has at most the time that its caller has left.
        let inherited = outer.as_ref().and_then(CallContext::time_left);
        let after = inherited.map_or(self.deadline, |left| left.min(self.deadline));
        if after.is_zero() {
            return Err(CallError::Deadline { after });
        }
        let deadline = now.checked_add(after).map(|at| (at, after));
        let outer = outer.map(|outer| outer.trace());
        let trace = match self.trace.trace_id {
            0 => outer.unwrap_or_default(),
            _ => self.trace,
        };
        Ok((deadline, trace))
    }
}

/// When a call ends, and the time that it had; `None` far beyond any clock.
pub(super) type Deadline = Option<(Instant, Duration)>;

/// The arguments behind a header, and its length.
fn encoded(
    header: Header,
    method: &'static Method,
    encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
) -> Result<(Encoded, usize), CallError> {
    let header = header.to_vec();
    let header_len = header.len();
    let mut encoder = Encoder::after(header);
    encode(&mut encoder).map_err(|error| CallError::Encode(error.in_method(method.name)))?;
    Ok((encoder.finish(), header_len))
}

/// The time left as it travels: 0 is without bound.
pub(super) fn micros(time_left: Option<Duration>) -> u64 {
    time_left.map_or(0, |left| {
        u64::try_from(left.as_micros()).unwrap_or(u64::MAX).max(1)
    })
}
