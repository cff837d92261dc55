//! A connection that asks to join a pipe and is used before the listener has accepted it, so that joining costs no round trip. Also a
//! connection that has joined, with bytes that were read already. Pipes with a key do not use this: they send nothing on a connection
//! before its listener has proved that it has the key, too.
//!
//! The listener's first frame is JOINED; after that, bytes pass. Until then, written bytes are also remembered, up to [`SAID_MAX`]. If the
//! listener rejects the connection, does not answer in time, or the connection breaks, the listener has used none of them. The pipe then
//! stays on its first connection: this end sends STAY there and repeats everything that was written.
//!
//! Invariant: the listener takes each written byte once, from the connection that it continues with, and none from the other. It decides
//! once: it drops the first connection before it sends JOINED, and rejects the other after STAY. If it accepts just as this end gives up, the
//! pipe is lost.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::address::{Identity, PeerAddr, SettledPeer};
use crate::error::Error;
use crate::proto::handshake::{ClientHandshake, Reply};
use crate::proto::wire::hello::put_stay;
use crate::transports::Connection;

/// The most bytes that are remembered for repeating; beyond that, a writer waits for the listener's decision.
pub(super) const SAID_MAX: usize = 32 << 10;

pub(super) struct Joining {
    /// The joining connection, or the first one if the pipe stays there.
    connection: Box<dyn Connection>,
    /// Bytes read after JOINED that were not handed out yet.
    input: Vec<u8>,
    given: usize,
    stage: Stage,
    /// A writer that waits for the listener's decision.
    blocked: Option<Waker>,
    /// The last value of `set_polled`.
    polled: bool,
}

enum Stage {
    Asking(Asking),
    Joined,
    Stayed(Stayed),
    Failed(Error),
}

struct Asking {
    handshake: ClientHandshake,
    /// The peer's name, for errors.
    peer: Arc<str>,
    /// The connection that the pipe can fall back to.
    first: Option<OriginalConnection>,
}

/// The connection that the pipe began on.
pub(super) struct OriginalConnection {
    pub(super) connection: Box<dyn Connection>,
    /// Told why the pipe stayed there, if it does.
    pub(super) stayed: Arc<OnceLock<String>>,
    /// Told who is at the other end of the pipe.
    settled: SettledPeer,
    said: Vec<u8>,
    /// How long the listener has to decide, and until when. A listener without descriptors, for one, accepts nobody.
    within: Duration,
    late: Pin<Box<Sleep>>,
}

struct Stayed {
    /// STAY, and all that was written to the other connection.
    again: Vec<u8>,
    at: usize,
    /// Why the pipe stayed, until something is heard here: if this connection fails as well, that is the pipe's error.
    because: Option<Error>,
}

impl OriginalConnection {
    pub(super) fn new(
        connection: Box<dyn Connection>,
        stayed: Arc<OnceLock<String>>,
        settled: SettledPeer,
        within: Duration,
    ) -> Self {
        Self {
            connection,
            stayed,
            settled,
            said: Vec::new(),
            within,
            late: Box::pin(tokio::time::sleep(within)),
        }
    }
}

/// Nobody has let the pipe in at a better transport.
pub(super) fn not_let_in(within: Duration) -> Error {
    Error::Timeout {
        what: "being let in".into(),
        after: within,
        hint: "the listener may be out of file descriptors",
    }
}

impl Joining {
    /// `joined` has sent its HELLO. Without a first connection to fall back to, a rejection ends this one.
    pub(super) fn new(
        joined: Box<dyn Connection>,
        peer: Arc<str>,
        first: Option<OriginalConnection>,
    ) -> Self {
        let asking = Asking {
            handshake: ClientHandshake::joining(None),
            peer,
            first,
        };
        Self::at(Stage::Asking(asking), joined, Vec::new())
    }

    /// A connection that has joined; `read` is handed out first. If `read` is empty, returns the connection itself.
    pub(super) fn joined(read: Vec<u8>, connection: Box<dyn Connection>) -> Box<dyn Connection> {
        if read.is_empty() {
            return connection;
        }
        Box::new(Self::at(Stage::Joined, connection, read))
    }

    fn at(stage: Stage, connection: Box<dyn Connection>, input: Vec<u8>) -> Self {
        Self {
            connection,
            input,
            given: 0,
            stage,
            blocked: None,
            polled: false,
        }
    }

