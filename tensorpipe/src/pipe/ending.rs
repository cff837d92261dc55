//! How a pipe ends in good order, and how it has ended.

use std::time::Duration;

use super::Pipe;
use super::core::Waiter;
use super::driver::Interest;
use super::shared::{Goodbye, Shared};
use crate::error::Error;
use crate::sync::lock;

impl Pipe {
    /// Tells the peer that no message of its from now on will be looked at, and why; those that come are refused.
    /// Messages before are still read, and this side may still write. Returns the number of the first ignored message.
    pub fn go_away(&self, reason: &str) -> u64 {
        let next = lock(&self.core().shared).state.go_away(reason);
        self.core().drive();
        next
    }

    /// Writes no more: whoever reads at the peer gets [`Error::Closed`] after the last message, and every later write here
    /// does. This side still reads what the peer writes, until that one closes. Said again it changes nothing.
    ///
    /// ```
    /// # use tensorpipe::{Context, Error, Message};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let context = Context::new();
    /// # let listener = context.listen(["tcp://127.0.0.1:0"]).await?;
    /// # let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
    /// # let (client, server) = (client?, server?);
    /// client.send(Message::new("all I ask"))?;
    /// client.finish();
    /// assert_eq!(server.read().await?.metadata, "all I ask");
    /// assert!(matches!(server.read().await, Err(Error::Closed { by_peer: true, .. })));
    /// server.send(Message::new("the answer"))?;
    /// assert_eq!(client.read().await?.metadata, "the answer");
    /// # Ok(())
    /// # }
    /// ```
    pub fn finish(&self) {
        lock(&self.core().shared).finish();
        self.core().drive();
    }

    /// Delivers what was written, ends the pipe, and has the connection say goodbye, as far as its transport does
    /// ([`poll_shutdown`](tokio::io::AsyncWrite::poll_shutdown)). Whoever still reads or writes on it gets [`Error::Closed`]. Bounded
    /// by [`Timeouts::linger`](crate::Timeouts::linger), and a second for the goodbye.
    ///
    /// # Errors
    /// [`Error::Undelivered`] when the peer did not take everything in time, else how the pipe ended before it did.
    pub async fn close(&self) -> Result<(), Error> {
        self.close_within(self.core().timeouts.linger).await
    }

    /// The same with a bound of its own.
    ///
    /// # Errors
    /// As [`Pipe::close`].
    pub async fn close_within(&self, linger: Duration) -> Result<(), Error> {
        let core = self.core();
        core.start_closing(linger);
        match self.gone().await {
            Error::Closed { by_peer: false, .. } => Ok(()),
            error => Err(error),
        }
    }

    /// Ends when the pipe has ended and its connection is gone, with how it ended.
    pub(crate) async fn gone(&self) -> Error {
        let mut waiter = Waiter::new(self.core().clone());
        let gone = |shared: &mut Shared| {
            let ended = shared.ended.clone()?;
            (shared.goodbye == Goodbye::Said).then_some(ended)
        };
        std::future::poll_fn(|cx| waiter.poll(cx, Interest::End, gone)).await
    }

    /// Whether it has ended: every operation but reading what is already here fails.
    pub fn has_ended(&self) -> bool {
        lock(&self.core().shared).ended.is_some()
    }

    /// Ends when the pipe has ended, with how it did.
    pub async fn ended(&self) -> Error {
        let mut waiter = Waiter::new(self.core().clone());
        std::future::poll_fn(|cx| waiter.poll(cx, Interest::End, |shared| shared.ended.clone()))
            .await
    }
}
