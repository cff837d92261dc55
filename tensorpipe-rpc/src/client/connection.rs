//! A pipe on which calls are made.

use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use tensorpipe::{Context, Misuse, Peer, Pipe, Route};

use crate::engine::Engine;
use crate::error::ConnectError;

/// A pipe on which calls are made. Several clients can share one. Cheap to clone; when the last handle, client and call is
/// dropped, the pipe closes in good order.
#[derive(Clone)]
pub struct Connection {
    pub(crate) engine: Arc<Engine>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("pipe", &self.engine.pipe.name())
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Connects with the process's default context.
    ///
    /// # Errors
    /// As [`Context::connect`].
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, tensorpipe::Error> {
        Self::connect_with(Context::global(), url).await
    }

    /// Connects with this context.
    ///
    /// # Errors
    /// As [`Context::connect`].
    pub async fn connect_with(
        context: &Context,
        url: impl AsRef<str>,
    ) -> Result<Self, tensorpipe::Error> {
        let connection = Self::over(context.connect(url.as_ref()).await?)?;
        connection.set_peer_url(url.as_ref());
        Ok(connection)
    }

    /// Makes calls on a pipe, which must not be used for anything else from now on. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// [`Misuse::Other`] if the pipe already has a handler, such as another connection's or a server's.
    pub fn over(pipe: Pipe) -> Result<Self, Misuse> {
        Ok(Self {
            engine: Engine::start(pipe, None)?,
        })
    }

    /// Remembers the URL of the other end, so that a third process can be sent there.
    pub(crate) fn set_peer_url(&self, url: &str) {
        let _ = self.engine.peer_url.set(url.to_owned());
    }

    /// The pipe: its name, route, pool and counters.
    pub fn pipe(&self) -> &Pipe {
        &self.engine.pipe
    }

    /// Which transport and channels carry the calls.
    pub fn route(&self) -> &Route {
        self.engine.pipe.route()
    }

    /// The peer: its proven identity, and its address as the system sees it.
    pub fn peer(&self) -> Peer {
        self.engine.pipe.peer()
    }

    /// Calls that wait for their answer.
    pub fn calls_in_flight(&self) -> usize {
        self.engine.calls.under_way()
    }

    /// How many values of this end the other end refers to ([`Remote`](crate::Remote)): results of services that this connection
    /// serves ([`Connection::builder`]).
    pub fn references(&self) -> usize {
        self.engine.owned.count()
    }

    /// How many calls in a row had no answer in time.
    pub(super) fn missed_in_a_row(&self) -> u32 {
        self.engine.calls.missed_in_a_row()
    }

    /// Why the connection takes no more calls, if so.
    pub(super) fn unavailable_reason(&self) -> Option<ConnectError> {
        let engine = &self.engine;
        if engine.pipe.has_ended() {
            return engine.pipe.ended().now_or_never().map(ConnectError::Pipe);
        }
        let draining = engine.calls.is_draining();
        draining.then_some(ConnectError::ShuttingDown)
    }

    /// Closes the pipe; calls under way fail.
    ///
    /// # Errors
    /// As [`Pipe::close`].
    pub async fn close(&self) -> Result<(), tensorpipe::Error> {
        self.engine.pipe.close().await
    }
}
