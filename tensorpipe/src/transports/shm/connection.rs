//! One end of a connection over shared memory.

use std::io::{self, IoSlice, Read};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::alarm::Alarm;
use super::doorbell::Doorbell;
use super::errors::{fault, gone};
use super::rings::Rings;
use super::wakers::{Direction, Wakers};
use crate::address::PeerAddr;
use crate::error::SystemError;
use crate::ring::{self, Consumer, Mapped};
use crate::sys::memfd::Mapping;
use crate::sys::{readable, unix_fds};
use crate::transports::Connection;

/// Bytes of one ring. Bytes that are written but not read yet fit into a second-level cache of 1 MiB. A reader that is busy for a while, or
/// shares its core with the writer, can still find much. (With 64 KiB, a stream of 4 KiB tensors took 1.8 times as long beside such work,
/// and twice as long on one core. With 1 MiB, uploads of 16 MiB took 1.4 times as long with a core each.)
pub(super) const CAPACITY: usize = 256 << 10;

/// Ring sizes that a peer may offer.
const CAPACITIES: std::ops::RangeInclusive<usize> = 4 << 10..=16 << 20;

/// Sent with the memory: magic and version.
const OFFER: &[u8; 8] = b"TPSHM\0\0\x02";

/// The connection's socket, registered for reading only. When the peer reads a wake-up, the socket becomes writable; an interest in that
/// event would wake this side for nothing.
type Socket = AsyncFd<std::os::unix::net::UnixStream>;

/// Bytes read at once from the socket: piled-up wake-ups.
pub(super) const WAKES: usize = 64;

/// How often one poll reads the socket. A peer may send wake-ups without end, and then the poll ends and has itself called again.
/// Chosen: an honest peer needs two.
pub(super) const WAKE_READS: usize = 8;

pub(super) struct ShmConnection {
    socket: Socket,
    state: State,
    /// While set, nobody asks to be woken: somebody polls again soon.
    polled: bool,
    /// The last write found no room.
    is_full: bool,
    wakers: Arc<Wakers>,
    /// Wakes both: what the socket is given.
    waker: Waker,
    doorbell: Doorbell,
    peer: PeerAddr,
}

enum State {
    /// The connector's memory has not arrived yet.
    ExpectOffer,
    Open(Rings),
}

impl ShmConnection {
    /// The connector's end: makes the memory and passes it on.
    pub(super) fn offer(socket: UnixStream) -> Result<Self, SystemError> {
        let (memory, fd) = ring::create(CAPACITY)?;
        let failed = |error| SystemError::new("sendmsg", "shared memory for a pipe", error);
        // Short, on a new socket: it never waits, and is sent whole.
        let sent = unix_fds::send(socket.as_fd(), OFFER, Some(fd.as_fd()));
        sent.map_err(|errno| failed(errno.into()))?;
        Self::over(socket, memory).map_err(failed)
    }

    /// The end that has made the memory and passed it on.
    pub(super) fn over(socket: UnixStream, memory: Mapping) -> io::Result<Self> {
        let wakers = Arc::default();
        let alarm = Alarm::new(Arc::clone(&wakers));
        let rings = Rings::new(memory, 0, alarm).ok_or_else(|| io::Error::other("no rings"))?;
        Self::new(socket, State::Open(rings), wakers)
    }

    /// The listener's end.
    pub(super) fn await_offer(socket: UnixStream) -> io::Result<Self> {
        Self::new(socket, State::ExpectOffer, Arc::default())
    }

    fn new(socket: UnixStream, state: State, wakers: Arc<Wakers>) -> io::Result<Self> {
        let socket = readable::watch(socket.into_std()?)?;
        Ok(Self {
            peer: super::peer(socket.get_ref()),
            socket,
            state,
            polled: false,
            is_full: false,
            doorbell: Doorbell::new(Alarm::new(wakers.clone())),
            waker: wakers.clone().into(),
            wakers,
        })
    }

