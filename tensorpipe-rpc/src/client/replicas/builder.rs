//! The settings of replicas, made before they are connected.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::fork::Owner;
use tensorpipe::{Context, Error, Misuse, Url};
use tokio::runtime::Handle;

use super::backoff::Backoff;
use super::balance::Balance;
use super::budget::{Budget, RetryBudget};
use super::table::Shared;
use super::{Inner, Replicas};
use crate::error::ConnectError;
use crate::lock::Mutex;

/// The settings of all replicas.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) backoff: Backoff,
    pub(super) connect_attempts: u32,
    pub(super) give_up_after: Duration,
    pub(super) unanswered: u32,
    pub(super) balance: Balance,
    pub(super) max_attempts: u32,
    pub(super) retry_budget: RetryBudget,
    pub(super) connect_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            backoff: Backoff::default(),
            connect_attempts: u32::MAX,
            give_up_after: Duration::from_secs(600),
            unanswered: 5,
            balance: Balance::default(),
            max_attempts: 5,
            retry_budget: RetryBudget::default(),
            connect_timeout: Duration::from_secs(30),
        }
    }
}

/// As the error of whoever makes or changes replicas.
pub(super) fn misuse(misuse: Misuse) -> ConnectError {
    ConnectError::Pipe(Error::from(misuse))
}

/// These URLs, if they are some, well formed, and of the context's transports.
pub(super) fn checked<U: AsRef<str>>(
    context: &Context,
    urls: impl IntoIterator<Item = U>,
) -> Result<Vec<Arc<str>>, Misuse> {
    let urls: Vec<Arc<str>> = urls.into_iter().map(|url| url.as_ref().into()).collect();
    if urls.is_empty() {
        let text = "replicas without a server; name one with `url`, `urls` or `set_urls`";
        return Err(Misuse::Other(text.to_owned()));
    }
    for url in &urls {
        context.check_transport(&url.parse::<Url>()?)?;
    }
    Ok(urls)
}

/// Makes [`Replicas`].
#[derive(Debug)]
#[must_use = "nothing is connected before `connect`"]
pub struct ReplicasBuilder {
    urls: Vec<String>,
    context: Option<Context>,
    options: Options,
}

impl ReplicasBuilder {
    pub(super) fn new() -> Self {
        Self {
            urls: Vec::new(),
            context: None,
            options: Options::default(),
        }
    }

    /// Adds a server, e.g. `tcp://10.0.0.7:5000`.
    pub fn url(mut self, url: impl AsRef<str>) -> Self {
        self.urls.push(url.as_ref().to_owned());
        self
    }

    /// Adds several servers.
    pub fn urls<U: AsRef<str>>(self, urls: impl IntoIterator<Item = U>) -> Self {
        urls.into_iter().fold(self, Self::url)
    }

    /// Uses this context instead of the process's default one.
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// The pauses between attempts to connect to a server that is not there.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.options.backoff = backoff;
        self
    }

    /// After so many attempts to connect in a row that failed, a server is given up. No bound by default.
    pub fn connect_attempts(mut self, connect_attempts: u32) -> Self {
        self.options.connect_attempts = connect_attempts;
        self
    }

    /// After so long without a connection that worked, a server is given up. Default 10 minutes.
    pub fn give_up_after(mut self, after: Duration) -> Self {
        self.options.give_up_after = after;
        self
    }

    /// A server that leaves so many calls in a row unanswered within their deadlines gets no further ones. Its connection counts as
    /// lost ([`backoff`](Self::backoff)). When it is connected again, its first call decides: until that is answered, it gets no
    /// other one. The only live server is never taken out, and gets all calls. Calls with streams do not count. At least 1, default
    /// 5, `u32::MAX` for never.
    pub fn unanswered(mut self, calls: u32) -> Self {
        self.options.unanswered = calls;
        self
    }

    /// How calls are spread. Default [`Balance::RoundRobin`].
    pub fn balance(mut self, balance: Balance) -> Self {
        self.options.balance = balance;
        self
    }

    /// How many times a call is sent at most, the first time included. Default 5.
    pub fn max_attempts(mut self, max_attempts: u32) -> Self {
        self.options.max_attempts = max_attempts;
        self
    }

    /// How many calls are made again because a server was overloaded.
    pub fn retry_budget(mut self, budget: RetryBudget) -> Self {
        self.options.retry_budget = budget;
        self
    }

    /// How long [`connect`](Self::connect), and making a client, wait for the first server. Default 30 s.
    pub fn connect_timeout(mut self, connect_timeout: Duration) -> Self {
        self.options.connect_timeout = connect_timeout;
        self
    }

    /// Connects to all servers, and returns when one is live; the others may follow. Must be called inside a tokio runtime. Cancel
    /// safe: if the future is dropped, nothing goes on.
    ///
    /// # Errors
    /// [`ConnectError::Unavailable`] when no server is live in time. [`Misuse`] in [`ConnectError::Pipe`], at once, if there is no
    /// URL, or one is malformed, or the context does not have its transport.
    pub async fn connect(self) -> Result<Replicas, ConnectError> {
        let context = self.context.unwrap_or_else(|| Context::global().clone());
        let urls = checked(&context, self.urls).map_err(misuse)?;
        let runtime = Handle::try_current().map_err(|_| misuse(Misuse::NoRuntime))?;
        let replicas = Replicas {
            inner: Arc::new(Inner {
                owner: Owner::here(),
                budget: Budget::new(self.options.retry_budget),
                shared: Arc::new(Shared::new(self.options)),
                context,
                runtime,
                keepers: Mutex::default(),
            }),
        };
        replicas.inner.change(&urls)?;
        replicas.first(None).await?;
        Ok(replicas)
    }
}
