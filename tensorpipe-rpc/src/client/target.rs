//! What a client can be made on.

use std::pin::Pin;

use super::bind::bind;
use super::connection::Connection;
use super::replicas::{Replicas, ReplicatedService};
use crate::error::ConnectError;
use crate::schema::Schema;

/// What calls are made on: a [`Connection`] or [`Replicas`]. Nothing else can be: nobody outside can name what
/// it has to return.
#[diagnostic::on_unimplemented(
    message = "calls cannot be made on a `{Self}`",
    label = "neither a `Connection` nor `Replicas`"
)]
pub trait Target: Send + Sync {
    /// Asks for a service. In a box, so that a target is no type parameter of an `async fn`: a wrong one is one error, not
    /// three.
    #[doc(hidden)]
    fn bind<'a>(&'a self, schema: &'static Schema) -> Binding<'a>;
}

type Binding<'a> = Pin<Box<dyn Future<Output = Result<BoundService, ConnectError>> + Send + 'a>>;

/// A service of a target.
#[expect(unnameable_types, reason = "so that the trait is sealed")]
#[derive(Clone, Debug)]
pub struct BoundService {
    /// Of replicas the one that was there first.
    pub(super) connection: Connection,
    /// Its server's number for the service.
    pub(super) service: u32,
    /// Then calls go there, and not over the connection.
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
            let (joined, connection, service) = self.join(schema).await?;
            Ok(BoundService {
                connection,
                service,
                replicas: Some(joined),
            })
        })
    }
}

impl<T: Target + ?Sized> Target for &T {
    fn bind<'a>(&'a self, schema: &'static Schema) -> Binding<'a> {
        (**self).bind(schema)
    }
}
