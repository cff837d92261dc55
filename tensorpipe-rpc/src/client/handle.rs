//! The core of generated clients: a service, the target of its calls, and the options that its calls share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tensorpipe::Context;
use tensorpipe::ambient;

use super::connection::Connection;
use super::encoded_call::EncodedCall;
use super::replicas::ReplicatedService;
use super::target::{BoundService, Target};
use crate::call::{Call, Sent, StartedCall};
use crate::codec::{EncodeError, Encoder};
use crate::context::{CallContext, TraceContext};
use crate::engine::{CallOptions, DEFAULT_DEADLINE, Request};
use crate::error::{CallError, ConnectError};
use crate::observe::tell_failed;
use crate::placement::{CallPlacement, DeviceMap};
use crate::remote::{encoding, put_references};
use crate::schema::{Method, Schema};

/// More than any call takes, and within what clocks count.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A client of one service, on one connection or on replicas. Generated clients wrap it.
#[derive(Clone)]
pub struct ClientHandle {
    bound: BoundService,
    deadline: Duration,
    trace: TraceContext,
    /// The service's name.
    name: &'static str,
    /// Whether callers want figures ([`Call::stats`]).
    stats: bool,
    devices: Option<DeviceMap>,
    required: Option<Arc<Vec<String>>>,
}

impl fmt::Debug for ClientHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.bound.replicas {
            Some(replicated) => replicated.fmt(f),
            None => self.bound.connection.fmt(f),
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

    /// Asks for a service on a connection or replicas that exist.
    ///
    /// # Errors
    /// [`ConnectError::NoService`], [`ConnectError::Mismatch`], [`ConnectError::Unavailable`], or the reason why there was no
    /// answer;
    /// [`Misuse`](tensorpipe::Misuse) in [`ConnectError::Pipe`] for a service with a type that no call can carry.
    pub async fn on(target: &dyn Target, schema: &'static Schema) -> Result<Self, ConnectError> {
        schema.check().map_err(tensorpipe::Error::from)?;
        Ok(Self {
            bound: target.bind(schema).await?,
            deadline: DEFAULT_DEADLINE,
            trace: TraceContext::default(),
            name: schema.service,
            stats: false,
            devices: None,
            required: None,
        })
    }

    /// The connection that calls are made on. Over [`Replicas`](crate::Replicas) it is the connection of the first server found,
    /// and is not replaced after a reconnect. [`Replicas::status`](crate::Replicas::status) has the route to each server.
    pub fn connection(&self) -> &Connection {
        &self.bound.connection
    }

    /// The same client, whose calls have this much time.
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self {
            deadline,
            ..self.clone()
        }
    }

    /// The same client, whose calls belong to this trace, and so do the calls that they cause.
    pub fn with_trace(&self, trace: TraceContext) -> Self {
        Self {
            trace,
            ..self.clone()
        }
    }

    /// The same client, whose calls report what happened ([`Call::stats`]).
    pub fn with_stats(&self) -> Self {
        Self {
            stats: true,
            ..self.clone()
        }
    }

    /// The same client, whose tensors land where this map says.
    pub fn with_device_map(&self, map: DeviceMap) -> Self {
        Self {
            devices: Some(map),
            ..self.clone()
        }
    }

    /// The same client, whose tensors must go over one of these channels ([`Message::require`](tensorpipe::Message::require)). That
    /// holds for arguments, and for items of a stream argument; not for payloads, nor for tensors that fit the message's own frame. An empty
    /// list requires nothing.
    pub fn with_requirement(&self, channels: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            required: Some(Arc::new(channels.into_iter().map(Into::into).collect())),
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
    ) -> Result<StartedCall, CallError> {
        let options = self.options(method)?;
        let sent = match &self.bound.replicas {
            None => self.send(options, encode)?,
            Some(replicated) => {
                let call = EncodedCall::new(options, encode)?;
                // These cannot be sent twice: a stream is consumed as it is sent, and references belong to one server.
                let once = method.streams.any() || method.promises || call.refers();
                if !once {
                    return Ok(replicated.call(call));
                }
                send_to_one(replicated, &call)?
            }
        };
        Ok(StartedCall::sent(sent))
    }

    /// Makes a call on one connection; the call fails if that ends. On replicas, one that is live is chosen.
    pub(crate) fn call_once(
        &self,
        method: &'static Method,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> Result<Sent, CallError> {
        let options = self.options(method)?;
        match &self.bound.replicas {
            None => self.send(options, encode),
            Some(replicated) => send_to_one(replicated, &EncodedCall::new(options, encode)?),
        }
    }

    fn send(
        &self,
        options: CallOptions,
        encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
    ) -> Result<Sent, CallError> {
        let engine = &self.bound.connection.engine;
        let begun = engine.begin_call(self.bound.service, &options, time_of(&options));
        let header_len = begun.header.len();
        let mut encoder = Encoder::after(begun.header);
        let here = Arc::as_ptr(engine).addr();
        let tell = |error: &CallError| {
            let peer = engine.pipe.peer_name();
            tell_failed(begun.trace.as_ref(), options.method, peer, error);
        };
        let (encoded, references) = encoding(here, None, || encode(&mut encoder));
        if let Err(error) = encoded {
            let error = CallError::Encode(error.in_method(options.method.name));
            tell(&error);
            return Err(error);
        }
        let mut encoded = encoder.finish();
        if let Some(references) = &references {
            put_references(&mut encoded.metadata, &references.waits).inspect_err(tell)?;
        }
        let slot = engine.call(Request {
            id: begun.id,
            method: options.method,
            encoded,
            header_len,
            deadline: options.deadline,
            references,
            trace: begun.trace,
            places: options.places,
            required: options.required,
        });
        Ok((engine.clone(), slot))
    }

    /// The options of a call that is made now.
    fn options(&self, method: &'static Method) -> Result<CallOptions, CallError> {
        let now = ambient::now();
        let outer = CallContext::current();
        // A nested call has at most the time that its caller has left.
        let inherited = outer.as_ref().and_then(CallContext::time_left);
        let after = inherited.map_or(self.deadline, |left| left.min(self.deadline));
        let after = after.min(FOR_EVER);
        if after.is_zero() {
            return Err(CallError::no_time().in_call(method));
        }
        let outer = outer.map(|outer| outer.outgoing_trace());
        Ok(CallOptions {
            service: self.name,
            method,
            deadline: now.checked_add(after).map(|at| (at, after)),
            trace: match self.trace.trace_id {
                0 => outer.unwrap_or_default(),
                _ => self.trace,
            },
            wants_stats: self.stats,
            places: CallPlacement::of(method, self.devices.as_ref()),
            required: self.required.clone(),
        })
    }
}

/// Sends a call to the server that owns the values its arguments refer to; without such values, to any server.
fn send_to_one(replicated: &ReplicatedService, call: &EncodedCall) -> Result<Sent, CallError> {
    let left = time_of(&call.options);
    match call.owner() {
        None => {
            let picked = replicated.here(call)?;
            let engine = &picked.live.connection.engine;
            call.send(engine, picked.service, left, false)
        }
        // A server that this client was not made for gets none of its calls, whatever services it has.
        Some(owner) if !replicated.has(&owner) => Err(CallError::Unresolved(
            "its owner is not among these replicas; send a `Shared` that `Remote::share` makes, or fetch the value".into(),
        )),
        Some(owner) => call.send(&owner, replicated.service_at(&owner)?, left, false),
    }
}

/// How much time a call has when it begins.
fn time_of(options: &CallOptions) -> Option<Duration> {
    options.deadline.map(|(_, after)| after)
}
