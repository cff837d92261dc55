//! The calling side: a connection, and what generated clients are made of.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use tensorpipe::{Context, Pipe, Route};

use crate::call::Call;
use crate::codec::{EncodeError, Encoder, decode_reply};
use crate::context::{CallContext, TraceContext};
use crate::engine::{CallSlot, CallStreams, Engine, Outcome, Outgoing, bind_request};
use crate::error::{CallError, ConnectError};
use crate::header::{FailureCode, Header, STATS};
use crate::observe::Noted;
use crate::remote::{encoding, put_references};
use crate::schema::{Method, Schema};

/// The time that a call has where nobody says otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// The time that a server has to say whether it has a service.
const BIND_DEADLINE: Duration = Duration::from_secs(10);

/// A pipe on which calls are made. Several clients can share one. Cheap to clone; when the last handle, client and call is
/// dropped, the pipe closes in good order.
#[derive(Clone)]
pub struct Connection {
    pub(crate) engine: Arc<Engine>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("pipe", &self.engine.pipe.name())
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects with the process's default context.
    ///
    /// # Errors
    /// As [`Context::connect`].
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, tensorpipe::Error> {
        Self::connect_with(Context::global(), url).await
    }

    /// Connects with this context.
    ///
    /// # Errors
    /// As [`Context::connect`].
    pub async fn connect_with(
        context: &Context,
        url: impl AsRef<str>,
    ) -> Result<Self, tensorpipe::Error> {
        Ok(Self::over(context.connect(url).await?))
    }

    /// Makes calls on a pipe, which must not be used for anything else from now on. Inside a tokio runtime.
    pub fn over(pipe: Pipe) -> Self {
        Self {
            engine: Engine::start(pipe, None),
        }
    }

    /// The pipe: its name, route, pool and counters.
    pub fn pipe(&self) -> &Pipe {
        &self.engine.pipe
    }

    /// Which transport and channels carry the calls.
    pub fn route(&self) -> &Route {
        self.engine.pipe.route()
    }

    /// Calls that wait for their answer.
    pub fn calls_under_way(&self) -> usize {
        self.engine.calls.under_way()
    }

    /// Values of this side's that the other end refers to ([`Remote`](crate::Remote)): those of services that are served on this
    /// connection ([`Connection::builder`]).
    pub fn references(&self) -> usize {
        self.engine.owned.count()
    }

    /// Closes the pipe; calls under way fail.
    ///
    /// # Errors
    /// As [`Pipe::close`].
    pub async fn close(&self) -> Result<(), tensorpipe::Error> {
        self.engine.pipe.close().await
    }
}

/// A client of one service on one connection: what generated clients hold.
#[derive(Clone)]
pub struct ClientHandle {
    connection: Connection,
    /// The server's number for the service.
    service: u32,
    deadline: Duration,
    trace: TraceContext,
    /// The service's name.
    name: &'static str,
    /// Whether its callers want figures.
    stats: bool,
}

