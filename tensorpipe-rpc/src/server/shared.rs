//! What the connections of a server share: its services, its limits, and which connections there are.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustc_hash::FxHashMap;
use tensorpipe::{Misuse, Pipe, PipeStats};
use tokio::sync::Notify;

use super::under_way::UnderWay;
use crate::builder::Builder;
use crate::engine::{Engine, Serving, Speed};
use crate::header::{FailureCode, Kind};
use crate::limits::ServerLimits;
use crate::remote::Grants;
use crate::service::Service;

/// What clients of a server that stops hear.
const GOODBYE: &str = "the server is shutting down";

/// From so many connections on they are not looked at one by one.
const SEVERAL: usize = 64;

/// A service and how long its methods take.
pub(crate) struct Served {
    pub(crate) service: Arc<dyn Service>,
    pub(crate) speed: Vec<Arc<Speed>>,
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
    calls: UnderWay,
    draining: AtomicBool,
    /// Where it listens.
    pub(crate) urls: OnceLock<Vec<String>>,
    /// References that were shared, and not claimed yet.
    pub(crate) grants: Arc<Grants>,
    pub(super) ended: Notify,
}

impl ServerShared {
    pub(crate) fn of<T>(builder: Builder<T>) -> Result<Self, Misuse> {
        let Builder {
            services, limits, ..
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
            limits,
            connections: Mutex::default(),
            gone: Mutex::default(),
            next_connection: AtomicU64::new(0),
            connected: AtomicUsize::new(0),
            calls: UnderWay::default(),
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

    pub(super) fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<Engine>>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn serve(self: &Arc<Self>, pipe: Pipe) {
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
    pub(super) fn drain(&self) -> Vec<Arc<Engine>> {
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

    pub(super) fn gone(&self) -> MutexGuard<'_, PipeStats> {
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

    /// Calls that are not answered.
    pub(crate) fn calls(&self) -> usize {
        self.calls.unanswered()
    }

    pub(crate) fn call_began(&self) {
        self.calls.begin();
    }

    /// A call is about to be answered: its place is free for the next one.
    pub(crate) fn call_leaves(&self) {
        self.calls.leave();
    }

    /// Its answer is on its way.
    pub(crate) fn call_ended(&self) {
        if self.calls.end() && self.is_draining() {
            self.ended.notify_one();
        }
    }

    /// Whether a connection with `busy` calls under way may have one more, which has been counted. Half of all places are kept for
    /// connections that have less than their share of them: whoever comes late, or asks for little, finds one.
    pub(crate) fn has_room_for(&self, busy: usize) -> Result<(), String> {
        let (calls, most) = (self.calls.places(), self.limits.calls);
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