    /// Takes the connector's memory, if it has come.
    fn poll_open(&mut self, cx: &Context<'_>, direction: Direction) -> Poll<io::Result<()>> {
        self.wakers.set(direction, cx.waker());
        let mut cx = Context::from_waker(&self.waker);
        while let State::ExpectOffer = self.state {
            let mut ready = ready!(self.socket.poll_read_ready(&mut cx))?;
            let mut bytes = [0; OFFER.len()];
            let received = ready.try_io(|socket| {
                let socket = socket.get_ref().as_fd();
                Ok(unix_fds::recv(socket, &mut bytes)?)
            });
            let Ok(received) = received else { continue };
            let unix_fds::Packet { len, fd, fd_lost } = received?;
            if len == 0 {
                return Poll::Ready(Err(gone()));
            }
            let nonsense = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
            if bytes[..len] != *OFFER {
                return Poll::Ready(Err(nonsense("the peer speaks another protocol")));
            }
            let fd = fd.ok_or_else(|| match fd_lost {
                true => io::Error::from_raw_os_error(libc::EMFILE),
                false => nonsense("the peer's shared memory is missing"),
            })?;
            let memory = ring::adopt(&fd, &CAPACITIES)
                .map_err(|what| nonsense(&format!("the peer's shared memory: {what}")))?;
            let rings = Rings::new(memory, 1, Alarm::new(self.wakers.clone()));
            self.state = State::Open(rings.ok_or_else(|| nonsense("the peer's rings"))?);
            self.wakers.wake_other(direction);
        }
        Poll::Ready(Ok(()))
    }

    /// A reader is about to wait, and must be woken by the peer. `false`: there is something to do first.
    fn try_sleep(&mut self) -> bool {
        let State::Open(rings) = &mut self.state else {
            return true;
        };
        rings.idle.begins(&rings.out);
        !rings.idle.is_due() && !self.doorbell.is_due()
    }

    /// Whether there is something to do: `there` finds bytes, a writer finds room, or a wake-up is owed.
    fn finds(&mut self, there: impl FnOnce(&mut Consumer<Mapped>) -> bool) -> bool {
        match &mut self.state {
            State::ExpectOffer => true,
            State::Open(rings) => rings.finds(|rings| {
                there(&mut rings.incoming)
                    || (self.is_full && rings.out.is_ready())
                    || self.doorbell.is_due()
            }),
        }
    }

    /// Waits for a wake-up from the peer. Ready: poll again, or the reason why nothing can arrive any more. `reads` counts the calls
    /// within one poll.
    fn poll_wake(
        &self,
        cx: &Context<'_>,
        direction: Direction,
        reads: &mut usize,
    ) -> Poll<io::Result<()>> {
        // The runtime bounds a poll inside a task, and nobody one on a plain thread.
        if *reads == WAKE_READS {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        *reads += 1;
        self.wakers.set(direction, cx.waker());
        let mut cx = Context::from_waker(&self.waker);
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(&mut cx))?;
            let mut wakes = [0; WAKES];
            // Not `recvmsg`: this end wants no descriptors beside a wake-up.
            let received = ready.try_io(|socket| socket.get_ref().read(&mut wakes));
            match received {
                Ok(Ok(0)) => return Poll::Ready(Err(gone())),
                Ok(Ok(len)) => {
                    drained(&mut ready, len);
                    // The wake-ups may have been meant for the other direction.
                    self.wakers.wake_other(direction);
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_) => continue,
            }
            return Poll::Ready(Ok(()));
        }
    }
}

#[cfg(test)]
impl ShmConnection {
    pub(super) fn awaits_offer(&self) -> bool {
        matches!(self.state, State::ExpectOffer)
    }
}

/// A read that fills less than its buffer has emptied the socket: no further read is needed to know that.
fn drained<T: std::os::fd::AsRawFd>(ready: &mut AsyncFdReadyGuard<'_, T>, len: usize) {
    if len < WAKES {
        ready.clear_ready();
    }
}

impl Connection for ShmConnection {
    fn endpoints(&self) -> String {
        super::ends(&self.peer)
    }

    fn peer(&self) -> PeerAddr {
        self.peer
    }

