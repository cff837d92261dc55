//! Connections: the two ends, and the bytes on their way.

use std::collections::VecDeque;
use std::io::{ErrorKind, Result};
use std::task::{Poll, Waker};

use tokio::time::Instant;

use super::State;

/// The most unread bytes in each direction of a connection.
const CAPACITY: usize = 256 << 10;

/// What one end of a connection is about to receive, and who waits there.
#[derive(Debug)]
pub(super) struct End {
    pub(super) host: usize,
    coming: VecDeque<(Instant, Piece)>,
    unread: usize,
    pub(super) reader: Option<Waker>,
    pub(super) writer: Option<Waker>,
    /// The end is closed or the connection is cut: bytes sent here are lost.
    deaf: bool,
    /// It has shut down its sending side.
    shut: bool,
    /// Its host has crashed.
    pub(super) dead: bool,
    /// Its handle is dropped.
    dropped: bool,
}

#[derive(Debug)]
pub(super) enum Piece {
    Bytes(VecDeque<u8>),
    /// The peer sends no more.
    Shut,
    /// And reads no more.
    Closed,
    Reset,
}

/// The result of a read.
pub(in crate::testing) enum Read {
    Done,
    /// Nothing until then, unless it is woken before.
    Wait(Option<Instant>),
}

impl End {
    pub(super) fn new(host: usize) -> Self {
        Self {
            host,
            coming: VecDeque::new(),
            unread: 0,
            reader: None,
            writer: None,
            deaf: false,
            shut: false,
            dead: false,
            dropped: false,
        }
    }
}

impl State {
    pub(super) fn ends(&mut self, id: u64, side: usize) -> (&mut End, &mut End) {
        let [first, second] = self.connections.get_mut(&id).expect("an end is open");
        match side {
            0 => (first, second),
            _ => (second, first),
        }
    }

    /// Sends `piece` from this end to the other. Returns whether the other end still receives.
    fn send(&mut self, id: u64, side: usize, piece: Piece) -> bool {
        let (own, peer) = self.ends(id, side);
        let (from, to) = (own.host, peer.host);
        let due = self.due(from, to);
        let (_, peer) = self.ends(id, side);
        if peer.deaf {
            return false;
        }
        let last = peer.coming.back().map_or(due, |(last, _)| *last);
        if let Piece::Bytes(bytes) = &piece {
            peer.unread += bytes.len();
        }
        peer.coming.push_back((due.max(last), piece));
        let reader = peer.reader.take();
        self.wakes.extend(reader);
        true
    }

    /// This end stops sending and receiving; the other one learns of it.
    pub(super) fn leave(&mut self, id: u64, side: usize, how: Piece) {
        let what = match how {
            Piece::Reset => "reset",
            _ => "closed",
        };
        let sent = self.send(id, side, how);
        let (own, peer) = self.ends(id, side);
        own.deaf = true;
        own.coming.clear();
        // The peer's writes are lost until it learns of it.
        let writer = peer.writer.take();
        let (from, to) = (own.host, peer.host);
        self.wakes.extend(writer);
        if sent {
            let (from, to) = (&self.hosts[from].name, &self.hosts[to].name);
            self.tell(format!("{id} {from} -> {to}: {what}"));
        }
    }

    /// The handle of this end is dropped.
    pub(in crate::testing) fn drop_end(&mut self, id: u64, side: usize) {
        if !self.ends(id, side).0.deaf {
            self.leave(id, side, Piece::Closed);
        }
        let (own, peer) = self.ends(id, side);
        own.dropped = true;
        if peer.dropped {
            self.connections.remove(&id);
        }
    }

    pub(in crate::testing) fn shut(&mut self, id: u64, side: usize) {
        let (own, _) = self.ends(id, side);
        if !std::mem::replace(&mut own.shut, true) && !own.deaf {
            self.send(id, side, Piece::Shut);
        }
    }

    /// Moves bytes that have arrived from the peer into `room`.
    pub(in crate::testing) fn read(
        &mut self,
        id: u64,
        side: usize,
        room: &mut tokio::io::ReadBuf<'_>,
        waker: &Waker,
    ) -> Result<Read> {
        let (own, peer) = self.ends(id, side);
        if own.dead {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let (from, to) = (peer.host, own.host);
        let stalled = self.way(from, to).stalled;
        let (own, peer) = self.ends(id, side);
        let Some((due, piece)) = own.coming.front_mut() else {
            own.reader = Some(waker.clone());
            return Ok(Read::Wait(None));
        };
        if stalled || *due > Instant::now() {
            let until = Some(*due).filter(|_| !stalled);
            own.reader = Some(waker.clone());
            return Ok(Read::Wait(until));
        }
        let Piece::Bytes(bytes) = piece else {
            return match piece {
                Piece::Reset => Err(ErrorKind::ConnectionReset.into()),
                _ => Ok(Read::Done),
            };
        };
        let (front, _) = bytes.as_slices();
        let len = front.len().min(room.remaining());
        room.put_slice(&front[..len]);
        bytes.drain(..len);
        if bytes.is_empty() {
            own.coming.pop_front();
        }
        own.unread -= len;
        let writer = peer.writer.take();
        self.wakes.extend(writer);
        Ok(Read::Done)
    }

    /// Sends as much of `bytes` as there is room for.
    pub(in crate::testing) fn write(
        &mut self,
        id: u64,
        side: usize,
        bytes: &[u8],
        waker: &Waker,
    ) -> Poll<Result<usize>> {
        let (own, peer) = self.ends(id, side);
        let (from, to) = (own.host, peer.host);
        let stalled = self.way(to, from).stalled;
        let (own, peer) = self.ends(id, side);
        // The last event from the peer.
        let heard = own.coming.back();
        let heard = heard.filter(|(due, _)| !stalled && *due <= Instant::now());
        match heard {
            _ if own.dead => return Poll::Ready(Err(ErrorKind::ConnectionReset.into())),
            Some((_, Piece::Reset)) => return Poll::Ready(Err(ErrorKind::ConnectionReset.into())),
            Some((_, Piece::Closed)) => return Poll::Ready(Err(ErrorKind::BrokenPipe.into())),
            _ if own.shut => return Poll::Ready(Err(ErrorKind::BrokenPipe.into())),
            _ => {}
        }
        if peer.deaf || bytes.is_empty() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let room = CAPACITY - peer.unread;
        if room == 0 {
            own.writer = Some(waker.clone());
            return Poll::Pending;
        }
        let mut len = bytes.len().min(room);
        let mut cut = false;
        let way = self.way(from, to);
        if let Some(left) = way.cut_after {
            len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
            cut = len as u64 == left;
            way.cut_after = Some(left - len as u64).filter(|_| !cut);
        }
        let (from, to) = (&self.hosts[from].name, &self.hosts[to].name);
        let told = format!("{id} {from} -> {to}: {len} bytes");
        if len > 0 {
            self.tell(told);
            self.send(
                id,
                side,
                Piece::Bytes(bytes[..len].iter().copied().collect()),
            );
        }
        if cut {
            self.tell(format!("{id} is cut"));
            for side in [0, 1] {
                self.send(id, side, Piece::Reset);
            }
            for side in [0, 1] {
                let own = self.ends(id, side).0;
                own.deaf = true;
                let writer = own.writer.take();
                self.wakes.extend(writer);
            }
        }
        match len {
            0 => Poll::Ready(Err(ErrorKind::ConnectionReset.into())),
            len => Poll::Ready(Ok(len)),
        }
    }
}
