//! The rendezvous of a process: its builder and its handle.

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

/// How long other processes have to answer an abort.
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
    /// Bounds what is sent and not received yet.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How long a receive waits for its value, and `send_or_wait` for room, unless told otherwise. Default [`DEFAULT_DEADLINE`].
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the number of this run of the process, which is random by default. It must never have been used with this name.
    pub fn incarnation(mut self, incarnation: u64) -> Self {
        self.incarnation = Some(incarnation);
        self
    }

    /// Connects to producers with this context instead of the process's default one.
    pub fn context(mut self, context: &Context) -> Self {
        self.context = Some(context.clone());
        self
    }

    /// Where values of other processes land. A value on a producer's device in the map lands on the paired device of this process,
    /// others in main memory.
    pub fn device_map(mut self, devices: DeviceMap) -> Self {
        self.devices = Some(devices);
        self
    }

    /// Sets a producer's URL: see [`Rendezvous::add_peer`].
    pub fn peer(mut self, name: &str, url: impl AsRef<str>) -> Self {
        self.peers.push((name.into(), url.as_ref().into()));
        self
    }

    /// Makes the rendezvous. Must be called inside a tokio runtime, which runs its timers and connections.
    ///
    /// # Errors
    /// If the name cannot stand in a key; [`Misuse::NoRuntime`].
    pub fn build(self) -> Result<Rendezvous, BuildError> {
        check(Part::Producer, &self.name)?;
        let runtime = Handle::try_current().map_err(|_| Misuse::NoRuntime)?;
        let incarnation = match self.incarnation {
            Some(incarnation) => incarnation,
            None => {
                let mut number = [0; 8];
                let filled = ambient::fill_random(&mut number);
                filled.map_err(|error| BuildError::Random(error.to_string().into()))?;
                u64::from_le_bytes(number)
            }
        };
        let context = self.context.unwrap_or_else(|| Context::global().clone());
        let local = Arc::new(Local::new(self.name, incarnation, self.limits));
        let rendezvous = Rendezvous {
            shared: Arc::new(Shared {
                peers: Peers::new(context, self.devices, runtime.clone(), local.clone()),
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

/// Hands values over by name, within this process and to and from others: see the [module](super). Cheap to clone.
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
    /// Makes a rendezvous for the process of this name, with the defaults.
    ///
    /// # Errors
    /// As [`RendezvousBuilder::build`].
    pub fn new(name: &str) -> Result<Self, BuildError> {
        Self::builder(name).build()
    }

    /// Begins a rendezvous for the process of this name. No other process may have the name.
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

    /// Sets a producer's URL: that of a server that serves its [`Rendezvous::service`]. The producer need not run yet. Replaces an
    /// earlier URL. It is known until it is [removed](Self::remove_peer).
    ///
    /// # Errors
    /// If the name cannot stand in a key.
    pub fn add_peer(&self, name: &str, url: impl AsRef<str>) -> Result<(), KeyError> {
        check(Part::Producer, name)?;
        self.shared.peers.add(name.into(), url.as_ref().into());
        Ok(())
    }

    /// Forgets a producer, for a set of processes that come and go under names of their own: a known one takes some 10 KiB, gone or not. Later
    /// receives from it are errors ([`RecvError::UnknownPeer`]). Those under way end as they would have, then its connection closes. Values
    /// whose arrival could not be confirmed by then, as it was out of reach, stay with it. Returns whether it was known.
    pub fn remove_peer(&self, name: &str) -> bool {
        self.shared.peers.remove(name)
    }

    /// The name of this process.
    pub fn name(&self) -> &str {
        &self.shared.local.name
    }

    /// The number of this run of the process.
    pub fn incarnation(&self) -> u64 {
        self.shared.local.incarnation
    }

    /// How much is held at this moment.
    pub fn stats(&self) -> Stats {
        self.shared.local.stats()
    }

    /// The key of a value that this process sends.
    ///
    /// # Errors
    /// If a name cannot stand in a key.
    pub fn key_to(&self, consumer: &str, tensor: &str, step: u64) -> Result<Key, KeyError> {
        let (name, incarnation) = (self.name(), self.incarnation());
        Key::new(name, incarnation, consumer, tensor, step)
    }

    /// The key of a value that another process sends to this one. Asks for the producer's incarnation, once for each connection.
    /// Cancel safe.
    ///
    /// # Errors
    /// [`RecvError::UnknownPeer`], [`RecvError::Unreachable`], [`RecvError::WrongPeer`], [`RecvError::Absent`] if the producer
    /// did not answer in time, [`RecvError::Key`] if a name cannot stand in a key.
    pub async fn key_from(
        &self,
        producer: &str,
        tensor: &str,
        step: u64,
    ) -> Result<Key, RecvError> {
        let incarnation = self.incarnation_of(producer).await;
        Ok(Key::new(producer, incarnation?, self.name(), tensor, step)?)
    }

    /// The incarnation of a producer that runs now. Cancel safe.
    ///
    /// # Errors
    /// As [`Rendezvous::key_from`].
    pub async fn incarnation_of(&self, producer: &str) -> Result<u64, RecvError> {
        if producer == self.name() {
            return Ok(self.incarnation());
        }
        let peer = self.shared.peers.find(producer)?;
        let bound = Bound::new(self.shared.timeout, &self.shared.runtime);
        let after = bound.after;
        let connected = bound.within(peer.connected()).await;
        let connected = connected.ok_or_else(|| RecvError::Absent {
            producer: producer.into(),
            after,
        });
        Ok(connected??.incarnation)
    }

    /// The connection to a producer, if there is one now: for its route, and counters such as copied bytes.
    pub fn connection(&self, producer: &str) -> Option<Connection> {
        let link = self.shared.peers.find(producer).ok()?.linked()?;
        Some(link.client.connection().clone())
    }

    /// Keeps a value for its receiver, which may already wait or come later. Returns at once.
    ///
    /// # Errors
    /// See [`SendError`]; [`SendError::Full`] if there is no room, and no receiver for which the value may exceed the [`Limits`].
    pub fn send(&self, key: &Key, value: impl Into<Value>) -> Result<(), SendError> {
        let value = value.into();
        let local = &self.shared.local;
        local.send(key, |table| table.send(key, value))
    }

    /// As [`Rendezvous::send`], but if there is no room, the returned future waits for some: in order among such sends, and for as
    /// long as [`RendezvousBuilder::timeout`] says. Await it, for back-pressure.
    pub fn send_or_wait(&self, key: &Key, value: impl Into<Value>) -> PendingSend {
        self.send_within(key, value, self.shared.timeout)
    }

    /// As [`Rendezvous::send_or_wait`], with a bound of its own. Beyond it, [`SendError::Full`].
    pub fn send_within(&self, key: &Key, value: impl Into<Value>, within: Duration) -> PendingSend {
        let bound = Bound::new(within, &self.shared.runtime);
        PendingSend::new(self.shared.local.clone(), key, value.into(), bound)
    }

    /// Receives a value from this process or another one, sent before or later. It waits for as long as
    /// [`RendezvousBuilder::timeout`] says.
    pub fn recv(&self, key: &Key) -> Recv {
        self.recv_within(key, self.shared.timeout)
    }

    /// As [`Rendezvous::recv`], with a bound of its own, which travels to the producer. Beyond it, [`RecvError::Deadline`].
    pub fn recv_within(&self, key: &Key, within: Duration) -> Recv {
        let begun = self.begin_recv(key, within);
        let state = begun.unwrap_or_else(recv::State::Failed);
        Recv { state }
    }

    /// As [`Rendezvous::recv`], with a callback that gets the value, or why there is none, on a task of its own. The place at the
    /// key is taken when this returns. Aborting the task gives the place up, and the callback is not called.
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

    /// Finishes a step in this process, and drops its values that nobody received. Sends and receives of the step here, and other
    /// processes' receives of this process's values, get an error, if they wait or come later.
    pub fn finish(&self, step: u64) {
        self.shared.local.with(|table| table.finish(step));
    }

    /// Aborts everything, with a reason. All sends and receives of this process, and all receives elsewhere for its values, end
    /// with [`Aborted`], if they wait or come later. Only the first abort counts. To go on, make another rendezvous.
    pub fn abort(&self, reason: &str) {
        let local = &self.shared.local;
        let aborted = Aborted {
            by: local.name.clone(),
            reason: reason.into(),
        };
        local.with(|table| table.abort(&aborted));
    }

    /// As [`Rendezvous::abort`], and the connected processes abort theirs with the same reason, including sends that wait for room.
    /// A process that has sent nothing to this one yet aborts when it first does, unless this process is started again before, or is
    /// gone and a thousand others have come. Returns when all have, or after a few seconds.
    pub async fn abort_everywhere(&self, reason: &str) {
        self.abort(reason);
        let links = self.shared.peers.linked();
        let tell = links.iter().map(|link| {
            let client = link.client.with_deadline(TELLING);
            client.abort(&link.me, reason)
        });
        // All requests are sent before the first is awaited.
        let tell: Vec<_> = tell.collect();
        for told in tell {
            if let Err(error) = told.await {
                tracing::debug!(%error, "somebody was not told of an abort");
            }
        }
    }
}
