//! Transports make connections: reliable, ordered, two-way streams of bytes.
//!
//! The contract of a [`Connection`]:
//!
//! - bytes arrive once, in order, unchanged; writes of any length are accepted in part or whole;
//! - it never waits inside a poll, and wakes the last waker given to it for each direction;
//! - what was written before the writer shut down or dropped it in good order arrives; then the reader sees the end. Dropping a
//!   [session](Transport::has_sessions) without a shutdown is an error to the reader;
//! - a peer that is gone is seen as the end or as an error, never as silence, where the system tells;
//! - where a read or write fails with an `io::Error` that wraps an [`Error`] of this crate, the pipe ends with the inner one;
//! - `poll_write_vectored` is forwarded to the system where it can be, and `is_write_vectored` says so;
//! - [`peer`](Connection::peer) is what the system vouches for, or `Unknown`.
//!
//! The conformance suite (`transport_conformance!`, feature `conformance`) checks most of it, in one process. A new transport needs
//! tests of its own for the rest:
//!
//! - [`reaches`](Transport::reaches) refuses domains from which no connection can come;
//! - the [`Acceptor`] turns away users who may not connect;
//! - `peer` tells two processes apart;
//! - an `io::Error` that wraps an [`Error`] of this crate.

mod memory;
mod shm;
mod tcp;
#[cfg(feature = "tls")]
mod tls;

pub use memory::MemoryTransport;
pub use shm::ShmTransport;
pub use tcp::TcpTransport;
#[cfg(feature = "tls")]
pub use tls::{Pem, TlsConfig, TlsTransport};

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};

use crate::address::{Identity, PeerAddr};
use crate::error::Error;

/// A future of a transport.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A stream of bytes to a peer. See the module's documentation for the contract.
///
/// When its pipe has ended, `poll_shutdown` is polled until it is through, for a second at most: there a transport says goodbye
/// (the `close_notify` of TLS). Then the connection is dropped.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {
    /// The two ends, for people: `127.0.0.1:4000 -> 127.0.0.1:5000`.
    fn endpoints(&self) -> String;

    /// Who is at the other end, as the system says and not as the peer does; it does not change.
    ///
    /// Much follows from [`Process`](PeerAddr::Process) and [`SameProcess`](PeerAddr::SameProcess), so give them only where the
    /// kernel vouches for them (`SO_PEERCRED`), or both ends were made here. A token counts as protected on such a connection
    /// ([`Route::exposed`](crate::Route)), and further connections of its pipe must come from that process. What was borrowed goes
    /// back to it without a copy. Limits count by [`PeerAddr::party`]. `Unknown`: exposed, and each connection counts alone.
    fn peer(&self) -> PeerAddr {
        PeerAddr::Unknown
    }

    /// Who the peer has proved to be, where the transport authenticates: known once something has been read, and the same from then on.
    /// A pipe that is upgraded to another connection keeps the identity of its first one. Only the peer of that one can ask for the
    /// upgrade, since it takes a secret that was exchanged there.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// A secret of this connection, where it has keys of its own, as RFC 5705 exports it from TLS. Both ends have the same one, which
    /// does not change, and no other connection has it. What a pipe proves is bound to it. The connector has it as soon as it is
    /// connected, the listener once something has been read.
    fn exporter_secret(&self) -> Option<[u8; 32]> {
        None
    }

    /// How often the peer had to be woken by a system call beside those that move bytes. Where a poll is no system call, a write that adds
    /// none has found the peer awake, which most likely polls.
    fn wakes(&self) -> u64 {
        0
    }

    /// Whether it can be busy-polled: [`set_polled`](Connection::set_polled) has a meaning.
    fn can_poll(&self) -> bool {
        false
    }

    /// Whether [`is_ready`](Connection::is_ready) makes a system call: then polling pays only where few operations are under way.
    fn poll_is_syscall(&self) -> bool {
        false
    }

    /// While polled, a read or write that has to wait returns `Pending` without asking to be woken: somebody polls it
    /// soon. That spares the peer the wake-up. A connection begins unpolled.
    fn set_polled(&mut self, _polled: bool) {}

    /// Polls once, as cheaply as can be, without asking to be woken: whether a read, or a write that had to wait, would get on
    /// now. May be wrong in saying yes.
    fn is_ready(&mut self) -> bool {
        true
    }

    /// As [`is_ready`](Connection::is_ready), for a reader that wants `bytes` at once: yes when so many are there, or when no more will
    /// come. It may say yes for fewer.
    fn is_ready_for(&mut self, _bytes: usize) -> bool {
        self.is_ready()
    }
}

