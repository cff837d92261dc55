//! The serving side.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustc_hash::FxHashMap;
use tensorpipe::{Context, Error, Misuse, Pipe, PipeStats, Url};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::engine::{Engine, FirstPoll, Serving};
use crate::header::{FailureCode, Kind};
use crate::limits::ServerLimits;
use crate::remote::Grants;
use crate::service::Service;

/// What clients of a server that stops hear.
const GOODBYE: &str = "the server is shutting down";

/// Makes a [`Server`].
#[derive(Default)]
pub struct ServerBuilder {
    context: Option<Context>,
    services: Vec<Arc<dyn Service>>,
    limits: ServerLimits,
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("services", &self.services.len())
            .finish_non_exhaustive()
    }
}

impl ServerBuilder {
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

    /// How much is done at once.
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Listens at a URL, e.g. `tcp://0.0.0.0:5000`, and serves from now on.
    ///
    /// # Errors
    /// As [`Context::listen`]; [`Misuse`] for two services of one name.
    pub async fn listen(self, url: impl AsRef<str>) -> Result<Server, Error> {
        self.listen_at([url]).await
    }

    /// The same at several URLs.
    ///
    /// # Errors
    /// As [`ServerBuilder::listen`].
    pub async fn listen_at<U: AsRef<str>>(
        self,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Server, Error> {
        let context = self
            .context
            .clone()
            .unwrap_or_else(|| Context::global().clone());
        let shared = Arc::new(ServerShared::new(self.services, self.limits)?);
        let listener = context.listen(urls).await?;
        let urls = listener.urls().to_vec();
        let _ = shared.urls.set(urls.iter().map(Url::to_string).collect());
        let accepting = shared.clone();
        let accept = tokio::spawn(async move {
            while let Ok(pipe) = listener.accept().await {
                accepting.serve(pipe);
            }
        });
        Ok(Server {
            shared,
            urls,
            accept,
        })
    }
}

/// Serves services at one or several URLs. Dropping it stops: calls under way end first, within their deadlines, and their
/// replies have [`ServerLimits::drain`] to get across.
pub struct Server {
    shared: Arc<ServerShared>,
    urls: Vec<Url>,
    accept: JoinHandle<()>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("urls", &self.urls)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Begins a server.
    pub fn builder() -> ServerBuilder {
        ServerBuilder::default()
    }

    /// Where it listens first; a port 0 has become a real one.
    pub fn url(&self) -> &Url {
        &self.urls[0]
    }

    /// Where it listens.
    pub fn urls(&self) -> &[Url] {
        &self.urls
    }

    /// Serves a pipe that came another way.
    pub fn serve(&self, pipe: Pipe) {
        self.shared.serve(pipe);
    }

    /// The pipes being served.
    pub fn pipes(&self) -> Vec<Pipe> {
        self.shared
            .connections()
            .values()
            .map(|engine| engine.pipe.clone())
            .collect()
    }

    /// What its pipes have done, those that have ended too.
    pub fn stats(&self) -> PipeStats {
        let shared = &self.shared;
        // In this order a pipe that ends meanwhile is missing for a moment, and never counted twice.
        let mut stats = *shared.gone();
        for pipe in self.pipes() {
            stats += pipe.stats();
        }
        stats
    }

    /// Calls under way: admitted and not answered.
    pub fn calls_under_way(&self) -> usize {
        self.shared.calls()
    }

    /// Values that clients refer to ([`Remote`](crate::Remote)), and those that were shared and not claimed yet.
    pub fn references(&self) -> usize {
        let connections = self.shared.connections();
        let held = connections.values().map(|engine| engine.owned.count());
        held.sum::<usize>() + self.shared.grants.count()
    }

    /// Serves until the task is dropped or the listener fails.
    pub async fn wait(mut self) {
        let _ = (&mut self.accept).await;
    }

    /// Stops in good order: no new pipes and calls (callers learn that theirs did not run), calls under way end first and
    /// their replies get across, for [`ServerLimits::drain`] at most, then the pipes close, within
    /// [`Timeouts::linger`](tensorpipe::Timeouts::linger). Returns how many calls had to be given up.
    pub async fn shutdown(self) -> usize {
        self.accept.abort();
        let shared = &self.shared;
        let engines = shared.drain();
        let until = Instant::now() + shared.limits.drain;
        while shared.calls() > 0 {
            let ended = shared.ended.notified();
            if shared.calls() == 0 || tokio::time::timeout_at(until, ended).await.is_err() {
                break;
            }
        }
        let given_up = shared.calls();
        // Replies may still be on their way. Together, not one after another.
        let left = until.saturating_duration_since(Instant::now());
        engines.iter().for_each(|engine| engine.start_closing(left));
        for engine in &engines {
            engine.pipe.ended().await;
        }
        given_up
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accept.abort();
        // Calls under way, those too whose tensors are on their way, hold their engine, and with it the pipe.
        let engines = self.shared.drain();
        let connections = std::mem::take(&mut *self.shared.connections());
        drop((engines, connections));
    }
}

/// A service and how long its methods take.
pub(crate) struct Served {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) speed: Vec<Arc<FirstPoll>>,
    by_id: FxHashMap<u32, usize>,
}

