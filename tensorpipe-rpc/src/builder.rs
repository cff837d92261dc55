//! What serves is made of: services, how much is done at once, and a context.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use tensorpipe::{Context, Peer};

use crate::limits::ServerLimits;
use crate::service::Service;

/// Whether a caller may call a method of a service; else why not.
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
    /// Serves a service, beside those that were named before.
    pub fn service(mut self, service: impl Service) -> Self {
        self.services.push(Arc::new(service));
        self
    }

    /// Uses this context instead of the process's default one.
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// How much is done at once for others.
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Asks `authorize` about each call, with who calls, the service and the method. Where that says no, with a
    /// reason, the method does not run, and the caller gets [`CallError::Denied`](crate::CallError::Denied): as whom it was seen,
    /// and the reason. By default whoever has a connection may call everything.
    ///
    /// - It is asked on the call's header. Tensors that wait for this side's go-ahead do not move before. Small ones ride with the header,
    ///   and others may be under way within the credit that the pipe has ([`Limits::window_ahead`](tensorpipe::Limits::window_ahead)): they
    ///   are thrown away.
    /// - Who calls is known as well as the pipe knows it: over a network without TLS, see [`Route::exposed`](tensorpipe::Route::exposed).
    /// - It runs while the connection waits: decide by what is in memory. A panic of it says no.
    /// - It is about calls. Whoever has a connection can learn which methods there are, and use the [`Remote`](crate::Remote)
    ///   values that calls have given it, or that others have shared with it. It does not see arguments, such as the key of a rendezvous.
    /// - It is of this server or connection alone: another one, or [tarpc](mod@crate::tarpc), on the same context has its own.
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
