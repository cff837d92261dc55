//! When a connection's bytes go through a large ring, which the peer must have mapped before.
//!
//! The writer passes its descriptor over the socket and offers it in the ring by its number: how many were passed so far. The
//! reader maps it and says so, or that it cannot, and from then on the writer may turn to it. Invariant: nothing is lost
//! where any of this fails or never happens; bytes go through the small ring then.

use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::pair::{Large, Loan, Pair};
use crate::ring::{self, Answer, Consumer, Mapped, Producer};
use crate::sync::{Arc, Weak};
use crate::sys::unix_fds::{self, Packet};

/// What a write must have left for a large ring to pay, in bytes: another fill of the small one.
pub(super) const BULK: usize = 64 << 10;

/// Looks for room in vain, some 10 µs, after which a reader is taken to be away: one that reads says every microsecond or two
/// how far it is.
const AWAY: u32 = 512;

/// Large rings that a peer may pass, in bytes.
const CAPACITIES: RangeInclusive<usize> = 64 << 10..=16 << 20;

/// Packets looked through for a descriptor that must be there: in front of it are wake-ups.
const PACKETS: u32 = 64;

/// The writer's side.
#[derive(Debug)]
pub(super) struct Outgoing {
    pair: Arc<Pair>,
    /// The small ring.
    home: Mapped,
    loan: Option<Loan>,
    is_turned: bool,
    /// What the peer was passed last, which it keeps unless it is told not to, and how many it was passed in all.
    passed: Weak<Large>,
    number: u64,
    is_kept: bool,
    /// The peer could not take one.
    is_refused: bool,
    /// Looks in vain since the ring has been full.
    looks: u32,
    /// How far the reader was when it was last looked after.
    seen: u64,
}

impl Outgoing {
    pub(super) fn new(pair: Arc<Pair>, home: Mapped) -> Self {
        Self {
            pair,
            home,
            loan: None,
            is_turned: false,
            passed: Weak::new(),
            number: 0,
            is_kept: false,
            is_refused: false,
            looks: 0,
            seen: 0,
        }
    }

    /// A look has found no room. Returns whether the reader is away, and something may be done about it.
    pub(super) fn in_vain(&mut self, out: &Producer<Mapped>) -> bool {
        if out.read() != self.seen {
            (self.seen, self.looks) = (out.read(), 0);
        }
        self.looks += 1;
        self.looks >= AWAY && !self.is_turned && !self.is_refused
    }

    /// Whether looks have found that the reader is away; counts anew.
    pub(super) fn was_reader_away(&mut self) -> bool {
        std::mem::take(&mut self.looks) >= AWAY
    }

    /// Bytes are about to be written; `at_once`: the last write found room, and nobody has slept since. Where the reader moves
    /// meanwhile, both ends are awake, and bytes go through the small ring again, which stays in the caches.
    pub(super) fn turn_back(&mut self, out: &mut Producer<Mapped>, at_once: bool) {
        if !self.is_turned {
            return;
        }
        let before = self.seen;
        let is_back = out.has_turned() && out.can_turn();
        self.seen = out.read();
        if at_once && is_back && self.seen > before {
            out.turn(0, self.home.clone());
            self.is_turned = false;
        }
    }

    /// The ring is full, there is more to write, and the reader is away. Returns whether the ring has become larger; if not, it
    /// may the next time.
    pub(super) fn enlarge(&mut self, out: &mut Producer<Mapped>, socket: BorrowedFd<'_>) -> bool {
        if self.is_turned || self.is_refused || !out.can_turn() {
            return false;
        }
        if self.loan.is_none() {
            self.loan = self.pair.borrow(&self.passed);
        }
        let Some(large) = self.loan.as_ref().and_then(Loan::large) else {
            return false;
        };
        if !self.is_kept || !std::ptr::eq(self.passed.as_ptr(), &**large) {
            if unix_fds::send(socket, &[1], Some(large.fd())).is_ok() {
                self.number += 1;
                (self.passed, self.is_kept) = (Arc::downgrade(large), true);
                out.offer(self.number);
            }
            return false;
        }
        match out.answer(self.number) {
            Answer::None => false,
            Answer::Refused => {
                self.is_refused = true;
                false
            }
            Answer::Taken => {
                self.seen = out.read();
                let place = self.home.with_place(large.memory.clone());
                self.is_turned = place.is_some();
                if let Some(place) = place {
                    out.turn(self.number, place);
                }
                self.is_turned
            }
        }
    }

    /// Gives the large ring back if it has been read to its end.
    pub(super) fn rest(&mut self, out: &mut Producer<Mapped>) {
        if self.loan.is_none() || (self.is_turned && !out.is_drained()) || !out.has_turned() {
            return;
        }
        if self.is_turned {
            out.turn(0, self.home.clone());
            self.is_turned = false;
        }
        if let Some(loan) = self.loan.take() {
            loan.give_back();
        }
    }

    /// Now and then: memory that nobody uses goes back, at both ends.
    pub(super) fn tidy(&mut self, out: &mut Producer<Mapped>) {
        if !self.is_kept || self.loan.is_some() {
            return;
        }
        self.pair.tidy();
        if self.passed.strong_count() == 0 {
            self.is_kept = false;
            out.withdraw();
        }
    }
}

#[cfg(test)]
impl Outgoing {
    pub(super) fn lent(&self) -> usize {
        usize::from(self.loan.is_some())
    }

    /// Shares with nobody: other tests are the same process, too.
    pub(super) fn share_with_nobody(&mut self) {
        self.pair = Arc::default();
    }
}

/// The reader's side.
#[derive(Debug)]
pub(super) struct Incoming {
    home: Mapped,
    /// How many descriptors have come, and the last one of them, if it could be taken.
    number: u64,
    last: Option<OwnedFd>,
}

impl Incoming {
    pub(super) fn new(home: Mapped) -> Self {
        Self {
            home,
            number: 0,
            last: None,
        }
    }

    /// A packet has come over the socket. Returns whether it had a descriptor: behind that there may be more.
    pub(super) fn received(&mut self, packet: Packet) -> bool {
        let had_one = packet.fd.is_some() || packet.fd_lost;
        if had_one {
            self.number += 1;
            self.last = packet.fd;
        }
        had_one
    }

    /// Answers what the peer offers, if it does. Returns whether wake-ups were taken from the socket.
    pub(super) fn answer(&mut self, from: &mut Consumer<Mapped>, socket: BorrowedFd<'_>) -> bool {
        let Some(number) = from.offer() else {
            return false;
        };
        let mut packets = 0;
        while self.number < number && packets < PACKETS {
            let Ok(packet) = unix_fds::recv(socket, &mut [0; 64]) else {
                break;
            };
            if packet.len == 0 {
                break;
            }
            packets += 1;
            self.received(packet);
        }
        let fd = self.last.take().filter(|_| self.number == number);
        from.answer(number, fd.and_then(|fd| self.place(&fd)));
        packets > 0
    }

    fn place(&self, fd: &OwnedFd) -> Option<Mapped> {
        match ring::adopt_place(fd, &CAPACITIES) {
            Ok(memory) => self.home.with_place(Arc::new(memory)),
            Err(reason) => {
                tracing::debug!(reason, "a large ring is not taken");
                None
            }
        }
    }
}
