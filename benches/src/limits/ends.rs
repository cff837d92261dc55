//! The two ends of a medium, as readers and writers of the standard library. Non-blocking ends return `WouldBlock`.

use std::fs::File;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use anyhow::{Result, ensure};
use nix::sys::eventfd::EventFd;
use socket2::SockRef;
use tensorpipe::transports::{Connection, ShmTransport, Transport};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

/// A socket whose reads and writes have the same chunk sizes as those of the hand-written peer.
pub(super) struct Chunked<S>(S);

impl<S: Read> Read for Chunked<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = into.len().min(64 << 10);
        self.0.read(&mut into[..len])
    }
}

impl<S: Write> Write for Chunked<S> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.0.write(&from[..from.len().min(512 << 10)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A Unix socket, with buffers as large as the system gives.
pub(super) fn unix(waits: bool) -> io::Result<(Chunked<UnixStream>, Chunked<UnixStream>)> {
    let (near, far) = UnixStream::pair()?;
    for end in [&near, &far] {
        end.set_nonblocking(!waits)?;
        // The kernel cuts it down to what it allows.
        SockRef::from(end).set_send_buffer_size(1 << 20)?;
    }
    Ok((Chunked(near), Chunked(far)))
}

/// A connection over the loopback.
pub(super) fn tcp(waits: bool) -> io::Result<(Chunked<TcpStream>, Chunked<TcpStream>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    for end in [&near, &far] {
        end.set_nonblocking(!waits)?;
        end.set_nodelay(true)?;
    }
    Ok((Chunked(near), Chunked(far)))
}

/// Two eventfds, one for each direction; each carries eight bytes at a time.
pub(super) struct Eventfds {
    read: File,
    write: File,
}

pub(super) fn eventfds() -> Result<(Eventfds, Eventfds)> {
    let counter = || -> Result<File> { Ok(OwnedFd::from(EventFd::new()?).into()) };
    let (there, back) = (counter()?, counter()?);
    let far = Eventfds {
        read: there.try_clone()?,
        write: back.try_clone()?,
    };
    let near = Eventfds {
        read: back,
        write: there,
    };
    Ok((near, far))
}

impl Read for Eventfds {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.read.read(into)?;
        let word = into.first_chunk().copied().map(u64::from_ne_bytes);
        Ok(match word {
            Some(word) if word >= GONE => 0,
            _ => count,
        })
    }
}

impl Write for Eventfds {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write.write(from)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Eventfds {
    fn drop(&mut self) {
        // Tells the other end, if it waits, that this end is gone.
        let _ = self.write.write(&GONE.to_ne_bytes());
    }
}

/// Larger than any sum of the values that are written while both ends exist.
const GONE: u64 = 1 << 63;

/// The connection of transport `shm` without a pipe on top, open and busy-polled.
pub(super) async fn rings() -> Result<(Ring, Ring)> {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    let name = format!("limits-{}-{number}", std::process::id());
    let transport = ShmTransport::new();
    let mut acceptor = transport.listen(&name).await?;
    let mut near = transport.connect(&name).await?;
    let mut far = poll_fn(|cx| acceptor.poll_accept(cx)).await?;
    // The listener's end opens with the first byte.
    near.write_all(&[1]).await?;
    ensure!(far.read_u8().await? == 1, "another byte came");
    for end in [&mut near, &mut far] {
        ensure!(end.can_poll(), "shared memory cannot be looked at");
        end.set_polled(true);
    }
    Ok((Ring(near), Ring(far)))
}

pub(super) struct Ring(Box<dyn Connection>);

impl Read for Ring {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut into = ReadBuf::new(into);
        let cx = &mut Context::from_waker(Waker::noop());
        match Pin::new(&mut self.0).poll_read(cx, &mut into) {
            Poll::Ready(read) => read.map(|()| into.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for Ring {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let cx = &mut Context::from_waker(Waker::noop());
        match Pin::new(&mut self.0).poll_write(cx, from) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
