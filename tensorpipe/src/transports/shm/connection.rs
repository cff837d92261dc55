//! One end of a connection over shared memory.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::alarm::Alarm;
use super::errors::{fault, gone};
use super::large::BULK;
use super::pair::{LARGE, Pair};
use super::rings::Rings;
use super::wakers::{Direction, Wakers};
use crate::error::SystemError;
use crate::ring;
use crate::sys::{readable, unix_fds};
use crate::transports::{Connection, PeerIdentity};

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
    wakes: u64,
    ends: String,
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
        let rings = Rings::new(
            memory,
            0,
            Pair::of(&socket),
            Alarm::new(Arc::clone(&wakers)),
        );
        let rings = rings.ok_or_else(|| failed(io::Error::other("no rings")))?;
        Self::new(socket, State::Open(rings), wakers).map_err(failed)
    }

    /// The listener's end.
    pub(super) fn await_offer(socket: UnixStream) -> io::Result<Self> {
        Self::new(socket, State::ExpectOffer, Arc::default())
    }

    fn new(socket: UnixStream, state: State, wakers: Arc<Wakers>) -> io::Result<Self> {
        let ends = super::ends(&socket);
        let socket = readable::watch(socket.into_std()?)?;
        Ok(Self {
            ends,
            socket,
            state,
            hot: false,
            is_full: false,
            wakers,
            wakes: 0,
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
            let pair = Pair::of(self.socket.get_ref());
            let rings = Rings::new(memory, 1, pair, Alarm::new(self.wakers.clone()));
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
        !rings.large_out.is_untidy()
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

/// Wakes the peer. A full socket holds more wake-ups than it needs; that the peer is gone is seen elsewhere.
fn wake(socket: &Socket, wakes: &mut u64) {
    *wakes += 1;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // Not tokio's write: it asks its reactor first, which may not know yet that the socket can be written.
    let _ = SockRef::from(socket.get_ref()).send_with_flags(&[1], flags);
}

impl Connection for ShmConnection {
    fn ends(&self) -> String {
        self.ends.clone()
    }

    fn peer(&self) -> PeerIdentity {
        super::peer(self.socket.get_ref())
    }

    fn wakes(&self) -> u64 {
        self.wakes
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
        match &mut self.state {
            State::ExpectOffer => true,
            State::Open(rings) => {
                rings.looks(|rings| rings.incoming.is_ready() || (self.is_full && rings.has_room()))
            }
        }
    }

    fn look_for(&mut self, bytes: usize) -> bool {
        match &mut self.state {
            State::ExpectOffer => true,
            State::Open(rings) => {
                rings.looks(|rings| rings.incoming.has(bytes) || (self.is_full && rings.has_room()))
            }
        }
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
            let (socket, wakes) = (&this.socket, &mut this.wakes);
            let read = rings
                .incoming
                .read(buf.initialize_unfilled(), || wake(socket, wakes))
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
                rings.large_out.tidy(&mut rings.out, || wake(socket, wakes));
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
            let large = &mut rings.large_out;
            let made_room = this.is_full && rings.out.is_ready();
            let is_away = large.was_reader_away(!this.hot, made_room);
            large.turn_back(&mut rings.out, !this.is_full, left);
            // Before the small ring is full: what it holds would have to be read first.
            if let Some(capacity) = large.pays(left, is_away) {
                large.enlarge(&mut rings.out, fd, capacity);
            }
            let (socket, wakes) = (&this.socket, &mut this.wakes);
            let wrote = rings
                .out
                .write(bufs.iter().map(|piece| &**piece), || wake(socket, wakes))
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
                ready!(this.poll_wake(cx, Direction::Write))?;
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
            let (socket, wakes) = (&this.socket, &mut this.wakes);
            rings.out.finish(|| wake(socket, wakes));
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
            let (socket, wakes) = (&self.socket, &mut self.wakes);
            rings.out.finish(|| wake(socket, wakes));
            rings.incoming.close(|| wake(socket, wakes));
        }
    }
}
