//! Remote calls whose tensors travel over a [`tensorpipe`] pipe: a trait becomes client and server.
//!
//! ```
//! use std::collections::HashMap;
//! use std::sync::Mutex;
//!
//! use tensorpipe::Tensor;
//! use tensorpipe_rpc::{CallError, Server, tensor_service};
//!
//! #[derive(Debug, serde::Serialize, serde::Deserialize, thiserror::Error)]
//! enum PushError {
//!     #[error("no parameter `{0}`")]
//!     Unknown(String),
//! }
//!
//! #[tensor_service]
//! trait ParameterServer {
//!     /// Replaces a parameter; answers with the old one.
//!     async fn push(&self, name: String, value: Tensor) -> Result<Tensor, PushError>;
//!     async fn pull(&self, names: Vec<String>) -> HashMap<String, Tensor>;
//! }
//!
//! struct Store(Mutex<HashMap<String, Tensor>>);
//!
//! impl ParameterServer for Store {
//!     async fn push(&self, name: String, value: Tensor) -> Result<Tensor, PushError> {
//!         match self.0.lock().unwrap().get_mut(&name) {
//!             Some(parameter) => Ok(std::mem::replace(parameter, value)),
//!             None => Err(PushError::Unknown(name)),
//!         }
//!     }
//!
//!     async fn pull(&self, names: Vec<String>) -> HashMap<String, Tensor> {
//!         let store = self.0.lock().unwrap();
//!         names.into_iter().filter_map(|name| Some((name.clone(), store.get(&name)?.clone()))).collect()
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store(Mutex::new(HashMap::from([("w".to_owned(), Tensor::from(vec![1f32, 2.0]))])));
//! let server = Server::builder().service(ParameterServerService::new(store)).listen("tcp://127.0.0.1:0").await?;
//!
//! let client = ParameterServerClient::connect(server.url()).await?;
//! let old = client.push("w", &Tensor::from(vec![3f32, 4.0])).await?;
//! assert_eq!(old.as_slice::<f32>()?, [1.0, 2.0]);
//! assert_eq!(client.pull(vec!["w".to_owned()]).await?["w"].as_slice::<f32>()?, [3.0, 4.0]);
//! match client.push("v", &old).await {
//!     Err(CallError::Service(PushError::Unknown(name))) => assert_eq!(name, "v"),
//!     other => panic!("{other:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Both ends are in one process here. They may also be in two processes, on one machine or on two: [`tensorpipe`] says how tensors
//! travel then.
//!
//! `#[tensor_service]` writes `ParameterServerService`, which serves any `S: ParameterServer`, and `ParameterServerClient`. The
//! page of the macro, [`tensor_service`], lists what a trait may have. [`guide`] has an example for each task.
//!
//! # What happens in a call
//!
//! ```text
//! client.push("w", &value)   the client's method: a Call, on its way from here on
//!   codec                    arguments to bytes; tensors and payloads stay beside them
//!   call header              method, id, time left, trace
//!   tensorpipe::Pipe         header and bytes at once; large tensors over a channel
//! server
//!   admission                on the header alone, before tensors move that wait for a go-ahead
//!   codec                    bytes to arguments
//!   handler                  `impl ParameterServer for Store`, within its CallContext
//! ... and the same road back: the Call ends with a value or a CallError.
//! ```
//!
//! - **Calls run side by side.** A [`Call`] is on its way when it is made. Several clients may share a [`Connection`], several
//!   services a [`Server`].
//! - **Deadlines.** Each call has one, [`DEFAULT_DEADLINE`] (60 s) unless `with_deadline` says otherwise. A stream as a whole has
//!   one, too. Deadlines travel as the time left, and bound the calls that the handler makes in turn.
//! - **Cancel.** Dropping a [`Call`] cancels it. Tensors that have not moved do not move; the handler is dropped at its next await.
//!   Work on other threads should check [`CallContext::is_cancelled`].
//! - **Errors.** [`CallError::Service`] is the method's own error. [`CallError::may_have_run`] says whether the method may have had
//!   an effect. A panic in a handler is that call's error.
//! - **Connections.** A client does not reconnect: when its connection ends, its calls fail with [`CallError::Connection`].
//!   [`Replicas`] reconnects, to one server or several.
//! - **Definitions** are compared when a client connects: names, signatures, types. A difference is [`ConnectError::Mismatch`], which
//!   shows it. A method that only the client has is [`CallError::Unimplemented`]; one that only the server has is no difference. So a
//!   service that runs is upgraded by adding methods, at its servers first. The methods' order does not matter; a type that changes in
//!   any way does. A method may become `#[rpc(idempotent)]`; where it no longer is, a client that would still retry it is refused.
//! - **Values that references are to** are compared if they can be fetched: where a type is [`Remote<T>`](Remote) or
//!   [`remote::Shared<T>`], or a `Vec` or an `Option` of it, and not where a reference is inside another type.
//! - **Trust.** Without a [token](tensorpipe::ContextBuilder::token) or TLS, anybody who can connect may call.
//!   [`Builder::authorize`] decides who may call what. `SECURITY.md` lists the guarantees.
//!
//! Use `spawn_blocking` for long computations. A handler that computes without an await holds up its thread, and perhaps all pipes of its
//! runtime: for up to 2.5 s even where other threads are idle. A warning names the method after five seconds, or at its next await if that comes
//! after one. While all threads are blocked, another warning says so. When a runtime is blocked for
//! [`tensorpipe::Timeouts::blocked`] (60 s), its peers give it up. A `std::sync::Mutex` that handlers take may be held while calls, streams
//! and references are made and dropped, in which no handler begins, but not across an await.
//!
//! # More than a call
//!
//! | what | where |
//! |---|---|
//! | streams as arguments and results | [`stream`] |
//! | calls of many clients handled as one | [`batch`] |
//! | values that stay at the server, [`Remote`] | [`remote`] |
//! | several servers, reconnecting | [`Replicas`] |
//! | calls from the server to its client | [`ConnectionBuilder`], [`CallContext::connection`] |
//! | tensors that land on a named device | [`DeviceMap`], `#[tensor(device = "cuda:0")]` |
//! | times and bytes of a call, spans, metrics | [`CallStats`], [`observe`] |
//! | values by name | [`rendezvous`] |
//! | tarpc over a pipe | module `tarpc` (feature `tarpc`) |
//!
//! # Limits
//!
//! | what | default | changed by |
//! |---|---|---|
//! | time for a call, and for a whole stream | 60 s | `with_deadline` of a client |
//! | longest time that a server allows | 1 h | [`ServerLimits::longest_call`] |
//! | calls under way on a server; of one connection | 16384; 4096 | [`ServerLimits::calls`], [`ServerLimits::calls_per_connection`] |
//! | results that one caller does not take | as many as its calls, and 64 | [`ServerLimits::calls_per_connection`] |
//! | values that a connection refers to | 2^20 | [`ServerLimits::references`] |
//! | unread items of one stream | 1024 items or 4 MiB, and one more of any size | fixed |
//! | unread items of all streams of a connection | 256 MiB, beyond 256 KiB of each | [`ServerLimits::unread_items`] |
//! | time to finish calls at a shutdown | 30 s | [`ServerLimits::drain`] |
//! | time to answer a client that connects | 10 s | fixed |
//! | wait for the first of several servers | 30 s | [`ReplicasBuilder::connect_timeout`](replicas::ReplicasBuilder::connect_timeout) |
//! | time without a connection until a server is given up | 10 min | [`ReplicasBuilder::give_up_after`](replicas::ReplicasBuilder::give_up_after) |
//! | how often a call over replicas is sent | 5 | [`ReplicasBuilder::max_attempts`](replicas::ReplicasBuilder::max_attempts) |
//! | devices that a client's map names | 64 | fixed: [`DeviceMap::MAX`] |
//! | values of a rendezvous that nobody received | 1 GiB, 65536 values | [`rendezvous::Limits`] |
//! | depth of a value; stack to decode it | 128 levels; 1 MiB | fixed: [`codec::MAX_DEPTH`], [`codec::MAX_STACK`] |
//! | elements without bytes in a message | 2^20 | fixed: [`codec::MAX_EMPTY`] |
//! | memory of a decoded value | 256 MiB and 32 bytes for each encoded byte | fixed: [`codec::MEMORY_FLOOR`], [`codec::MEMORY_FACTOR`] |
//! | of that, a call's arguments beyond 64 KiB and their encoded bytes, until it ends | half of the receive budget, for all calls | [`tensorpipe::Limits::receive_budget`] |
//! | sizes of tensors, payloads, messages | | [`tensorpipe::Limits`] |
//!
//! # Features
//!
//! - `tarpc` (default): a pipe as tarpc's transport, in the module `tarpc`, and generated clients as tarpc's stubs.
//! - `tls`: pipes over TLS, as the feature `tls` of [`tensorpipe`].
//! - `testing`: the simulated network of [`tensorpipe`], for tests of services, as its feature `testing`.
//! - `metrics`: counters, gauges and histograms through the facade `metrics`; [`observe`] has their names.
//! - `fuzzing`: what the fuzz targets of this repository run; hidden, and not covered by the version's promises.
#![forbid(unsafe_code)]

