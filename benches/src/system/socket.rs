//! The sockets of the competitors: TCP on the loopback, or a Unix socket.
//!
//! Unix sockets have names in the abstract namespace: nothing is left in a file system.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as unix;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, bail};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

use crate::plan::{Transport, name};

/// A connection.
pub(crate) type Socket = Either<TcpStream, UnixStream>;

/// Listens.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens at an address of its own; returns it in the form that [`connect`] takes.
    pub(crate) async fn bind(transport: Transport) -> Result<(Self, String)> {
        static NAMES: AtomicU64 = AtomicU64::new(0);
        match transport {
            Transport::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0").await.context("bind")?;
                let address = listener.local_addr()?.to_string();
                Ok((Self::Tcp(listener), address))
            }
            Transport::Unix => {
                let number = NAMES.fetch_add(1, Ordering::Relaxed);
                let name = format!("tp-bench-{}-{number}", std::process::id());
                let address = unix::SocketAddr::from_abstract_name(&name)?;
                let listener = unix::UnixListener::bind_addr(&address).context("bind")?;
                listener.set_nonblocking(true)?;
                Ok((Self::Unix(UnixListener::from_std(listener)?), name))
            }
            other => bail!("no socket is {}", name(other)),
        }
    }

    /// The next connection.
    pub(crate) async fn accept(&self) -> Result<Socket> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await.context("accept")?;
                stream.set_nodelay(true)?;
                Either::Left(stream)
            }
            Self::Unix(listener) => Either::Right(listener.accept().await.context("accept")?.0),
        })
    }
}

/// Connects to what a [`Listener`] announced.
pub(crate) async fn connect(transport: Transport, address: &str) -> Result<Socket> {
    let what = || format!("connect to {address}");
    match transport {
        Transport::Tcp => {
            let stream = TcpStream::connect(address).await.with_context(what)?;
            stream.set_nodelay(true)?;
            Ok(Either::Left(stream))
        }
        Transport::Unix => {
            let address = unix::SocketAddr::from_abstract_name(address)?;
            let stream = unix::UnixStream::connect_addr(&address).with_context(what)?;
            stream.set_nonblocking(true)?;
            Ok(Either::Right(UnixStream::from_std(stream)?))
        }
        other => bail!("no socket is {}", name(other)),
    }
}

/// Gives a Unix socket as large a buffer as the system allows: large frames are faster by a third. TCP grows its own.
pub(crate) fn enlarge(socket: &Socket) -> io::Result<()> {
    match socket {
        Either::Left(_) => Ok(()),
        Either::Right(stream) => SockRef::from(stream).set_send_buffer_size(1 << 20),
    }
}
