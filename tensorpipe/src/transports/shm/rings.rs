//! The two rings of a connection, one for each direction, and how an idle ring releases its memory.
//!
//! A ring that has been full once has all of its memory resident. To make waiting connections cheap, the writing end
//! gives the memory back after a while. The first bytes afterwards cost a page fault for each 4 KiB.

use std::io;
use std::time::Duration;

use super::alarm::Alarm;
use super::errors::not_here;
use crate::ring::{Consumer, Mapped, Producer};
use crate::sync::Arc;
use crate::sys::memfd::Mapping;

/// A ring with little traffic for so long gives its memory back. Chosen.
pub(super) const IDLE: Duration = Duration::from_secs(10);

/// The most bytes in that time that count as little traffic: pings, and a call now and then. Chosen: new traffic touches no more memory
/// than is kept.
const LITTLE: u64 = 32 << 10;

/// Giving the memory back pays from so many bytes of it. Chosen.
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
            idle: Idle { alarm, begun: 0 },
        })
    }

    /// Fails in a forked child, which has the socket and not the memory.
    pub(super) fn are_here(&self) -> io::Result<()> {
        match self.memory.is_here() {
            true => Ok(()),
            false => Err(not_here()),
        }
    }

    /// Whether `poll` finds something. Also true if the memory is not here: the next read or write then reports that.
    pub(super) fn finds(&mut self, poll: impl FnOnce(&mut Self) -> bool) -> bool {
        !self.memory.is_here() || poll(self)
    }
}

/// Decides when the ring that this end writes to gives its memory back.
pub(super) struct Idle {
    /// Set while there may be memory to give back.
    alarm: Alarm,
    /// Bytes written when the alarm was set.
    begun: u64,
}

impl Idle {
    /// The connection goes to sleep.
    pub(super) fn begins(&mut self, out: &Producer<Mapped>) {
        if out.used() >= WORTH && self.alarm.set(IDLE) {
            self.begun = out.written();
        }
    }

    /// Whether it is time to [give memory back](Self::give_back_if_due).
    pub(super) fn is_due(&self) -> bool {
        self.alarm.has_rung()
    }

    /// Gives the memory back if there was little traffic for long enough. Otherwise this is tried again after the connection next
    /// goes to sleep.
    pub(super) fn give_back_if_due(&mut self, out: &mut Producer<Mapped>) {
        if !self.is_due() {
            return;
        }
        self.alarm.stop();
        if out.written() - self.begun <= LITTLE {
            out.give_back();
        }
    }

    /// The connection is dropped.
    pub(super) fn close(&mut self) {
        self.alarm.cancel();
    }
}
