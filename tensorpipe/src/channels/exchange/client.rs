//! A connection from a process that borrows from this one.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::PollFlags;

use super::borrower::Borrower;
use super::broker::{ANSWER_TIMEOUT, BURST, UNTOLD};
use super::packet::{PACKET_MAX, Packet};
use super::{Command, Exchange};
use crate::process::Token;
use crate::sync::Arc;
use crate::sys::peer::{self, ProcessIdentity};
use crate::sys::segment::SegmentId;
use crate::sys::unix_fds::PacketSocket;
use crate::sys::{drop_thread, machine};

/// A borrower whose connection the broker has closed, and that still holds loans.
pub(super) struct Watched {
    pub(super) process: Arc<OwnedFd>,
    pub(super) who: ProcessIdentity,
    pub(super) borrower: Arc<Borrower>,
}

/// See the module's documentation.
pub(super) struct Client {
    pub(super) socket: PacketSocket,
    pub(super) process: Arc<OwnedFd>,
    pub(super) who: ProcessIdentity,
    /// `None` until the process has identified itself.
    pub(super) borrower: Option<Arc<Borrower>>,
    /// Answers and retired segments that the process was not told of yet, because its socket was full.
    untold: VecDeque<Packet>,
    pub(super) arrived: Instant,
}

/// Whether the broker keeps a client.
pub(super) enum Stays {
    Here,
    /// The broker closes its connection, but it may still hold loans.
    Watched,
    /// It has closed its connection.
    Left,
    /// It has ended, or does not say who it is.
    Gone,
}

impl Client {
    pub(super) fn new(socket: PacketSocket) -> Result<Self, String> {
        let who = peer::of_socket(&socket).map_err(|error| error.to_string())?;
        if who.user != machine::user() {
            drop_thread::close_later(socket);
            return Err(format!("it is a process of user {}", who.user));
        }
        let process = peer::pidfd(&socket).map_err(|error| error.to_string())?;
        let who = who.identity(&process).map_err(|error| error.to_string())?;
        Ok(Self {
            socket,
            process: Arc::new(process),
            who,
            borrower: None,
            untold: VecDeque::new(),
            arrived: Instant::now(),
        })
    }

    pub(super) fn is_unidentified(&self) -> bool {
        self.borrower.is_none()
    }

    pub(super) fn attend(&mut self, exchange: &Arc<Exchange>, said: bool, ended: bool) -> Stays {
        if ended {
            if let Some(borrower) = &self.borrower {
                borrower.ended();
            }
            return Stays::Gone;
        }
        let talked = if said { self.talk(exchange) } else { Ok(()) };
        let is_slow = self.is_unidentified() && self.arrived.elapsed() > ANSWER_TIMEOUT;
        match talked {
            Err(Errno::EPIPE | Errno::ECONNRESET) => Stays::Left,
            Err(_) => Stays::Watched,
            Ok(()) if self.untold.len() > UNTOLD => Stays::Watched,
            Ok(()) if is_slow => Stays::Gone,
            Ok(()) => Stays::Here,
        }
    }

    /// What the broker waits for. While an answer has no room, no more questions are read.
    pub(super) fn awaits(&self) -> PollFlags {
        match self.untold.is_empty() {
            true => PollFlags::POLLIN,
            false => PollFlags::POLLOUT,
        }
    }

    /// Tells the process that a segment is retired: one that is not told keeps it mapped.
    pub(super) fn retire(&mut self, segment: SegmentId) {
        // If the connection is over, `attend` finds that, too.
        let _ = self.say(Packet::Retired(segment));
    }

    /// Says something, now or once the socket has room.
    fn say(&mut self, packet: Packet) -> Result<(), Errno> {
        self.untold.push_back(packet);
        self.tell()
    }

    /// Sends what was not told yet, as far as the socket takes it.
    fn tell(&mut self) -> Result<(), Errno> {
        while let Some(packet) = self.untold.front() {
            match self.send(packet) {
                Ok(()) => drop(self.untold.pop_front()),
                Err(Errno::EAGAIN) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Sends a packet, a segment with its descriptor. If it has none, or if the system passes no more descriptors: that there is none.
    fn send(&self, packet: &Packet) -> Result<(), Errno> {
        let Packet::Segment(id) = *packet else {
            return self.socket.send(&packet.encode(), None);
        };
        let borrower = self.borrower.as_ref();
        let segment = borrower.and_then(|borrower| borrower.fetch(id));
        let fd = segment.as_ref().map(|segment| segment.fd());
        match fd.map(|fd| self.socket.send(&packet.encode(), Some(fd))) {
            Some(sent @ (Ok(()) | Err(Errno::EAGAIN))) => sent,
            Some(Err(_)) | None => self.socket.send(&Packet::None(id).encode(), None),
        }
    }

    /// A process that brings an invitation is the one at the other end of that invitation's pipe.
    fn welcome(&mut self, exchange: &Arc<Exchange>, number: Token) -> Result<(), Errno> {
        let invitation = exchange.invitation(number);
        let borrower = invitation.and_then(|invitation| {
            let known = self.borrower.clone();
            let borrower = known.unwrap_or_else(|| exchange.borrower(self.who, &self.process));
            invitation.accept(&borrower).then_some(borrower)
        });
        let Some(borrower) = borrower else {
            // The pipe of the invitation may just have ended.
            tracing::debug!(who = ?self.who, "a process comes with an invitation that is not its own");
            return self.say(Packet::None(number));
        };
        let welcome = Packet::Welcome(number);
        if self.is_unidentified() {
            let ledger = borrower.made_ledger().map_err(|_| Errno::ENOMEM)?;
            self.socket.send(&welcome.encode(), Some(ledger.fd()))?;
            self.borrower = Some(borrower);
            // It may have come back to copies of which nobody was told while it had no connection.
            exchange.ask(Command::Tidy);
            return Ok(());
        }
        self.say(welcome)
    }

    pub(super) fn watch(&mut self) -> Option<Watched> {
        let borrower = self.borrower.take()?;
        borrower.cut_off();
        Some(Watched {
            borrower,
            process: self.process.clone(),
            who: self.who,
        })
    }

    /// Answers the process's packets, as far as its socket takes the answers; an error when the connection is over.
    fn talk(&mut self, exchange: &Arc<Exchange>) -> Result<(), Errno> {
        self.tell()?;
        let mut bytes = [0; PACKET_MAX];
        for _ in 0..BURST {
            if !self.untold.is_empty() {
                return Ok(());
            }
            let received = match self.socket.recv(&mut bytes) {
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
                Ok(received) if received.len == 0 => return Err(Errno::EPIPE),
                Ok(received) => received,
            };
            match Packet::decode(&bytes[..received.len]) {
                Some(Packet::Hello(number)) => self.welcome(exchange, number)?,
                Some(Packet::Fetch(id)) => self.say(Packet::Segment(id))?,
                Some(Packet::Where { to }) if exchange.is_meant(&to) => {
                    let exports = exchange.exports().ok_or(Errno::EPROTO)?;
                    self.say(Packet::Here(exports))?;
                }
                _ => return Err(Errno::EPROTO),
            }
        }
        Ok(())
    }
}
