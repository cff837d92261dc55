//! What serves is made of: services, how much is done at once, and a context.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use tensorpipe::Context;

use crate::limits::ServerLimits;
use crate::service::Service;

/// Makes a `T` that serves: see [`ServerBuilder`](crate::ServerBuilder) and [`ConnectionBuilder`](crate::ConnectionBuilder).
pub struct Builder<T> {
    context: Option<Context>,
    pub(crate) services: Vec<Arc<dyn Service>>,
    pub(crate) limits: ServerLimits,
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