    /// Reads until the listener has accepted or rejected.
    fn poll_outcome(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Stage::Asking(asking) = &mut self.stage {
            let mut piece = [0; 1024];
            let mut buf = ReadBuf::new(&mut piece);
            let read = Pin::new(&mut *self.connection).poll_read(cx, &mut buf);
            let Poll::Ready(read) = read else {
                let Some(first) = &mut asking.first else {
                    return Poll::Pending;
                };
                ready!(first.late.as_mut().poll(cx));
                let late = not_let_in(first.within);
                self.turned_away(late);
                continue;
            };
            let reason = match read {
                Err(error) => error.to_string().into(),
                Ok(()) if buf.filled().is_empty() => {
                    "it was closed before the listener let it join".into()
                }
                Ok(()) => {
                    self.input.extend_from_slice(buf.filled());
                    self.answer();
                    continue;
                }
            };
            let pipe = asking.peer.clone();
            self.turned_away(Error::Lost { pipe, reason });
        }
        Poll::Ready(())
    }

    /// Handles what the listener has sent so far.
    fn answer(&mut self) {
        let Stage::Asking(asking) = &mut self.stage else {
            return;
        };
        let peer = asking.peer.clone();
        let refusal = match asking.handshake.handle(&self.input) {
            Err(fault) => Error::Peer { pipe: peer, fault },
            Ok((used, reply)) => {
                self.input.drain(..used);
                match reply {
                    // A connection that joins does not ask for an ANSWER.
                    None | Some(Reply::Answer(_)) => return,
                    Some(Reply::Joined) => {
                        if let Some(first) = &asking.first {
                            first.settled.settle(self.connection.peer());
                        }
                        return self.decide(Stage::Joined);
                    }
                    Some(Reply::Reject(reject)) => Error::Rejected {
                        peer,
                        reason: reject.reason.into(),
                        transient: reject.transient,
                    },
                }
            }
        };
        self.turned_away(refusal);
    }

    fn turned_away(&mut self, error: Error) {
        let Stage::Asking(asking) = &mut self.stage else {
            return;
        };
        let stage = match asking.first.take() {
            None => Stage::Failed(error),
            Some(first) => {
                let reason = error.to_string();
                tracing::warn!(peer = %asking.peer, %error, "could not upgrade, staying");
                let mut again = Vec::new();
                put_stay(&mut again, &reason, None);
                again.extend_from_slice(&first.said);
                let _ = first.stayed.set(reason);
                first.settled.settle(first.connection.peer());
                // Drops the joining connection.
                self.connection = first.connection;
                self.connection.set_polled(self.polled);
                Stage::Stayed(Stayed {
                    again,
                    at: 0,
                    because: Some(error),
                })
            }
        };
        self.decide(stage);
    }

    fn decide(&mut self, stage: Stage) {
        self.stage = stage;
        if let Some(blocked) = self.blocked.take() {
            blocked.wake();
        }
    }

    /// While the decision is open: writes and remembers.
    fn poll_say(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Stage::Asking(Asking {
            first: Some(first), ..
        }) = &mut self.stage
        else {
            return Pin::new(&mut *self.connection).poll_write(cx, bytes);
        };
        let room = bytes.len().min(SAID_MAX - first.said.len());
        if room > 0 {
            match Pin::new(&mut *self.connection).poll_write(cx, &bytes[..room]) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(len)) if len > 0 => {
                    first.said.extend_from_slice(&bytes[..len]);
                    return Poll::Ready(Ok(len));
                }
                // The reader finds out why: there may be a rejection to read.
                Poll::Ready(_) => {}
            }
        }
        self.blocked = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Makes the current connection ready for new bytes.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stage {
            Stage::Asking(_) | Stage::Joined => Poll::Ready(Ok(())),
            Stage::Stayed(stayed) => stayed.poll_again(&mut self.connection, cx),
            Stage::Failed(error) => Poll::Ready(Err(io::Error::other(error.clone()))),
        }
    }
}

