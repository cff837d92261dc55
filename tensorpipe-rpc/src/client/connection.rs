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
        connection.was_reached_at(url.as_ref());
        Ok(connection)
    }

    /// Makes calls on a pipe, which must not be used for anything else from now on. Inside a tokio runtime.
    ///
    /// # Errors
    /// [`Misuse::Other`] where the pipe has a handler already, as one that another connection or a server has.
    pub fn over(pipe: Pipe) -> Result<Self, Misuse> {
        Ok(Self {
            engine: Engine::start(pipe, None)?,
        })
    }

    /// Remembers by which URL the other end was reached: others may reach it there, too.
    pub(crate) fn was_reached_at(&self, url: &str) {
        let _ = self.engine.reached_at.set(url.to_owned());
    }

    /// The pipe: its name, route, pool and counters.
    pub fn pipe(&self) -> &Pipe {
        &self.engine.pipe
    }

    /// Which transport and channels carry the calls.
    pub fn route(&self) -> &Route {
        self.engine.pipe.route()
    }

    /// Who is at the other end: as it has proved to be, and where the system sees it.
    pub fn peer(&self) -> Peer {
        self.engine.pipe.peer()
    }

    /// Calls that wait for their answer.
    pub fn calls_under_way(&self) -> usize {
        self.engine.calls.under_way()
    }

    /// Values of this side's that the other end refers to ([`Remote`](crate::Remote)): those of services that are served on this
    /// connection ([`Connection::builder`]).
    pub fn references(&self) -> usize {
        self.engine.owned.count()
    }

    /// Calls in a row that had no answer in time.
    pub(super) fn missed_in_a_row(&self) -> u32 {
        self.engine.calls.missed_in_a_row()
    }

    /// Why it takes no calls any more, if so.
    pub(super) fn gone(&self) -> Option<ConnectError> {
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
