//! What is measured: one file per system, one line each in [`ALL`].
//!
//! Contract of a [`System`]:
//! - `serve` announces its address once it accepts, and serves any number of connections until it is dropped;
//! - it keeps what an upload brought until the client's `check` has asked for it, and not longer;
//! - `connect` allocates what it reuses; nothing is shared between two connections;
//! - a round never waits for anything but its own bytes: no timer, no log, no check.
//!
//! [`AnySystem`] is a dyn-safe wrapper that every `System` implements. The code below it is generic, so the timed part is
//! compiled for its client.

pub(crate) mod choice;
pub(crate) mod ours;
mod pipe;
pub(crate) mod rpc;
mod socket;
mod tarpc_calls;
mod tokio_frames;

pub(crate) use choice::Choice;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::measure::{Samples, drive};
use crate::plan::{Begin, Case, Plan, Transport, name};

/// Every system, in the order in which tables show them.
pub(crate) static ALL: &[&dyn AnySystem] = &[
    &tokio_frames::Tokio,
    &tarpc_calls::Tarpc,
    &pipe::PipeSystem,
    &rpc::Rpc,
];

/// The system of that name.
pub(crate) fn by_name(name: &str) -> Result<&'static dyn AnySystem> {
    let found = ALL.iter().find(|system| system.about().name == name);
    let names: Vec<_> = ALL.iter().map(|system| system.about().name).collect();
    let names = names.join(", ");
    let found = found.with_context(|| format!("there is no system `{name}`, choose of: {names}"));
    found.copied()
}

/// Static facts about a system.
pub(crate) struct About {
    pub(crate) name: &'static str,
    /// For the legend of a table.
    pub(crate) words: &'static str,
    /// Whether the system is part of this repository, not a competitor.
    pub(crate) is_ours: bool,
    pub(crate) cases: &'static [Case],
    pub(crate) transports: &'static [Transport],
}

/// Something that moves bytes between two processes.
pub(crate) trait System: Send + Sync + 'static {
    type Client: Client;

    const ABOUT: About;

    /// Serves until dropped.
    fn serve(plan: Plan, ready: Ready) -> impl Future<Output = Result<()>> + Send;

    /// Connects to the address that `serve` announced.
    fn connect(plan: Plan, address: String) -> impl Future<Output = Result<Self::Client>> + Send;
}

/// The measuring side of one connection.
pub(crate) trait Client: Send + 'static {
    /// Writes the tensor of `round` anew. Not timed.
    fn prepare(&mut self, round: u64) -> impl Future<Output = Result<()>> + Send;

    /// Makes a call that leaves both ends awake and the prepared tensor unchanged. Not timed.
    fn touch(&mut self, trip: Trip) -> impl Future<Output = Result<()>> + Send;

    /// One round. Timed.
    fn round(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Checks every byte that `round` brought here or to the server. Not timed.
    fn check(&mut self, round: u64) -> impl Future<Output = Result<()>> + Send;

    /// Calls that one round makes.
    fn calls_per_round(&self) -> u64 {
        1
    }

    /// The route that carried the bytes.
    fn route(&self) -> Route;
}

/// The content of a call that wakes both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trip {
    /// Nothing.
    Bare,
    /// A small leased tensor, there and back; nothing where there are no leases.
    Leased,
}

/// The transport and channel that were used, for the row.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) transport: String,
    pub(crate) channel: String,
    /// The kind of pages of this end's pool, if tensors are in the pool.
    pub(crate) pages: Option<String>,
}

impl Route {
    /// A route without channels: the bytes ride on the stream.
    pub(crate) fn plain(transport: String) -> Self {
        Self {
            transport,
            channel: "none".to_owned(),
            pages: None,
        }
    }
}

/// With this a server announces its address.
#[derive(Debug)]
pub(crate) struct Ready(oneshot::Sender<String>);

impl Ready {
    pub(crate) fn new() -> (Self, oneshot::Receiver<String>) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }

    pub(crate) fn announce(self, address: impl ToString) {
        // If the receiver is gone, the process is about to end.
        let _ = self.0.send(address.to_string());
    }
}

/// A [`System`] of any type.
pub(crate) trait AnySystem: Send + Sync {
    fn about(&self) -> &'static About;
    fn serve(&self, plan: Plan, ready: Ready) -> BoxFuture<'static, Result<()>>;
    /// Connects and measures.
    fn measure(&self, plan: Plan, address: String) -> BoxFuture<'static, Result<(Samples, Route)>>;
    /// Connects `count` times, makes a few rounds on each connection and gives them back, open.
    fn hold(&self, plan: Plan, address: String, count: u32) -> BoxFuture<'static, Result<Held>>;
    /// Connects `count` times, and makes rounds on all connections at once, one at a time on each. If `rare`, a further connection makes
    /// a round each [`RARE`].
    fn call_over_many(
        &self,
        plan: Plan,
        address: String,
        count: u32,
        rare: bool,
    ) -> BoxFuture<'static, Result<ManyCalled>>;
}

