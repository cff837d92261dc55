//! One end of a connection over shared memory.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::alarm::Alarm;
use super::doorbell::Doorbell;
use super::errors::{fault, gone};
use super::large::BULK;
use super::pair::LARGE;
use super::rings::Rings;
use super::wakers::{Direction, Wakers};
use crate::address::PeerAddr;
use crate::error::SystemError;
use crate::ring::{self, Consumer, Mapped};
use crate::sys::{peer, readable, unix_fds};
use crate::transports::Connection;

/// Bytes of one ring. Twice that, for both directions, is what an idle pipe holds.
const CAPACITY: usize = 64 << 10;

/// Rings that a peer may offer.
const CAPACITIES: std::ops::RangeInclusive<usize> = 4 << 10..=16 << 20;

/// What comes with the memory: magic and version.
const OFFER: &[u8; 8] = b"TPSHM\0\0\x01";

/// The connection's socket. Watched for reading alone: the peer's reading of a wake-up makes room, which is an event for
/// whoever asks for it, and would wake this side for nothing.
type Socket = AsyncFd<std::os::unix::net::UnixStream>;

/// Bytes read at once from the socket: wake-ups that have piled up.
const WAKES: usize = 64;

pub(super) struct ShmConnection {
    socket: Socket,
    state: State,
    /// Nobody wants to be woken: somebody looks again soon.
    hot: bool,
    /// The last write found no room.
    is_full: bool,
    wakers: Arc<Wakers>,
    bell: Doorbell,
    peer: PeerAddr,
}

#[expect(
    clippy::large_enum_variant,
    reason = "every connection is open soon, and each message goes through what is there then"
)]
enum State {
    /// The connector's memory has not come yet.
    ExpectOffer,
    Open(Rings),
}

