//! Calls back: a client that serves its server, over the same pipe.

use std::fmt;
use std::sync::Arc;

use tensorpipe::{Context, Error, Pipe};

use crate::client::Connection;
use crate::context::CallContext;
use crate::server::{ServerLimits, ServerShared};
use crate::service::Service;

/// Makes a [`Connection`] that also serves.
///
/// ```
/// use tensorpipe_rpc::{CallContext, Connection, Server, tensor_service};
///
/// #[tensor_service]
/// trait Trainer {
///     async fn train(&self, epochs: u32, cx: &CallContext) -> Result<f32, String>;
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
///     async fn train(&self, epochs: u32, cx: &CallContext) -> Result<f32, String> {
///         let caller = cx.connection().ok_or("the caller is gone")?;
///         let watcher = WatcherClient::on(&caller).await.map_err(|error| error.to_string())?;
///         let mut loss = 1.0;
///         for number in 1..=epochs {
///             loss /= 2.0;
///             if !watcher.epoch(number, loss).await.map_err(|error| error.to_string())? {
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
/// let url = server.url().to_string();
/// let connection = Connection::builder().service(WatcherService::new(Patience)).connect(url).await?;
/// let trainer = TrainerClient::on(&connection).await?;
/// assert_eq!(trainer.train(100).await?, 0.125);
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct ConnectionBuilder {
    context: Option<Context>,
    services: Vec<Arc<dyn Service>>,
    limits: ServerLimits,
}

impl fmt::Debug for ConnectionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionBuilder")
            .field("services", &self.services.len())
            .finish_non_exhaustive()
    }
}

impl ConnectionBuilder {
    /// Serves a service to the other end, beside those that were named before.
    pub fn service(mut self, service: impl Service) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// Uses this context instead of the process's default one.
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// How much is done at once for the other end.
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Connects, and serves from now on.
    ///
    /// # Errors
    /// As [`Context::connect`]; [`Misuse`](tensorpipe::Misuse) for two services of one name.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<Connection, Error> {
        let context = self.context.as_ref().unwrap_or_else(|| Context::global());
        let pipe = context.connect(url).await?;
        self.over(pipe)
    }

    /// The same on a pipe that came another way. Inside a tokio runtime.
    ///
    /// # Errors
    /// [`Misuse`](tensorpipe::Misuse) for two services of one name.
    pub fn over(self, pipe: Pipe) -> Result<Connection, Error> {
        let shared = Arc::new(ServerShared::new(self.services, self.limits)?);
        let engine = shared.connect(pipe);
        Ok(Connection { engine })
    }
}

impl Connection {
    /// Begins a connection whose other end calls back.
    pub fn builder() -> ConnectionBuilder {
        ConnectionBuilder::default()
    }
}

impl CallContext {
    /// The connection that the call came over: for calls of services that its caller serves
    /// ([`Connection::builder`](crate::Connection::builder)). `None` when it is gone. Whoever keeps it keeps the pipe open.
    pub fn connection(&self) -> Option<Connection> {
        let engine = self.inner.caller.engine()?;
        Some(Connection { engine })
    }
}
