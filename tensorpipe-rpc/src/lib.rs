//! Remote calls whose tensors travel over a [`tensorpipe`] pipe.

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
    pub use crate::context::{CallContext, TraceContext};
    pub use crate::error::ConnectError;
    pub use crate::schema::{Method, Schema, Tracer, method_id};
    pub use crate::service::{HandlerFuture, Service, bad_arguments, unknown_method};
    #[cfg(feature = "tarpc")]
    pub use crate::tarpc_layer::private as tarpc;
    pub use crate::value::Value;
    pub use tensorpipe::Context;
}