/// Open connections, closed when dropped, and their route.
pub(crate) type Held = (Vec<Box<dyn Any + Send>>, Route);

impl<S: System> AnySystem for S {
    fn about(&self) -> &'static About {
        &S::ABOUT
    }

    fn serve(&self, plan: Plan, ready: Ready) -> BoxFuture<'static, Result<()>> {
        Box::pin(S::serve(plan, ready))
    }

    fn measure(&self, plan: Plan, address: String) -> BoxFuture<'static, Result<(Samples, Route)>> {
        let (length, begin) = (plan.duration(), plan.begin());
        Box::pin(bounded(2 * length, async move {
            let mut client = S::connect(plan, address).await?;
            let samples = drive(&mut client, length, begin).await?;
            Ok((samples, client.route()))
        }))
    }

    fn hold(&self, plan: Plan, address: String, count: u32) -> BoxFuture<'static, Result<Held>> {
        Box::pin(bounded(Duration::ZERO, async move {
            let mut held: Vec<Box<dyn Any + Send>> = Vec::new();
            let mut route = Route::plain(name(plan.transport));
            for _ in 0..count {
                let mut client = S::connect(plan.clone(), address.clone()).await?;
                drive(&mut client, Duration::ZERO, Begin::AsTheyAre).await?;
                route = client.route();
                held.push(Box::new(client));
            }
            Ok((held, route))
        }))
    }

    fn call_over_many(
        &self,
        plan: Plan,
        address: String,
        count: u32,
        rare: bool,
    ) -> BoxFuture<'static, Result<ManyCalled>> {
        let length = plan.duration();
        Box::pin(bounded(2 * length, async move {
            let phase = Arc::new(AtomicU8::new(WARM));
            let mut clients = Vec::new();
            let rare = match rare {
                true => Some(S::connect(plan.clone(), address.clone()).await?),
                false => None,
            };
            let begun = Instant::now();
            for _ in 0..count {
                clients.push(S::connect(plan.clone(), address.clone()).await?);
            }
            let opening = begun.elapsed();
            let take_part = |client| tokio::spawn(take_part(client, phase.clone()));
            let tasks: Vec<_> = clients.into_iter().map(take_part).collect();
            let rare = rare.map(|client| tokio::spawn(call_rarely(client, phase.clone())));
            tokio::time::sleep(length / 4).await;
            phase.store(COUNTS, Ordering::Relaxed);
            let begun = Instant::now();
            tokio::time::sleep(length).await;
            phase.store(COUNTS + 1, Ordering::Relaxed);
            let took = begun.elapsed();
            let mut rounds = Vec::new();
            for task in tasks {
                rounds.push(task.await.context("a connection's task")??);
            }
            let rare = match rare {
                Some(task) => Some(task.await.context("the rare caller's task")??),
                None => None,
            };
            Ok(ManyCalled {
                opening,
                rounds,
                took,
                rare,
            })
        }))
    }
}

/// Results of calls over many connections.
#[derive(Debug)]
pub(crate) struct ManyCalled {
    /// How long it took to open them, one after another.
    pub(crate) opening: Duration,
    /// Rounds of each connection.
    pub(crate) rounds: Vec<u64>,
    /// How long the rounds were counted.
    pub(crate) took: Duration,
    /// Rounds of the connection that makes one now and then.
    pub(crate) rare: Option<Samples>,
}

/// How long the rare caller rests between its calls.
const RARE: Duration = Duration::from_millis(2);

/// Makes a round on one connection now and then, until the phase is over. Returns how long those took that counted.
async fn call_rarely(mut client: impl Client, phase: Arc<AtomicU8>) -> Result<Samples> {
    let mut samples = Samples::new();
    for round in 0.. {
        client.prepare(round).await?;
        tokio::time::sleep(RARE).await;
        let begun = Instant::now();
        client.round().await?;
        match phase.load(Ordering::Relaxed) {
            WARM => {}
            COUNTS => samples.record(begun.elapsed(), 1),
            _ => break,
        }
    }
    Ok(samples)
}

/// Makes rounds on one connection until the phase is over. Returns how many of them counted.
async fn take_part(mut client: impl Client, phase: Arc<AtomicU8>) -> Result<u64> {
    let mut counted = 0;
    loop {
        client.prepare(0).await?;
        match phase.load(Ordering::Relaxed) {
            WARM => {}
            COUNTS => counted += 1,
            _ => return Ok(counted),
        }
        client.round().await?;
    }
}

/// The phases of these rounds. Any later phase means that they are over.
const WARM: u8 = 0;
const COUNTS: u8 = 1;

/// Gives up `work` if it takes a minute longer than its `length`.
pub(crate) async fn bounded<T>(
    length: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let bound = length + Duration::from_secs(60);
    let done = tokio::time::timeout(bound, work).await;
    done.with_context(|| format!("not finished after {bound:?}, is the server stuck"))?
}
