//! A connection to a lender's exchange: it brings invitations and asks for segments.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::errno::Errno;
use tokio::sync::oneshot;

use super::broker::{ANSWER_TIMEOUT, BURST};
use super::lender::Lender;
use super::packet::{PACKET_MAX, Packet};
use super::{ExchangeError, LendError, Wanted};
use crate::process::Token;
use crate::sync::{Arc, Weak};
use crate::sys::ledger::Debts;
use crate::sys::segment::{Foreign, SegmentId};
use crate::sys::unix_fds::{self, PacketSocket};

/// See the module's documentation.
pub(super) struct Call {
    lender: Weak<Lender>,
    id: u64,
    socket: Arc<PacketSocket>,
    welcome: bool,
    asked: Vec<Asked>,
}

struct Asked {
    what: What,
    until: Instant,
    tell: oneshot::Sender<Result<(), LendError>>,
}

/// What an answer is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Invitation(Token),
    Segment(Wanted),
}

impl Call {
    /// Connects.
    pub(super) fn begin(lender: &Arc<Lender>) -> Result<Self, LendError> {
        let (socket, who) = super::connect(lender.name())?;
        lender.set_pid(who.pid);
        Ok(Self {
            lender: Arc::downgrade(lender),
            id: lender.id(),
            socket: Arc::new(socket),
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

    /// Brings an invitation and asks for a segment, unless the segment was asked for or is here already. A lender must hear an
    /// invitation first. The answer that goes to `tell` is the one to the last packet sent.
    pub(super) fn fetch(
        &mut self,
        invitation: Token,
        segment: Option<Wanted>,
        tell: oneshot::Sender<Result<(), LendError>>,
    ) {
        let lender = self.lender.upgrade();
        let has = |segment| lender.as_ref().is_some_and(|lender| lender.has(segment));
        let sent = match segment {
            Some(segment) if has(segment) => {
                let _ = tell.send(Ok(()));
                return;
            }
            Some(_) if self.welcome => Ok(()),
            _ => self.send(&What::Invitation(invitation)),
        };
        let what = segment.map_or(What::Invitation(invitation), What::Segment);
        let sent = sent.and_then(|()| match what {
            What::Segment(_) => self.send(&what),
            What::Invitation(_) => Ok(()),
        });
        if let Err(errno) = sent {
            let _ = tell.send(Err(ExchangeError::Absent(errno).into()));
            return;
        }
        self.asked.push(Asked {
            what,
            until: Instant::now() + ANSWER_TIMEOUT,
            tell,
        });
    }

    /// Sends the question, unless it was sent before and is not answered yet.
    fn send(&self, what: &What) -> Result<(), Errno> {
        if self.asked.iter().any(|asked| asked.what == *what) {
            return Ok(());
        }
        let packet = match *what {
            What::Invitation(number) => Packet::Hello(number),
            What::Segment(wanted) => Packet::Fetch(wanted.id()),
        };
        self.socket.send(&packet.encode(), None)
    }

    /// When the first answer is overdue.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.asked.iter().map(|asked| asked.until).min()
    }

    /// Gives up overdue questions. `false`: nobody needs the connection any more. Before the lender's welcome, a connection without
    /// open questions is given up as well: the lender would close it.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let Some(lender) = self.lender.upgrade() else {
            return false;
        };
        let late = self.asked.extract_if(.., |asked| asked.until <= now);
        for asked in late {
            lender.failed();
            let reason = format!("the peer's exchange says nothing for {ANSWER_TIMEOUT:?}");
            let _ = asked.tell.send(Err(LendError::now(reason)));
        }
        self.welcome || !self.asked.is_empty()
    }

    /// Handles incoming packets. When the connection is over, returns an error and reports it to everybody who asked.
    pub(super) fn listen(&mut self) -> Result<(), String> {
        let result = self.packets();
        if let Err(reason) = &result {
            if let Some(lender) = self.lender.upgrade() {
                lender.lost();
            }
            for asked in self.asked.drain(..) {
                let _ = asked.tell.send(Err(LendError::now(reason.as_str())));
            }
            tracing::debug!(reason, "the exchange of a lender is lost");
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
                (Some(Packet::Welcome(number)), welcome) => {
                    if !welcome {
                        lender.welcomed(Debts::map(passed(&received)?)?, &self.socket);
                        self.welcome = true;
                    }
                    self.answer(What::Invitation(number), &Ok(()));
                }
                (Some(Packet::Segment(id)), true) => {
                    let device = What::Segment(Wanted::Device(id));
                    let is_of_device = self.asked.iter().any(|asked| asked.what == device);
                    let got = passed(&received).and_then(|fd| match is_of_device {
                        true => {
                            let fd = fd.try_clone_to_owned();
                            let fd = fd.map_err(|error| error.to_string())?;
                            Ok(lender.add_descriptor(id, fd))
                        }
                        false => Ok(lender.mapped(id, Foreign::map(fd)?)),
                    });
                    let got = got.unwrap_or_else(|reason| {
                        lender.failed();
                        Err(LendError::now(reason))
                    });
                    self.answer_about(id, &got);
                }
                (Some(Packet::None(id)), _) => {
                    let refused = Err(LendError::now("the peer does not lend it"));
                    self.answer(What::Invitation(id), &refused);
                    self.answer_about(id, &refused);
                }
                (Some(Packet::Retired(id)), true) => lender.retired(id),
                _ => return Err("the peer's exchange makes no sense".to_owned()),
            }
        }
        Ok(())
    }

    fn answer_about(&mut self, segment: SegmentId, answer: &Result<(), LendError>) {
        self.answer(What::Segment(Wanted::Main(segment)), answer);
        self.answer(What::Segment(Wanted::Device(segment)), answer);
    }

    fn answer(&mut self, what: What, answer: &Result<(), LendError>) {
        for asked in self.asked.extract_if(.., |asked| asked.what == what) {
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
