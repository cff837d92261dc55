//! What is measured: one file per system, one line each in [`ALL`].
//!
//! Contract of a [`System`]:
//! - `serve` announces its address once it accepts, and serves any number of connections until it is dropped;
//! - it keeps what an upload brought until the client's `check` has asked for it, and not longer;
//! - `connect` allocates what it reuses; nothing is shared between two connections;
//! - a round never waits for anything but its own bytes: no timer, no log, no check.
//!
//! Generic below, dyn at the seam: [`AnySystem`] is implemented for every `System`, and what runs inside the timed
//! part is compiled for the one client.

mod choice;
mod hand_written;
pub(crate) mod ours;
mod pipe;
pub(crate) mod rpc;
mod socket;
mod tarpc_calls;

pub(crate) use choice::Choice;

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;

use crate::measure::{Samples, drive};
use crate::plan::{Begin, Case, Plan, Transport};

/// Every system, in the order in which tables show them.
pub(crate) static ALL: &[&dyn AnySystem] = &[
    &hand_written::Tokio,
    &tarpc_calls::Tarpc,
    &pipe::PipeSystem,
    &rpc::Rpc,
];

/// The system of that name.
///
/// # Errors
/// When there is none; names those there are.
pub(crate) fn by_name(name: &str) -> Result<&'static dyn AnySystem> {
    let found = ALL.iter().copied().find(|system| system.name() == name);
    let Some(system) = found else {
        let names: Vec<_> = ALL.iter().map(|system| system.name()).collect();
        bail!(
            "there is no system `{name}`, choose of: {}",
            names.join(", ")
        );
    };
    Ok(system)
}

/// Something that moves bytes between two processes.
pub(crate) trait System: Send + Sync + 'static {
    type Client: Client;

    const NAME: &'static str;
    /// What the table's legend says of it.
    const ABOUT: &'static str;
    const KIND: Kind;
    const CASES: &'static [Case];
    const TRANSPORTS: &'static [Transport];

    /// Serves until dropped.
    fn serve(plan: Plan, ready: Ready) -> impl Future<Output = Result<()>> + Send;

    /// Connects to the address that `serve` announced.
    fn connect(plan: Plan, address: String) -> impl Future<Output = Result<Self::Client>> + Send;
}

/// The measuring side of one connection.
pub(crate) trait Client: Send + 'static {
    /// Writes the tensor of `round` anew. Not timed.
    fn prepare(&mut self, round: u64) -> impl Future<Output = Result<()>> + Send;

    /// A call there and back: nobody sleeps after it. It leaves what is prepared as it is. Not timed.
    fn touch(&mut self, trip: Trip) -> impl Future<Output = Result<()>> + Send;

    /// What is timed.
    fn round(&mut self) -> impl Future<Output = Result<()>> + Send;

    /// Checks every byte that `round` brought here or to the server. Not timed.
    fn check(&mut self, round: u64) -> impl Future<Output = Result<()>> + Send;

    /// Calls that one round makes.
    fn calls_per_round(&self) -> u64 {
        1
    }

    /// What carried the bytes.
    fn route(&self) -> Route;
}

/// What a call carries that wakes both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trip {
    /// Nothing.
    Bare,
    /// A small leased tensor, there and back; nothing where there are no leases.
    Leased,
}

/// Whether a system is ours or a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// What we compare with.
    Baseline,
    /// What this repository makes.
    Ours,
}

/// The transport and channel that were used, for the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) transport: String,
    pub(crate) channel: String,
    /// On which pages this end's pool lies, if that is where tensors are.
    pub(crate) pages: Option<String>,
}

impl Route {
    /// A route without channels: the bytes ride on the stream.
    pub(crate) fn plain(transport: &str) -> Self {
        Self {
            transport: transport.to_owned(),
            channel: "none".to_owned(),
            pages: None,
        }
    }
}

/// How a server says that it can be reached.
#[derive(Debug)]
pub(crate) struct Ready(oneshot::Sender<String>);

impl Ready {
    pub(crate) fn new() -> (Self, oneshot::Receiver<String>) {
        let (sender, receiver) = oneshot::channel();
        (Self(sender), receiver)
    }

    pub(crate) fn announce(self, address: impl ToString) {
        // Nobody listening any more means that the process is about to end.
        let _ = self.0.send(address.to_string());
    }
}

