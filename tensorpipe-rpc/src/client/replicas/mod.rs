//! Several servers of the same services, behind one handle that survives the death of any of them.
//!
//! Each replica has a task that keeps it connected (`keeper`). All share a table of the replicas that can be called (`table`). A
//! call (`retrying`) picks one from it, and picks again where a retry is safe. Decisions are pure functions: `backoff`, `balance`,
//! `budget`, `verdict`. Each client and each call holds a handle; the tasks end with the last one.
//!
//! - A call picks a replica under one lock, and picks again if it failed there. Its encoding is kept until it is answered: a small
//!   body is copied, a large one shared. Each attempt has a header of its own.
//! - A call or a replica's task takes a replica out of the table when it finds it gone. A call also does so when it is the last of
//!   several in a row without an answer in time, unless no other replica is live.
//! - The budget counts retries that cost a server work. It does not count a call that a server cannot take, nor a pipe's death: the
//!   back-off bounds how often a server can die. If an attempt may have run, no later error says that the call did not.
//! - A call with a reference among its arguments goes to the pipe of the reference's owner.

mod absence;
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
use rustc_hash::FxHashMap;
use tensorpipe::fork::Owner;
use tensorpipe::{Context, Error, Misuse, ambient};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::connection::Connection;
use crate::error::ConnectError;
use crate::lock::{Mutex, lock};
use crate::schema::Schema;
use crate::timer::Sleep;
use budget::Budget;
use builder::{checked, misuse};
use keeper::Keeper;
use table::{Change, Shared};

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
/// - **A call** goes to a live replica ([`Balance`]). If there is none, it waits for one until its deadline. It fails with
///   [`CallError::Unavailable`](crate::CallError::Unavailable), which lists each replica, if none is live by then, or all have been
///   given up.
/// - **Retries** go to another replica, within the same deadline. A call that did not run is retried: its replica died, shuts down,
///   is overloaded, reads no more, has no such method yet, takes less than the call carries, or cannot place its tensors as its
///   caller wants. A call that may have run is retried only if its method is `#[rpc(idempotent)]`; otherwise the error says so
///   ([`CallError::may_have_run`](crate::CallError::may_have_run)). [`ReplicasBuilder::max_attempts`] bounds the attempts, and
///   [`RetryBudget`] keeps retries from feeding an overload.
/// - **No retries** for calls with a stream, for methods whose signature returns a [`Remote`](crate::Remote), and for calls with a
///   reference among their arguments, which go to the server that owns the value. Such calls do not wait for a replica, but fail at
///   once if none is live. They also fail when their replica does.
/// - **A replica** gets no further calls when its pipe ends, or its server shuts down or is silent
///   ([`Timeouts::silence`](tensorpipe::Timeouts::silence)). The same holds if it is live but answers no call
///   ([`ReplicasBuilder::unanswered`]). It is connected to again, after pauses that grow ([`Backoff`]), until it is given up
///   ([`ReplicasBuilder::connect_attempts`], [`ReplicasBuilder::give_up_after`]).
/// - **Definitions** are compared on each connection. A server with a different definition gets no calls, and its
///   [status](Self::status) shows the difference.
#[derive(Clone)]
pub struct Replicas {
    inner: Arc<Inner>,
}

struct Inner {
    owner: Owner,
    shared: Arc<Shared>,
    budget: Budget,
    context: Context,
    runtime: Handle,
    /// The tasks of the replicas, by their numbers.
    keepers: Mutex<FxHashMap<usize, AbortHandle>>,
}

