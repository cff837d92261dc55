//! A connection from a process that borrows from this one.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Instant;

use nix::errno::Errno;

use super::Exchange;
use super::borrower::Borrower;
use super::broker::{ANSWER_TIMEOUT, BURST, UNTOLD};
use super::packet::{PACKET_MAX, Packet};
use crate::process::Token;
use crate::sync::Arc;
use crate::sys::machine;
use crate::sys::peer::{self, ProcessIdentity};
use crate::sys::segment::SegmentId;
use crate::sys::unix_fds::PacketSocket;

/// A borrower that has closed its connection but still holds loans.
pub(super) struct Watched {
    pub(super) process: Arc<OwnedFd>,
    pub(super) who: ProcessIdentity,
    pub(super) borrower: Arc<Borrower>,
}

/// See the module's documentation.
pub(super) struct Client {
    pub(super) socket: PacketSocket,
    pub(super) process: Arc<OwnedFd>,
    who: ProcessIdentity,
    /// `None` until the process has identified itself.
    pub(super) borrower: Option<Arc<Borrower>>,
    /// Retired segments that the process was not told of yet, because its socket was full.
    pub(super) untold: VecDeque<SegmentId>,
    pub(super) arrived: Instant,
}

/// Whether the broker keeps a client.
pub(super) enum Stays {
    Here,
    /// It has closed its connection but still holds loans.
    Watched,
    Gone,
}

impl Client {
    pub(super) fn new(socket: PacketSocket) -> Result<Self, String> {
        let who = peer::of_socket(&socket).map_err(|error| error.to_string())?;
        if who.user != machine::user() {
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
        self.tell();
        if said && self.listen(exchange).is_err() || self.untold.len() > UNTOLD {
            let has_loans = |borrower: &Arc<Borrower>| borrower.has_loans();
            return match self.borrower.as_ref().is_some_and(has_loans) {
                true => Stays::Watched,
                false => Stays::Gone,
            };
        }
        match self.is_unidentified() && self.arrived.elapsed() > ANSWER_TIMEOUT {
            true => Stays::Gone,
            false => Stays::Here,
        }
    }

    /// Tells the process which segments are retired, as far as the socket takes it: a process that is not told keeps them mapped.
    pub(super) fn tell(&mut self) {
        while let Some(segment) = self.untold.front() {
            let retired = Packet::Retired(*segment).encode();
            if self.socket.send(&retired, None).is_err() {
                return;
            }
            self.untold.pop_front();
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
            return self.socket.send(&Packet::None(number).encode(), None);
        };
        let welcome = Packet::Welcome(number).encode();
        if self.is_unidentified() {
            let ledger = borrower.made_ledger().map_err(|_| Errno::ENOMEM)?;
            self.socket.send(&welcome, Some(ledger.fd()))?;
            self.borrower = Some(borrower);
            return Ok(());
        }
        self.socket.send(&welcome, None)
    }

    pub(super) fn watch(&mut self) -> Option<Watched> {
        Some(Watched {
            borrower: self.borrower.take()?,
            process: self.process.clone(),
            who: self.who,
        })
    }

    /// Answers the process's packets; an error when the connection is over.
    fn listen(&mut self, exchange: &Arc<Exchange>) -> Result<(), Errno> {
        let mut bytes = [0; PACKET_MAX];
        for _ in 0..BURST {
            let received = match self.socket.recv(&mut bytes) {
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
                Ok(received) if received.len == 0 => return Err(Errno::EPIPE),
                Ok(received) => received,
            };
            match (Packet::decode(&bytes[..received.len]), &self.borrower) {
                (Some(Packet::Hello(number)), _) => self.welcome(exchange, number)?,
                (Some(Packet::Fetch(id)), borrower) => {
                    let segment = borrower.as_ref().and_then(|borrower| borrower.fetch(id));
                    let fd = segment.as_ref().map(|segment| segment.fd());
                    let sent = match fd {
                        Some(_) => self.socket.send(&Packet::Segment(id).encode(), fd),
                        None => Err(Errno::ENOENT),
                    };
                    // Also if the system passes no more descriptors.
                    if sent.is_err() {
                        self.socket.send(&Packet::None(id).encode(), None)?;
                    }
                }
                (Some(Packet::Where { to }), _) if exchange.is_meant(&to) => {
                    let exports = exchange.exports().ok_or(Errno::EPROTO)?;
                    self.socket.send(&Packet::Here(exports).encode(), None)?;
                }
                _ => return Err(Errno::EPROTO),
            }
        }
        Ok(())
    }
}
