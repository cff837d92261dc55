//! One process's backends, pool, limits and name.

mod builder;
mod to_device;

pub use builder::ContextBuilder;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::address::Url;
use crate::ambient;
use crate::channels::Channel;
use crate::config::{ConnectPolicy, Limits, Timeouts};
use crate::device::{Allocators, Device, DevicePool, Pool};
use crate::error::{Error, Misuse, seconds};
use crate::keys::Tokens;
use crate::listener::Listener;
use crate::negotiate;
use crate::pipe::{Budget, BudgetStats, Core, CreditAhead, Pipe};
use crate::route::{Refusal, Requirement, Threshold};
use crate::sync::{AtomicBool, Mutex, Ordering, Weak, lock};
use crate::sys::fork::{Owner, PerProcess};
use crate::transports::Transport;

/// How long `connect` waits before it logs that it waits.
const QUIET: Duration = Duration::from_secs(2);

/// The longest pause between two attempts to connect.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// One process's ordered backends, its pool, limits and name. Cloning it clones the handle.
///
/// Pipes and listeners live on the tokio runtime of the task that makes them.
///
/// A context, its pool, and its pipes and listeners belong to the process that made them. A forked child has neither the threads
/// nor the memory that they work with, and makes its own ([`Context::new`], [`Context::global`]).
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) name: Arc<str>,
    pub(crate) transports: Vec<Arc<dyn Transport>>,
    pub(crate) channels: Vec<Arc<dyn Channel>>,
    /// Thresholds that replace those of channels, by channel name.
    pub(crate) thresholds: Vec<(String, Threshold)>,
    /// Why channels that it should have are missing.
    pub(crate) unavailable: Vec<Refusal>,
    /// Channels that tensors go over, or not at all.
    pub(crate) required: Vec<Requirement>,
    pub(crate) tokens: Tokens,
    pub(crate) limits: Limits,
    pub(crate) budget: Arc<Budget>,
    pub(crate) credit_ahead: Arc<CreditAhead>,
    pub(crate) timeouts: Timeouts,
    connect: ConnectPolicy,
    pub(crate) allocators: Allocators,
    pipes: Mutex<Vec<Weak<Core>>>,
    listeners: Mutex<Vec<Weak<crate::listener::Tasks>>>,
    closed: AtomicBool,
    owner: Owner,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.inner.name)
            .finish_non_exhaustive()
    }
}

impl Default for Context {
    fn default() -> Self {
        Self::new()
    }
}

impl Context {
    /// A context with every default.
    pub fn new() -> Self {
        // The defaults are valid: a test builds them.
        ContextBuilder::default()
            .build()
            .unwrap_or_else(|misuse| unreachable!("{misuse}"))
    }

    /// Begins a context with settings.
    pub fn builder() -> ContextBuilder {
        ContextBuilder::default()
    }

    /// The context that is used where none is named: one for each process, with every default. A forked child has
    /// another.
    pub fn global() -> &'static Self {
        static GLOBAL: PerProcess<Context> = PerProcess::new();
        GLOBAL.get(Self::new)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its pool: received tensors come from it, and tensors made in it are warm memory.
    pub fn pool(&self) -> &Pool {
        self.inner.pool()
    }

    /// What its pipes take of [`Limits::receive_budget`] now.
    pub fn receive_budget(&self) -> BudgetStats {
        self.inner.budget.stats()
    }

    /// The context's memory on `device`: main memory from its [pool](Context::pool), other memory from the allocator that it was
    /// [given](ContextBuilder::allocator). Received tensors and the stages of channels come from it, too.
    ///
    /// # Errors
    /// [`Misuse::NoAllocator`] where it was given none for this device.
    pub fn allocator(&self, device: Device) -> Result<DevicePool, Misuse> {
        self.inner.allocators.on(device)
    }

    /// Whether no connection to this URL leaves the machine, as far as its transport knows
    /// ([`Transport::upgrade_address`]). `false` where the context does not have that transport.
    ///
    /// ```
    /// let context = tensorpipe::Context::new();
    /// assert!(context.is_local(&"shm://embedder".parse()?));
    /// assert!(!context.is_local(&"tcp://127.0.0.1:7431".parse()?));
    /// # Ok::<(), tensorpipe::Error>(())
    /// ```
    pub fn is_local(&self, url: &Url) -> bool {
        let transport = self.inner.transport(url.transport());
        transport.is_ok_and(|transport| transport.upgrade_address().is_some())
    }

