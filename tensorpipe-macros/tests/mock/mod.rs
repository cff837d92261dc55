//! The runtime's private API in memory: a client's handle calls the service directly.
//!
//! Enough of the contract between macro and runtime to run and to type-check what the macro writes;
//! arguments travel as postcard, one after the other.

#![allow(
    dead_code,
    missing_debug_implementations,
    unnameable_types,
    unused_imports,
    unused_macros,
    unreachable_pub,
    reason = "copies a public API, of which no test uses all"
)]

use serde::{Serialize, de::DeserializeOwned};
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

pub use __private::{CallContext, CallError, Connection, Service};

pub mod __private {
    pub use super::*;
    /// What the runtime's macro is without its feature `tarpc`.
    macro_rules! tarpc_stub {
        ($($ignored:tt)*) => {};
    }
    pub(crate) use tarpc_stub;

    pub struct Schema {
        pub service: &'static str,
        pub methods: &'static [Method],
    }

    pub struct Method {
        pub name: &'static str,
        pub id: u32,
        pub signature: &'static str,
        pub idempotent: bool,
        pub structure: fn(&mut Tracer),
    }

    pub const fn method_id(name: &str) -> u32 {
        let (mut hash, mut at) = (0x811c_9dc5_u32, 0);
        while at < name.len() {
            hash = (hash ^ name.as_bytes()[at] as u32).wrapping_mul(0x0100_0193);
            at += 1;
        }
        hash
    }