/// What the connections of a server share.
pub(crate) struct ServerShared {
    pub(crate) services: Vec<Served>,
    pub(crate) limits: ServerLimits,
    connections: Mutex<HashMap<u64, Arc<Engine>>>,
    /// What pipes did that have ended.
    gone: Mutex<PipeStats>,
    next_connection: AtomicU64,
    calls: AtomicUsize,
    draining: AtomicBool,
    /// Where it listens.
    pub(crate) urls: OnceLock<Vec<String>>,
    /// References that were shared, and not claimed yet.
    pub(crate) grants: Arc<Grants>,
    ended: Notify,
}

impl ServerShared {
    pub(crate) fn new(
        services: Vec<Arc<dyn Service>>,
        limits: ServerLimits,
    ) -> Result<Self, Misuse> {
        let mut served: Vec<Served> = Vec::new();
        for service in services {
            let schema = service.schema();
            if served
                .iter()
                .any(|other| other.service.schema().service == schema.service)
            {
                let text = format!(
                    "two services of this server are named `{}`; rename one trait",
                    schema.service
                );
                return Err(Misuse::Other(text));
            }
            let by_id = schema
                .methods
                .iter()
                .enumerate()
                .map(|(i, method)| (method.id, i))
                .collect();
            let speed = schema.methods.iter().map(|_| Arc::default()).collect();
            served.push(Served {
                service,
                speed,
                by_id,
            });
        }
        Ok(Self {
            services: served,
            limits,
            connections: Mutex::default(),
            gone: Mutex::default(),
            next_connection: AtomicU64::new(0),
            calls: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            urls: OnceLock::new(),
            grants: Arc::default(),
            ended: Notify::new(),
        })
    }

    /// Calls on `pipe`, and the services served there.
    pub(crate) fn connect(self: &Arc<Self>, pipe: Pipe) -> Arc<Engine> {
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        Engine::start(pipe.clone(), Some(Serving::new(self.clone(), id, &pipe)))
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<Engine>>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(self: &Arc<Self>, pipe: Pipe) {
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(pipe = pipe.name(), route = %pipe.route(), "serving");
        let engine = Engine::start(pipe.clone(), Some(Serving::new(self.clone(), id, &pipe)));
        {
            let mut connections = self.connections();
            if self.is_draining() {
                // It came while the server was being stopped: dropping the engine closes the pipe in good order.
                drop(connections);
                engine.pipe.go_away(GOODBYE);
                return;
            }
            connections.insert(id, engine);
        }
        // It may have ended before it was in the table.
        if pipe.has_ended() {
            self.forget(id);
        }
    }

    /// From now on nothing new is served. Returns the connections there are.
    fn drain(&self) -> Vec<Arc<Engine>> {
        let engines: Vec<Arc<Engine>> = {
            let connections = self.connections();
            self.draining.store(true, Ordering::SeqCst);
            connections.values().cloned().collect()
        };
        for engine in &engines {
            // Not the pipe's own goodbye: what belongs to calls under way still comes.
            engine.send_plain(Kind::Draining, 0);
        }
        engines
    }

    fn gone(&self) -> MutexGuard<'_, PipeStats> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget(&self, id: u64) {
        let engine = self.connections().remove(&id);
        if let Some(engine) = engine {
            *self.gone() += engine.pipe.stats();
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Calls under way.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub(crate) fn call_began(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn call_ended(&self) {
        if self.calls.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_draining() {
            self.ended.notify_one();
        }
    }

    /// Positions of a service and its method.
    pub(crate) fn find(
        &self,
        service: u32,
        method: u32,
    ) -> Result<(usize, usize), (FailureCode, String)> {
        let index = service as usize;
        let Some(served) = self.services.get(index) else {
            return Err((
                FailureCode::NoService,
                format!("has no service number {service}"),
            ));
        };
        match served.by_id.get(&method) {
            Some(position) => Ok((index, *position)),
            None => {
                let name = served.service.schema().service;
                Err((
                    FailureCode::Unimplemented,
                    format!("method of `{name}` with the id {method:#010x}"),
                ))
            }
        }
    }
}