    /// Whether this context has the transport of this URL.
    ///
    /// # Errors
    /// [`Misuse::UnknownTransport`], which names those that it has.
    pub fn check_transport(&self, url: &Url) -> Result<(), Misuse> {
        self.inner.transport(url.transport()).map(drop)
    }

    /// Listens at one or several URLs, e.g. `tcp://127.0.0.1:0`.
    ///
    /// # Errors
    /// [`Misuse::Address`], [`Misuse::UnknownTransport`], [`Misuse::NoRuntime`], [`Misuse::Other`] without a URL or once the context is
    /// closed, and [`Error::System`] where the system refuses an address. If one URL fails, none is listened at.
    pub async fn listen<U: AsRef<str>>(
        &self,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Listener, Error> {
        self.check_open()?;
        let urls = urls
            .into_iter()
            .map(|url| url.as_ref().parse())
            .collect::<Result<Vec<Url>, _>>()?;
        let listener = Listener::bind(self.inner.clone(), urls).await?;
        // The context may have been closed meanwhile, which ended the listeners that it knew by then.
        self.check_open()?;
        Ok(listener)
    }

    /// Makes a pipe to a listener, and waits for one that is not there yet as the [`ConnectPolicy`] says. An event of
    /// `tracing`, at WARN, tells after two seconds that it waits.
    ///
    /// Dropping the future gives up and leaves nothing behind.
    ///
    /// # Errors
    /// [`Error::Connect`] with what the last attempt met, after how long and how many attempts. [`Misuse`] at once for a URL that is none, a
    /// transport that this context lacks, a missing runtime, a closed context, and for what no later attempt could mend.
    pub async fn connect(&self, url: impl AsRef<str>) -> Result<Pipe, Error> {
        self.connect_with(url, &self.inner.connect).await
    }

    /// The same with a policy of its own.
    ///
    /// # Errors
    /// As [`Context::connect`].
    pub async fn connect_with(
        &self,
        url: impl AsRef<str>,
        policy: &ConnectPolicy,
    ) -> Result<Pipe, Error> {
        self.check_open()?;
        let url: Url = url.as_ref().parse()?;
        let last = Mutex::new(None);
        let mut connecting = pin!(self.keep_connecting(&url, policy, &last));
        if policy.retry_for <= QUIET {
            return connecting.await;
        }
        if let Ok(connected) = tokio::time::timeout(QUIET, &mut connecting).await {
            return connected;
        }
        let retry_for = seconds(policy.retry_for);
        let last = lock(&last).take();
        let last = last.unwrap_or_else(|| "no answer yet".to_owned());
        tracing::warn!("no pipe to {url} yet ({last}); trying for {retry_for} in all");
        connecting.await
    }

    /// Leaves in `last` why the last attempt failed.
    async fn keep_connecting(
        &self,
        url: &Url,
        policy: &ConnectPolicy,
        last: &Mutex<Option<String>>,
    ) -> Result<Pipe, Error> {
        let transport = self.inner.transport(url.transport())?.clone();
        let begun = ambient::now();
        let mut pause = policy.first_pause;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let connected = negotiate::connect(&self.inner, &transport, url).await;
            // The context may have been closed meanwhile: then nobody would close the new pipe.
            self.check_open()?;
            let error = match connected {
                Ok(pipe) => return Ok(pipe),
                Err(error @ Error::Misuse(_)) => return Err(error),
                Err(error) => error,
            };
            let waited = ambient::since(begun);
            // Longer pauses are as good as endless, and no clock counts them.
            let nap = pause.min(A_YEAR);
            let nap = nap.mul_f64(1.0 - 0.5 * negotiate::random_fraction());
            if !negotiate::is_transient(&error) || waited + nap > policy.retry_for {
                let source = Box::new(error);
                return Err(Error::Connect {
                    url: url.to_string().into(),
                    waited,
                    attempts,
                    source,
                });
            }
            tracing::debug!(%url, %error, attempts, "not there yet");
            *lock(last) = Some(error.to_string());
            tokio::time::sleep(nap).await;
            self.check_open()?;
            pause = pause.saturating_mul(2).min(policy.longest_pause);
        }
    }

