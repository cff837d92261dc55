//! The serving side.

mod call_count;
mod quotas;
mod shared;

use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use tensorpipe::fork::Owner;
use tensorpipe::{Error, Listener, Misuse, Pipe, PipeStats, Url, ambient};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::builder::Builder;
use crate::caught::ignore_panic;
use crate::error::CallError;
use crate::remote::{Remote, Shared};
use crate::timer::Sleep;

pub(crate) use quotas::ConnectionQuota;
pub(crate) use shared::ServerShared;

/// Makes a [`Server`]: see [`Server::builder`].
///
/// Besides [`listen`](Self::listen) and [`listen_at`](Self::listen_at), it has the methods of [`Builder`]:
/// [`service`](Builder::service), [`context`](Builder::context), [`limits`](Builder::limits) for how much is done at once, and
/// [`authorize`](Builder::authorize).
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

    /// Listens at several URLs, and serves from now on.
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
        for url in listener.urls() {
            tracing::info!("listening at {url}");
        }
        let (serving, door) = (shared.clone(), listener.clone());
        let (accepts, accepting) = watch::channel(());
        let accept = tokio::spawn(async move {
            let _accepts = accepts;
            while let Ok(pipe) = door.accept().await {
                if let Err(error) = serving.serve(pipe) {
                    ignore_panic(|| tracing::warn!(%error, "a pipe is not served"));
                }
            }
        });
        Ok(Server {
            owner: Owner::here(),
            shared,
            listener,
            accept,
            accepting,
            runtime: Handle::current(),
        })
    }
}

/// Serves services at one or several URLs. Dropping it stops listening and frees the URLs at once. Calls under way end first,
/// within their deadlines. Their replies have [`ServerLimits::drain`](crate::ServerLimits::drain) to get across.
#[must_use = "dropping a server stops it"]
pub struct Server {
    owner: Owner,
    shared: Arc<ServerShared>,
    listener: Arc<Listener>,
    accept: JoinHandle<()>,
    /// Its sender goes with that task.
    accepting: watch::Receiver<()>,
    runtime: Handle,
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

    /// The first URL that it listens at. A port 0 has been replaced by the real one.
    pub fn url(&self) -> &Url {
        self.listener.url()
    }

    /// All URLs that it listens at.
    pub fn urls(&self) -> &[Url] {
        self.listener.urls()
    }

    /// Serves a pipe that was made another way.
    ///
    /// # Errors
    /// [`Misuse::Other`] if the pipe already has a handler, such as another server's or a connection's.
    pub fn serve(&self, pipe: Pipe) -> Result<(), Misuse> {
        self.shared.serve(pipe)
    }

    /// The pipes being served, for inspection, or to close those of a peer that [`authorize`](Builder::authorize) refuses from now
    /// on. Calls under way end with their pipe. A pipe that has just begun may be missing for a moment.
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

    /// The counters of all its pipes, including those that have ended.
    pub fn stats(&self) -> PipeStats {
        let shared = &self.shared;
        // Read in this order, a pipe that ends meanwhile is missing for a moment, but never counted twice.
        let mut stats = *shared.gone();
        for pipe in self.pipes() {
            stats += pipe.stats();
        }
        stats
    }

    /// Calls under way: admitted and not answered.
    pub fn calls_in_flight(&self) -> usize {
        self.shared.calls.unanswered()
    }

