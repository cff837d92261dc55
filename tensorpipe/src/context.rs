//! One process's backends, pool, limits and name.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::address::Url;
use crate::channels::{self, Channel};
use crate::config::{ConnectPolicy, Limits, Timeouts};
use crate::device::{Pool, PoolOptions};
use crate::error::{Error, Misuse};
use crate::listener::Listener;
use crate::negotiate;
use crate::pipe::{Budget, Core, Pipe};
use crate::sync::{AtomicBool, Mutex, Ordering, Weak, lock};
use crate::transports::{self, Transport};

/// The longest pause between two attempts to connect.
const A_YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Makes a [`Context`]. Every setting has a default that works.
#[derive(Default)]
pub struct ContextBuilder {
    name: Option<String>,
    transports: Option<Vec<Arc<dyn Transport>>>,
    channels: Option<Vec<Arc<dyn Channel>>>,
    limits: Limits,
    timeouts: Timeouts,
    connect: ConnectPolicy,
    pool: Option<Pool>,
}

impl std::fmt::Debug for ContextBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContextBuilder")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl ContextBuilder {
    /// The name under which peers see this context, in errors and logs; at most 256 bytes. Default `PROGRAM:PID`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The transports, most preferred first. Default: `memory`, `shm`, `tcp`.
    pub fn transports(mut self, transports: impl IntoIterator<Item = Arc<dyn Transport>>) -> Self {
        self.transports = Some(transports.into_iter().collect());
        self
    }

    /// Puts a transport before the others.
    pub fn prefer_transport(mut self, transport: impl Transport) -> Self {
        self.transports
            .get_or_insert_with(transports::builtin)
            .insert(0, Arc::new(transport));
        self
    }

    /// The channels, most preferred first. Default: `xth`, `lease`, `cma`, `basic`.
    pub fn channels(mut self, channels: impl IntoIterator<Item = Arc<dyn Channel>>) -> Self {
        self.channels = Some(channels.into_iter().collect());
        self
    }

    /// Puts a channel before the others.
    pub fn prefer_channel(mut self, channel: impl Channel) -> Self {
        self.channels
            .get_or_insert_with(channels::builtin)
            .insert(0, Arc::new(channel));
        self
    }

    /// What is received, and how much of it at once.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Bounds on waiting.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// How `connect` waits for a listener that is not there yet.
    pub fn connect_policy(mut self, policy: ConnectPolicy) -> Self {
        self.connect = policy;
        self
    }

    /// The pool of memory for received tensors. Default: one of the context's own.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// The context.
    ///
    /// # Errors
    /// [`Misuse::Config`] for settings that make no sense.
    pub fn build(self) -> Result<Context, Misuse> {
        self.limits.check()?;
        let name = self.name.unwrap_or_else(default_name);
        let config = |what, wanted: &str, found: String| Misuse::Config {
            what,
            wanted: wanted.to_owned(),
            found,
        };
        if name.len() > 256 {
            return Err(config(
                "the context's name",
                "at most 256 bytes long",
                format!("{} bytes", name.len()),
            ));
        }
        let transports = self.transports.unwrap_or_else(transports::builtin);
        let channels = self.channels.unwrap_or_else(channels::builtin);
        unique(
            "transport names",
            transports.iter().map(|transport| transport.name()),
        )?;
        unique(
            "channel names",
            channels.iter().map(|channel| channel.name()),
        )?;
        if transports.is_empty() || transports.len() > 32 || channels.len() > 32 {
            let found = format!("{} and {}", transports.len(), channels.len());
            return Err(config(
                "the number of transports and channels",
                "1 to 32 and 0 to 32",
                found,
            ));
        }
        let inner = Inner {
            name: name.into(),
            transports,
            channels,
            budget: Budget::new(self.limits.receive_budget),
            limits: self.limits,
            timeouts: self.timeouts,
            connect: self.connect,
            pool: self
                .pool
                .unwrap_or_else(|| Pool::new(PoolOptions::default())),
            pipes: Mutex::new(Vec::new()),
            listeners: Mutex::new(Vec::new()),
            closed: AtomicBool::new(false),
        };
        Ok(Context {
            inner: Arc::new(inner),
        })
    }
}

fn default_name() -> String {
    let program = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let mut program = program.unwrap_or_else(|| "process".to_owned());
    program.truncate(program.floor_char_boundary(200));
    format!("{program}:{}", std::process::id())
}

fn unique(what: &'static str, names: impl Iterator<Item = &'static str>) -> Result<(), Misuse> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Misuse::Config {
                what,
                wanted: "different from each other".to_owned(),
                found: format!("`{name}` twice"),
            });
        }
    }
    Ok(())
}

