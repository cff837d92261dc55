//! Several servers of the same services, behind one handle that survives the death of any of them.
//!
//! Each replica has a task that keeps it connected (`keeper`). All share a table of who can be called (`table`). A call (`retrying`) picks
//! one there, again and again where that is safe. What decides is pure: `backoff`, `balance`, `budget`, `verdict`. The tasks end with the
//! last handle: each client and each call holds one.
//!
//! - A call picks a replica under one lock, and picks again if it failed there. It is kept until it is answered: a small body is copied,
//!   a large one shared. Each attempt has a header of its own.
//! - Whoever finds a replica gone takes it out, a call or its task. So does a call that is the last of several in a row without an answer in time,
//!   unless no other replica is there.
//! - The budget counts what costs a server work. It does not count a call that a server cannot take, nor a pipe's death: the back-off
//!   bounds how often a server can die. An attempt that may have run is remembered, so no later error denies it.
//! - A call that is given a reference goes to the pipe of its owner.

mod backoff;
mod balance;
mod budget;
mod builder;
mod keeper;
mod replica;
mod retrying;
mod status;
mod table;
mod verdict;

pub use crate::error::ReplicaError;
pub use backoff::Backoff;
pub use balance::Balance;
pub use budget::RetryBudget;
pub use builder::ReplicasBuilder;
pub use status::{ReplicaState, ReplicaStatus};

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;
use tensorpipe::fork::Owner;
use tensorpipe::{Error, Misuse};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::connection::Connection;
use crate::error::ConnectError;
use crate::schema::Schema;
use budget::Budget;
use table::Shared;

/// Several servers of the same services: generated clients are made on them as on a [`Connection`](crate::Connection), and
/// survive the death of any of them. Cheap to clone; the last handle, client and call ends what goes on in the background.
///
/// ```
/// use tensorpipe_rpc::{Replicas, Server, tensor_service};
///
/// #[tensor_service]
/// trait Adder {
///     /// May be made again when its server died halfway.
///     #[rpc(idempotent)]
///     async fn add(&self, a: u64, b: u64) -> u64;
/// }
///
/// struct Sum;
///
/// impl Adder for Sum {
///     async fn add(&self, a: u64, b: u64) -> u64 {
///         a + b
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let serve = || Server::builder().service(AdderService::new(Sum)).listen("tcp://127.0.0.1:0");
/// let (one, other) = (serve().await?, serve().await?);
///
/// let replicas = Replicas::builder().url(one.url()).url(other.url()).connect().await?;
/// let client = AdderClient::on(&replicas).await?;
/// assert_eq!(client.add(1, 2).await?, 3);
/// one.shutdown().await;
/// assert_eq!(client.add(3, 4).await?, 7);
/// for replica in replicas.status() {
///     println!("{} {:?} {:?}", replica.url, replica.state, replica.last_error);
/// }
/// # Ok(())
/// # }
/// ```
///
/// - **A call** goes to a replica that is there ([`Balance`]). If there is none it waits for one within its deadline, and fails
///   with [`CallError::Unavailable`](crate::CallError::Unavailable), which lists each, when there is none until then, or all
///   have been given up.
/// - **Made again**, on another replica and within the same deadline, is what did not run. The replica died, shuts down, is
///   overloaded, has no such method yet, or cannot have the call's tensors as its caller wants them. What may have run is made
///   again only if its method is `#[rpc(idempotent)]`; else the error says so
///   ([`CallError::may_have_run`](crate::CallError::may_have_run)). [`ReplicasBuilder::tries`] bounds how often, [`RetryBudget`]
///   keeps an overload from growing by it.
/// - **Made once** is a call with a stream, and one that returns a [`Remote`](crate::Remote) by its signature. So is one that is
///   given a reference: it goes to the server that owns the value. They do not wait for a replica, but fail at once where none is
///   there, and they end with theirs.
/// - **A replica** whose pipe ended, or whose server is silent ([`Timeouts::silence`](tensorpipe::Timeouts::silence)) or shuts
///   down, gets no further calls. It is connected to again, after a pause that grows ([`Backoff`]), until it is given up
///   ([`ReplicasBuilder::attempts`], [`ReplicasBuilder::give_up_after`]). So is one that answers no call, though it is there
///   ([`ReplicasBuilder::unanswered`]).
/// - **Definitions** are compared each time. A server with another one gets no calls, and its [status](Self::status) shows
///   the difference.
#[derive(Clone)]
pub struct Replicas {
    inner: Arc<Inner>,
}

struct Inner {
    owner: Owner,
    shared: Arc<Shared>,
    budget: Budget,
    runtime: Handle,
    keepers: Vec<AbortHandle>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.owner.is_other_process() {
            self.keepers.iter().for_each(AbortHandle::abort);
        }
    }
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status();
        let states = status.iter().map(|replica| (&replica.url, replica.state));
        f.write_str("Replicas ")?;
        f.debug_map().entries(states).finish()
    }
}

impl Replicas {
    /// Begins with nothing: name the servers, then [`connect`](ReplicasBuilder::connect).
    pub fn builder() -> ReplicasBuilder {
        ReplicasBuilder::new()
    }

    /// Each replica as it is now, in the order in which they were named. Whoever wants to wait until one is
    /// [live](ReplicaState::Live) looks here again.
    pub fn status(&self) -> Vec<ReplicaStatus> {
        self.inner.shared.status()
    }

    /// Connects now to those that are not there, without waiting for the end of a pause, and also to those that have been given
    /// up.
    pub fn reconnect(&self) {
        self.inner.shared.hurry();
    }

    /// Closes all pipes; calls under way and later ones fail.
    ///
    /// # Errors
    /// The first error of a pipe that could not deliver everything.
    pub async fn close(&self) -> Result<(), Error> {
        let text = "these replicas have been closed; connect anew".to_owned();
        let closed = ConnectError::Pipe(Misuse::Other(text).into());
        let connections = self.inner.shared.close(&closed);
        self.inner.keepers.iter().for_each(AbortHandle::abort);
        let closed = join_all(connections.iter().map(Connection::close)).await;
        let undelivered =
            |closed: &Result<(), Error>| matches!(closed, Err(Error::Undelivered { .. }));
        closed.into_iter().find(undelivered).unwrap_or(Ok(()))
    }

    /// A client is made: asks all replicas for the service, and returns when one has it.
    pub(super) async fn join(
        &self,
        schema: &'static Schema,
    ) -> Result<(ReplicatedService, Connection, u32), ConnectError> {
        let service = self.inner.shared.service(schema);
        let (connection, number) = self.first(Some(service)).await?;
        let replicas = self.clone();
        let joined = ReplicatedService {
            replicas,
            service,
            schema,
        };
        Ok((joined, connection, number))
    }

    /// The first replica that is there, or that has the service.
    async fn first(&self, service: Option<usize>) -> Result<(Connection, u32), ConnectError> {
        let shared = &self.inner.shared;
        let found = shared.found(|shared| shared.find(service));
        let connect_timeout = shared.options.connect_timeout;
        let found = tokio::time::timeout(connect_timeout, found).await;
        found.unwrap_or_else(|_| {
            let errors = shared.errors(service.unwrap_or(usize::MAX));
            Err(ConnectError::Unavailable(errors))
        })
    }
}

/// A client's service on replicas.
#[derive(Clone)]
pub(super) struct ReplicatedService {
    replicas: Replicas,
    /// Its place in the table.
    service: usize,
    pub(super) schema: &'static Schema,
}

impl fmt::Debug for ReplicatedService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.replicas.fmt(f)
    }
}