/// A [`System`] of any type.
pub(crate) trait AnySystem: Send + Sync {
    fn name(&self) -> &'static str;
    fn about(&self) -> &'static str;
    fn kind(&self) -> Kind;
    fn cases(&self) -> &'static [Case];
    fn transports(&self) -> &'static [Transport];
    fn serve(&self, plan: Plan, ready: Ready) -> BoxFuture<'static, Result<()>>;
    /// Connects and measures.
    fn measure(&self, plan: Plan, address: String) -> BoxFuture<'static, Result<(Samples, Route)>>;
    /// Connects `count` times, makes a round on each connection and gives them back, open.
    fn hold(&self, plan: Plan, address: String, count: usize) -> BoxFuture<'static, Result<Held>>;
    /// Connects `count` times, and makes rounds on all connections at once, one at a time on each.
    fn crowd(&self, plan: Plan, address: String, count: usize)
    -> BoxFuture<'static, Result<Crowd>>;
}

/// How many rounds each connection made, and how long it took.
pub(crate) type Crowd = (Vec<u64>, Duration);

/// Open connections, closed when dropped, and their route.
pub(crate) type Held = (Vec<Box<dyn Any + Send>>, Route);

impl<S: System> AnySystem for S {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn about(&self) -> &'static str {
        S::ABOUT
    }

    fn kind(&self) -> Kind {
        S::KIND
    }

    fn cases(&self) -> &'static [Case] {
        S::CASES
    }

    fn transports(&self) -> &'static [Transport] {
        S::TRANSPORTS
    }

    fn serve(&self, plan: Plan, ready: Ready) -> BoxFuture<'static, Result<()>> {
        Box::pin(S::serve(plan, ready))
    }

    fn measure(&self, plan: Plan, address: String) -> BoxFuture<'static, Result<(Samples, Route)>> {
        Box::pin(async move {
            let length = plan.duration();
            let bound = 2 * length + PATIENCE;
            let begin = plan.begin();
            let measured = async move {
                let mut client = S::connect(plan, address).await?;
                let samples = drive(&mut client, length, begin).await?;
                Ok((samples, client.route()))
            };
            bounded(bound, measured).await
        })
    }

    fn hold(&self, plan: Plan, address: String, count: usize) -> BoxFuture<'static, Result<Held>> {
        Box::pin(bounded(PATIENCE, async move {
            let mut held: Vec<Box<dyn Any + Send>> = Vec::new();
            let mut route = Route::plain(plan.transport.name());
            for _ in 0..count {
                let mut client = S::connect(plan.clone(), address.clone()).await?;
                drive(&mut client, Duration::ZERO, Begin::AsTheyAre).await?;
                route = client.route();
                held.push(Box::new(client));
            }
            Ok((held, route))
        }))
    }

    fn crowd(
        &self,
        plan: Plan,
        address: String,
        count: usize,
    ) -> BoxFuture<'static, Result<Crowd>> {
        let length = plan.duration();
        Box::pin(bounded(2 * length + PATIENCE, async move {
            let phase = Arc::new(AtomicU8::new(WARM));
            let mut clients = Vec::new();
            for _ in 0..count {
                clients.push(S::connect(plan.clone(), address.clone()).await?);
            }
            let take_part = |client| tokio::spawn(take_part(client, phase.clone()));
            let tasks: Vec<_> = clients.into_iter().map(take_part).collect();
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
            Ok((rounds, took))
        }))
    }
}

/// Rounds on one connection, until there are enough: how many of them counted.
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

/// The phases of a crowd's rounds; they are over after these.
const WARM: u8 = 0;
const COUNTS: u8 = 1;

async fn bounded<T>(bound: Duration, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(bound, work).await.with_context(|| {
        format!(
            "not finished after {} s, is the server stuck",
            bound.as_secs()
        )
    })?
}

/// How much longer than asked for a measurement may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_found() -> Result<()> {
        let mut names = HashSet::new();
        for system in ALL {
            assert!(
                names.insert(system.name()),
                "two systems named {}",
                system.name()
            );
            assert_eq!(by_name(system.name())?.name(), system.name());
            assert!(!system.cases().is_empty() && !system.transports().is_empty());
        }
        let error = by_name("grpc").err().context("grpc is no system")?;
        assert!(error.to_string().contains("tokio, tarpc"), "{error}");
        Ok(())
    }
}
