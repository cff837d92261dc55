//! What a process holds of its rendezvous.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tensorpipe::{Context, Misuse, ambient};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::bound::Bound;
use super::error::{Aborted, BuildError, RecvError, SendError};
use super::key::{Key, KeyError, Part, check};
use super::limits::{Limits, Stats};
use super::local::Local;
use super::peers::Peers;
use super::pull::Pull;
use super::recv::{self, Recv};
use super::send::PendingSend;
use super::service::{Answers, TensorRendezvousService};
use super::table::ReceiveMode;
use super::value::Value;
use crate::client::{Connection, DEFAULT_DEADLINE};
use crate::placement::DeviceMap;
use crate::service::Service;

/// How long others have to hear of an abort.
const TELLING: Duration = Duration::from_secs(5);

/// Makes a [`Rendezvous`].
#[derive(Debug)]
pub struct RendezvousBuilder {
    name: Arc<str>,
    incarnation: Option<u64>,
    limits: Limits,
    timeout: Duration,
    context: Option<Context>,
    devices: Option<DeviceMap>,
    peers: Vec<(Arc<str>, Arc<str>)>,
}

impl RendezvousBuilder {
    /// How much is held of what nobody has received.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How long a receive waits for its value, and `send_or_wait` for room, where nobody says otherwise. Default
    /// [`DEFAULT_DEADLINE`].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The number of this run of the process, instead of a random one. It must never have been used with this name.
    pub fn incarnation(mut self, incarnation: u64) -> Self {
        self.incarnation = Some(incarnation);
        self
    }

    /// Connects to producers with this context instead of the process's default one.
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// Where values of other processes land: those on a device of their producer's that stands in the map, on the device of this
    /// process's that it is paired with. Others land in main memory.
    pub fn device_map(mut self, devices: DeviceMap) -> Self {
        self.devices = Some(devices);
        self
    }

    /// Where a producer is: see [`Rendezvous::add_peer`].
    pub fn peer(mut self, name: &str, url: impl AsRef<str>) -> Self {
        self.peers.push((name.into(), url.as_ref().into()));
        self
    }

    /// Makes it. Inside a tokio runtime, on which its timers and connections run.
    ///
    /// # Errors
    /// A name that cannot stand in a key; [`Misuse::NoRuntime`].
    pub fn build(self) -> Result<Rendezvous, BuildError> {
        check(Part::Producer, &self.name)?;
        let runtime = Handle::try_current().map_err(|_| Misuse::NoRuntime)?;
        let incarnation = match self.incarnation {
            Some(incarnation) => incarnation,
            None => {
                let mut number = [0; 8];
                let filled = ambient::fill(&mut number);
                filled.map_err(|error| BuildError::Random(error.to_string().into()))?;
                u64::from_le_bytes(number)
            }
        };
        let context = self.context.unwrap_or_else(|| Context::global().clone());
        let local = Arc::new(Local::new(self.name, incarnation, self.limits));
        let rendezvous = Rendezvous {
            shared: Arc::new(Shared {
                peers: Peers::new(context, self.devices, runtime.clone(), local.hello()),
                local,
                timeout: self.timeout,
                runtime,
            }),
        };
        for (name, url) in self.peers {
            rendezvous.add_peer(&name, url)?;
        }
        Ok(rendezvous)
    }
}

/// Where values are handed over by name, within this process and to and from others: see the [module](super). Cheap to clone.
#[derive(Clone)]
pub struct Rendezvous {
    shared: Arc<Shared>,
}

struct Shared {
    local: Arc<Local>,
    peers: Peers,
    timeout: Duration,
    runtime: Handle,
}

impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendezvous")
            .field("name", &self.name())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Rendezvous {
    /// The rendezvous of the process of this name, with the defaults.
    ///
    /// # Errors
    /// As [`RendezvousBuilder::build`].
    pub fn new(name: &str) -> Result<Self, BuildError> {
        Self::builder(name).build()
    }

    /// Begins the rendezvous of the process of this name, which must be the only one of that name.
    pub fn builder(name: &str) -> RendezvousBuilder {
        RendezvousBuilder {
            name: name.into(),
            incarnation: None,
            limits: Limits::default(),
            timeout: DEFAULT_DEADLINE,
            context: None,
            devices: None,
            peers: Vec::new(),
        }
    }

    /// Serves the values of this process to others: `Server::builder().service(rendezvous.service())`.
    pub fn service(&self) -> impl Service + use<> {
        TensorRendezvousService::new(Answers::new(self.shared.local.clone()))
    }

    /// Says where a producer is, one that need not run yet: the URL of a server that serves its [`Rendezvous::service`].
    /// Replaces what was said of it before.
    ///
    /// # Errors
    /// A name that cannot stand in a key.
    pub fn add_peer(&self, name: &str, url: impl AsRef<str>) -> Result<(), KeyError> {
        check(Part::Producer, name)?;
        self.shared.peers.add(name.into(), url.as_ref().into());
        Ok(())
    }

    /// The name of this process.
    pub fn name(&self) -> &str {
        &self.shared.local.name
    }

    /// The number of this run of the process.
    pub fn incarnation(&self) -> u64 {
        self.shared.local.incarnation
    }

    /// What is held at this moment.
    pub fn stats(&self) -> Stats {
        self.shared.local.stats()
    }

    /// The key of a value that this process makes.
    ///
    /// # Errors
    /// A name that cannot stand in a key.
    pub fn key_to(&self, consumer: &str, tensor: &str, step: u64) -> Result<Key, KeyError> {
        let (name, incarnation) = (self.name(), self.incarnation());
        Key::new(name, incarnation, consumer, tensor, step)
    }

    /// The key of a value that another process makes for this one: asks which incarnation is there, once for each connection.
    /// Cancel safe.
    ///
    /// # Errors
    /// [`RecvError::UnknownPeer`], [`RecvError::Unreachable`], [`RecvError::WrongPeer`], [`RecvError::Deadline`] when nobody
    /// was there in time, [`RecvError::Key`] for a name that cannot stand in a key.
    pub async fn key_from(
        &self,
        producer: &str,
        tensor: &str,
        step: u64,
    ) -> Result<Key, RecvError> {
        let incarnation = self.incarnation_of(producer).await;
        Ok(Key::new(producer, incarnation?, self.name(), tensor, step)?)
    }

    /// Which incarnation of a producer is there. Cancel safe.
    ///
    /// # Errors
    /// As [`Rendezvous::key_from`].
    pub async fn incarnation_of(&self, producer: &str) -> Result<u64, RecvError> {
        if producer == self.name() {
            return Ok(self.incarnation());
        }
        let peer = self.shared.peers.find(producer)?;
        let bound = Bound::new(self.shared.timeout, &self.shared.runtime);
        let connected = tokio::time::timeout(bound.left(), peer.connected()).await;
        let connected = connected.map_err(|_| RecvError::Absent {
            producer: producer.into(),
            after: bound.after,
        });
        Ok(connected??.incarnation)
    }

    /// The connection to a producer, if there is one now: its route and counters, what was copied for example.
    pub fn connection(&self, producer: &str) -> Option<Connection> {
        let link = self.shared.peers.find(producer).ok()?.linked()?;
        Some(link.client.connection().clone())
    }

    /// Keeps a value for its receiver, who may have come before or may come later, and returns at once.
    ///
    /// # Errors
    /// See [`SendError`]; [`SendError::Full`] where nobody waits for it and there is no room.
    pub fn send(&self, key: &Key, value: impl Into<Value>) -> Result<(), SendError> {
        let local = &self.shared.local;
        local.check_producer(key)?;
        local.with(|table| table.send(key, value.into()))
    }

    /// The same; where there is no room, what this returns waits for some, in the order of such sends and for as long as
    /// [`RendezvousBuilder::timeout`] says. That is back-pressure: await it.
    pub fn send_or_wait(&self, key: &Key, value: impl Into<Value>) -> PendingSend {
        self.send_within(key, value, self.shared.timeout)
    }

    /// The same with a bound of its own; beyond it, [`SendError::Full`].
    pub fn send_within(&self, key: &Key, value: impl Into<Value>, within: Duration) -> PendingSend {
        let bound = Bound::new(within, &self.shared.runtime);
        PendingSend::new(self.shared.local.clone(), key, value.into(), bound)
    }

    /// Receives a value, which may have been sent before or may be later, from this process or another one. It waits as long as
    /// [`RendezvousBuilder::timeout`] says.
    pub fn recv(&self, key: &Key) -> Recv {
        self.recv_within(key, self.shared.timeout)
    }

    /// The same with a bound of its own, which travels to the producer; beyond it, [`RecvError::Deadline`].
    pub fn recv_within(&self, key: &Key, within: Duration) -> Recv {
        let begun = self.begin_recv(key, within);
        let state = begun.unwrap_or_else(recv::State::Failed);
        Recv { state }
    }

    /// The same with a function that is called with the value, or with why there is none, on a task of its own. The place at the
    /// key is taken when this returns; aborting the task gives it up, and the function is not called.
    pub fn recv_with(
        &self,
        key: &Key,
        then: impl FnOnce(Result<Value, RecvError>) + Send + 'static,
    ) -> AbortHandle {
        let recv = self.recv(key);
        let task = self.shared.runtime.spawn(async { then(recv.await) });
        task.abort_handle()
    }

    fn begin_recv(&self, key: &Key, within: Duration) -> Result<recv::State, RecvError> {
        let Shared {
            local,
            peers,
            runtime,
            ..
        } = &*self.shared;
        let bound = Bound::new(within, runtime);
        if key.consumer() != &*local.name {
            return Err(RecvError::NotConsumer {
                key: key.clone(),
                name: local.name.clone(),
            });
        }
        if key.producer() == &*local.name {
            if key.incarnation() != local.incarnation {
                return Err(RecvError::Restarted {
                    producer: local.name.clone(),
                    expected: key.incarnation(),
                    found: local.incarnation,
                });
            }
            return Ok(recv::State::Here(
                local.reserve(key, ReceiveMode::Take)?,
                bound,
            ));
        }
        let peer = peers.find(key.producer())?;
        let reserved = local.reserve(key, ReceiveMode::Take)?;
        let pull = Pull::start(peer, key, &bound, runtime);
        Ok(recv::State::There(reserved, pull))
    }

    /// A step is over in this process. Values of it that nobody received are dropped. Whoever waits in it, here or in another
    /// process for a value of this one, gets an error; so does whoever comes later.
    pub fn finish(&self, step: u64) {
        self.shared.local.with(|table| table.finish(step));
    }

    /// Gives everything up, with a reason. Every send and receive of this process that waits or comes later, and every receive
    /// elsewhere for a value of this one, ends with [`Aborted`]. Only the first abort counts. To go on, make another rendezvous.
    pub fn abort(&self, reason: &str) {
        let local = &self.shared.local;
        let aborted = Aborted {
            by: local.name.clone(),
            reason: reason.into(),
        };
        local.with(|table| table.abort(&aborted));
    }

    /// The same, and the processes that this one is connected to abort theirs with the same reason, also those that wait for room.
    /// A process that has sent nothing to this one yet aborts when it first does. Returns when they have, or after a few seconds.
    pub async fn abort_everywhere(&self, reason: &str) {
        self.abort(reason);
        let links = self.shared.peers.linked();
        let tell = links.iter().map(|link| {
            let client = link.client.with_deadline(TELLING);
            client.abort(self.shared.local.hello(), reason)
        });
        // On their way, all of them, before the first is awaited.
        let tell: Vec<_> = tell.collect();
        for told in tell {
            if let Err(error) = told.await {
                tracing::debug!(%error, "somebody was not told of an abort");
            }
        }
    }
}
