//! What the peers talk over: TCP on the loopback, or a Unix socket.
//!
//! Unix sockets have names in the abstract namespace: nothing is left in a file system.

use std::io::{self, IoSlice};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net as unix;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use anyhow::{Context as _, Result, bail};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::plan::Transport;

/// Listens.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens at an address of its own; returns it in the form that [`Socket::connect`] takes.
    ///
    /// # Errors
    /// For other transports, and what the system refuses.
    pub(crate) async fn bind(transport: Transport) -> Result<(Self, String)> {
        match transport {
            Transport::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0").await.context("bind")?;
                let address = listener.local_addr()?.to_string();
                Ok((Self::Tcp(listener), address))
            }
            Transport::Unix => {
                static NAMES: AtomicU64 = AtomicU64::new(0);
                let number = NAMES.fetch_add(1, Ordering::Relaxed);
                let name = format!("tp-bench-{}-{number}", std::process::id());
                let address = unix::SocketAddr::from_abstract_name(&name)?;
                let listener = unix::UnixListener::bind_addr(&address).context("bind")?;
                listener.set_nonblocking(true)?;
                let listener = UnixListener::from_std(listener)?;
                Ok((Self::Unix(listener), name))
            }
            Transport::Shm | Transport::Memory => bail!("no socket is {}", transport.name()),
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// What the system refuses.
    pub(crate) async fn accept(&self) -> Result<Socket> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await.context("accept")?;
                stream.set_nodelay(true)?;
                Socket::Tcp(stream)
            }
            Self::Unix(listener) => Socket::Unix(listener.accept().await.context("accept")?.0),
        })
    }
}

/// A connection.
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Connects to what a [`Listener`] announced.
    ///
    /// # Errors
    /// For other transports, and what the system refuses.
    pub(crate) async fn connect(transport: Transport, address: &str) -> Result<Self> {
        let what = || format!("connect to {address}");
        match transport {
            Transport::Tcp => {
                let stream = TcpStream::connect(address).await.with_context(what)?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Transport::Unix => {
                let address = unix::SocketAddr::from_abstract_name(address)?;
                let stream = unix::UnixStream::connect_addr(&address).with_context(what)?;
                stream.set_nonblocking(true)?;
                Ok(Self::Unix(UnixStream::from_std(stream)?))
            }
            Transport::Shm | Transport::Memory => bail!("no socket is {}", transport.name()),
        }
    }

    /// Gives a Unix socket as large a buffer as the system allows: large frames are faster by a third. TCP grows its own.
    ///
    /// # Errors
    /// What the system refuses.
    pub(crate) fn enlarge(&self) -> io::Result<()> {
        match self {
            Self::Tcp(_) => Ok(()),
            Self::Unix(stream) => SockRef::from(stream).set_send_buffer_size(1 << 20),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn what_is_announced_can_be_connected_to() -> Result<()> {
        for transport in [Transport::Tcp, Transport::Unix] {
            let (listener, address) = Listener::bind(transport).await?;
            let (near, far) = tokio::join!(Socket::connect(transport, &address), listener.accept());
            let (mut near, mut far) = (near?, far?);
            near.enlarge()?;
            near.write_all(b"hello").await?;
            near.shutdown().await?;
            let mut heard = Vec::new();
            far.read_to_end(&mut heard).await?;
            assert_eq!(heard, b"hello", "{transport:?}");
        }
        assert!(Listener::bind(Transport::Shm).await.is_err());
        Ok(())
    }
}