    /// What may travel. `Itself` is how the macro names such a type.
    pub trait Value: Serialize + DeserializeOwned + Send + 'static {
        type Itself;
    }

    impl<T: Serialize + DeserializeOwned + Send + 'static> Value for T {
        type Itself = T;
    }

    #[derive(Default)]
    pub struct Tracer(pub Vec<String>);

    impl Tracer {
        pub fn argument<T: Serialize + DeserializeOwned>(&mut self, name: &'static str) {
            self.0
                .push(format!("{name}: {}", std::any::type_name::<T>()));
        }
        pub fn returns<T: Serialize + DeserializeOwned>(&mut self) {
            self.0.push(format!("-> {}", std::any::type_name::<T>()));
        }
        pub fn error<E: Serialize + DeserializeOwned>(&mut self) {
            self.0.push(format!("error {}", std::any::type_name::<E>()));
        }
    }

    pub type EncodeError = postcard::Error;
    pub type DecodeError = postcard::Error;
    pub type ConnectError = Infallible;

    #[derive(Default)]
    pub struct Encoder(Vec<u8>);

    impl Encoder {
        pub fn push<T>(
            &mut self,
            _: &'static str,
            value: &impl Argument<T>,
        ) -> Result<(), EncodeError> {
            value.encode(self)
        }
        fn write(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), EncodeError> {
            self.0.extend(postcard::to_stdvec(value)?);
            Ok(())
        }
    }

    pub trait Argument<T> {
        fn encode(&self, encoder: &mut Encoder) -> Result<(), EncodeError>;
    }

    impl<T: Serialize> Argument<T> for T {
        fn encode(&self, encoder: &mut Encoder) -> Result<(), EncodeError> {
            encoder.write(self)
        }
    }

    impl<T: Serialize> Argument<T> for &T {
        fn encode(&self, encoder: &mut Encoder) -> Result<(), EncodeError> {
            encoder.write(*self)
        }
    }

    impl Argument<String> for &str {
        fn encode(&self, encoder: &mut Encoder) -> Result<(), EncodeError> {
            encoder.write(*self)
        }
    }

    pub struct Arguments(pub Vec<u8>);

    impl Arguments {
        pub fn take<T: DeserializeOwned>(&mut self, _: &'static str) -> Result<T, DecodeError> {
            let (value, rest) = postcard::take_from_bytes(&self.0)?;
            self.0 = rest.to_vec();
            Ok(value)
        }
        pub fn finish(self) -> Result<(), DecodeError> {
            if self.0.is_empty() {
                Ok(())
            } else {
                Err(postcard::Error::SerdeDeCustom)
            }
        }
    }

    pub struct Reply(pub Result<(bool, Vec<u8>), String>);

    impl Reply {
        pub fn value<T: Serialize>(value: T) -> Self {
            Self(
                postcard::to_stdvec(&value)
                    .map(|bytes| (true, bytes))
                    .map_err(|e| e.to_string()),
            )
        }
        pub fn result<T: Serialize, E: Serialize>(result: Result<T, E>) -> Self {
            match result {
                Ok(value) => Self::value(value),
                Err(error) => Self(Self::value(error).0.map(|(_, bytes)| (false, bytes))),
            }
        }
    }

    pub type HandlerFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;

    pub fn bad_arguments(error: DecodeError) -> HandlerFuture {
        Box::pin(async move { Reply(Err(format!("bad arguments: {error}"))) })
    }

    pub fn unknown_method(method: usize) -> HandlerFuture {
        Box::pin(async move { Reply(Err(format!("unknown method {method}"))) })
    }

    pub trait Service: Send + Sync + 'static {
        fn schema(&self) -> &'static Schema;
        fn call(&self, method: usize, arguments: Arguments, context: CallContext) -> HandlerFuture;
    }

    pub struct TraceContext;

    #[derive(Clone, Debug)]
    pub struct CallContext {
        pub deadline: Duration,
    }

    #[derive(Debug, PartialEq)]
    pub enum CallError<E> {
        Service(E),
        Refused(String),
    }

    type Outcome<T, E> = Result<T, CallError<E>>;

    type DecodeFailure<E> = fn(&[u8]) -> CallError<E>;

    /// Holds how to decode an error, since `Infallible` has no `Deserialize`.
    pub struct Call<T, E = Infallible> {
        reply: HandlerFuture,
        decode_failure: DecodeFailure<E>,
        answer: PhantomData<fn() -> T>,
    }

    impl<T: DeserializeOwned, E> Future for Call<T, E> {
        type Output = Outcome<T, E>;

        fn poll(
            mut self: Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> Poll<Self::Output> {
            self.reply
                .as_mut()
                .poll(context)
                .map(|reply| match reply.0 {
                    Ok((true, bytes)) => Ok(postcard::from_bytes(&bytes).unwrap()),
                    Ok((false, bytes)) => Err((self.decode_failure)(&bytes)),
                    Err(refusal) => Err(CallError::Refused(refusal)),
                })
        }
    }

    /// Stands for the runtime's own context, which the mock has no use for.
    pub struct Context;

    #[derive(Clone)]
    pub struct Connection(pub Arc<dyn Service>);

    impl fmt::Debug for Connection {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Connection")
        }
    }

    #[derive(Clone, Debug)]
    pub struct ClientHandle {
        connection: Connection,
        deadline: Duration,
    }

    impl ClientHandle {
        pub async fn connect(_: &'static Schema, _: &str) -> Result<Self, ConnectError> {
            unimplemented!("the mock has no network")
        }
        pub async fn connect_with(
            _: &Context,
            _: &'static Schema,
            _: &str,
        ) -> Result<Self, ConnectError> {
            unimplemented!("the mock has no network")
        }
        pub async fn on(
            connection: &Connection,
            schema: &'static Schema,
        ) -> Result<Self, ConnectError> {
            assert_eq!(schema.service, connection.0.schema().service);
            let (connection, deadline) = (connection.clone(), Duration::from_secs(10));
            Ok(Self {
                connection,
                deadline,
            })
        }
        pub fn connection(&self) -> &Connection {
            &self.connection
        }
        pub fn with_deadline(&self, deadline: Duration) -> Self {
            Self {
                connection: self.connection.clone(),
                deadline,
            }
        }
        pub fn with_trace(&self, _: TraceContext) -> Self {
            self.with_deadline(self.deadline)
        }
        pub fn call_value<T: DeserializeOwned>(
            &self,
            method: &'static Method,
            encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
        ) -> Call<T> {
            self.call(method, encode, |_| {
                CallError::Refused("not a fallible method".to_owned())
            })
        }
        pub fn call_result<T: DeserializeOwned, E: DeserializeOwned>(
            &self,
            method: &'static Method,
            encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
        ) -> Call<T, E> {
            self.call(method, encode, |bytes| {
                CallError::Service(postcard::from_bytes(bytes).unwrap())
            })
        }
        fn call<T, E>(
            &self,
            method: &'static Method,
            encode: impl FnOnce(&mut Encoder) -> Result<(), EncodeError>,
            decode_failure: DecodeFailure<E>,
        ) -> Call<T, E> {
            let mut encoder = Encoder::default();
            encode(&mut encoder).unwrap();
            let service = &self.connection.0;
            // By number, as over the wire.
            let mut methods = service.schema().methods.iter();
            let index = methods.position(|other| other.id == method.id).unwrap();
            let context = CallContext {
                deadline: self.deadline,
            };
            let reply = service.call(index, Arguments(encoder.0), context);
            Call {
                reply,
                decode_failure,
                answer: PhantomData,
            }
        }
    }
}

/// Runs a future that waits for nothing but other futures of this mock.
pub fn run<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}
