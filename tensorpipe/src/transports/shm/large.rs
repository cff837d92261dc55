//! When a connection's bytes go through a large ring, which the peer must have mapped before.
//!
//! Where the reader keeps up, through a part of it that stays in the caches; where it is away, through the whole of it,
//! so that each of its turns moves much. The writer passes its descriptor over the socket and offers it in the ring by
//! its number: how many were passed so far. The reader maps it and says so, or that it cannot, and from then on the
//! writer may turn to it. Invariant: nothing is lost where any of this fails or never happens; bytes go through the small
//! ring then.

use std::ops::RangeInclusive;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::alarm::Alarm;
use super::pair::{IDLE, LARGE, Large, Loan, MEDIUM, Pair};
use super::wakers::Wakers;
use crate::ring::{self, Answer, Consumer, Mapped, Producer};
use crate::sync::{Arc, Weak};
use crate::sys::memfd::Mapping;
use crate::sys::peer::Peer;
use crate::sys::unix_fds::{self, Packet};

/// What a write must have left for a large ring to pay, in bytes: a fill of the small one.
pub(super) const BULK: usize = 64 << 10;

/// From so many bytes on a larger ring pays from the first of them on. (64 KiB took 0.86 of their time there and back where
/// the reader keeps up, and half of it on one core, but a pipe with such messages is to hold no more memory than its own
/// rings when it falls idle: ten of them had 460 to 550 KiB each, for some seconds.)
const MUCH: usize = 2 * BULK;

/// Looks for room in vain, some 10 µs, after which a reader is taken to be away: one that reads says every microsecond or
/// two how far it is.
const AWAY: u32 = 512;

/// Large rings that a peer may pass, in bytes.
const CAPACITIES: RangeInclusive<usize> = 64 << 10..=16 << 20;

/// Packets looked through for a descriptor that must be there: in front of it are wake-ups.
const PACKETS: u32 = 64;