impl Stayed {
    /// Repeats what was written to the other connection.
    fn poll_again(
        &mut self,
        first: &mut Box<dyn Connection>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.at < self.again.len() {
            let rest = &self.again[self.at..];
            match ready!(Pin::new(&mut **first).poll_write(cx, rest)) {
                Ok(0) => return Poll::Ready(Err(self.over(io::ErrorKind::WriteZero.into()))),
                Ok(len) => self.at += len,
                Err(error) => return Poll::Ready(Err(self.over(error))),
            }
            if self.at == self.again.len() {
                self.again = Vec::new();
                self.at = 0;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The reason why the connection is over. If the listener never answered here, it is why the other connection could not join.
    fn over(&self, error: io::Error) -> io::Error {
        match &self.because {
            Some(because) => io::Error::other(because.clone()),
            None => error,
        }
    }

    fn poll_read(
        &mut self,
        first: &mut Box<dyn Connection>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Reading reports a write failure as well, after the bytes that are there.
        if let Poll::Ready(Ok(())) = self.poll_again(first, cx) {
            let _ = Pin::new(&mut **first).poll_flush(cx);
        }
        let before = buf.filled().len();
        match ready!(Pin::new(&mut **first).poll_read(cx, buf)) {
            Err(error) => Poll::Ready(Err(self.over(error))),
            Ok(()) if buf.filled().len() == before && buf.remaining() > 0 => {
                Poll::Ready(match &self.because {
                    Some(because) => Err(io::Error::other(because.clone())),
                    None => Ok(()),
                })
            }
            Ok(()) => {
                self.because = None;
                Poll::Ready(Ok(()))
            }
        }
    }
}

// Forwards every method, including those that later versions of the traits may add.
#[deny(clippy::missing_trait_methods, reason = "a default would hide it")]
impl Connection for Joining {
    fn endpoints(&self) -> String {
        self.connection.endpoints()
    }

    fn peer(&self) -> PeerAddr {
        self.connection.peer()
    }

    fn identity(&self) -> Option<Identity> {
        self.connection.identity()
    }

    fn exporter_secret(&self) -> Option<[u8; 32]> {
        self.connection.exporter_secret()
    }

    fn wakes(&self) -> u64 {
        self.connection.wakes()
    }

    fn can_poll(&self) -> bool {
        self.connection.can_poll()
    }

    fn poll_is_syscall(&self) -> bool {
        self.connection.poll_is_syscall()
    }

    fn set_polled(&mut self, polled: bool) {
        self.polled = polled;
        self.connection.set_polled(polled);
    }

    fn is_ready(&mut self) -> bool {
        let joined = matches!(self.stage, Stage::Joined) && self.given == self.input.len();
        !joined || self.connection.is_ready()
    }

    fn is_ready_for(&mut self, bytes: usize) -> bool {
        let joined = matches!(self.stage, Stage::Joined) && self.given == self.input.len();
        !joined || self.connection.is_ready_for(bytes)
    }
}

impl AsyncRead for Joining {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_outcome(cx));
        match &mut this.stage {
            Stage::Stayed(stayed) => stayed.poll_read(&mut this.connection, cx, buf),
            Stage::Failed(error) => Poll::Ready(Err(io::Error::other(error.clone()))),
            Stage::Asking(_) | Stage::Joined => {
                let rest = &this.input[this.given..];
                if rest.is_empty() {
                    return Pin::new(&mut *this.connection).poll_read(cx, buf);
                }
                let len = rest.len().min(buf.remaining());
                buf.put_slice(&rest[..len]);
                this.given += len;
                Poll::Ready(Ok(()))
            }
        }
    }
}

#[deny(clippy::missing_trait_methods, reason = "as above")]
impl AsyncWrite for Joining {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(cx))?;
        match self.stage {
            Stage::Asking(_) => self.poll_say(cx, bytes),
            _ => Pin::new(&mut *self.connection).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(cx))?;
        match self.stage {
            Stage::Asking(Asking { first: Some(_), .. }) => {
                let bytes = slices.iter().find(|slice| !slice.is_empty());
                self.poll_say(cx, bytes.map_or(&[], |slice| slice))
            }
            _ => Pin::new(&mut *self.connection).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(cx))?;
        let flushed = Pin::new(&mut *self.connection).poll_flush(cx);
        match (&self.stage, flushed) {
            // As for writing: the reader finds out why.
            (Stage::Asking(Asking { first: Some(_), .. }), Poll::Ready(Err(_))) => {
                self.blocked = Some(cx.waker().clone());
                Poll::Pending
            }
            (_, flushed) => flushed,
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(cx))?;
        Pin::new(&mut *self.connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