/// In-memory streams serve tests and custom transports.
impl Connection for DuplexStream {
    fn endpoints(&self) -> String {
        "in this process".to_owned()
    }

    fn peer(&self) -> PeerAddr {
        PeerAddr::SameProcess
    }
}

/// Accepts connections at one address, which is free again when it is dropped. Connections that came before the first
/// [`poll_accept`](Self::poll_accept) are kept. Who may not connect, such as another user, is turned away here.
pub trait Acceptor: Send {
    /// The address, in a form that `connect` understands: a port 0 has become a real one.
    fn address(&self) -> String;

    /// The next connection. An error is this attempt's alone: the acceptor is asked again, after a pause where the system is
    /// short of descriptors or memory.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Connection>, Error>>;
}

/// Makes connections. One that cannot work here has an empty domain, or fails in words.
pub trait Transport: Send + Sync + 'static {
    /// Its name in URLs: lower-case letters and digits.
    fn name(&self) -> &'static str;

    /// Where this process is, for the peer's [`reaches`](Self::reaches): at most 1 KiB in a format of this transport's own. It does not
    /// change. Put in all that a connection to a [side address](Self::side_address) depends on: the boot, the namespace, the user.
    /// Empty: not to be reached. No secrets: a pipe's first frame shows it to whoever listens.
    fn domain(&self) -> Vec<u8>;

    /// Whether a process with this domain can be reached from here, or why not. A listener asks before it upgrades a pipe to this
    /// transport; for a pipe whose URL names the transport, nobody asks. A hostile peer may send any bytes. By default the two domains
    /// must be equal.
    fn reaches(&self, theirs: &[u8]) -> Result<(), String> {
        if theirs == self.domain() {
            Ok(())
        } else {
            Err("the two ends are in different domains".to_owned())
        }
    }

    /// Connects to an address. Bounded by the caller.
    fn connect<'a>(&'a self, address: &'a str)
    -> BoxFuture<'a, Result<Box<dyn Connection>, Error>>;

    /// Listens at an address.
    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>>;

    /// Whether both ends of every connection are in this process, whatever a peer says. By default no.
    fn in_process(&self) -> bool {
        false
    }

    /// Whether each connection is a session, as of TLS, which both ends open and close by messages of its own. By default no. The
    /// conformance suite takes three things of a session only:
    ///
    /// - `connect` may wait until the listener accepts;
    /// - what was written may wait for a flush;
    /// - when one end is dropped without a shutdown, the other reads [`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof).
    fn has_sessions(&self) -> bool {
        false
    }

    /// A fresh address at which each listener of a context listens beside its own, so that pipes that begin on another transport can be
    /// upgraded to this one. `None`, the default: used only where a URL names it.
    ///
    /// Give one only if no connection leaves this machine, since the peer may choose it even for a pipe that begins on TLS
    /// ([`Context::stays_here`](crate::Context::stays_here)). Each call gives another address, and nobody can guess it. A call does
    /// nothing else: a connector calls it, too, just to see whether there is one.
    fn side_address(&self) -> Option<String> {
        None
    }
}

/// The transports of a context by default: order is priority.
pub(crate) fn builtin() -> Vec<Arc<dyn Transport>> {
    vec![
        Arc::new(MemoryTransport::new()),
        Arc::new(ShmTransport::new()),
        Arc::new(TcpTransport::new()),
    ]
}
