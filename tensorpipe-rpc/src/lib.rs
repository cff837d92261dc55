//! Remote calls whose tensors travel over a [`tensorpipe`] pipe.
//!
//! [`#[tensor_service]`](macro@tensor_service) makes a client and a service of a trait:
//!
//! ```
//! use tensorpipe::Tensor;
//! use tensorpipe_rpc::{Server, tensor_service};
//!
//! #[tensor_service]
//! pub trait Mean {
//!     /// The mean of all elements, and how many there are.
//!     async fn mean(&self, tensor: Tensor) -> Result<(f32, u64), String>;
//! }
//!
//! struct Cpu;
//!
//! impl Mean for Cpu {
//!     async fn mean(&self, tensor: Tensor) -> Result<(f32, u64), String> {
//!         let values = tensor.as_slice::<f32>().map_err(|error| error.to_string())?;
//!         Ok((values.iter().sum::<f32>() / values.len() as f32, tensor.len()))
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder()
//!     .service(MeanService::new(Cpu))
//!     .listen("tcp://127.0.0.1:0")
//!     .await?;
//! let client = MeanClient::connect(server.url()).await?;
//! let (mean, count) = client.mean(Tensor::from(vec![1.0f32, 2.0, 6.0])).await?;
//! assert_eq!((mean, count), (3.0, 3));
//! # Ok(())
//! # }
//! ```
//!
//! - A stub returns a [`Call`], which is under way when it is made; dropping it cancels it, also at the server.
//! - [`CallError`] says what became of a call; [`CallError::may_have_run`] whether trying again may run it twice.
//! - A call has [`DEFAULT_DEADLINE`] unless the client says otherwise (`with_deadline`); [`ServerLimits`] clamps it. A handler that takes a
//!   [`CallContext`] sees its deadline, its caller and whether it is still wanted.
//! - Several clients share one [`Connection`], several services one [`Server`]; both ends compare their definitions when a client is made.
//! - Arguments and results are postcard: types that need a self-describing format (`#[serde(flatten)]`, `untagged`, an internal `tag`,
//!   `skip_serializing_if`) are refused, in debug builds with the method's name. Depth and sizes are limited.
//!
//! A handler that computes for long without an await holds up the thread of the runtime that it runs on; a runtime that is blocked for
//! [`tensorpipe::Timeouts::silence`] looks dead to its peers. Use `spawn_blocking`.
//!
//! # Features
//!
//! | feature | default | meaning |
//! |---|---|---|
//! | `tarpc` | on | tarpc as a layer: generated clients implement tarpc's `Stub`, so that its retry and load-balancing stubs stack on them |

pub mod codec;
pub mod schema;

mod call;
mod client;
mod context;
mod engine;
mod error;
mod header;
mod server;
mod service;
mod value;

#[path = "tarpc/mod.rs"]
mod tarpc_layer;

pub use call::Call;
pub use client::{Connection, DEFAULT_DEADLINE};
pub use context::{CallContext, TraceContext};
pub use error::{CallError, ConnectError};
pub use server::{Server, ServerBuilder, ServerLimits};
pub use service::Service;
pub use tensorpipe_macros::tensor_service;

/// What generated code names. Not for anybody else: it changes without notice.
#[doc(hidden)]
pub mod __private {
    pub use crate::__tarpc_stub as tarpc_stub;
    pub use crate::call::Call;
    pub use crate::client::{ClientHandle, Connection};
    pub use crate::codec::{Argument, Arguments, EncodeError, Encoder, Reply};
    pub use crate::context::CallContext;
    pub use crate::error::ConnectError;
    pub use crate::schema::{Method, Schema, Tracer, method_id};
    pub use crate::service::{HandlerFuture, Service, bad_arguments, unknown_method};
    #[cfg(feature = "tarpc")]
    pub use crate::tarpc_layer::private as tarpc;
    pub use crate::value::Value;
    pub use tensorpipe::Context;
}

/// The examples of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}
