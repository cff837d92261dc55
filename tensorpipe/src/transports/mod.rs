//! Transports make connections: reliable, ordered, two-way streams of bytes.
//!
//! The contract of a [`Connection`]:
//!
//! - bytes arrive once, in order, unchanged; writes of any length are accepted in part or whole;
//! - a connection never blocks in a poll, and wakes the last waker that it was given for each direction;
//! - everything written before a writer's shutdown, or before a drop in good order, arrives; then the reader sees the end. Dropping a
//!   [session](Transport::has_sessions) without a shutdown is an error for the reader;
//! - if the system reports that a peer is gone, the connection shows the end or an error, never silence;
//! - if a read or write fails with an `io::Error` that wraps an [`Error`] of this crate, the pipe ends with the inner one;
//! - `poll_write_vectored` is forwarded to the system where possible, and `is_write_vectored` says so;
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
/// When its pipe has ended, `poll_shutdown` is polled until it is done, for a second at most. A transport uses it for its goodbye (the
/// `close_notify` of TLS). Then the connection is dropped.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {
    /// The two ends, for people: `127.0.0.1:4000 -> 127.0.0.1:5000`.
    fn endpoints(&self) -> String;

    /// Who is at the other end, as the system reports it, not as the peer claims. It does not change.
    ///
    /// [`Process`](PeerAddr::Process) and [`SameProcess`](PeerAddr::SameProcess) carry trust. Return them only if the kernel vouches
    /// for them (`SO_PEERCRED`), or both ends were made here. A token counts as protected on such a connection
    /// ([`Route::exposed`](crate::Route)), and further connections of its pipe must come from that process. Borrowed memory goes back
    /// to that process without a copy. Limits count by [`PeerAddr::party`]. `Unknown`: exposed, and each connection counts
    /// alone, except in what peers may send ahead: there all of them together have what one host has.
    fn peer(&self) -> PeerAddr {
        PeerAddr::Unknown
    }

    /// The peer's authenticated identity, if the transport authenticates: known once something has been read, and constant from then
    /// on. A pipe that is upgraded to another connection keeps the identity of its first one: the upgrade takes a secret that was
    /// exchanged there, so only that peer can ask for it.
    fn identity(&self) -> Option<Identity> {
        None
    }

    /// A secret of this connection, if it has keys of its own, as RFC 5705 exports it from TLS. Both ends have the same one, it does
    /// not change, and no other connection has it. The pipe's proofs are bound to it. The connector has it as soon as it is
    /// connected, the listener once something has been read.
    fn exporter_secret(&self) -> Option<[u8; 32]> {
        None
    }

    /// How many system calls were made only to wake the peer. If a poll makes no system call, a write that does not raise this count found
    /// the peer awake, most likely polling.
    fn wakes(&self) -> u64 {
        0
    }

    /// Whether it can be busy-polled: [`set_polled`](Connection::set_polled) then has an effect.
    fn can_poll(&self) -> bool {
        false
    }

    /// Whether [`is_ready`](Connection::is_ready) makes a system call: then polling pays only while few operations are under way.
    fn poll_is_syscall(&self) -> bool {
        false
    }

    /// While polled, a read or write that has to wait returns `Pending` without asking to be woken: somebody polls it again soon.
    /// That saves the peer the wake-up. A connection begins unpolled.
    fn set_polled(&mut self, _polled: bool) {}

    /// Polls once, as cheaply as possible and without asking to be woken: whether a read, or a write that had to wait, would make
    /// progress now. A wrong yes is allowed.
    fn is_ready(&mut self) -> bool {
        true
    }

    /// As [`is_ready`](Connection::is_ready), for a reader that wants `bytes` at once: yes if so many are there, or if no more will
    /// come. A yes for fewer is allowed.
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

/// Accepts connections at one address, which becomes free when this is dropped. Connections that came before the first
/// [`poll_accept`](Self::poll_accept) are kept. Peers that may not connect, such as other users, are turned away here.
pub trait Acceptor: Send {
    /// The address, in a form that `connect` understands: a port 0 has become a real one.
    fn address(&self) -> String;

    /// The next connection. An error concerns this attempt only: the acceptor is asked again, after a pause if the system is short of
    /// descriptors or memory, or accepting itself fails again and again. [`Error::System`] with a call other than `accept` means that a
    /// connection was taken and given up, so others are accepted without a pause.
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Connection>, Error>>;
}

/// Makes connections. A transport that cannot work here has an empty domain, or fails with a reason.
pub trait Transport: Send + Sync + 'static {
    /// Its name in URLs: lower-case letters and digits.
    fn name(&self) -> &'static str;

    /// Where this process is, for the peer's [`reaches`](Self::reaches): at most 1 KiB, in the transport's own format. It does not
    /// change. Include everything that a connection to a [upgrade address](Self::upgrade_address) depends on: the boot, the namespace, the
    /// user. Empty: cannot be reached. Include no secrets: a pipe's first frame shows it to any listener.
    fn domain(&self) -> Vec<u8>;

    /// Whether a process with this domain can be reached from here, or why not. A listener asks before it upgrades a pipe to this
    /// transport. For a pipe whose URL names the transport, nobody asks. A hostile peer may send any bytes. By default the two domains
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

    /// Whether each connection is a session, like one of TLS, which both ends open and close by its own messages. By default no. The
    /// conformance suite treats a session differently in three ways only:
    ///
    /// - `connect` may wait until the listener accepts;
    /// - written bytes may wait for a flush;
    /// - when one end is dropped without a shutdown, the other reads [`UnexpectedEof`](std::io::ErrorKind::UnexpectedEof).
    fn has_sessions(&self) -> bool {
        false
    }

    /// A fresh address at which each listener of a context listens as well, so that pipes that begin on another transport can be
    /// upgraded to this one. `None`, the default: the transport is used only if a URL names it.
    ///
    /// Return one only if no connection leaves this machine, since the peer may choose it even for a pipe that begins on TLS
    /// ([`Context::is_local`](crate::Context::is_local)). Each call must return another, unguessable address, and have no other
    /// effect: a connector also calls it just to see whether there is one.
    fn upgrade_address(&self) -> Option<String> {
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
