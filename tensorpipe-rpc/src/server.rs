//! The serving side.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustc_hash::FxHashMap;
use tensorpipe::{Error, Listener, Misuse, Pipe, PipeStats, Url};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::builder::Builder;
use crate::engine::{Engine, FirstPoll, Serving};
use crate::header::{FailureCode, Kind};
use crate::limits::ServerLimits;
use crate::remote::Grants;
use crate::service::Service;

/// What clients of a server that stops hear.
const GOODBYE: &str = "the server is shutting down";

/// Makes a [`Server`]: see [`Server::builder`].
pub type ServerBuilder = Builder<Server>;

/// From so many connections on they are not looked at one by one.
const SEVERAL: usize = 64;

impl ServerBuilder {
    /// Listens at a URL, e.g. `tcp://0.0.0.0:5000`, and serves from now on.
    ///
    /// # Errors
    /// As [`Context::listen`](tensorpipe::Context::listen); [`Misuse`] for two services of one name.
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
        let context = self.chosen_context().clone();
        let shared = Arc::new(ServerShared::of(self)?);
        let listener = Arc::new(context.listen(urls).await?);
        let urls = listener.urls().iter().map(Url::to_string);
        let _ = shared.urls.set(urls.collect());
        let (accepting, door) = (shared.clone(), listener.clone());
        let accept = tokio::spawn(async move {
            while let Ok(pipe) = door.accept().await {
                accepting.serve(pipe);
            }
        });
        Ok(Server {
            shared,
            listener,
            accept,
        })
    }
}

/// Serves services at one or several URLs. Dropping it stops, and frees these at once: calls under way end first, within their deadlines, and their
/// replies have [`ServerLimits::drain`] to get across.
pub struct Server {
    shared: Arc<ServerShared>,
    listener: Arc<Listener>,
    accept: JoinHandle<()>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("urls", &self.urls())
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
        self.listener.url()
    }

    /// Where it listens.
    pub fn urls(&self) -> &[Url] {
        self.listener.urls()
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
    /// [`Timeouts::linger`](tensorpipe::Timeouts::linger). Where it listened is free from the beginning. Returns how many calls
    /// had to be given up.
    pub async fn shutdown(self) -> usize {
        self.stop_listening();
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

    /// Its addresses are free when this returns; the aborted task lets go of what it holds later.
    fn stop_listening(&self) {
        self.accept.abort();
        self.listener.close();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_listening();
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
    /// How many `connections` there are.
    connected: AtomicUsize,
    calls: AtomicUsize,
    draining: AtomicBool,
    /// Where it listens.
    pub(crate) urls: OnceLock<Vec<String>>,
    /// References that were shared, and not claimed yet.
    pub(crate) grants: Arc<Grants>,
    ended: Notify,
}

impl ServerShared {
    pub(crate) fn of<T>(builder: Builder<T>) -> Result<Self, Misuse> {
        let Builder {
            services, limits, ..
        } = builder;
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
            connected: AtomicUsize::new(0),
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
            self.connected.store(connections.len(), Ordering::Relaxed);
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
            engine.tell_running();
        }
        engines
    }

    fn gone(&self) -> MutexGuard<'_, PipeStats> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn forget(&self, id: u64) {
        let engine = {
            let mut connections = self.connections();
            let engine = connections.remove(&id);
            self.connected.store(connections.len(), Ordering::Relaxed);
            engine
        };
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

    /// Whether a connection with `busy` calls under way may have one more, which has been counted. Half of all places are kept for
    /// connections that have less than their share of them: whoever comes late, or asks for little, finds one.
    pub(crate) fn has_room_for(&self, busy: usize) -> Result<(), String> {
        let (calls, most) = (self.calls(), self.limits.calls);
        if calls > most {
            return Err(format!("{most} calls are under way, the limit"));
        }
        let connected = self.connected.load(Ordering::Relaxed).max(1);
        let share = most / (2 * connected);
        let others = connected - 1;
        // All that others could have is still there, or it is this one's own.
        if calls + others * share <= most || busy < share {
            return Ok(());
        }
        let kept = match connected {
            // A look at each would take long.
            SEVERAL.. => others * share,
            _ => {
                let all = self.connections();
                let busy = all.values().filter_map(|engine| engine.serving.as_ref());
                busy.map(|serving| share.saturating_sub(serving.busy()))
                    .sum()
            }
        };
        match calls + kept <= most {
            true => Ok(()),
            false => Err(format!(
                "{busy} calls of this connection are under way, and what is left of {most}, the limit, is kept for others"
            )),
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
