//! A connection to the exchange of a lender, and the segments that are asked for on it.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::errno::Errno;
use tokio::sync::oneshot;

use super::clerk::{BURST, PATIENCE};
use super::lender::Lender;
use super::packet::{PACKET_MAX, Packet};
use super::{Exchange, Unlent, Unmet};
use crate::sync::{Arc, Weak};
use crate::sys::ledger::Debts;
use crate::sys::segment::{Foreign, SegmentId};
use crate::sys::unix_fds::{self, PacketSocket};

/// See the module's documentation.
pub(super) struct Call {
    lender: Weak<Lender>,
    id: u64,
    socket: PacketSocket,
    welcome: bool,
    asked: Vec<Asked>,
}

struct Asked {
    segment: SegmentId,
    until: Instant,
    tell: oneshot::Sender<Result<(), Unlent>>,
}

impl Call {
    /// Connects, and says who is here.
    pub(super) fn begin(exchange: &Exchange, lender: &Arc<Lender>) -> Result<Self, Unlent> {
        let socket = super::meet(lender.name())?;
        let hello = Packet::Hello {
            from: exchange.process(),
            to: lender.process(),
        };
        let sent = socket.send(&hello.encode(), None);
        sent.map_err(|errno| Unlent::from(Unmet::Absent(errno)))?;
        Ok(Self {
            lender: Arc::downgrade(lender),
            id: lender.id(),
            socket,
            welcome: false,
            asked: Vec::new(),
        })
    }

    pub(super) fn lender(&self) -> u64 {
        self.id
    }

    pub(super) fn is_to(&self, lender: &Lender) -> bool {
        self.id == lender.id()
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks for a segment, unless it is asked for or there already.
    pub(super) fn fetch(&mut self, segment: SegmentId, tell: oneshot::Sender<Result<(), Unlent>>) {
        let lender = self.lender.upgrade();
        if lender.is_some_and(|lender| lender.has(segment)) {
            let _ = tell.send(Ok(()));
            return;
        }
        if !self.asked.iter().any(|asked| asked.segment == segment) {
            let sent = self.socket.send(&Packet::Fetch(segment).encode(), None);
            if let Err(errno) = sent {
                let _ = tell.send(Err(Unmet::Absent(errno).into()));
                return;
            }
        }
        self.asked.push(Asked {
            segment,
            until: Instant::now() + PATIENCE,
            tell,
        });
    }

    /// When the first answer is overdue.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.asked.iter().map(|asked| asked.until).min()
    }

    /// Gives up what is overdue. `false`: nobody needs the connection any more.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let Some(lender) = self.lender.upgrade() else {
            return false;
        };
        let late = self.asked.extract_if(.., |asked| asked.until <= now);
        for asked in late {
            lender.failed();
            let reason = format!("the peer's exchange says nothing for {PATIENCE:?}");
            let _ = asked.tell.send(Err(Unlent::now(reason)));
        }
        true
    }

    /// Takes what comes; an error, told to all who asked, when it is over.
    pub(super) fn listen(&mut self) -> Result<(), String> {
        let result = self.packets();
        if let Err(reason) = &result {
            tracing::debug!(reason, "the exchange of a lender is lost");
            if let Some(lender) = self.lender.upgrade() {
                lender.lost();
            }
            for asked in self.asked.drain(..) {
                let _ = asked.tell.send(Err(Unlent::now(reason.as_str())));
            }
        }
        result
    }

    fn packets(&mut self) -> Result<(), String> {
        let Some(lender) = self.lender.upgrade() else {
            return Err("nothing of it is borrowed any more".to_owned());
        };
        let mut bytes = [0; PACKET_MAX];
        for _ in 0..BURST {
            let received = match self.socket.recv(&mut bytes) {
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(errno.to_string()),
                Ok(received) if received.len == 0 => {
                    return Err("the peer's exchange has closed".to_owned());
                }
                Ok(received) => received,
            };
            match (Packet::decode(&bytes[..received.len]), self.welcome) {
                (Some(Packet::Welcome), false) => {
                    lender.welcomed(Debts::map(passed(&received)?)?);
                    self.welcome = true;
                }
                (Some(Packet::Segment(id)), true) => {
                    let mapped = match passed(&received).and_then(Foreign::map) {
                        Ok(segment) => lender.mapped(id, segment),
                        Err(reason) => {
                            lender.failed();
                            Err(Unlent::now(reason))
                        }
                    };
                    self.answer(id, &mapped);
                }
                (Some(Packet::None(id)), true) => {
                    self.answer(id, &Err(Unlent::now("the peer does not lend it")));
                }
                (Some(Packet::Retired(id)), true) => lender.retired(id),
                _ => return Err("the peer's exchange makes no sense".to_owned()),
            }
        }
        Ok(())
    }

    fn answer(&mut self, id: SegmentId, answer: &Result<(), Unlent>) {
        for asked in self.asked.extract_if(.., |asked| asked.segment == id) {
            let _ = asked.tell.send(answer.clone());
        }
    }
}

fn passed(received: &unix_fds::Packet) -> Result<BorrowedFd<'_>, String> {
    let reason = match received.fd_lost {
        true => "too many files are open here; raise the limit (`ulimit -n`)",
        false => "the peer's exchange has passed no descriptor",
    };
    let fd = received.fd.as_ref().map(AsFd::as_fd);
    fd.ok_or_else(|| reason.to_owned())
}