pub mod batch;
pub mod codec;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(doc)]
pub mod guide;
pub mod rendezvous;
pub mod schema;

mod builder;
mod call;
mod callbacks;
mod caught;
mod client;
mod context;
mod engine;
mod error;
mod header;
mod limits;
mod lock;
pub mod observe;
mod placement;
pub mod remote;
mod scratch;
mod server;
pub mod service;
mod service_error;
pub mod stream;
mod task;
mod timer;
mod value;

#[cfg(feature = "tarpc")]
pub mod tarpc;
#[path = "tarpc/stub.rs"]
mod tarpc_stub;

pub use builder::Builder;
pub use call::Call;
pub use callbacks::ConnectionBuilder;
pub use client::{Connection, DEFAULT_DEADLINE, Replicas, Target, replicas};
pub use context::{CallContext, TraceContext};
pub use error::{CallError, ConnectError, PlaceError};
pub use futures_util::Stream;
pub use limits::ServerLimits;
pub use observe::CallStats;
pub use placement::DeviceMap;
pub use remote::Remote;
pub use server::{Server, ServerBuilder};
pub use service_error::ServiceError;
pub use stream::{CallStream, Interrupted, Streaming};
/// Makes a client and a server of a trait of remote calls.
///
/// ```
/// use std::collections::HashMap;
///
/// use tensorpipe::Tensor;
/// use tensorpipe_rpc::{CallContext, Connection, Server, ServiceError, tensor_service};
///
/// #[tensor_service]
/// pub trait Embedder {
///     /// One vector for each text. Doc comments reach the client.
///     #[rpc(idempotent)]
///     async fn embed(&self, texts: Vec<String>) -> HashMap<String, Tensor>;
///     /// `Err` reaches the caller as `CallError::Service`.
///     async fn norm(&self, x: Tensor) -> Result<f32, ServiceError>;
///     /// The context is filled in by the server.
///     async fn who(&self, context: &CallContext) -> String;
/// }
///
/// struct Lengths;
///
/// impl Embedder for Lengths {
///     async fn embed(&self, texts: Vec<String>) -> HashMap<String, Tensor> {
///         let embed = |text: String| (text.clone(), Tensor::scalar(text.len() as f32));
///         texts.into_iter().map(embed).collect()
///     }
///
///     async fn norm(&self, x: Tensor) -> Result<f32, ServiceError> {
///         let x = x.as_slice::<f32>()?;
///         Ok(x.iter().map(|x| x * x).sum::<f32>().sqrt())
///     }
///
///     async fn who(&self, context: &CallContext) -> String {
///         context.peer().to_owned()
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Server::builder().service(EmbedderService::new(Lengths)).listen("tcp://127.0.0.1:0").await?;
/// let connection = Connection::connect(server.url()).await?;
/// let client = EmbedderClient::on(&connection).await?;
///
/// let x = Tensor::from(vec![3f32, 4.0]);
/// // Both are under way before the first is awaited; `&x` clones the handle, not the bytes.
/// let (norm, embedded) = (client.norm(&x), client.embed(&["one".to_owned()]));
/// assert_eq!(norm.await?, 5.0);
/// assert_eq!(embedded.await?["one"].as_slice::<f32>()?, [3.0]);
/// assert_eq!(client.who().await?, tensorpipe::Context::global().name());
/// # Ok(())
/// # }
/// ```
pub use tensorpipe_macros::tensor_service;
pub use value::CallValue;

/// Items that generated code names. They are private: they change without notice.
#[doc(hidden)]
pub mod __private {
    pub use crate::__tarpc_stub as tarpc_stub;
    pub use crate::batch::{BatchKey, BatchedMethod, Batches};
    pub use crate::call::Call;
    pub use crate::client::{ClientHandle, Connection, Target};
    pub use crate::codec::{Argument, Arguments, EncodeError, Encoder, Reply};
    pub use crate::context::{CallContext, TraceContext};
    pub use crate::error::ConnectError;
    pub use crate::placement::DeviceMap;
    pub use crate::schema::{Method, Places, Schema, Streams, Tracer, method_id};
    pub use crate::service::{HandlerFuture, Service, bad_arguments, unknown_method};
    pub use crate::stream::{CallStream, Streaming, reply_results, reply_values};
    #[cfg(feature = "tarpc")]
    pub use crate::tarpc::private as tarpc;
    pub use crate::value::{CallValue, Known, Refers, Unknown, WithoutTensors};
    pub use futures_util::Stream;
    pub use tensorpipe::{Context, Device, DeviceKind};
}

/// The examples of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}