impl Inner {
    /// From now on these are the replicas.
    fn change(&self, urls: &[Arc<str>]) -> Result<(), ConnectError> {
        if self.owner.is_other_process() {
            let text = "these replicas are those of the process before the fork; connect anew";
            return Err(misuse(Misuse::Other(text.to_owned())));
        }
        let Change { joined, left } = self.shared.change(urls)?;
        let start = |number| {
            let shared = self.shared.clone();
            let kept = keeper::keep(Keeper { shared, number }, self.context.clone());
            (number, self.runtime.spawn(kept).abort_handle())
        };
        let started: Vec<_> = joined.iter().copied().map(start).collect();
        lock(&self.keepers).extend(started);
        // Those too that have left meanwhile, before their tasks stood there.
        let has_left = |number: &usize| self.shared.url(*number).is_none();
        let gone = joined.into_iter().filter(has_left);
        let gone: Vec<_> = left.iter().map(|one| one.number).chain(gone).collect();
        let ended: Vec<_> = {
            let mut keepers = lock(&self.keepers);
            gone.iter().filter_map(|one| keepers.remove(one)).collect()
        };
        ended.iter().for_each(AbortHandle::abort);
        self.shared.tell_left(left);
        if self.shared.is_closed() {
            self.end_keepers();
        }
        Ok(())
    }

    /// Ends the tasks of all replicas. They are not a forked child's.
    fn end_keepers(&self) {
        if self.owner.is_other_process() {
            return;
        }
        self.shared.let_go();
        let keepers = std::mem::take(&mut *lock(&self.keepers));
        keepers.values().for_each(AbortHandle::abort);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.end_keepers();
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

    /// From now on these servers are the replicas: for a set that grows and shrinks, as its service's address list does.
    ///
    /// - A server that was named before stays as it is, with its connection.
    /// - A new one is connected to in the background, and gets calls once it is live. Calls that wait for a replica go to it, too.
    /// - One that is named no more gets no further calls. Those under way end as they would have, also when these replicas are
    ///   [closed](Self::close); then its connection closes. References to its values keep the connection, and stay good for clients that
    ///   were made before; so does a client that was made on it (`client.connection()`).
    ///
    /// # Errors
    /// [`Misuse`] in [`ConnectError::Pipe`] if there is no URL, one is malformed, or the context does not have its transport; or if these
    /// replicas have been [closed](Self::close). Nothing has changed then. A list that may be empty for a moment is no reason to leave
    /// all servers: the caller decides.
    pub fn set_urls<U: AsRef<str>>(
        &self,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<(), ConnectError> {
        let urls = checked(&self.inner.context, urls).map_err(misuse)?;
        self.inner.change(&urls)
    }

    /// Each replica as it is now, in the order in which they were named first. To wait until one is [live](ReplicaState::Live), call this
    /// repeatedly.
    pub fn status(&self) -> Vec<ReplicaStatus> {
        self.inner.shared.status()
    }

    /// Connects now to all replicas that are not live, without waiting for the end of a pause. That includes replicas that were
    /// given up.
    pub fn reconnect(&self) {
        self.inner.shared.reconnect_all();
    }

    /// Closes the pipes of all servers that are named; calls under way there and later ones fail.
    ///
    /// # Errors
    /// The first error of a pipe that could not deliver everything.
    pub async fn close(&self) -> Result<(), Error> {
        let text = "these replicas have been closed; connect anew".to_owned();
        let closed = ConnectError::Pipe(Misuse::Other(text).into());
        let connections = self.inner.shared.close(&closed);
        self.inner.end_keepers();
        let closed = join_all(connections.iter().map(Connection::close)).await;
        let undelivered =
            |closed: &Result<(), Error>| matches!(closed, Err(Error::Undelivered { .. }));
        closed.into_iter().find(undelivered).unwrap_or(Ok(()))
    }

    /// Asks all replicas for a new client's service, and returns when one has it.
    pub(super) async fn join(
        &self,
        schema: &'static Schema,
    ) -> Result<(ReplicatedService, Connection, u32), ConnectError> {
        let service = self.inner.shared.service(schema);
        let (connection, number) = self.first(Some(service)).await?;
        let replicas = self.clone();
        let replicated = ReplicatedService {
            replicas,
            service,
            schema,
        };
        Ok((replicated, connection, number))
    }

    /// The first replica that is live, or, for a service, that has it.
    async fn first(&self, service: Option<usize>) -> Result<(Connection, u32), ConnectError> {
        let shared = &self.inner.shared;
        let found = shared.wait_for(|shared| shared.find(service));
        let until = ambient::now().checked_add(shared.options.connect_timeout);
        let found = Sleep::new(&self.inner.runtime, until).or(found).await;
        found.unwrap_or_else(|| {
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
