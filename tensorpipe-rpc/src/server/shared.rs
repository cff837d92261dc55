//! State that all connections of a server share: services, limits, and the list of connections.

use std::any::TypeId;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use rustc_hash::FxHashMap;
use tensorpipe::log_limit::LogLimit;
use tensorpipe::{Misuse, Peer, Pipe, PipeStats};
use tokio::runtime::Handle as Runtime;
use tokio::sync::{Notify, Semaphore};

use super::call_count::CallCount;
use super::quotas::{CallQuotas, ConnectionQuota};
use crate::builder::{Authorize, Builder};
use crate::caught::{catch_panic, ignore_panic};
use crate::engine::{Engine, MethodIndex, Serving, Speed};
use crate::header::{FailureCode, Kind};
use crate::limits::ServerLimits;
use crate::lock::lock;
use crate::remote::{Grant, Grants, Referent};
use crate::service::Service;

/// The reason in the GOAWAY of a server that stops.
const GOODBYE: &str = "the server is shutting down";

/// A service, and how long the polls of its methods take.
pub(crate) struct Served {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) speed: Vec<Arc<Speed>>,
    by_id: FxHashMap<u32, usize>,
}

/// State that all connections of a server share.
pub(crate) struct ServerShared {
    pub(crate) services: Vec<Served>,
    pub(crate) limits: ServerLimits,
    authorize: Option<Box<Authorize>>,
    denied: LogLimit,
    lost: LogLimit,
    not_bound: LogLimit,
    refused: LogLimit,
    undecided: LogLimit,
    connections: Mutex<FxHashMap<u64, Arc<Engine>>>,
    /// The counters of pipes that have ended.
    gone: Mutex<PipeStats>,
    next_connection: AtomicU64,
    quotas: CallQuotas,
    pub(crate) calls: CallCount,
    draining: AtomicBool,
    /// How long copies of values of each type take, for fetches.
    fetches: Mutex<FxHashMap<TypeId, Arc<Speed>>>,
    /// Threads that may decode large bodies.
    pub(crate) decoding: Arc<Semaphore>,
    /// The URLs that it listens at.
    pub(crate) urls: OnceLock<Vec<String>>,
    /// References that were shared, and not claimed yet.
    pub(crate) grants: Arc<Grants>,
    pub(super) ended: Notify,
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl ServerShared {
    pub(crate) fn of<T>(builder: Builder<T>) -> Result<Self, Misuse> {
        let Builder {
            services,
            limits,
            authorize,
            ..
        } = builder;
        let mut served: Vec<Served> = Vec::new();
        for service in services {
            let schema = service.schema();
            schema.check()?;
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
            let methods = schema.methods.iter();
            let speed = methods.map(|method| Arc::new(Speed::new(schema.service, method.name)));
            let speed = speed.collect();
            served.push(Served {
                service,
                speed,
                by_id,
            });
        }
        Ok(Self {
            services: served,
            connections: Mutex::default(),
            gone: Mutex::default(),
            next_connection: AtomicU64::new(0),
            quotas: CallQuotas::new(limits.calls),
            limits,
            authorize,
            denied: LogLimit::new(),
            lost: LogLimit::new(),
            not_bound: LogLimit::new(),
            refused: LogLimit::new(),
            undecided: LogLimit::new(),
            calls: CallCount::default(),
            draining: AtomicBool::new(false),
            fetches: Mutex::default(),
            decoding: Arc::new(Semaphore::new(cores())),
            urls: OnceLock::new(),
            grants: Arc::default(),
            ended: Notify::new(),
        })
    }

    /// How long copies of values of this one's type take.
    pub(crate) fn fetch_speed(&self, referent: &Referent) -> Arc<Speed> {
        let new = || Arc::new(Speed::new("Remote", "fetch"));
        let mut fetches = lock(&self.fetches);
        fetches.entry(referent.kind()).or_insert_with(new).clone()
    }

    /// Makes an engine on `pipe` that can call, and serves these services.
    pub(crate) fn connect(self: &Arc<Self>, pipe: Pipe) -> Result<Arc<Engine>, Misuse> {
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let serving = Serving::new(self.clone(), id, &pipe, Arc::default());
        Engine::start(pipe.clone(), Some(serving))
    }

    /// Keeps a value until a third process claims it, on behalf of the connection with this number. The result has those URLs that
    /// are `named`: of others, whoever gets the reference knows the host.
    ///
    /// # Errors
    /// The kind of the failure, and in words why.
    pub(crate) fn share(
        &self,
        referent: Referent,
        connection: u64,
        runtime: &Runtime,
        named: fn(&str) -> bool,
    ) -> Result<Grant, (FailureCode, String)> {
        let mut urls = self.urls.get().cloned().unwrap_or_default();
        let listens = !urls.is_empty();
        urls.retain(|url| named(url));
        if urls.is_empty() {
            let text = match listens {
                false => "its owner listens nowhere: a third process cannot reach it",
                true => {
                    "its server listens at all addresses, of which none is named: let it listen at one that others reach"
                }
            };
            return Err((FailureCode::Unresolved, text.to_owned()));
        }
        let limit = self.limits.references;
        let token = self.grants.give(referent, connection, limit, runtime);
        let token = token.map_err(|text| (FailureCode::Overloaded, text))?;
        Ok(Grant { urls, token })
    }

    pub(super) fn connections(&self) -> MutexGuard<'_, FxHashMap<u64, Arc<Engine>>> {
        lock(&self.connections)
    }