    /// Shares a value of this process with a third process, as [`Remote::share`] does within a method.
    ///
    /// # Errors
    /// [`CallError::Unresolved`] if the value is in another process, or if this server listens only at all addresses (`0.0.0.0`);
    /// [`CallError::Overloaded`] if too many references were shared and not claimed.
    pub fn share<T: Send + Sync + 'static>(
        &self,
        value: &Remote<T>,
    ) -> Result<Shared<T>, CallError> {
        value.share_by(&self.shared, &self.runtime)
    }

    /// How many values clients refer to ([`Remote`](crate::Remote)), including those that were shared and not claimed yet.
    pub fn references(&self) -> usize {
        let connections = self.shared.connections();
        let held = connections.values().map(|engine| engine.owned.count());
        held.sum::<usize>() + self.shared.grants.count()
    }

    /// Serves until the task is dropped or the listener fails. To end in good order on a signal:
    ///
    /// ```no_run
    /// # async fn run(server: tensorpipe_rpc::Server, interrupted: impl Future<Output = ()>) {
    /// tokio::select! {
    ///     () = server.wait() => {}
    ///     // Of tokio, with its feature `signal`: `_ = tokio::signal::ctrl_c()`, and `_ = terminated.recv()` of
    ///     // `let mut terminated = signal(SignalKind::terminate())?`, which service managers send.
    ///     () = interrupted => {}
    /// }
    /// server.shutdown().await;
    /// # }
    /// ```
    pub async fn wait(&self) {
        let _ = self.accepting.clone().changed().await;
    }

    /// Stops in good order, and returns how many calls had to be given up. New pipes and calls are refused; their callers learn
    /// that they did not run. Calls under way end and their replies get across, within
    /// [`ServerLimits::drain`](crate::ServerLimits::drain). Then the pipes close, within
    /// [`Timeouts::linger`](tensorpipe::Timeouts::linger) and a second for their goodbyes. The URLs are free from the beginning. In a forked
    /// child it does nothing.
    pub async fn shutdown(self) -> usize {
        if self.owner.is_other_process() {
            return 0;
        }
        self.stop_listening();
        let shared = &self.shared;
        let engines = shared.drain();
        let under_way = shared.calls.unanswered();
        ignore_panic(|| tracing::info!(under_way, "shutting down"));
        let began = Instant::now();
        let left = || shared.limits.drain.saturating_sub(began.elapsed());
        while shared.calls.unanswered() > 0 {
            let ended = shared.ended.notified();
            if shared.calls.unanswered() == 0 {
                break;
            }
            let until = ambient::now().checked_add(left());
            if Sleep::new(&self.runtime, until).or(ended).await.is_none() {
                break;
            }
        }
        let given_up = shared.calls.unanswered();
        if given_up > 0 {
            let after = shared.limits.drain;
            ignore_panic(|| tracing::warn!(given_up, ?after, "calls that do not end are given up"));
        }
        // Replies may still be on their way. Close all pipes at once, not one after another.
        let left = left();
        engines.iter().for_each(|engine| engine.start_closing(left));
        for engine in &engines {
            // The pipe closes already: this waits for its end, and for its connection's goodbye.
            let _ = engine.pipe.close().await;
        }
        ignore_panic(|| tracing::info!("shut down"));
        given_up
    }

    /// The addresses are free when this returns. The aborted task drops its resources later.
    fn stop_listening(&self) {
        self.accept.abort();
        self.listener.close();
        // Nobody will serve what was not accepted by now: its peer is not to wait until all calls have ended.
        while let Some(Ok(pipe)) = self.listener.accept().now_or_never() {
            drop(pipe);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.owner.is_other_process() {
            return;
        }
        self.stop_listening();
        // Calls under way keep their engine, and with it the pipe, even while their tensors are on their way.
        let engines = self.shared.drain();
        let connections = std::mem::take(&mut *self.shared.connections());
        drop((engines, connections));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tensorpipe::Context;

    use super::*;

    #[tokio::test]
    async fn a_pipe_that_was_not_accepted_ends_when_a_shutdown_begins() {
        let server = Server::builder().listen("tcp://127.0.0.1:0").await.unwrap();
        server.accept.abort();
        let pipe = Context::new().connect(server.url()).await.unwrap();
        // It stands in the queue by then.
        tokio::time::sleep(Duration::from_millis(100)).await;
        // A call under way, for which the shutdown waits.
        server.shared.calls.begin();
        let shutdown = tokio::spawn(server.shutdown());
        let ended = tokio::time::timeout(Duration::from_secs(20), pipe.ended()).await;
        ended.expect("it waits for the calls of others");
        shutdown.abort();
    }
}
