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
//! let client = ParameterServerClient::connect(server.url().to_string()).await?;
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
//! # The way of a call
//!
//! ```text
//! client.push("w", &value)   the generated stub: a Call, on its way from here on       #[tensor_service]
//!   codec                    arguments to bytes; Tensors and Payloads lifted out       codec
//!   call header              method, id, time left, trace                              engine
//!   Pipe::write              header and bytes at once, larger tensors when asked for   tensorpipe
//! server
//!   admission                limits, deadline, service and method: on the header alone,
//!                            before its tensors move                                   engine
//!   codec                    bytes to arguments
//!   handler                  `impl ParameterServer for Store`, within its CallContext
//! ... and the same road back: the Call ends with a value, or with a CallError that says what happened.
//! ```
//!
//! - **Deadlines.** Every call has one, [`DEFAULT_DEADLINE`] where `with_deadline` names no other. It travels as the time
//!   left, ends the call at both ends, and bounds the calls that the handler makes in turn.
//! - **Cancellation.** Dropping a [`Call`] cancels it: what of its tensors has not moved does not move, and its handler is
//!   dropped at its next await. Work on threads of its own looks at [`CallContext::is_cancelled`].
//! - **Errors.** [`CallError`] has the method's own error in [`CallError::Service`], one level deep, beside what else can
//!   happen; [`CallError::may_have_run`] says whether the method may have had an effect. A panic in a handler is
//!   that call's error.
//! - **Streams.** A method may take one stream and answer with one: [`stream`].
//! - **Batches.** Calls of many clients can be handled as one: [`batch`].
//! - **Places.** `#[tensor(device = "cuda:0")]` on an argument has its tensors land on that device of the server; on a method, what it
//!   answers with on that device of the client. A client's [`DeviceMap`] says so for all methods. What cannot be had is
//!   [`CallError::NoPlace`].
//! - **References.** A method may return a [`Remote`] to a value that stays where it is; other calls take it, also before it is
//!   there: [`remote`].
//! - **What happened.** `client.with_stats().push("w", &value).stats().await` says where a call's time went and which bytes were
//!   copied: [`CallStats`]. Spans of `tracing` belong together across processes, and there are metrics: [`observe`].
//! - **Definitions.** The two ends compare names, signatures and traced types when a client connects. A difference is
//!   [`ConnectError::Mismatch`], which shows it; a method that only the client has is [`CallError::Unimplemented`].
//! - **Values by name.** [`rendezvous`]: tensors that one process sends and another receives, in any order, bounded; TensorFlow's
//!   semantics.
//! - **Many at once.** Calls of one connection run side by side; several clients share a [`Connection`], several services
//!   a [`Server`].
//! - **Several servers.** A client on [`Replicas`] survives the death of any of them: calls move where that is safe.
//!
//! # Limits
//!
//! | what | default | where |
//! |---|---|---|
//! | time for a call | 60 s | [`DEFAULT_DEADLINE`], `with_deadline` of a client |
//! | longest time a server allows | 1 h | [`ServerLimits::longest_call`] |
//! | calls under way on a server | 16384 | [`ServerLimits::calls`] |
//! | calls under way on a connection | 4096 | [`ServerLimits::calls_per_connection`] |
//! | time to finish calls at a shutdown | 30 s | [`ServerLimits::drain`] |
//! | time to answer a client that connects | 10 s | fixed |
//! | time to wait for the first of several servers | 30 s | [`ReplicasBuilder::patience`] |
//! | time without a connection until one of several servers is given up | 10 min | [`ReplicasBuilder::give_up_after`] |
//! | how often a call over replicas is sent | 5 | [`ReplicasBuilder::tries`] |
//! | depth of a value | 128 levels | [`codec::MAX_DEPTH`] |
//! | stack that decoding a value takes | 1 MiB | [`codec::MAX_STACK`] |
//! | elements without bytes in a message | 2^20 | [`codec::MAX_EMPTY`] |
//! | memory of a value's elements | 256 MiB and 16 bytes per encoded byte | [`codec::MEMORY_FLOOR`], [`codec::MEMORY_FACTOR`] |
//! | what lies unread of a stream | 1024 items or 4 MiB | fixed |
//! | devices that a client's map names | 64 | [`DeviceMap::MAX`] |
//! | sizes of tensors, payloads, messages | | [`tensorpipe::Limits`] |
//!
//! Values of more than 32 KiB, not counting their tensors and payloads, travel as a payload themselves, and so do smaller
//! ones to a peer whose [`tensorpipe::Limits::metadata`] has no room for them.
//!
//! A handler that computes for long without an await holds up the thread that it runs on, and perhaps all pipes of its
//! runtime: compute in `spawn_blocking`. The first time that a method does so for a second, a warning names it. A runtime that is
//! blocked for [`tensorpipe::Timeouts::blocked`] (60 s) is given up by its peers.
//!
//! # Features
//!
//! - `tarpc` (default): a pipe as tarpc's transport, in the module `tarpc`, and generated clients as tarpc's stubs.
//! - `metrics`: counters, gauges and histograms of calls, streams, references and pipes, through the facade `metrics`:
//!   their names are in [`observe`].
//! - `fuzzing`: what the fuzz targets of this repository run; hidden, and not covered by the version's promises.

pub mod batch;
pub mod codec;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
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
mod server;
mod service;
mod spare;
pub mod stream;
mod value;

#[cfg(feature = "tarpc")]
pub mod tarpc;
#[path = "tarpc/stub.rs"]
mod tarpc_stub;

pub use builder::Builder;
pub use call::Call;
pub use callbacks::ConnectionBuilder;
pub use client::{
    Backoff, Balance, Connection, DEFAULT_DEADLINE, ReplicaState, ReplicaStatus, Replicas,
    ReplicasBuilder, RetryBudget, Target,
};
pub use context::{CallContext, TraceContext};
pub use error::{CallError, ConnectError, PlaceError, ReplicaError};
pub use futures_util::Stream;
pub use limits::ServerLimits;
pub use observe::CallStats;
pub use placement::DeviceMap;
pub use remote::Remote;
pub use server::{Server, ServerBuilder};
pub use service::{HandlerFuture, Service};
pub use stream::{CallStream, Interrupted, Streaming};
/// Makes a client and a server of a trait of remote calls.
///
/// ```
/// use std::collections::HashMap;
///
/// use tensorpipe::Tensor;
/// use tensorpipe_rpc::{CallContext, Connection, Server, tensor_service};
///
/// #[tensor_service]
/// pub trait Embedder {
///     /// One vector for each text. Doc comments reach the client.
///     #[rpc(idempotent)]
///     async fn embed(&self, texts: Vec<String>) -> HashMap<String, Tensor>;
///     /// `Err` reaches the caller as `CallError::Service`.
///     async fn norm(&self, x: Tensor) -> Result<f32, String>;
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
///     async fn norm(&self, x: Tensor) -> Result<f32, String> {
///         let x = x.as_slice::<f32>().map_err(|error| error.to_string())?;
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
/// let connection = Connection::connect(server.url().to_string()).await?;
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

/// What generated code names. Not for anybody else: it changes without notice.
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
    pub use crate::value::{CallValue, Known, Unknown, WithoutTensors};
    pub use futures_util::Stream;
    pub use tensorpipe::{Context, Device, DeviceKind};
}

/// The examples of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}
