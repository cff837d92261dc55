//! Callbacks: a client that serves its server, over the same pipe.

use std::sync::Arc;

use tensorpipe::{Error, Pipe};

use crate::builder::Builder;
use crate::client::Connection;
use crate::context::CallContext;
use crate::server::ServerShared;

/// Makes a [`Connection`] that also serves: see [`Connection::builder`].
///
/// Beside [`connect`](Self::connect) and [`over`](Self::over) it has the methods of [`Builder`]: [`service`](Builder::service),
/// [`context`](Builder::context), [`limits`](Builder::limits) and [`authorize`](Builder::authorize).
pub type ConnectionBuilder = Builder<Connection>;

impl ConnectionBuilder {
    /// Connects, and serves from now on.
    ///
    /// # Errors
    /// As [`Context::connect`](tensorpipe::Context::connect); [`Misuse`](tensorpipe::Misuse) for two services of one name, or one
    /// with a type that no call can carry (`serde_json::Value`).
    pub async fn connect(self, url: impl AsRef<str>) -> Result<Connection, Error> {
        let pipe = self.chosen_context().connect(url.as_ref()).await?;
        let connection = self.over(pipe)?;
        connection.set_peer_url(url.as_ref());
        Ok(connection)
    }

    /// Serves on a pipe that was made another way. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`Misuse`](tensorpipe::Misuse) for two services of one name, or one with a type
    /// that no call can carry (`serde_json::Value`).
    pub fn over(self, pipe: Pipe) -> Result<Connection, Error> {
        let engine = Arc::new(ServerShared::of(self)?).connect(pipe)?;
        Ok(Connection { engine })
    }
}

impl Connection {
    /// Begins a connection on which the server can call back: this end serves it, over the same pipe.
    ///
    /// ```
    /// use tensorpipe_rpc::{CallContext, Connection, Server, ServiceError, tensor_service};
    ///
    /// #[tensor_service]
    /// trait Trainer {
    ///     async fn train(&self, epochs: u32, cx: &CallContext) -> Result<f32, ServiceError>;
    /// }
    ///
    /// /// What a client tells who trains for it.
    /// #[tensor_service]
    /// trait Watcher {
    ///     async fn epoch(&self, number: u32, loss: f32) -> bool;
    /// }
    ///
    /// struct Gpu;
    ///
    /// impl Trainer for Gpu {
    ///     async fn train(&self, epochs: u32, cx: &CallContext) -> Result<f32, ServiceError> {
    ///         let caller = cx.connection().ok_or_else(|| ServiceError::new("the caller is gone"))?;
    ///         let watcher = WatcherClient::on(&caller).await?;
    ///         let mut loss = 1.0;
    ///         for number in 1..=epochs {
    ///             loss /= 2.0;
    ///             if !watcher.epoch(number, loss).await? {
    ///                 break;
    ///             }
    ///         }
    ///         Ok(loss)
    ///     }
    /// }
    ///
    /// struct Patience;
    ///
    /// impl Watcher for Patience {
    ///     async fn epoch(&self, number: u32, _: f32) -> bool {
    ///         number < 3
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = Server::builder().service(TrainerService::new(Gpu)).listen("tcp://127.0.0.1:0").await?;
    ///
    /// let connection = Connection::builder().service(WatcherService::new(Patience)).connect(server.url()).await?;
    /// let trainer = TrainerClient::on(&connection).await?;
    /// assert_eq!(trainer.train(100).await?, 0.125);
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder() -> ConnectionBuilder {
        ConnectionBuilder::default()
    }
}

impl CallContext {
    /// The connection that the call came over, to call services that the caller serves
    /// ([`Connection::builder`](crate::Connection::builder)). `None` when it is gone. Holding it keeps the pipe open.
    pub fn connection(&self) -> Option<Connection> {
        let engine = self.inner.caller.engine()?;
        Some(Connection { engine })
    }
}