impl fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.connection.fmt(f)
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

    /// Asks for a service on a connection that is there.
    ///
    /// # Errors
    /// [`ConnectError::NoService`], [`ConnectError::Mismatch`], or why there was no answer.
    pub async fn on(
        connection: &Connection,
        schema: &'static Schema,
    ) -> Result<Self, ConnectError> {
        let engine = &connection.engine;
        if let Some(service) = engine.bound(schema) {
            return Ok(Self::bound(connection, schema, service));
        }
        let id = engine.calls.next_id();
        let request = bind_request(id, &schema.describe());
        let (encoded, header_len) =
            request.map_err(|error| ConnectError::Call(CallError::Encode(error)))?;
        let deadline = Some((Instant::now() + BIND_DEADLINE, BIND_DEADLINE));
        let slot = engine.call(Outgoing {
            id,
            encoded,
            header_len,
            deadline,
            streams: None,
            pins: Vec::new(),
            noted: None,
        });
        let pipe = engine.pipe.name().into();
        let body = match (Binding { engine, slot }).await {
            Outcome::Value(body) => body,
            Outcome::NotBound(FailureCode::NoService, reason) => {
                return Err(ConnectError::NoService { pipe, reason });
            }
            Outcome::NotBound(_, reason) => return Err(ConnectError::Mismatch(reason)),
            Outcome::Failed(CallError::Connection { error, .. }) => return Err(error.into()),
            Outcome::Failed(error) => return Err(ConnectError::Call(error)),
            Outcome::ServiceError(_) => {
                let reason = "the server answered with an error that means nothing here".into();
                return Err(ConnectError::Call(CallError::Other(reason)));
            }
        };
        let service = decode_reply(body.metadata, body.payloads, body.tensors);
        let service = service.map_err(|error| ConnectError::Call(CallError::Decode(error)))?;
        engine.set_bound(schema, service);
        Ok(Self::bound(connection, schema, service))
    }

    fn bound(connection: &Connection, schema: &'static Schema, service: u32) -> Self {
        Self {
            connection: connection.clone(),
            service,
            deadline: DEFAULT_DEADLINE,
            trace: TraceContext::default(),
            name: schema.service,
            stats: false,
        }
    }

    /// The connection that calls are made on.
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

    /// The same client; of calls made through it [`Call::stats`] says what happened.
    pub fn with_stats(&self) -> Self {
        Self {
            stats: true,
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

    pub(crate) fn call(
        &self,
        method: &'static Method,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> Result<(Arc<Engine>, Arc<CallSlot>), CallError> {
        let engine = &self.connection.engine;
        let now = Instant::now();
        let outer = CallContext::current();
        // A nested call has at most the time that its caller has left.
        let inherited = outer.as_ref().and_then(CallContext::time_left);
        let after = inherited.map_or(self.deadline, |left| left.min(self.deadline));
        if after.is_zero() {
            return Err(CallError::Deadline { after });
        }
        let deadline = now.checked_add(after).map(|at| (at, after));
        let time_left_us = deadline.map_or(0, |_| {
            u64::try_from(after.as_micros()).unwrap_or(u64::MAX).max(1)
        });
        let outer = outer.map(|outer| outer.around());
        let trace = match self.trace.trace_id {
            0 => outer.unwrap_or_default(),
            _ => self.trace,
        };
        let id = engine.calls.next_id();
        let streams = method.streams;
        let asked = self.stats && !streams.any();
        let name = (self.name, method);
        let (noted, trace) = Noted::of(asked, name, (id, &engine.pipe), trace, now);
        let mut header = Header::call(id, self.service, method.id, time_left_us, trace);
        if asked {
            header.flags |= STATS;
        }
        let header = header.to_vec();
        let header_len = header.len();
        let mut encoder = Encoder::after(header);
        let here = Arc::as_ptr(engine).addr();
        let (encoded, met) = encoding(here, None, || encode(&mut encoder));
        if let Err(error) = encoded {
            let error = CallError::Encode(error.in_method(method.name));
            if let Some(noted) = &noted {
                noted.failed(&error);
            }
            return Err(error);
        }
        let mut encoded = encoder.finish();
        if !met.pins.is_empty() {
            put_references(&mut encoded.metadata, &met.waits)?;
        }
        let slot = engine.call(Outgoing {
            id,
            encoded,
            header_len,
            deadline,
            streams: streams.any().then(|| CallStreams::of_caller(id, streams)),
            pins: met.pins,
            noted,
        });
        Ok((engine.clone(), slot))
    }
}

/// Waits for the answer to a bind.
struct Binding<'a> {
    engine: &'a Arc<Engine>,
    slot: Arc<CallSlot>,
}

impl Drop for Binding<'_> {
    fn drop(&mut self) {
        self.engine.cancel(&self.slot);
    }
}

impl Future for Binding<'_> {
    type Output = Outcome;

    fn poll(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Outcome> {
        match self.slot.poll(Some(cx.waker())) {
            Some(outcome) => std::task::Poll::Ready(outcome),
            None => std::task::Poll::Pending,
        }
    }
}