    fn wakes(&self) -> u64 {
        self.doorbell.rung()
    }

    fn can_poll(&self) -> bool {
        true
    }

    fn set_polled(&mut self, polled: bool) {
        self.polled = polled;
        if let (State::Open(rings), true) = (&self.state, polled)
            && rings.memory.is_here()
        {
            rings.incoming.cancel_sleep();
        }
    }

    fn is_ready(&mut self) -> bool {
        self.finds(Consumer::is_ready)
    }

    fn is_ready_for(&mut self, bytes: usize) -> bool {
        self.finds(|incoming| incoming.has_bytes(bytes))
    }
}

impl AsyncRead for ShmConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let (mut peer, mut reads) = (Ok(()), 0);
        loop {
            if let State::ExpectOffer = this.state {
                ready!(this.poll_open(cx, Direction::Read))?;
            }
            let State::Open(rings) = &mut this.state else {
                continue;
            };
            rings.are_here()?;
            let (socket, doorbell) = (this.socket.get_ref().as_fd(), &mut this.doorbell);
            doorbell.ring_if_due(socket)?;
            let read = rings
                .incoming
                .read(buf.initialize_unfilled(), || doorbell.ring(socket))
                .map_err(fault)?;
            rings.idle.give_back_if_due(&mut rings.out);
            if read > 0 || buf.remaining() == 0 {
                buf.advance(read);
                return Poll::Ready(Ok(()));
            }
            if rings.incoming.is_finished() {
                return Poll::Ready(Ok(()));
            }
            // The rings were polled once more after the peer was found to be gone: what it wrote before is
            // here.
            std::mem::replace(&mut peer, Ok(()))?;
            if this.polled {
                return Poll::Pending;
            }
            if !rings.incoming.sleep() {
                continue;
            }
            match this.poll_wake(cx, Direction::Read, &mut reads) {
                Poll::Ready(woken) => peer = woken,
                Poll::Pending if this.try_sleep() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    }
}

impl AsyncWrite for ShmConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let mut reads = 0;
        loop {
            if let State::ExpectOffer = this.state {
                ready!(this.poll_open(cx, Direction::Write))?;
            }
            let State::Open(rings) = &mut this.state else {
                continue;
            };
            rings.are_here()?;
            if rings.finished {
                let what = "written to after it was shut down";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, what)));
            }
            let left: usize = bufs.iter().map(|piece| piece.len()).sum();
            let (socket, doorbell) = (this.socket.get_ref().as_fd(), &mut this.doorbell);
            doorbell.ring_if_due(socket)?;
            let wrote = rings
                .out
                .write(bufs.iter().map(|piece| &**piece), || doorbell.ring(socket))
                .map_err(fault)?;
            this.is_full = false;
            if wrote > 0 || left == 0 {
                return Poll::Ready(Ok(wrote));
            }
            this.is_full = true;
            if this.polled {
                return Poll::Pending;
            }
            if rings.out.sleep() {
                match this.poll_wake(cx, Direction::Write, &mut reads) {
                    Poll::Ready(woken) => woken?,
                    Poll::Pending if this.doorbell.is_due() => {}
                    Poll::Pending => return Poll::Pending,
                }
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let State::Open(rings) = &mut this.state {
            rings.are_here()?;
            rings.finished = true;
            let (socket, doorbell) = (this.socket.get_ref().as_fd(), &mut this.doorbell);
            rings.out.finish(|| doorbell.ring(socket));
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for ShmConnection {
    fn drop(&mut self) {
        // A forked child has neither a part in the pipe nor its memory.
        if let State::Open(rings) = &mut self.state
            && rings.memory.is_here()
        {
            rings.idle.close();
            // The close of the socket does not wake the peer if a forked child holds the socket, too.
            let (socket, doorbell) = (self.socket.get_ref().as_fd(), &mut self.doorbell);
            rings.out.finish(|| doorbell.ring(socket));
            rings.incoming.close(|| doorbell.ring(socket));
            doorbell.close();
        }
    }
}