/// One process's ordered backends, its pool, limits and name. Cloning it clones the handle.
///
/// Pipes and listeners live on the tokio runtime of the task that makes them.
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) name: Arc<str>,
    pub(crate) transports: Vec<Arc<dyn Transport>>,
    pub(crate) channels: Vec<Arc<dyn Channel>>,
    pub(crate) limits: Limits,
    pub(crate) budget: Arc<Budget>,
    pub(crate) timeouts: Timeouts,
    connect: ConnectPolicy,
    pub(crate) pool: Pool,
    pipes: Mutex<Vec<Weak<Core>>>,
    listeners: Mutex<Vec<Weak<crate::listener::Tasks>>>,
    closed: AtomicBool,
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

    /// The context that is used where none is named: one for each process, with every default.
    pub fn global() -> &'static Self {
        static GLOBAL: OnceLock<Context> = OnceLock::new();
        GLOBAL.get_or_init(Self::new)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its pool: received tensors come from it, and tensors made in it are warm memory.
    pub fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// Listens at one or several URLs, e.g. `tcp://127.0.0.1:0`.
    ///
    /// # Errors
    /// [`Misuse::Address`], [`Misuse::UnknownTransport`], [`Misuse::NoRuntime`], and [`Error::System`] where the system
    /// refuses an address. If one URL fails, none is listened at.
    pub async fn listen<U: AsRef<str>>(
        &self,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Listener, Error> {
        self.check_open()?;
        let urls = urls
            .into_iter()
            .map(|url| url.as_ref().parse())
            .collect::<Result<Vec<Url>, _>>()?;
        Listener::bind(self.inner.clone(), urls).await
    }

    /// Makes a pipe to a listener, and waits for one that is not there yet as the [`ConnectPolicy`] says.
    ///
    /// Dropping the future gives up and leaves nothing behind.
    ///
    /// # Errors
    /// [`Error::Connect`] with what the last attempt met, after how long and how many attempts.
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
        let transport = self.inner.transport(url.transport())?.clone();
        let begun = Instant::now();
        let mut pause = policy.first_pause;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let connected = negotiate::connect(&self.inner, &transport, &url).await;
            // Closed meanwhile: nobody looks after a new pipe any more.
            self.check_open()?;
            let error = match connected {
                Ok(pipe) => return Ok(pipe),
                Err(error @ Error::Misuse(_)) => return Err(error),
                Err(error) => error,
            };
            let waited = begun.elapsed();
            // Longer ones are for ever, and no clock counts them.
            let nap = pause.min(A_YEAR);
            let nap = nap.mul_f64(1.0 - 0.5 * negotiate::random_fraction());
            if !negotiate::is_transient(&error) || waited + nap > policy.patience {
                let source = Box::new(error);
                return Err(Error::Connect {
                    url: url.to_string().into(),
                    waited,
                    attempts,
                    source,
                });
            }
            tracing::debug!(%url, %error, attempts, "not there yet");
            tokio::time::sleep(nap).await;
            self.check_open()?;
            pause = pause.saturating_mul(2).min(policy.longest_pause);
        }
    }

    /// Ends everything: listeners stop, and each pipe delivers what was written to it, all within
    /// [`Timeouts::linger`]. The context cannot be used afterwards.
    ///
    /// # Errors
    /// The first error of a pipe that could not deliver everything.
    pub async fn close(&self) -> Result<(), Error> {
        self.inner.closed.store(true, Ordering::SeqCst);
        for tasks in lock(&self.inner.listeners).drain(..) {
            if let Some(tasks) = tasks.upgrade() {
                tasks.stop();
            }
        }
        let pipes: Vec<Pipe> = lock(&self.inner.pipes)
            .drain(..)
            .filter_map(|core| core.upgrade())
            .map(Pipe::new)
            .collect();
        for pipe in &pipes {
            pipe.core().start_closing(self.inner.timeouts.linger);
        }
        let mut result = Ok(());
        for pipe in &pipes {
            let ended = pipe.ended().await;
            if let (Error::Undelivered { .. }, Ok(())) = (&ended, &result) {
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
                Misuse::UnknownTransport {
                    name: name.to_owned(),
                    reason: format!("it has {}", names.join(", ")),
                }
            })
    }

    /// Whether somebody looks after new pipes no more.
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

/// Waits for a future, but not longer than for a handshake.
pub(crate) async fn within_handshake<T>(
    inner: &Inner,
    what: impl FnOnce() -> String,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let after = inner.timeouts.handshake;
    match tokio::time::timeout(after, work).await {
        Ok(result) => result,
        Err(_) => {
            let hint = "somebody listens there but does not answer; raise `Timeouts::handshake` if it is only slow";
            Err(Error::Timeout {
                what: what().into(),
                after,
                hint,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_bad_settings_are_named() {
        assert!(Context::new().name().contains(':'));
        let tiny = Limits {
            window_bytes: 5,
            ..Limits::default()
        };
        let error = Context::builder().limits(tiny).build().unwrap_err();
        assert!(error.to_string().contains("window_bytes"), "{error}");
        let twice = Context::builder()
            .prefer_channel(channels::BasicChannel::new())
            .build()
            .unwrap_err();
        assert!(twice.to_string().contains("`basic` twice"), "{twice}");
    }
}