impl ShmConnection {
    /// The connector's end: makes the memory and passes it on.
    pub(super) fn offer(socket: UnixStream) -> Result<Self, SystemError> {
        let (memory, fd) = ring::create(CAPACITY)?;
        let failed = |error| SystemError::new("sendmsg", "shared memory for a pipe", error);
        // Short, on a socket just made: it never waits, and takes all.
        let sent = unix_fds::send(socket.as_fd(), OFFER, Some(fd.as_fd()));
        sent.map_err(|errno| failed(errno.into()))?;
        let wakers = Arc::default();
        let alarm = Alarm::new(Arc::clone(&wakers));
        let rings = Rings::new(memory, 0, peer::of_socket(&socket).ok(), alarm);
        let rings = rings.ok_or_else(|| failed(io::Error::other("no rings")))?;
        Self::new(socket, State::Open(rings), wakers).map_err(failed)
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
            hot: false,
            is_full: false,
            bell: Doorbell::new(Alarm::new(wakers.clone())),
            wakers,
        })
    }

    /// Takes the connector's memory, if it has come.
    fn poll_open(&mut self, cx: &Context<'_>, direction: Direction) -> Poll<io::Result<()>> {
        let waker = self.wakers.set(direction, cx.waker());
        let mut cx = Context::from_waker(&waker);
        while let State::ExpectOffer = self.state {
            let mut ready = ready!(self.socket.poll_read_ready(&mut cx))?;
            let mut bytes = [0; OFFER.len()];
            let received = ready.try_io(|socket| {
                let socket = socket.get_ref().as_fd();
                Ok(unix_fds::recv(socket, &mut bytes)?)
            });
            let Ok(received) = received else { continue };
            let unix_fds::Packet { len, fd, .. } = received?;
            if len == 0 {
                return Poll::Ready(Err(gone()));
            }
            let nonsense = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
            if bytes[..len] != *OFFER {
                return Poll::Ready(Err(nonsense("the peer speaks another protocol")));
            }
            let fd = fd.ok_or_else(|| nonsense("the peer's shared memory is missing"))?;
            let memory = ring::adopt(&fd, &CAPACITIES)
                .map_err(|what| nonsense(&format!("the peer's shared memory: {what}")))?;
            let peer = peer::of_socket(self.socket.get_ref()).ok();
            let rings = Rings::new(memory, 1, peer, Alarm::new(self.wakers.clone()));
            self.state = State::Open(rings.ok_or_else(|| nonsense("the peer's rings"))?);
            self.wakers.wake_other(direction);
        }
        Poll::Ready(Ok(()))
    }

    /// Whoever reads is about to wait, and can be woken. Returns `false` if there is something to do first.
    fn falls_asleep(&mut self) -> bool {
        let State::Open(rings) = &mut self.state else {
            return true;
        };
        if !self.is_full {
            rings.large_out.falls_asleep(&rings.out, &self.wakers);
        }
        !rings.large_out.is_untidy() && !self.bell.is_due()
    }

    /// Whether there is something to do: what comes is `there`, or room for who writes, or a wake-up is owed.
    fn finds(&mut self, there: impl FnOnce(&mut Consumer<Mapped>) -> bool) -> bool {
        match &mut self.state {
            State::ExpectOffer => true,
            State::Open(rings) => rings.looks(|rings| {
                there(&mut rings.incoming)
                    || (self.is_full && rings.has_room())
                    || self.bell.is_due()
            }),
        }
    }

    /// Waits for a wake-up of the peer's. Ready: look again, or why there is nothing to look for any more.
    fn poll_wake(&mut self, cx: &Context<'_>, direction: Direction) -> Poll<io::Result<()>> {
        let waker = self.wakers.set(direction, cx.waker());
        let mut cx = Context::from_waker(&waker);
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(&mut cx))?;
            let mut wakes = [0; WAKES];
            let received = ready.try_io(|socket| {
                let socket = socket.get_ref().as_fd();
                Ok(unix_fds::recv(socket, &mut wakes)?)
            });
            match received {
                Ok(Ok(packet)) if packet.len == 0 => return Poll::Ready(Err(gone())),
                Ok(Ok(packet)) => {
                    let len = packet.len;
                    let State::Open(rings) = &mut self.state else {
                        return Poll::Ready(Ok(()));
                    };
                    if !rings.large_in.received(packet) {
                        drained(&mut ready, len);
                    }
                    // They may have been meant for the other direction.
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

    pub(super) fn rings(&mut self) -> &mut Rings {
        match &mut self.state {
            State::ExpectOffer => panic!("it is not open"),
            State::Open(rings) => rings,
        }
    }
}

/// A read that found less than it had room for leaves nothing: the next one need not be tried to know it.
fn drained<T: std::os::fd::AsRawFd>(ready: &mut AsyncFdReadyGuard<'_, T>, len: usize) {
    if len < WAKES {
        ready.clear_ready();
    }
}

impl Connection for ShmConnection {
    fn ends(&self) -> String {
        super::ends(&self.peer)
    }

    fn peer(&self) -> PeerAddr {
        self.peer
    }

    fn wakes(&self) -> u64 {
        self.bell.rung()
    }

    fn can_be_hot(&self) -> bool {
        true
    }

    fn set_hot(&mut self, hot: bool) {
        self.hot = hot;
        if let (State::Open(rings), true) = (&self.state, hot)
            && rings.memory.is_here()
        {
            rings.incoming.stay_awake();
        }
    }

    fn look(&mut self) -> bool {
        self.finds(Consumer::is_ready)
    }

    fn look_for(&mut self, bytes: usize) -> bool {
        self.finds(|incoming| incoming.has(bytes))
    }
}

impl AsyncRead for ShmConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut peer = Ok(());
        loop {
            if let State::ExpectOffer = this.state {
                ready!(this.poll_open(cx, Direction::Read))?;
            }
            let State::Open(rings) = &mut this.state else {
                continue;
            };
            rings.are_here()?;
            let (socket, bell) = (this.socket.get_ref().as_fd(), &mut this.bell);
            bell.look(socket);
            let read = rings
                .incoming
                .read(buf.initialize_unfilled(), || bell.ring(socket))
                .map_err(fault)?;
            if rings
                .large_in
                .answer(&mut rings.incoming, this.socket.get_ref().as_fd())
            {
                // They may have been meant for the other direction.
                this.wakers.wake_other(Direction::Read);
            }
            if !this.is_full {
                rings.large_out.rest(&mut rings.out);
            }
            if rings.large_out.is_untidy() {
                rings.large_out.tidy(&mut rings.out, || bell.ring(socket));
            }
            if read > 0 || buf.remaining() == 0 {
                buf.advance(read);
                return Poll::Ready(Ok(()));
            }
            if rings.incoming.is_finished() {
                return Poll::Ready(Ok(()));
            }
            // Looked once more after the peer was found to be gone: what it wrote before that is here.
            std::mem::replace(&mut peer, Ok(()))?;
            if this.hot {
                return Poll::Pending;
            }
            if !rings.incoming.sleep() {
                continue;
            }
            match this.poll_wake(cx, Direction::Read) {
                Poll::Ready(woken) => peer = woken,
                Poll::Pending if this.falls_asleep() => return Poll::Pending,
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
            let fd = this.socket.get_ref().as_fd();
            this.bell.look(fd);
            let large = &mut rings.large_out;
            let made_room = this.is_full && rings.out.is_ready();
            let is_away = large.was_reader_away(!this.hot, made_room);
            large.turn_back(&mut rings.out, !this.is_full, left);
            // Before the small ring is full: what it holds would have to be read first.
            if let Some(capacity) = large.pays(left, is_away) {
                large.enlarge(&mut rings.out, fd, capacity);
            }
            let (socket, bell) = (this.socket.get_ref().as_fd(), &mut this.bell);
            let wrote = rings
                .out
                .write(bufs.iter().map(|piece| &**piece), || bell.ring(socket))
                .map_err(fault)?;
            this.is_full = false;
            if wrote > 0 || left == 0 {
                return Poll::Ready(Ok(wrote));
            }
            let large = &mut rings.large_out;
            if left >= BULK && is_away && large.enlarge(&mut rings.out, fd, LARGE) {
                continue;
            }
            this.is_full = true;
            if this.hot {
                return Poll::Pending;
            }
            if rings.out.sleep() {
                match this.poll_wake(cx, Direction::Write) {
                    Poll::Ready(woken) => woken?,
                    Poll::Pending if this.bell.is_due() => {}
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
            let (socket, bell) = (this.socket.get_ref().as_fd(), &mut this.bell);
            rings.out.finish(|| bell.ring(socket));
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for ShmConnection {
    fn drop(&mut self) {
        // A forked child has no part in the pipe, nor its memory.
        if let State::Open(rings) = &mut self.state
            && rings.memory.is_here()
        {
            rings.large_out.close(&mut rings.out);
            // The socket's end does not wake the peer where a forked child has it, too.
            let (socket, bell) = (self.socket.get_ref().as_fd(), &mut self.bell);
            rings.out.finish(|| bell.ring(socket));
            rings.incoming.close(|| bell.ring(socket));
            bell.close();
        }
    }
}
