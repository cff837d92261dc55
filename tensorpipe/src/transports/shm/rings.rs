//! The rings of a connection, one for each direction, and what becomes of their memory when little is said.
//!
//! A ring in use has all of its memory, since bytes go through all of it. So that a connection which waits costs little, the
//! end that writes gives it back after a while. The first bytes afterwards cost a page fault each 4 KiB.

use std::io;
use std::time::Duration;

use super::alarm::Alarm;
use super::errors::not_here;
use crate::ring::{Consumer, Mapped, Producer};
use crate::sync::Arc;
use crate::sys::memfd::Mapping;

/// After so long with little to say. Chosen.
pub(super) const IDLE: Duration = Duration::from_secs(10);

/// Bytes written in that time by a connection with little to say: pings, and a call now and then. Chosen: what it touches anew is
/// no more than it keeps.
const LITTLE: u64 = 32 << 10;

/// Bytes written since the last time that are worth it: so much memory would be kept. Chosen.
const WORTH: u64 = 32 << 10;

pub(super) struct Rings {
    pub(super) out: Producer<Mapped>,
    pub(super) incoming: Consumer<Mapped>,
    pub(super) memory: Arc<Mapping>,
    pub(super) finished: bool,
    pub(super) idle: Idle,
}

impl Rings {
    /// `side`: 0 writes to the first ring and reads from the second, 1 the other way round.
    pub(super) fn new(memory: Mapping, side: usize, alarm: Alarm) -> Option<Self> {
        let memory = Arc::new(memory);
        Some(Self {
            out: Producer::new(Mapped::new(memory.clone(), side)?),
            incoming: Consumer::new(Mapped::new(memory.clone(), 1 - side)?),
            memory,
            finished: false,
            idle: Idle {
                alarm,
                given_back: 0,
                begun: 0,
            },
        })
    }

    /// Fails in a forked child, which has the socket and not the memory.
    pub(super) fn are_here(&self) -> io::Result<()> {
        match self.memory.is_here() {
            true => Ok(()),
            false => Err(not_here()),
        }
    }

    /// Whether `poll` finds something, or the memory is not here: then whoever reads or writes learns it.
    pub(super) fn finds(&mut self, poll: impl FnOnce(&mut Self) -> bool) -> bool {
        !self.memory.is_here() || poll(self)
    }
}

/// When the memory of the ring that this end writes to goes back.
pub(super) struct Idle {
    /// Set while there may be something to give back.
    alarm: Alarm,
    /// Bytes written when it went back last, and when the alarm was set.
    given_back: u64,
    begun: u64,
}

impl Idle {
    /// The connection falls asleep.
    pub(super) fn begins(&mut self, out: &Producer<Mapped>) {
        if out.written() - self.given_back >= WORTH && self.alarm.set(IDLE) {
            self.begun = out.written();
        }
    }

    /// Whether it is time to [give memory back](Self::give_back_if_due).
    pub(super) fn is_due(&self) -> bool {
        self.alarm.has_rung()
    }

    /// Gives the memory back where little was said for long. If not, it is looked after anew when the connection falls asleep.
    pub(super) fn give_back_if_due(&mut self, out: &mut Producer<Mapped>) {
        if !self.is_due() {
            return;
        }
        self.alarm.stop();
        if out.written() - self.begun <= LITTLE && out.give_back() {
            self.given_back = out.written();
        }
    }

    /// The connection is dropped.
    pub(super) fn close(&mut self) {
        self.alarm.cancel();
    }
}
