//! The serving side.

mod call_count;
mod quotas;
mod shared;

use std::fmt;
use std::sync::Arc;

use tensorpipe::fork::Owner;
use tensorpipe::{Error, Listener, Misuse, Pipe, PipeStats, Url};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::builder::Builder;

pub(crate) use quotas::ConnectionQuota;
pub(crate) use shared::ServerShared;

/// Makes a [`Server`]: see [`Server::builder`].
///
/// Beside [`listen`](Self::listen) and what follows here it has the methods of [`Builder`]: [`service`](Builder::service),
/// [`context`](Builder::context), [`limits`](Builder::limits) for how much is done at once, and [`authorize`](Builder::authorize).
pub type ServerBuilder = Builder<Server>;

impl ServerBuilder {
    /// Listens at a URL, e.g. `tcp://0.0.0.0:5000`, and serves from now on.
    ///
    /// # Errors
    /// As [`Context::listen`](tensorpipe::Context::listen); [`Misuse`](tensorpipe::Misuse) for two services of one name, or one with a type
    /// that no call can carry (`serde_json::Value`).
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
                if let Err(error) = accepting.serve(pipe) {
                    tracing::warn!(%error, "a pipe is not served");
                }
            }
        });
        Ok(Server {
            owner: Owner::here(),
            shared,
            listener,
            accept,
        })
    }
}

/// Serves services at one or several URLs. Dropping it stops, and frees these at once: calls under way end first,
/// within their deadlines, and their replies have [`ServerLimits::drain`](crate::ServerLimits::drain) to get across.
pub struct Server {
    owner: Owner,
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
    ///
    /// # Errors
    /// [`Misuse::Other`] where the pipe has a handler already, as one that another server or a connection has.
    pub fn serve(&self, pipe: Pipe) -> Result<(), Misuse> {
        self.shared.serve(pipe)
    }

    /// The pipes being served: to look at them, or to end those of a peer that is trusted no longer, once
    /// [`authorize`](Builder::authorize) refuses it. Calls under way end with their pipe. One that
    /// has just begun may be missing for a moment.
    ///
    /// ```
    /// # use tensorpipe_rpc::Server;
    /// fn end(server: &Server, token: &str) {
    ///     for pipe in server.pipes() {
    ///         if pipe.peer().identity.is_some_and(|known| known.token() == Some(token)) {
    ///             // A peer that does not read keeps it waiting for a while.
    ///             tokio::spawn(async move { pipe.close().await });
    ///         }
    ///     }
    /// }
    /// ```
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
        self.shared.calls.unanswered()
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

    /// Stops in good order. New pipes and calls are refused, and callers learn that theirs did not run. Calls under way end first
    /// and their replies get across, for [`ServerLimits::drain`](crate::ServerLimits::drain) at most. Then the pipes close, within
    /// [`Timeouts::linger`](tensorpipe::Timeouts::linger) and a second for their connections' goodbyes. Where it listened is free
    /// from the beginning. Returns how many calls had to be given up.
    pub async fn shutdown(self) -> usize {
        self.stop_listening();
        let shared = &self.shared;
        let engines = shared.drain();
        let until = Instant::now() + shared.limits.drain;
        while shared.calls.unanswered() > 0 {
            let ended = shared.ended.notified();
            if shared.calls.unanswered() == 0
                || tokio::time::timeout_at(until, ended).await.is_err()
            {
                break;
            }
        }
        let given_up = shared.calls.unanswered();
        // Replies may still be on their way. Together, not one after another.
        let left = until.saturating_duration_since(Instant::now());
        engines.iter().for_each(|engine| engine.start_closing(left));
        for engine in &engines {
            // It closes already: what is waited for is its end, and its connection's goodbye.
            let _ = engine.pipe.close().await;
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
        if self.owner.is_other_process() {
            return;
        }
        self.stop_listening();
        // Calls under way, those too whose tensors are on their way, hold their engine, and with it the pipe.
        let engines = self.shared.drain();
        let connections = std::mem::take(&mut *self.shared.connections());
        drop((engines, connections));
    }
}
