//! Transports make connections: reliable, ordered, two-way streams of bytes.
//!
//! The contract of a [`Connection`]:
//!
//! - bytes arrive once, in order, unchanged; writes of any length are accepted in part or whole;
//! - it never waits inside a poll, and wakes the last waker given to it for each direction;
//! - what was written before the writer shut down or dropped it in good order arrives, then the reader sees the end, or, of a
//!   [session](Transport::has_sessions) that was dropped, an error;
//! - a peer that is gone is seen as the end or as an error, never as silence, where the system tells;
//! - an `io::Error` that wraps an [`Error`] of this crate ends the pipe with that one;
//! - `poll_write_vectored` is forwarded to the system where it can be, and `is_write_vectored` says so;
//! - [`peer`](Connection::peer) is what the system vouches for, or `Unknown`.
//!
//! The conformance suite checks it, but not what needs a second machine, user or process. Of that kind are that
//! [`reaches`](Transport::reaches) says no, that the users are let in who should be, that `peer` tells processes apart. Nor does it check
//! an `io::Error` that wraps an [`Error`].

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
    fn ends(&self) -> String;

    /// Who is at the other end, as the system says and not as the peer does; it does not change.
    ///
    /// Much follows from [`Process`](PeerAddr::Process) and [`SameProcess`](PeerAddr::SameProcess), so give them only where the
    /// kernel vouches for them (`SO_PEERCRED`), or both ends were made here. A token counts as protected on such a connection
    /// ([`Route::exposed`](crate::Route)), and further connections of its pipe must come from that process. What was borrowed goes
    /// back to it without a copy. Limits count by [`PeerAddr::party`]. `Unknown`: exposed, and each connection counts alone.
    fn peer(&self) -> PeerAddr {
        PeerAddr::Unknown
    }

    /// Who the peer has proved to be, where the transport authenticates. It has done so when something has been read, and this does
    /// not change. A pipe keeps the identity of its first connection when it is upgraded to another: whoever asks for the upgrade has a secret of that one.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// What only the two ends of this connection know, where it has keys of its own. It is the same at both, and of no other
    /// connection (as RFC 5705 exports it from TLS). What a pipe proves is bound to it. It is there at the connector when that is
    /// connected, and at the listener when something has been read; and it does not change.
    fn exported(&self) -> Option<[u8; 32]> {
        None
    }

    /// How often the peer had to be woken by a system call beside those that move bytes.
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

    /// The same where a read should wait until there are so many `bytes`, or no more is to come. May say yes for fewer.
    fn is_ready_for(&mut self, _bytes: usize) -> bool {
        self.is_ready()
    }
}

/// In-memory streams serve tests and custom transports.
impl Connection for DuplexStream {
    fn ends(&self) -> String {
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

    /// What [`reaches`](Self::reaches) of a peer needs to know: bytes of this transport's own format, at most 1 KiB, always the same.
    /// The first frame of a pipe shows them to whoever is there. Put in all on which a connection to a [side
    /// address](Self::side_address) depends: the boot, the namespace, the user. Empty: not to be reached.
    fn domain(&self) -> Vec<u8>;

    /// Whether the transport of the same name with this domain can be reached from here, or why not. A listener asks before it
    /// upgrades a pipe that began elsewhere to this transport. Nobody asks for a URL. Any bytes may come. By default it compares.
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

    /// Whether both ends of each of its connections are in this process: by how they are made, not by what a peer says. By
    /// default no.
    fn in_process(&self) -> bool {
        false
    }

    /// Whether each connection is a session of a protocol of its own, as TLS is, to which both ends say hello and goodbye. Then who connects
    /// waits for the listener to accept, what was written may wait for a flush, and who reads hears of an end without a goodbye
    /// ([`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof)). By default no: the conformance suite asks for more then.
    fn has_sessions(&self) -> bool {
        false
    }

    /// An address at which each listener of a context listens without being asked, so that pipes which begin elsewhere
    /// can be upgraded to it. `None`, the default, if it is only used where a URL names it; a peer cannot upgrade pipes to it then, either.
    ///
    /// Only where no connection leaves this machine: a peer may choose it, also one of TLS
    /// ([`Context::stays_here`](crate::Context::stays_here)). Each call gives another address that nobody can guess. It has no other
    /// effect: connectors call it, too, only to see whether there is one.
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