/// The writer's side.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// As the kernel says who made the other end's socket.
    peer: Option<Peer>,
    /// Known once the reader has said who it is.
    pair: Option<Arc<Pair>>,
    /// Set while there is a loan, or something kept.
    alarm: Alarm,
    /// The small ring.
    home: Mapped,
    loan: Option<Loan>,
    /// Bytes of the place in it where the ring is; 0 is at home.
    turned: usize,
    /// When the ring was full last, the reader made room while the writer looked.
    keeps_up: bool,
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
    pub(super) fn new(peer: Option<Peer>, home: Mapped, alarm: Alarm) -> Self {
        Self {
            peer,
            pair: None,
            alarm,
            home,
            loan: None,
            turned: 0,
            keeps_up: false,
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
        // A reader may be away for days.
        self.looks = self.looks.saturating_add(1);
        self.looks >= AWAY && self.turned < LARGE && !self.is_refused
    }

    /// Whether the reader is away: looks have found it so, or the writer `sleeps`, who would be woken for each fill of
    /// the ring. Counts anew. `made_room`: the last write found none, and there is some now.
    pub(super) fn was_reader_away(&mut self, sleeps: bool, made_room: bool) -> bool {
        let is_away = std::mem::take(&mut self.looks) >= AWAY || sleeps;
        self.keeps_up = !is_away && (self.keeps_up || made_room);
        is_away
    }

    /// Of how many bytes a place should be before so many are written: what the small ring holds would have to be read
    /// before the rest can follow. `None`: where they go now is well.
    pub(super) fn pays(&self, bytes: usize, is_away: bool) -> Option<usize> {
        if self.turned > 0 {
            return None;
        }
        match bytes {
            MUCH.. if self.keeps_up => Some(MEDIUM),
            MUCH..=MEDIUM if is_away => Some(MEDIUM),
            MUCH.. if is_away => Some(LARGE),
            _ => None,
        }
    }

    /// So many bytes are about to be written; `at_once`: the last write found room, and nobody has slept since. Where the
    /// reader moves meanwhile, or made room, both ends run, and what is left goes through what stays in the caches.
    pub(super) fn turn_back(&mut self, out: &mut Producer<Mapped>, at_once: bool, bytes: usize) {
        if self.turned < LARGE {
            return;
        }
        let before = self.seen;
        let is_back = out.has_turned() && out.can_turn();
        self.seen = out.read();
        if is_back && (self.keeps_up || (at_once && self.seen > before)) {
            // One that sleeps shares a core, maybe, and its caches.
            let is_awake = self.keeps_up && bytes >= BULK;
            self.turn(out, if is_awake { MEDIUM } else { 0 });
        }
    }

    /// To the place of so many bytes in what is lent, which the reader has taken; 0 is home. Returns whether it is there.
    fn turn(&mut self, out: &mut Producer<Mapped>, capacity: usize) -> bool {
        let large = self.loan.as_ref().and_then(Loan::large);
        let (number, place) = match capacity {
            0 => (0, Some(self.home.clone())),
            _ => {
                let place =
                    |large: &Arc<Large>| self.home.with_place(large.memory.clone(), capacity);
                (self.number, large.and_then(place))
            }
        };
        let is_there = place.is_some();
        if let Some(place) = place {
            out.turn(number, place);
            self.turned = capacity;
        }
        is_there
    }

    /// There is more to write than the ring should have to take at once, if it has not so many bytes. Returns whether the
    /// ring has become larger; if not, it may the next time.
    pub(super) fn enlarge(
        &mut self,
        out: &mut Producer<Mapped>,
        socket: BorrowedFd<'_>,
        capacity: usize,
    ) -> bool {
        let is_settled = self.turned >= capacity || self.is_refused;
        if is_settled || !out.has_turned() || !out.can_turn() {
            return false;
        }
        if self.loan.is_none() {
            self.meet(out);
            let pair = self.pair.as_ref();
            self.loan = pair.and_then(|pair| pair.borrow(&self.passed));
            self.alarm.set(IDLE);
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
                self.turn(out, capacity)
            }
        }
    }

    /// Finds out with whom large rings are shared, once the reader has looked at the small one.
    fn meet(&mut self, out: &Producer<Mapped>) {
        if self.pair.is_some() {
            return;
        }
        self.pair = match (&self.peer, out.reader()) {
            (Some(peer), Some(reader)) => Some(Pair::with(peer, reader)),
            // Whoever does not say who it is shares with nobody.
            _ if out.read() > 0 => Some(Arc::default()),
            _ => None,
        };
    }

    /// Gives the large ring back if it has been read to its end.
    pub(super) fn rest(&mut self, out: &mut Producer<Mapped>) {
        if self.loan.is_none() || (self.turned > 0 && !out.is_drained()) || !out.has_turned() {
            return;
        }
        if self.turned > 0 {
            self.turn(out, 0);
        }
        if let Some(loan) = self.loan.take() {
            loan.give_back();
        }
    }

    /// Whether it is time to [tidy](Self::tidy).
    pub(super) fn is_untidy(&self) -> bool {
        self.alarm.has_rung()
    }

    /// Memory that nobody uses goes back, at both ends, and will the next time. Calls `wake` when the reader sleeps.
    pub(super) fn tidy(&mut self, out: &mut Producer<Mapped>, wake: impl FnMut()) {
        self.alarm.stop();
        // Also where a write waits: it may have been given up.
        self.rest(out);
        if let Some(pair) = &self.pair {
            pair.tidy();
        }
        if self.is_kept && self.passed.strong_count() == 0 {
            self.is_kept = false;
            out.withdraw(wake);
        }
        if self.is_kept || self.loan.is_some() {
            self.alarm.set(IDLE);
        }
    }

    /// The writer falls asleep, and is woken by `wakers`: others may want what it has borrowed.
    pub(super) fn falls_asleep(&self, out: &Producer<Mapped>, wakers: &Arc<Wakers>) {
        if let Some(loan) = &self.loan {
            loan.falls_asleep(self.home.clone(), out.written(), Arc::downgrade(wakers));
        }
    }

    /// The connection is dropped.
    pub(super) fn close(&mut self, out: &mut Producer<Mapped>) {
        self.rest(out);
        self.alarm.cancel();
    }
}

#[cfg(test)]
impl Outgoing {
    pub(super) fn lent(&self) -> usize {
        usize::from(self.loan.is_some())
    }

    /// Room was looked for so often.
    pub(super) fn has_looked(&mut self, looks: u32) {
        self.looks = looks;
    }

    /// With these alone: other tests are the same process, too.
    pub(super) fn share(&mut self, pair: Arc<Pair>) {
        self.pair = Some(pair);
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
        let memory = fd.and_then(|fd| Self::adopt(&fd));
        let places = |memory| self.home.with_places(memory, *CAPACITIES.start());
        from.answer(number, memory.iter().flat_map(places));
        packets > 0
    }

    fn adopt(fd: &OwnedFd) -> Option<Arc<Mapping>> {
        match ring::adopt_place(fd, &CAPACITIES) {
            Ok(memory) => Some(Arc::new(memory)),
            Err(reason) => {
                tracing::debug!(%reason, "a large ring is not taken");
                None
            }
        }
    }
}
