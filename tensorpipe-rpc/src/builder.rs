//! The settings of everything that serves: services, limits, and a context.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use tensorpipe::{Context, Peer};

use crate::limits::ServerLimits;
use crate::service::Service;

/// Decides whether a caller may call a method of a service. The error is the reason why not.
pub(crate) type Authorize = dyn Fn(&Peer, &str, &str) -> Result<(), String> + Send + Sync;

/// Makes a `T` that serves: see [`ServerBuilder`](crate::ServerBuilder) and [`ConnectionBuilder`](crate::ConnectionBuilder).
pub struct Builder<T> {
    context: Option<Context>,
    pub(crate) services: Vec<Arc<dyn Service>>,
    pub(crate) limits: ServerLimits,
    pub(crate) authorize: Option<Box<Authorize>>,
    makes: PhantomData<fn() -> T>,
}

impl<T> Builder<T> {
    /// Adds a service.
    pub fn service(mut self, service: impl Service) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// Uses this context instead of the process's default one.
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// Sets how much is done at once for callers.
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Asks `authorize` about each call, with the caller, the service and the method. If it returns an error, the method does not
    /// run. The caller gets [`CallError::Denied`](crate::CallError::Denied), with the identity under which it was seen, and the
    /// reason. By default every caller may call everything.
    ///
    /// - It decides on the call's header. Tensors that need a go-ahead have not moved then. Small tensors come with the header, and
    ///   others may be under way within the pipe's credit ([`Limits::window_ahead`](tensorpipe::Limits::window_ahead)); they are
    ///   thrown away.
    /// - The caller is known only as well as the pipe knows it: over a network without TLS, see
    ///   [`Route::exposed`](tensorpipe::Route::exposed).
    /// - The connection waits while it runs, so decide from memory, without I/O. If it panics, the call is denied.
    /// - It covers calls alone. Any caller can learn which methods there are, and use [`Remote`](crate::Remote) values that calls
    ///   have given it, or that others have shared with it. It does not see arguments, such as the key of a rendezvous.
    /// - It holds for this server or connection alone: another one, or [tarpc](mod@crate::tarpc), on the same context has its own.
    ///
    /// ```
    /// # use tensorpipe::{Context, Tensor};
    /// use tensorpipe_rpc::{CallError, Server, tensor_service};
    ///
    /// #[tensor_service]
    /// trait Store {
    ///     async fn get(&self, key: String) -> u64;
    ///     async fn put(&self, key: String, value: u64);
    /// }
    ///
    /// # struct Zero;
    /// # impl Store for Zero {
    /// #     async fn get(&self, _: String) -> u64 { 0 }
    /// #     async fn put(&self, _: String, _: u64) {}
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (reading, writing) = ([1; 32], [2; 32]);
    /// let context = Context::builder().token("reader", reading).token("writer", writing).build()?;
    /// let server = Server::builder()
    ///     .context(&context)
    ///     .service(StoreService::new(Zero))
    ///     .authorize(|caller, _service, method| {
    ///         match caller.identity.as_ref().and_then(|identity| identity.token()) {
    ///             Some("writer") => Ok(()),
    ///             _ if method == "get" => Ok(()),
    ///             _ => Err("only writers may; ask for the token `writer`".to_owned()),
    ///         }
    ///     })
    ///     .listen("tcp://127.0.0.1:0")
    ///     .await?;
    ///
    /// let reader = Context::builder().token("reader", reading).build()?;
    /// let client = StoreClient::connect_with(&reader, server.url()).await?;
    /// assert_eq!(client.get("a").await?, 0);
    /// let error = client.put("a", 1).await.unwrap_err();
    /// assert!(matches!(error, CallError::Denied(_)) && !error.may_have_run());
    /// println!("{error}"); // permission denied: token reader at … may not call `Store::put`: only writers may; …
    /// # Ok(())
    /// # }
    /// ```
    pub fn authorize(
        mut self,
        authorize: impl Fn(&Peer, &str, &str) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.authorize = Some(Box::new(authorize));
        self
    }

    /// The context to use.
    pub(crate) fn chosen_context(&self) -> &Context {
        self.context.as_ref().unwrap_or_else(|| Context::global())
    }
}

impl<T> Default for Builder<T> {
    fn default() -> Self {
        Self {
            context: None,
            services: Vec::new(),
            limits: ServerLimits::default(),
            authorize: None,
            makes: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Builder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("services", &self.services.len())
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
