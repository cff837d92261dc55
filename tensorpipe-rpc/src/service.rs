//! The trait of services that a server serves.

use std::future::{Future, ready};
use std::pin::Pin;

use crate::codec::{Arguments, DecodeError, Reply};
use crate::context::CallContext;
use crate::schema::Schema;

/// A call being handled.
pub type HandlerFuture = Pin<Box<dyn Future<Output = Reply> + Send>>;

/// A service as a server sees it.
///
/// `#[tensor_service]` implements it on `FooService`. A hand-written one can wrap another service:
///
/// ```
/// use tensorpipe_rpc::codec::{Arguments, Reply};
/// use tensorpipe_rpc::schema::Schema;
/// use tensorpipe_rpc::{CallContext, service::{HandlerFuture, Service}};
///
/// struct Logged<S>(S);
///
/// impl<S: Service> Service for Logged<S> {
///     fn schema(&self) -> &'static Schema {
///         self.0.schema()
///     }
///
///     fn call(&self, method: usize, arguments: Arguments, context: &CallContext) -> HandlerFuture {
///         let handling = self.0.call(method, arguments, context);
///         Box::pin(async move {
///             let reply: Reply = handling.await;
///             println!("answered");
///             reply
///         })
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no service",
    note = "`#[tensor_service]` on a trait `Foo` writes `FooService`: give `FooService::new({Self})`"
)]
pub trait Service: Send + Sync + 'static {
    /// The service's name and methods.
    fn schema(&self) -> &'static Schema;

    /// Handles a call of the method at this position of the schema.
    fn call(&self, method: usize, arguments: Arguments, context: &CallContext) -> HandlerFuture;
}

/// The reply to a call whose arguments cannot be decoded. The arguments `taken` so far are dropped here. If a caller dropped them
/// on its return and that panicked, rustc would leak the future that it returns (rust-lang/rust#47949).
pub fn bad_arguments<T>(error: DecodeError, taken: T) -> HandlerFuture {
    drop(taken);
    Box::pin(ready(Reply::bad_arguments(error)))
}

/// The reply to a call of a method that is in the schema and not in the service.
pub fn unknown_method(method: usize) -> HandlerFuture {
    Box::pin(ready(Reply::unknown_method(method)))
}