    /// Ends everything: listeners stop, and each pipe delivers what was written to it and says goodbye, all within
    /// [`Timeouts::linger`] and a second. The context cannot be used afterwards. Cancel safe: all goes on, and a second call waits
    /// for the same pipes. In a forked child it does nothing.
    ///
    /// # Errors
    /// The first error of a pipe that had not ended before, and did not end by a goodbye: perhaps its peer has not got everything.
    pub async fn close(&self) -> Result<(), Error> {
        // A lock may be one that a thread of the parent's had at the fork.
        if self.inner.owner.is_other_process() {
            return Ok(());
        }
        let mut pipes = Vec::new();
        {
            let mut known = lock(&self.inner.pipes);
            // Under the lock: of two calls at once, the one that comes first also looks first.
            let first = !self.inner.closed.swap(true, Ordering::SeqCst);
            known.retain(|core| {
                let Some(core) = core.upgrade() else {
                    return false;
                };
                let pipe = Pipe::new(core);
                let counts = !first || !pipe.has_ended();
                pipes.push((pipe, counts));
                counts
            });
        }
        for tasks in lock(&self.inner.listeners).drain(..) {
            if let Some(tasks) = tasks.upgrade() {
                tasks.stop();
            }
        }
        for (pipe, _) in &pipes {
            pipe.core().close_within(self.inner.timeouts.linger);
        }
        let mut result = Ok(());
        for (pipe, counts) in &pipes {
            let ended = pipe.gone().await;
            if *counts && result.is_ok() && !matches!(ended, Error::Closed { .. }) {
                result = Err(ended);
            }
        }
        result
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.inner.closed.load(Ordering::SeqCst) {
            return Err(Misuse::Other(format!(
                "context {} has been closed; make a new one",
                self.inner.name
            ))
            .into());
        }
        tokio::runtime::Handle::try_current()
            .map(|_| ())
            .map_err(|_| Misuse::NoRuntime.into())
    }
}

impl Inner {
    pub(crate) fn pool(&self) -> &Pool {
        self.allocators.main()
    }

    pub(crate) fn transport(&self, name: &str) -> Result<&Arc<dyn Transport>, Misuse> {
        self.transports
            .iter()
            .find(|transport| transport.name() == name)
            .ok_or_else(|| {
                let names: Vec<_> = self
                    .transports
                    .iter()
                    .map(|transport| transport.name())
                    .collect();
                let how = match name {
                    "tls" => "; give it one by `ContextBuilder::prefer_transport` (`TlsTransport`, feature `tls`)",
                    _ => "",
                };
                Misuse::UnknownTransport {
                    name: name.to_owned(),
                    reason: format!("it has {}{how}", names.join(", ")),
                }
            })
    }

    /// Whether the context is closed: then nobody would close a new pipe.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn add_pipe(&self, core: &Arc<Core>) {
        let mut pipes = lock(&self.pipes);
        if pipes.len() == pipes.capacity() {
            pipes.retain(|core| core.strong_count() > 0);
        }
        pipes.push(Arc::downgrade(core));
    }

    pub(crate) fn add_listener(&self, tasks: &Arc<crate::listener::Tasks>) {
        let mut listeners = lock(&self.listeners);
        listeners.retain(|tasks| tasks.strong_count() > 0);
        listeners.push(Arc::downgrade(tasks));
    }
}

/// Waits for a handshake, but not longer than `after`; then the error says `what` took longer, and what to do.
pub(crate) async fn within_handshake<T>(
    after: Duration,
    what: impl FnOnce() -> (String, &'static str),
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(after, work).await {
        Ok(result) => result,
        Err(_) => {
            let (what, hint) = what();
            Err(Error::Timeout {
                what: what.into(),
                after,
                hint,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork::tests::in_a_child;

    #[test]
    fn a_forked_child_has_a_global_context_of_its_own() {
        let here = Context::global();
        let is_here = || std::ptr::eq(here, Context::global());
        assert!(is_here());
        // Named after the child.
        assert!(in_a_child(
            || !is_here() && Context::global().name() != here.name()
        ));
    }
}
