//! The targets of calls, on which clients are made.

use std::pin::Pin;

use super::bind::bind;
use super::connection::Connection;
use super::replicas::{Replicas, ReplicatedService};
use crate::error::ConnectError;
use crate::schema::Schema;

/// A target of calls: a [`Connection`] or [`Replicas`]. The trait is sealed: outside this crate nobody can name the type that
/// `bind` returns.
#[diagnostic::on_unimplemented(
    message = "calls cannot be made on a `{Self}`",
    label = "neither a `Connection` nor `Replicas`"
)]
pub trait Target: Send + Sync {
    /// Asks for a service. The future is boxed so that no `async fn` is generic over the target: a wrong target is then one error,
    /// not three.
    #[doc(hidden)]
    fn bind<'a>(&'a self, schema: &'static Schema) -> Binding<'a>;
}

type Binding<'a> = Pin<Box<dyn Future<Output = Result<BoundService, ConnectError>> + Send + 'a>>;

/// A service of a target.
#[expect(unnameable_types, reason = "so that the trait is sealed")]
#[derive(Clone, Debug)]
pub struct BoundService {
    /// On replicas: the connection of the one that was there first.
    pub(super) connection: Connection,
    /// Its server's number for the service.
    pub(super) service: u32,
    /// If set, calls go to these replicas, and not over the connection.
    pub(super) replicas: Option<ReplicatedService>,
}

impl Target for Connection {
    fn bind<'a>(&'a self, schema: &'static Schema) -> Binding<'a> {
        Box::pin(async move {
            Ok(BoundService {
                connection: self.clone(),
                service: bind(&self.engine, schema).await?,
                replicas: None,
            })
        })
    }
}

impl Target for Replicas {
    fn bind<'a>(&'a self, schema: &'static Schema) -> Binding<'a> {
        Box::pin(async move {
            let (replicated, connection, service) = self.join(schema).await?;
            Ok(BoundService {
                connection,
                service,
                replicas: Some(replicated),
            })
        })
    }
}

impl<T: Target + ?Sized> Target for &T {
    fn bind<'a>(&'a self, schema: &'static Schema) -> Binding<'a> {
        (**self).bind(schema)
    }
}