    pub(super) fn serve(self: &Arc<Self>, pipe: Pipe) -> Result<(), Misuse> {
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        ignore_panic(|| {
            tracing::debug!(pipe = pipe.name(), route = %pipe.route(), "serving");
        });
        let quota = self.quotas.join(id, pipe.peer_addr());
        let serving = Serving::new(self.clone(), id, &pipe, quota);
        let engine =
            Engine::start(pipe.clone(), Some(serving)).inspect_err(|_| self.quotas.leave(id))?;
        {
            let mut connections = self.connections();
            if self.is_draining() {
                // The pipe came while the server was being stopped. Dropping the engine closes it in good order.
                drop(connections);
                self.quotas.leave(id);
                engine.pipe.go_away(GOODBYE);
                return Ok(());
            }
            connections.insert(id, engine);
        }
        // The pipe may have ended before it was in the table.
        if pipe.has_ended() {
            self.forget(id);
        }
        Ok(())
    }

    /// Stops taking new calls and pipes. Returns the connections that there are.
    pub(super) fn drain(&self) -> Vec<Arc<Engine>> {
        let engines: Vec<Arc<Engine>> = {
            let connections = self.connections();
            self.draining.store(true, Ordering::SeqCst);
            connections.values().cloned().collect()
        };
        for engine in &engines {
            // Not the pipe's own GOAWAY: messages of calls under way must still arrive.
            engine.at_once(|| engine.send_control(Kind::Draining, 0, &[]));
            engine.tell_running();
        }
        engines
    }

    pub(super) fn gone(&self) -> MutexGuard<'_, PipeStats> {
        lock(&self.gone)
    }

    pub(crate) fn forget(&self, id: u64) {
        let engine = self.connections().remove(&id);
        if let Some(engine) = engine {
            self.quotas.leave(id);
            *self.gone() += engine.pipe.stats();
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Whether a connection that had `busy` calls may have one more, which is already counted.
    pub(crate) fn has_room_for(&self, quota: &ConnectionQuota, busy: usize) -> Result<(), String> {
        self.quotas.has_room(quota, busy, self.calls.places())
    }

    /// The answer to a call is on its way.
    pub(crate) fn call_ended(&self) {
        if self.calls.end() && self.is_draining() {
            self.ended.notify_one();
        }
    }

    /// Asks whether this caller may call the method. The error says why not.
    pub(crate) fn allows(&self, caller: &Peer, service: &str, method: &str) -> Result<(), String> {
        let Some(authorize) = &self.authorize else {
            return Ok(());
        };
        let said = catch_panic(|| authorize(caller, service, method));
        let said = said.unwrap_or_else(|panic| {
            if let Some(more) = self.undecided.admits() {
                ignore_panic(|| {
                    tracing::error!(panic, %caller, service, method, more, "who decides on calls panicked");
                });
            }
            Err("the server could not decide".to_owned())
        });
        said.map_err(|reason| {
            if let Some(more) = self.denied.admits() {
                ignore_panic(|| {
                    tracing::warn!(%caller, service, method, reason, more, "a call is not allowed");
                });
            }
            format!("{caller} may not call `{service}::{method}`: {reason}")
        })
    }

    /// A call was refused on its header.
    pub(crate) fn refused(&self, caller: &Peer, code: FailureCode, reason: &str) {
        // Those that are denied are logged as such.
        let is_news = !matches!(code, FailureCode::Denied | FailureCode::ShuttingDown);
        if is_news && let Some(more) = self.refused.admits() {
            let reason = match code {
                FailureCode::Unimplemented => &format!(
                    "no {reason} is here: the client was built with a method that this server lacks"
                ),
                _ => reason,
            };
            ignore_panic(|| tracing::warn!(%caller, reason, more, "a call is refused"));
        }
    }

    /// A client's pipe has ended without a goodbye.
    pub(crate) fn lost(&self, caller: &Peer, error: &tensorpipe::Error) {
        if let Some(more) = self.lost.admits() {
            ignore_panic(|| tracing::info!(%caller, %error, more, "a client is lost"));
        }
    }

    /// A client asked for a service that is not here, or not as the client defines it.
    pub(crate) fn not_bound(&self, caller: &Peer, reason: &str) {
        if let Some(more) = self.not_bound.admits() {
            ignore_panic(|| tracing::warn!(%caller, reason, more, "a client gets no service"));
        }
    }

    /// Finds a service and its method.
    pub(crate) fn find(
        &self,
        service: u32,
        method: u32,
    ) -> Result<MethodIndex, (FailureCode, String)> {
        let index = service as usize;
        let Some(served) = self.services.get(index) else {
            return Err((
                FailureCode::NoService,
                format!("has no service number {service}"),
            ));
        };
        match served.by_id.get(&method) {
            Some(position) => Ok(MethodIndex {
                service: index,
                method: *position,
            }),
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
